"""Measuring work in turns with a fixed loop, both as CPU time."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.guard.loops import LOOPS

__all__ = ["TRIES", "Between", "Hot", "Measured", "Work", "measured"]

TRIES = 5

Between = Callable[[], None]
"""Work calls it where it can be interrupted, many times a second: then the fixed loop runs."""

Work = Callable[[Between], float | None]
"""Does the work once. Gives the CPU seconds that count, where that is not all that this process spends meanwhile."""


@dataclass(frozen=True, slots=True)
class Hot:
    """Something that must not become slower. ``prepare`` makes what is measured; its own time does not count."""

    name: str
    what: str
    loop: str
    prepare: Callable[[], Work]


@dataclass(frozen=True, slots=True)
class Measured:
    """The least of several tries: CPU seconds, the same as a multiple of the loop, and the multiple of each try."""

    cpu_s: float
    ratio: float
    ratios: tuple[float, ...]


def measured(
    figures: Sequence[Hot],
    tries: int = TRIES,
    clock: Callable[[], float] = time.process_time,
    loops: Mapping[str, Callable[[], object]] = LOOPS,
) -> dict[str, Measured]:
    """All figures by name. They take turns: what disturbs the machine for some seconds disturbs one try of each."""
    works = [(figure, figure.prepare()) for figure in figures]
    for figure in figures:
        loops[figure.loop]()
    gc.collect()
    gc.freeze()  # what one figure prepared does not make the collector slow for another
    try:
        spent: dict[str, list[tuple[float, float]]] = {figure.name: [] for figure in figures}
        for _ in range(tries):
            for figure, work in works:
                spent[figure.name].append(_once(work, loops[figure.loop], clock))
    finally:
        gc.unfreeze()
    return {name: _least(pairs) for name, pairs in spent.items()}


def _once(work: Work, loop: Callable[[], object], clock: Callable[[], float]) -> tuple[float, float]:
    """CPU seconds of the work, and of the loop on an average of the times that it ran meanwhile."""
    loops_s: list[float] = []

    def between() -> None:
        began_s = clock()
        loop()
        loops_s.append(clock() - began_s)

    gc.collect()
    between()
    before_s, began_s = loops_s[0], clock()
    counted_s = work(between)
    work_s = clock() - began_s - (sum(loops_s) - before_s)
    between()
    return (work_s if counted_s is None else counted_s), sum(loops_s) / len(loops_s)


def _least(pairs: Sequence[tuple[float, float]]) -> Measured:
    ratios = tuple(work_s / loop_s for work_s, loop_s in pairs)
    return Measured(min(work_s for work_s, _ in pairs), min(ratios), ratios)
