"""Both sides of many lines, and the shortest form of a line that differs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from box import Box

from sbatch_fuzz.compare import ALLOWED, LEFT_OUT, compared, left_out, named, unnamed
from sbatch_fuzz.lines import Case
from sbatch_fuzz.watch import Got, accounted, run

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
    of docs/differences.md was met. ``left_out``: how often each variable that is left out differed."""

    cases: int
    refused: int
    slots: int
    findings: tuple[Finding, ...]
    rows: dict[str, int]
    left_out: dict[str, int]
    took_s: tuple[float, float]


def shortest(case: Case, differs: Differs) -> tuple[Case, tuple[str, ...]]:
    """Leave out what can be left out as long as something differs."""
    words, changed = tuple(differs(case)), True
    while changed:
        changed = False
        for fewer in case.shorter():
            if found := tuple(differs(fewer)):
                case, words, changed = fewer, found, True
                break
    return case, words


def play(plain: Box, lucid: Box, wanted: Sequence[tuple[int, Case]], say: Callable[[str], None]) -> Result:
    """All lines, each by its number, on both testbeds at once; each line alone on an idle testbed."""

    def side(name: str, box: Box, lines: Sequence[Case]) -> tuple[list[Got], float]:
        began_s, found = time.monotonic(), []
        for at, case in enumerate(lines):
            found.append(run(box, case))
            if at % 20 == 19:
                say(f"{name}: {at + 1} of {len(lines)} lines")
        return accounted(box, found), time.monotonic() - began_s

    def both(lines: Sequence[Case]) -> tuple[tuple[list[Got], float], tuple[list[Got], float]]:
        with ThreadPoolExecutor(2) as pool:
            one, other = pool.submit(side, "plain Slurm", plain, lines), pool.submit(side, "Lucid", lucid, lines)
            return one.result(), other.result()

    def again(case: Case) -> list[str]:
        (before, _), (after, _) = both([case])
        return unnamed(compared(case, before[0], after[0]))

    (befores, plain_s), (afters, lucid_s) = both([case for _, case in wanted])
    rows, unlike = dict.fromkeys(ALLOWED, 0), dict.fromkeys(LEFT_OUT, 0)
    findings = []
    for (number, case), before, after in zip(wanted, befores, afters, strict=True):
        words = compared(case, before, after)
        for row in named(words).values():
            rows[row] += 1
        for one, other in zip(before.runs, after.runs, strict=False):
            for a, b in ((one.batch, other.batch), (one.step, other.step)):
                for name in a.keys() & b.keys():
                    if a[name] != b[name] and (known := left_out(name)):
                        unlike[known] += 1
        if left := unnamed(words):
            say(f"line {number} differs: {case}: {left[0]}")
            short, less = shortest(case, again)
            findings.append(Finding(number, case, short, less or tuple(left)))
    slots = sum(one.slots for got in afters for one in got.runs)
    refused = sum(got.code != 0 for got in befores)
    return Result(len(wanted), refused, slots, tuple(findings), rows, unlike, (plain_s, lucid_s))
