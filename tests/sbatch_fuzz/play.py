"""Both sides of many lines, and the shortest form of a line that differs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from box import Box
from daemon_box import Lucidd

from sbatch_fuzz.compare import compared, named, unnamed
from sbatch_fuzz.lines import Case
from sbatch_fuzz.watch import Got, run

__all__ = ["Finding", "Result", "play", "shortest"]

Differs = Callable[[Case], Sequence[str]]


@dataclass(frozen=True)
class Finding:
    """A line that differs: its number, itself, its shortest form, and what differs there."""

    number: int
    case: Case
    short: Case
    words: tuple[str, ...]


@dataclass(frozen=True)
class Result:
    """``refused``, ``slots``: lines that plain Slurm refused, runs that were in slots. ``rows``: how often each row
    of docs/differences.md was met."""

    cases: int
    refused: int
    slots: int
    findings: tuple[Finding, ...]
    rows: dict[str, int]
    took_s: tuple[float, float]


def shortest(case: Case, differs: Differs) -> tuple[Case, tuple[str, ...]]:
    """Leave options out as long as something differs."""
    words, changed = tuple(differs(case)), True
    while changed:
        changed = False
        for at in range(len(case.options)):
            fewer = case.without(at)
            if found := tuple(differs(fewer)):
                case, words, changed = fewer, found, True
                break
    return case, words


def play(box: Box, lucidd: Lucidd, wanted: Sequence[Case], say: Callable[[str], None], shrink: bool = True) -> Result:
    """All lines on plain Slurm first, then under Lucid; each alone on an idle testbed."""
    began_s = time.monotonic()

    def side(name: str) -> list[Got]:
        found = []
        for at, case in enumerate(wanted):
            found.append(run(box, case))
            if at % 20 == 19:
                say(f"{name}: {at + 1} of {len(wanted)} lines")
        return found

    box.stop_beating()
    plain = side("plain Slurm")
    half_s = time.monotonic()
    lucidd.start()
    lucid = side("Lucid")
    took_s = half_s - began_s, time.monotonic() - half_s
    rows: dict[str, int] = {}
    odd: list[tuple[int, Case, list[str]]] = []
    for at, (case, before, after) in enumerate(zip(wanted, plain, lucid, strict=True)):
        words = compared(case, before, after)
        for row in named(words).values():
            rows[row] = rows.get(row, 0) + 1
        if left := unnamed(words):
            odd.append((at, case, left))
    findings = []
    for at, case, words in odd:
        say(f"line {at} differs: {case}: {words[0]}")
        if shrink:
            short, less = shortest(case, lambda one: _again(box, lucidd, one))
            findings.append(Finding(at, case, short, less or tuple(words)))
        else:
            findings.append(Finding(at, case, case, tuple(words)))
    slots = sum(one.slots for got in lucid for one in got.runs)
    return Result(len(wanted), sum(got.code != 0 for got in plain), slots, tuple(findings), rows, took_s)


def _again(box: Box, lucidd: Lucidd, case: Case) -> list[str]:
    lucidd.kill()
    box.stop_beating()
    plain = run(box, case)
    lucidd.start()
    return unnamed(compared(case, plain, run(box, case)))
