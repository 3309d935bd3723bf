"""Which of Slurm's own tests are run, as whom, and what one says."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

GPU = dict.fromkeys(("SBATCH_GRES", "SALLOC_GRES", "SLURM_GRES"), "gpu:1")
"""With these in the environment nearly every job of a test asks for a GPU, and so is one that Lucid looks after."""
_AS_USER = (1, 2, 5, 6, 12, 15, 17, 28, 38)
_GPUS = 39
"""These tests ask for GPUs themselves."""
_AS_ROOT = (3, 19, 21)
"""Reservations and other work of administrators, triggers, and accounting."""
_PYTHON = 100
"""Tests written in Python have numbers above this."""
_NO_TESTS = 5
"""pytest's exit code where a whole file was skipped."""


@dataclass(frozen=True, slots=True)
class Test:
    """``name``: as 17.60, or 101.1 for test_101_1.py; ``file``: below the folder testsuite; ``user``: who runs it;
    ``gpu``: with GPUs in its environment."""

    __test__ = False

    name: str
    file: str
    user: str
    gpu: bool

    @property
    def python(self) -> bool:
        return self.file.endswith(".py")


def found_in(source: Path) -> list[Test]:
    """The tests of a source folder of Slurm that are for us, in the order of their numbers."""
    tests: dict[tuple[int, int], Test] = {}
    for path in (source / "testsuite").glob("*/**/test*"):
        group = re.fullmatch(r"test(\d+)\.(\d+)|test_(\d+)_(\d+)\.py", path.name)
        if group is None or not path.is_file():
            continue
        major, minor = (int(number) for number in group.groups() if number is not None)
        if major in (*_AS_USER, *_AS_ROOT, _GPUS) or major > _PYTHON:
            file = str(path.relative_to(source / "testsuite"))
            user = "root" if major in _AS_ROOT else "alice"
            tests[major, minor] = Test(f"{major}.{minor}", file, user, major != _GPUS)
    return [tests[number] for number in sorted(tests)]


def chosen(tests: Iterable[Test], only: str) -> list[Test]:
    """Those that one of the patterns names, such as ``17.60 39.*``; all of them without a pattern."""
    patterns = only.replace(",", " ").split()
    return [test for test in tests if not patterns or any(fnmatchcase(test.name, each) for each in patterns)]


def version_of(source: Path) -> str:
    """Of the tests: what META says, as 24.11.5. A folder without it has the version ``unknown``."""
    try:
        said = re.search(r"^\s*Version:\s*(\S+)$", (source / "META").read_text(), re.M)
    except OSError:
        said = None
    return said[1] if said else "unknown"


def result_of(test: Test, code: int | None, text: str) -> str:
    """pass, fail, skip or timeout. ``code``: ``None`` where its time ran out."""
    if code is None:
        return "timeout"
    if test.python:
        passed = re.search(r"\d+ passed", text.rstrip().rpartition("\n")[2])
        return "fail" if code not in (0, _NO_TESTS) else "pass" if passed else "skip"
    return "pass" if code == 0 else "skip" if code > 127 else "fail"


def why_of(text: str) -> str:
    """The line in which the test says what is wrong; empty where it says nothing."""
    said = re.findall(r"(?m)^\[[^]]*\][ \[]+(?:Fatal|Error|Warning)[ \]:]+(.*?)(?: \([^()]*\))?\s*$", text)
    said = said or re.findall(r"(?m)^(?:E  +|FAILED |SKIPPED )(.*?)\s*$", text)
    return str(said[-1])[:300] if said else ""
