"""`python slurm/testbed up|down|status`: needs nothing but Python, so that it also runs before `make install`."""

import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
sys.path[:1] = [str(_HERE.parent), str(_HERE.parent.parent)]

from testbed.cli import main  # noqa: E402

sys.exit(main())
