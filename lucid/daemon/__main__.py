"""``python -m lucid.daemon`` is ``lucidd``."""

import sys

from lucid.daemon.process import main

if __name__ == "__main__":
    sys.exit(main())
