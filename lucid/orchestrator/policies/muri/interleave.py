"""Muri's interleaving: how long a round of a group takes, and how much of the machine it keeps busy (M1-M8).

A group of p jobs on k resources runs in k slots a round; in slot s the job at position q of the ordering uses
resource (s - q) mod k, so no two jobs meet on a resource. The round's period T is the sum over slots of the longest
stage in it, and the efficiency gamma is the fraction of resource time that is not idle. Everything here works on a
batch of groups at once: shapes start with B, the number of groups.

Muri's formula (M5) is about jobs that an executor holds to one order. ``conflict`` is for two jobs that nobody makes
wait for their turn, which overlap as chance has it. Each is a customer of a closed network of queues whose stations
are the resources, and mean value analysis (Reiser and Lavenberg, J. ACM 27(2), 1980) gives the time of an iteration
beside the other: on resource r it takes ``1 + b_r`` times as long, where b_r is the share of time that the other
spends there. Over an iteration that is ``1 + conflict``, where the conflict is the sum of ``a_r * b_r``, the chance
that both want the same resource at one moment; the other job is slowed by the same factor. This holds where a
resource divides itself among those who want it, as a GPU does that switches between processes every few milliseconds.
Where each waits for the whole stage of the other, the job of shorter stages is slower than this says. On one H100
under MPS 15 measured pairs ran as fast as this says, or faster: by means of both jobs from 2 points below to 20 above
(benchmarks/calibrate/measured)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

Ordering = Literal["best", "worst", "given"]
"""The ordering in which a group's jobs run: the best (M6), its ablation, or the jobs as they stand."""

_CHUNK = 4096  # groups evaluated at once: keeps the work arrays inside the processor's cache
_THREE_TIME_SLOTS = 8  # two rounds of four slots: the published recurrence looks one round back


@dataclass(frozen=True, slots=True)
class Overhead:
    """What sharing costs beyond the model (M8).

    Attributes:
        solo: factor on the iteration time of a job run alone.
        group: factor on the period of a group of 1, 2, 3, 4 jobs, relative to unshared runs."""

    solo: float = 1.0
    group: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0)

    def factor(self, jobs: int) -> float:
        """Factor on the period of a group of ``jobs`` jobs; sizes beyond the table take its last."""
        return self.group[min(jobs, len(self.group)) - 1]


NO_OVERHEAD = Overhead()
PUBLISHED = Overhead(solo=1.015, group=(1.0, 1.33 / 1.015, 1.5 / 1.015, 1.37 / 1.015))
"""The factors measured by the authors on their testbed."""
PUBLISHED_UNMATCHED = Overhead(solo=1.015, group=(1.0, 1.33 / 1.015, 1.5 / 1.015, 1.3 / 1.015))
"""The authors' measured factors for the variant without matching."""
IN_TURNS = Overhead(group=(1.0, 1.025, 1.029, 1.074))
"""What taking turns costs in our own executor (slurm/lucid_turns.py), measured with rounds of 80 to 120 ms on two
busy cores (``python -m benchmarks --only turns``). On idle cores it is a third of that, with stages of seconds next
to nothing."""

START_OVERHEAD_S: dict[str, tuple[int, ...]] = {
    "vgg16": (7, 7, 8, 9, 9, 10),
    "vgg19": (7, 7, 8, 9, 10, 10),
    "resnet18": (4, 5, 5, 7, 7, 7),
    "shufflenet_v2_x1_0": (4, 4, 5, 5, 7, 8),
    "bert": (10, 10, 10, 10, 10, 10),
    "gpt2": (10, 10, 10, 10, 10, 10),
    "a2c": (38, 39, 39, 46, 46, 46),
    "dqn": (5, 5, 6, 6, 8, 8),
}
"""Seconds to start a model on 1, 2, 4, 8, 16 and 32 GPUs, measured by the authors (M8)."""


def start_overhead_s(model: str, gpus: int) -> float:
    """Seconds that starting ``model`` on ``gpus`` GPUs costs; 10 s where it was not measured (M8)."""
    row = START_OVERHEAD_S.get(model)
    column = gpus.bit_length() - 1
    if row is None or gpus < 1 or gpus != 1 << column or column >= len(row):
        return 10.0
    return float(row[column])


def _uses_three_times(k: int, times: int) -> bool:
    return k == 4 and times == 3


@cache
def _orderings(p: int, fixed_first: bool) -> Ints:
    rows = [o for o in permutations(range(p)) if not fixed_first or o[0] == 0]
    return np.array(rows, dtype=np.intp)


def _generic(stages: Floats, orders: Ints, k: int) -> Floats:
    """Periods (B, orders) of M5; stages (B, p, k)."""
    total = np.zeros((len(stages), len(orders)))
    for slot in range(k):
        longest = stages[:, orders[:, 0], slot]
        for q in range(1, orders.shape[1]):
            longest = np.maximum(longest, stages[:, orders[:, q], (slot - q) % k])
        total += longest
    return total


def _three_times(stages: Floats, orders: Ints) -> Floats:
    """Periods (B, orders) of the published model with three measured times (M7); stages (B, p, 3).

    Data loading (time 0) spans two of the four slots, so a slot's end is the latest of three: GPU and
    network from the slot before, data from the one before that. The period is read off once two
    successive differences over one round agree to 0.1 %, else after two rounds."""
    p = orders.shape[1]
    shape = (len(stages), len(orders))
    end = [np.zeros(shape) for _ in range(_THREE_TIME_SLOTS + 1)]
    period = np.zeros(shape)
    open_ = np.ones(shape, dtype=bool)
    for i in range(_THREE_TIME_SLOTS):
        latest = end[i + 1]
        for back, ahead, time in ((0, 1, 2), (0, 2, 1), (1, 3, 0)):
            q = (i + ahead) % 4
            if q < p and i >= back:
                latest = np.maximum(latest, end[i - back] + stages[:, orders[:, q], time])
        end[i + 1] = latest
        if i >= 4:
            now, before = latest - end[i - 3], end[i] - end[i - 4]
            steady = np.abs(now - before) <= 1e-3 * np.maximum(np.abs(now), np.abs(before))
            period = np.where(open_ & steady, now, period)
            open_ &= ~steady
    return np.where(period > 0, period, end[8] - end[4])


def _all_periods(stages: Floats, k: int, ordering: Ordering) -> tuple[Floats, Ints]:
    p, times = stages.shape[1:]
    three = _uses_three_times(k, times)
    if not three and times != k:
        raise ValueError(f"{times} stage times for {k} resources; need {k}, or 3 of 4")
    if p > k:
        raise ValueError(f"a group of {p} jobs on {k} resources; at most {k} can interleave")
    if ordering == "given":
        orders = np.arange(p, dtype=np.intp)[None, :]
    else:
        # A full group repeats itself when its ordering is rotated, so the first job may stand still;
        # the three-time recurrence starts cold and is not invariant.
        orders = _orderings(p, fixed_first=p == k and not three)
    return (_three_times(stages, orders) if three else _generic(stages, orders, k)), orders


def _side_by_side(stages: Floats) -> Floats:
    """The published shortcut for two jobs: data of one against GPU and network of the other (M7)."""
    a, b = stages[:, 0], stages[:, 1]
    return np.maximum(a[:, 0], b[:, 1] + b[:, 2]) + np.maximum(b[:, 0], a[:, 1] + a[:, 2])


def periods(stages: ArrayLike, k: int, ordering: Ordering = "best") -> Floats:
    """Period T of each group, without overhead (M4-M7).

    Args:
        stages: (B, p, k) times on each resource, p <= k jobs a group; (B, p, 3) with k = 4 takes the
            published three-time model. Any unit of time.
        ordering: the ordering with the smallest T (M6), the largest T, or the jobs as given.

    Returns:
        (B,) periods in the unit of ``stages``. A single job's period is the sum of its times.

    Raises:
        ValueError: the shape does not fit ``k``, or more jobs than resources."""
    array = np.asarray(stages, dtype=np.float64)
    if array.ndim != 3:
        raise ValueError(f"stages has shape {array.shape}; need (groups, jobs, times)")
    if array.shape[1] == 1:
        return np.asarray(array.sum(axis=(1, 2)), dtype=np.float64)
    parts = [_chunk_periods(array[i : i + _CHUNK], k, ordering) for i in range(0, len(array), _CHUNK)]
    return np.concatenate(parts) if parts else np.zeros(0)


def _chunk_periods(stages: Floats, k: int, ordering: Ordering) -> Floats:
    table, _ = _all_periods(stages, k, ordering)
    pick = np.max if ordering == "worst" else np.min
    result: Floats = pick(table, axis=1)
    if ordering != "given" and stages.shape[1] == 2 and _uses_three_times(k, stages.shape[2]):
        beside = _side_by_side(stages)
        result = np.maximum(result, beside) if ordering == "worst" else np.minimum(result, beside)
    return result


def best_ordering(stages: ArrayLike, k: int, ordering: Ordering = "best") -> tuple[float, tuple[int, ...]]:
    """Period and ordering of one group (M6): the first ordering that reaches the period.

    Args:
        stages: (p, k) or, with k = 4, (p, 3).

    Returns:
        The period, and the jobs' indices in the order in which they enter the round.

    Raises:
        ValueError: as in :func:`periods`."""
    array = np.asarray(stages, dtype=np.float64)[None]
    if array.shape[1] == 1:
        return float(array.sum()), (0,)
    table, orders = _all_periods(array, k, ordering)
    index = int(table[0].argmax() if ordering == "worst" else table[0].argmin())
    return float(periods(array, k, ordering)[0]), tuple(int(i) for i in orders[index])


def efficiencies(
    stages: ArrayLike,
    k: int,
    *,
    ordering: Ordering = "best",
    overhead: Overhead = NO_OVERHEAD,
    solo_s: ArrayLike | None = None,
) -> Floats:
    """Interleaving efficiency gamma of each group: sum of all stage times / (k T) (M4, M5, M8).

    Args:
        stages: (B, p, k) or (B, p, 3), as in :func:`periods`.
        solo_s: (B,) measured iteration times, used as T where p = 1; None takes the sum of the stages.

    Returns:
        (B,) fractions. Above 1 only in the three-time model, whose data stage is counted once but
        spans two slots.

    Raises:
        ValueError: as in :func:`periods`."""
    array = np.asarray(stages, dtype=np.float64)
    if array.ndim == 3 and array.shape[1] == 1 and solo_s is not None:
        period = np.asarray(solo_s, dtype=np.float64)
    else:
        period = periods(array, k, ordering)
    used = array.sum(axis=(1, 2))
    return np.asarray(used / (k * period * overhead.factor(array.shape[1])), dtype=np.float64)


RESOURCES = ("storage", "cpu", "gpu", "network")
"""The four resources, in the order in which an iteration passes them (M3)."""


@dataclass(frozen=True, slots=True)
class MuriJob:
    """What Muri knows of a job.

    Attributes:
        job_id: the job's name; only compared.
        gpus: GPUs that the job occupies; only jobs of the same count share a group (M12).
        stages: time per iteration on each resource, in one unit of time: k values, or the three values
            (data, GPU, network) of the published traces.
        iteration_s: time of one iteration alone, same unit; None takes the sum of ``stages``."""

    job_id: Hashable
    gpus: int
    stages: tuple[float, ...]
    iteration_s: float | None = None

    def __post_init__(self) -> None:
        check_stages(self.stages)
        if self.gpus < 1:
            raise ValueError(f"job {self.job_id!r}: gpus is {self.gpus}; a job needs at least one")

    @property
    def solo_s(self) -> float:
        """Time of one iteration when the job runs alone."""
        return sum(self.stages) if self.iteration_s is None else self.iteration_s


def check_stages(stages: Sequence[float]) -> None:
    """Refuse stage times that no profile can have.

    Raises:
        ValueError: a time is negative or not finite, or all are zero (the job would use nothing)."""
    if not stages or any(not 0 <= t < float("inf") for t in stages) or not any(stages):
        raise ValueError(f"stage times {tuple(stages)}: need finite times >= 0, at least one above 0")


MOST_CONFLICT = 1.0 / 3.0
"""The most conflict of two jobs that share: by the model both then run at no less than three quarters of their speed
alone, and do half as much again as one. Two jobs that use three resources alike, or one more than the others,
conflict at least so much, so no job is paired with another of its own kind."""

_STORAGE = RESOURCES.index("storage")


def conflict(a: MuriJob, b: MuriJob) -> float:
    """How often both want the same resource, as a share of the time (0-1, above 1 for jobs that use several resources
    at once). Time of an iteration in which a job uses none of the resources counts as waiting for storage, because
    nobody knows what it waits for.

    Args:
        a: a job whose stages are the four resources."""
    return sum(one * other for one, other in zip(_shares(a), _shares(b), strict=True))


def _shares(job: MuriJob) -> Sequence[float]:
    found = [time / job.solo_s for time in job.stages]
    found[_STORAGE] += max(1.0 - sum(found), 0.0)
    return found
