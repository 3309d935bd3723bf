"""`python slurm/testbed up|down|status`: needs nothing but Python, so that it also runs before `make install`.
`watch OWNER FOLDER` is started by programs that make testbeds (`lifetime`)."""

import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
sys.path[:1] = [str(_HERE.parent), str(_HERE.parent.parent)]

from testbed.cli import main  # noqa: E402
from testbed.lifetime import watch  # noqa: E402

if sys.argv[1:2] == ["watch"]:
    watch(sys.argv[2], Path(sys.argv[3]))
else:
    sys.exit(main())
