"""``python3 -IB /etc/slurm/lucid/lucid_hooks VERB …``: see ``commands``."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[1]))  # after Python's own: nothing there stands in for it
    from lucid_hooks.commands import main

    sys.exit(main(sys.argv[1:]))
