"""The client over pyslurm, in a process inside the testbed: libslurm of the tree is not this machine's.

Run inside (``python3 pyslurm_box.py``), it answers calls: a name and arguments in, a value or an error out, pickled.
"""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from box import Box

LIBRARY = "/usr/local/lib/lucid-testbed"
"""Where the testbed installs pyslurm."""
HERE = "/opt/lucid-tests"


def no_pyslurm(box: Box) -> str:
    """Why the testbed's pyslurm is no client; empty: it is one."""
    if not (box.root / LIBRARY.lstrip("/") / "pyslurm").is_dir():
        return "no pyslurm in this testbed: LUCID_TESTBED_PYSLURM (docs/testbed.md)"
    if box.release < (25, 11):
        return "pyslurm before 25.11.2 does not tell what a job asks for (docs/decisions/0032-pyslurm.md)"
    return ""


class PyslurmProcess:
    """Every method of ``PyslurmClient``."""

    name = "pyslurm"

    def __init__(self, box: Box) -> None:
        folder = box.root / HERE.lstrip("/")
        repo = Path(__file__).resolve().parents[2]
        if not folder.is_dir():
            shutil.copytree(repo / "lucid", folder / "lucid", ignore=shutil.ignore_patterns("__pycache__"))
            shutil.copy(__file__, folder)
        self._process = subprocess.Popen(
            ["chroot", "--userspec=lucid", str(box.root), "env", f"PYTHONPATH={HERE}:{LIBRARY}", "LC_ALL=C.UTF-8",
             "python3", f"{HERE}/{Path(__file__).name}"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/",
        )  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        def call(*given: Any) -> Any:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            pickle.dump((name, given), self._process.stdin)
            self._process.stdin.flush()
            good, value = pickle.load(self._process.stdout)
            if not good:
                raise value
            return value

        return call

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(20)
        self._process.stdout.close()


def main() -> None:
    import time

    from lucid.slurm.client import Breaker
    from lucid.slurm.pyslurm import PyslurmClient

    out = sys.stdout.buffer
    sys.stdout = sys.stderr  # pyslurm itself prints at times
    breaker = Breaker(time.monotonic)
    client: Any = None
    while True:
        try:
            name, given = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            client = client or PyslurmClient([], breaker)
            answer = True, getattr(client, name)(*given)
        except Exception as error:
            answer = False, error
        pickle.dump(answer, out)
        out.flush()


if __name__ == "__main__":
    main()
