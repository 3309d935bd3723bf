"""The loops that hot figures are multiples of: each always does the same work, and takes about 10 ms, so that it can
stand between two plans.

CPU time grows where others use the caches and the memory, by a third on a busy machine. Sums in registers are not
slowed by that, and a walk through many objects is slowed by more than the scheduler is; so a loop does some of both.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np

__all__ = ["LOOPS"]

_SEED = 7
_ROUNDS = 40_000
_OBJECTS, _WALKED = 16_000, 8_000
_COLUMN, _COLUMNS = 16_000, 6


class _Thing:
    __slots__ = ("key", "size", "vc")

    def __init__(self, key: str, size: float, vc: int) -> None:
        self.key, self.size, self.vc = key, size, vc


@cache
def _things() -> list[_Thing]:
    """In another order than they lie in memory."""
    rng = random.Random(_SEED)
    made = [_Thing(str(number), rng.random(), rng.randrange(64)) for number in range(_OBJECTS)]
    return rng.sample(made, _WALKED)


def _python() -> int:
    """Integers and a small dictionary; then attributes of many objects, dictionaries, tuples, calls, and sorting."""
    counts: dict[int, int] = {}
    state = 1
    for _ in range(_ROUNDS):
        state = (state * 1103515245 + 12345) % 2147483648
        counts[state % 1024] = counts.get(state % 1024, 0) + 1
    groups: dict[int, list[_Thing]] = {}
    places: dict[str, tuple[int, float]] = {}
    for thing in _things():
        groups.setdefault(thing.vc, []).append(thing)
        places[thing.key] = (thing.vc, thing.size)
    for group in groups.values():
        group.sort(key=attrgetter("size"))
    return sum(places[thing.key][0] == vc for vc, group in groups.items() for thing in group)


@cache
def _columns() -> list[np.ndarray]:
    import numpy as np  # tools/times/cpu.py runs before it is installed

    rng = np.random.default_rng(_SEED)
    return [rng.random(_COLUMN) for _ in range(_COLUMNS)]


def _numpy() -> float:
    """Comparisons, masks, sums and orders of columns that are somewhat longer than a large queue."""
    import numpy as np

    total = 0.0
    columns = _columns()
    for one, other in zip(columns, columns[1:] + columns[:1], strict=True):
        mask = (one > 0.25) & (other < 0.75)
        chosen = np.flatnonzero(mask)
        ordered = chosen[np.argsort(one[chosen], kind="stable")]
        total += float(np.cumsum(other[ordered])[-1]) + float(np.where(mask, one * other, 0.0).sum())
    return total


LOOPS: Final[Mapping[str, Callable[[], object]]] = {"python": _python, "numpy": _numpy}
