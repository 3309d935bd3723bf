"""What a test of Slurm's says by its exit code and by what it printed."""

from __future__ import annotations

import re

from slurm_suite.choice import Test

__all__ = ["result_of", "why_of"]

_NO_TESTS = 5
"""pytest's exit code where a whole file was skipped."""


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
