"""Environments that ``make`` makes for tests alone, made by one test process while the others wait."""

from __future__ import annotations

import subprocess
from pathlib import Path

from testbed import tree

REPO = Path(__file__).resolve().parents[2]


def why_not_made(target: str) -> str:
    """Makes a target of the Makefile. Two makes at once would each find the other's environment half made.

    Returns:
        The end of what make said where it failed, else "".
    """
    with tree.locked(REPO / "build/make.lock"):
        done = subprocess.run(["make", target], cwd=REPO, capture_output=True, text=True, check=False, timeout=600)
    return done.stderr[-300:] or "make failed" if done.returncode else ""
