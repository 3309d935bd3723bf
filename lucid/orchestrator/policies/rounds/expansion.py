"""Elastic data sharing: allocation rule, expansion and reduction, best-fit placement, epoch times (E1-E15).

Expansion and reduction (E6-E10) are grouped knapsacks over (job, number of GPUs) with at most one choice a job. The
recurrence runs over jobs; for one job all totals k and all choices j are taken at once."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]


def _check(epoch_s: ArrayLike, gpus: ArrayLike, epochs: ArrayLike) -> tuple[Floats, Ints, Floats]:
    f = np.asarray(epoch_s, dtype=np.float64)
    s = np.asarray(gpus, dtype=np.intp)
    left = np.asarray(epochs, dtype=np.float64)
    if s.ndim != 1 or left.shape != s.shape or f.ndim != 2 or len(f) != len(s):
        raise ValueError(f"shapes {f.shape}, {s.shape}, {left.shape}; need (m, P), (m,), (m,)")
    if len(s) and (s.min() < 1 or s.max() > f.shape[1]):
        raise ValueError(f"a job has {s.min()}..{s.max()} GPUs; epoch times are given for 1..{f.shape[1]}")
    return f, s, left


def _best(table: Sequence[Floats], size: int) -> tuple[Floats, list[Ints]]:
    """Max-plus fold: best total value for each number of GPUs 0..size given, and each job's choice.

    ``table[i][j]`` is the value of j GPUs for job i; -inf forbids. Ties take the smaller j."""
    total = np.full(size + 1, -np.inf)
    total[0] = 0.0
    choices: list[Ints] = []
    rest = np.arange(size + 1)[:, None] - np.arange(size + 1)[None, :]  # k - j
    for value in table:
        width = min(len(value), size + 1)
        left = rest[:, :width]
        options = np.where(left >= 0, total[np.maximum(left, 0)] + value[None, :width], -np.inf)
        choice = options.argmax(axis=1)
        total = options[np.arange(size + 1), choice]
        choices.append(choice)
    return total, choices


def _trace(choices: list[Ints], k: int) -> Ints:
    out = np.zeros(len(choices), dtype=np.intp)
    for i in range(len(choices) - 1, -1, -1):
        out[i] = choices[i][k]
        k -= int(out[i])
    return out


def expand(
    epoch_s: ArrayLike, gpus: ArrayLike, epochs: ArrayLike, idle: int, restart_s: ArrayLike = 0.0
) -> tuple[Ints, float]:
    """Share out idle GPUs so that the remaining times fall by the most (E6, E9: eq. 3, Algorithm 1).

    Args:
        epoch_s: (m, P) time of one epoch of job i on g GPUs at [i, g-1]; P bounds a job's GPUs.
        gpus: (m,) GPUs that each job has, 1..P.
        epochs: (m,) epochs that each job has left.
        idle: GPUs to share out; not all need be used (more can be slower).
        restart_s: what a rescaled job loses, in the unit of ``epoch_s``; of all jobs, or (m,) of each. The
            paper leaves it out of the objective (0); with it, a job is not restarted for less than the restart costs.

    Returns:
        (m,) GPUs that each job gains, and the total time saved. Of several optima, one that uses the
        fewest GPUs.

    Raises:
        ValueError: shapes differ or a job's GPUs lie outside 1..P."""
    f, s, left = _check(epoch_s, gpus, epochs)
    if idle <= 0 or not len(s):
        return np.zeros(len(s), dtype=np.intp), 0.0
    table = []
    costs = np.broadcast_to(np.asarray(restart_s, dtype=np.float64), s.shape)
    for times, have, remaining, cost in zip(f, s.tolist(), left.tolist(), costs.tolist(), strict=True):
        then = times[have - 1 : have + idle]
        able = np.isfinite(then)  # infinite where it may not run: with no epoch left, too, that is no gain of 0
        gain = np.where(able, (times[have - 1] - np.where(able, then, 0.0)) * remaining, -np.inf)
        gain[1:] -= cost
        table.append(gain)
    total, choices = _best(table, idle)
    k = int(total.argmax())
    return _trace(choices, k), float(total[k])


def reduce(epoch_s: ArrayLike, gpus: ArrayLike, epochs: ArrayLike, reclaim: int) -> tuple[Ints, float]:
    """Take exactly ``reclaim`` GPUs so that the remaining times rise by the least (E7, E10: eq. 6).

    Every job keeps at least one GPU (principle 4).

    Returns:
        (m,) GPUs that each job loses, and the total time lost; negative where fewer GPUs are faster.

    Raises:
        ValueError: shapes differ, or the jobs have fewer than ``reclaim`` GPUs beyond one each."""
    f, s, left = _check(epoch_s, gpus, epochs)
    spare = int((s - 1).sum())
    if not 0 <= reclaim <= spare:
        raise ValueError(f"{reclaim} GPUs to reclaim from {len(s)} jobs that can spare {spare}")
    table = []
    for times, have, remaining in zip(f, s.tolist(), left.tolist(), strict=True):
        table.append(-(times[:have][::-1] - times[have - 1]) * remaining)
    total, choices = _best(table, reclaim)
    return _trace(choices, reclaim), 0.0 - float(total[reclaim])


EfRule = Literal["all", "free", "earliest"]


@dataclass(frozen=True, slots=True)
class ElasticJob:
    """A running job as the platform sees it.

    Attributes:
        gpus: GPUs that it has, at least one.
        epochs: epochs left, fractions included; the user asks for epochs, never for GPUs (E21).
        epoch_s: (P,) seconds of one epoch on 1..P GPUs."""

    job_id: Hashable
    gpus: int
    epochs: float
    epoch_s: Floats


@dataclass(frozen=True, slots=True)
class Resize:
    """What one scheduling event changes.

    Attributes:
        admit: how many waiting requests start now, with one GPU each, first come first served.
        gpus: job -> its new GPUs, only jobs that change. They and the admitted ones are placed anew; no
            other job moves."""

    admit: int
    gpus: dict[Hashable, int]


def rescale(running: Sequence[ElasticJob], waiting: int, total_gpus: int, restart_s: ArrayLike = 0.0) -> Resize:
    """Admit, shrink or grow after an arrival or a completion (E1-E5).

    Waiting requests come before expansion (principle 3): idle GPUs go to them first, one each. If some
    still wait, running jobs shrink by K' = min(K, P - m) GPUs, one for each further request
    (principle 5); the rest wait. If none waits, idle GPUs expand running jobs; to expand the newly
    admitted ones too, call again with them among the running.

    Returns:
        The requests to admit and the jobs to resize.

    Raises:
        ValueError: the running jobs hold more GPUs than there are."""
    gpus = np.array([job.gpus for job in running], dtype=np.intp)
    idle = total_gpus - int(gpus.sum())
    if idle < 0:
        raise ValueError(f"running jobs hold {int(gpus.sum())} GPUs of {total_gpus}")
    admit = min(waiting, idle)
    still = waiting - admit
    if still:
        reclaim = min(still, int((gpus - 1).sum()))
        if not reclaim:
            return Resize(admit, {})
        lost, _ = reduce(*_columns(running), reclaim)
        return Resize(admit + reclaim, _changed(running, gpus - lost))
    idle -= admit
    if not idle or not running:
        return Resize(admit, {})
    gained, _ = expand(*_columns(running), idle, restart_s)
    return Resize(admit, _changed(running, gpus + gained))


def _columns(running: Sequence[ElasticJob]) -> tuple[Floats, list[int], list[float]]:
    return (
        np.stack([job.epoch_s for job in running]),
        [job.gpus for job in running],
        [job.epochs for job in running],
    )


def _changed(running: Sequence[ElasticJob], gpus: NDArray[np.intp]) -> dict[Hashable, int]:
    return {job.job_id: new for job, new in zip(running, gpus.tolist(), strict=True) if new != job.gpus}


def ef_gpus(epoch_s: Sequence[float] | Floats, free_gpus: int, total_gpus: int, rule: EfRule = "all") -> int:
    """EF: GPUs with which the first waiting request starts; 0 means that it waits (E15).

    "each request gets the most GPUs", and jobs run "basically serial": the default gives the whole
    cluster and waits until all of it is free.

    Args:
        epoch_s: (P,) seconds of one epoch on 1..P GPUs.
        rule: "all" as above; "free" takes whatever is free; "earliest" takes the count at which an
            epoch is fastest and waits for it.

    Returns:
        GPUs to start with, 0 to wait. Requests behind the first wait too."""
    most = min(total_gpus, len(epoch_s))
    if rule == "free":
        return min(free_gpus, most)
    want = most if rule == "all" else 1 + int(np.argmin(np.asarray(epoch_s)[:most]))
    return want if free_gpus >= want else 0


Node = TypeVar("Node", int, str)
Job = TypeVar("Job", int, str)


class NotEnoughGpus(ValueError):
    """The jobs need more GPUs than the nodes have free; nothing was placed."""


def best_fit(free: Mapping[Node, int], jobs: Iterable[tuple[Job, int]]) -> dict[Job, list[tuple[Node, int]]]:
    """Place jobs, largest first, each on the tightest node that holds it, else on the emptiest (E11).

    GPUs of jobs that are redeployed must be back in ``free`` before; jobs that keep their GPUs take no
    part. Ties, which the document leaves open: equal jobs in the order given; of equal nodes, the
    smallest id where one node suffices, the largest where a job is spread.

    Args:
        free: free GPUs by node.
        jobs: (job, GPUs) to place.

    Returns:
        For each job the (node, GPUs) that it gets, in the order taken.

    Raises:
        NotEnoughGpus: the jobs need more than is free."""
    wanted = sorted(jobs, key=lambda item: -item[1])
    need = sum(gpus for _, gpus in wanted)
    queue = sorted((gpus, node) for node, gpus in free.items() if gpus > 0)
    if need > sum(gpus for gpus, _ in queue):
        raise NotEnoughGpus(f"jobs need {need} GPUs, free are {sum(gpus for gpus, _ in queue)}")
    out: dict[Job, list[tuple[Node, int]]] = {}
    for job, gpus in wanted:
        parts = out.setdefault(job, [])
        while gpus > 0:
            # The first entry with at least that many GPUs; the last one, the emptiest, if there is none.
            index = min(bisect_left(queue, gpus, key=lambda entry: entry[0]), len(queue) - 1)
            have, node = queue.pop(index)
            taken = min(have, gpus)
            parts.append((node, taken))
            gpus -= taken
            if have > taken:
                insort(queue, (have - taken, node))
    return out


_FIT_FROM = 3


class EpochTimes:
    """f_i(g) of one job: the time of one epoch on g GPUs, wherever they are.

    A recorded count is used as is (the mean of its records). An unrecorded one comes from the preset
    table until three different counts are recorded, then from the fit
    ``f(g) = a/g + b + c (g - 1)``, a, b, c >= 0 by least squares: work that divides, work that does
    not, and the cost of a ring of g. The document names least squares, not the form.

    Args:
        preset: (P,) time of one epoch on 1..P GPUs.

    Raises:
        ValueError: the preset is empty or holds a time that is not above 0."""

    def __init__(self, preset: Sequence[float]) -> None:
        self.preset: Floats = np.asarray(preset, dtype=np.float64)
        if self.preset.ndim != 1 or not len(self.preset) or not (self.preset > 0).all():
            raise ValueError("preset epoch times: need one time above 0 for each number of GPUs")
        self._records: dict[int, list[float]] = {}

    def record(self, gpus: int, epoch_s: float) -> None:
        """Note an epoch that took ``epoch_s`` on ``gpus`` GPUs.

        Raises:
            ValueError: the GPUs are not 1..P or the time is not above 0."""
        if not 1 <= gpus <= len(self.preset) or not epoch_s > 0:
            raise ValueError(f"an epoch of {epoch_s} on {gpus} GPUs; need 1..{len(self.preset)}, above 0")
        self._records.setdefault(gpus, []).append(epoch_s)

    def times(self) -> Floats:
        """(P,) time of one epoch on 1..P GPUs, as known now."""
        counts = np.array(sorted(self._records), dtype=np.float64)
        seen = np.array([np.mean(self._records[int(g)]) for g in counts])
        out = self.preset.copy()
        if len(counts) >= _FIT_FROM:
            # Relative errors, so that the slow small counts do not drown the fast large ones.
            from scipy.optimize import nnls

            weighted, _ = nnls(_terms(counts) / seen[:, None], np.ones(len(seen)))
            out = _terms(np.arange(1, len(out) + 1, dtype=np.float64)) @ weighted
        out[counts.astype(np.intp) - 1] = seen
        return out


def _terms(gpus: Floats) -> Floats:
    return np.stack([1 / gpus, np.ones_like(gpus), gpus - 1], axis=1)
