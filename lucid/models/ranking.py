"""How well estimates put jobs in order: as a share of what the right order would save.

Of two jobs that wait, the one that goes first makes the other wait for as long as it takes. So an order saves, for
each two jobs, the difference of their lengths where it has the shorter one first, and loses it where it has not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

HOUR_S: Final = 3600.0
QUEUED: Final = 10
"""Jobs queue where so many wait at the end of an hour. Whoever stood in the queue within it counts as waiting with
the others: those that still wait at its end are what an order by the estimates left over, and say the contrary."""
_MOST: Final = 200
"""How many hours of a log are used at most, spread over all in which jobs queued."""

_Column: TypeAlias = npt.NDArray[np.float64]
_FLOOR_S = 10.0
"""Added to durations, so that seconds do not matter."""


def gain_of(estimates: _Column, durations: _Column, ranks: _Column | None = None) -> float:
    """The share of the waiting that true durations would save which the estimates save, from -1 to 1: 1 for the right
    order, 0 for noise and for a constant, -1 for the reverse. It is reckoned in logarithms, since in seconds the two
    or three longest jobs would decide. Both in s; equal estimates count as in random order. ``ranks``: those of the
    durations, where they are known."""
    if len(durations) < 2:
        return 0.0
    saved, best = _saved(estimates, np.log(durations + _FLOOR_S), ranks_of(durations) if ranks is None else ranks)
    return round(saved / best, 3) if best > 1e-9 else 0.0


def queue_gain(queues: Iterable[tuple[_Column, _Column]]) -> float | None:
    """The same share among jobs that waited at the same time, where alone an order matters. ``queues``: of each
    queue, the GPU-seconds that were estimated, and those that it took. Here seconds count, as they do for who waits.
    ``None``: nobody waited with another."""
    saved = best = 0.0
    for estimated, took in queues:
        one = _saved(estimated, took, ranks_of(took))
        saved, best = saved + one[0], best + one[1]
    return round(saved / best, 3) if best > 1e-9 else None


def queues_of(submit_s: _Column, start_s: _Column) -> list[npt.NDArray[np.intp]]:
    """The rows of the jobs that stood in a log's queue within an hour, for hours in which jobs queued."""
    known = np.isfinite(submit_s) & np.isfinite(start_s)
    if not known.any():
        return []
    ends_s = np.arange(submit_s[known].min(), start_s[known].max(), HOUR_S) + HOUR_S
    came, began = (np.searchsorted(np.sort(column[known]), ends_s, "right") for column in (submit_s, start_s))
    ends_s = ends_s[came - began >= QUEUED]
    ends_s = ends_s[:: max(-(-len(ends_s) // _MOST), 1)]
    return [np.flatnonzero(known & (submit_s <= end_s) & (start_s > end_s - HOUR_S)) for end_s in ends_s]


def _saved(estimated: _Column, took: _Column, ranks: _Column) -> tuple[float, float]:
    value = took - took.mean() if len(took) else took
    return float(value @ ranks_of(estimated)), float(value @ ranks)


def ranks_of(values: _Column) -> _Column:
    """Ranks of the values from 1; equal values share the mean of theirs."""
    ascending = np.sort(values)
    below, upto = (np.searchsorted(ascending, values, side) for side in ("left", "right"))
    return (below + upto + 1) / 2
