"""The shape of a job's use over time: start-up, pauses, steadiness, memory growth, and stage times from outside.

Times are in seconds, utilisation in percent, memory in MiB; constants are stated where they are.

Stage times are Muri's (row M2), of storage, CPU and GPU. M2 counts each instant for the resource that is used most at
that instant. Readings come once a second, and an iteration often takes less, so that a second holds all of its
stages. Here a second is therefore divided by its readings instead of being given to the highest one. Where stages are
longer than a second both come to the same: each second is then nearly all of one stage. Two resources that are busy
at once are not two stages. A process that waits for its GPU in a busy loop, as CUDA's does by default, keeps a core
busy, and so do data loaders that work ahead. So CPU time counts only where neither the GPU works nor storage is
waited for, unless all cores of the job are busy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from lucid.core.job import TimeShares

_LEAST_ACTIVE: Final = 2.0
_ACTIVE_SHARE: Final = 0.25
"""The share of the 90th percentile of utilisation from which on a moment counts as active, and at least 2 %."""
_LEAST_WINDOW, _MOST_WINDOW, _BURSTS = 10.0, 60.0, 5.0
_LEAST_PAUSE_S: Final = 3.0
_RHYTHM: Final = 3
"""How often idle stretches of like length must be seen to be the job's rhythm, which belongs to its means."""
BLOCK_S: Final = 5.0
_LEAST_BLOCKS: Final = 6
_SWING_POINTS, _SWING_SHARE = 10.0, 0.35
_LEAST_TURNS: Final = 4
_REGULAR: Final = 0.6
_MEMORY_BINS: Final = 24
_SURE: Final = 3.0
_LEAST_GROWTH_MIB, _LEAST_GROWTH_SHARE = 64.0, 0.02


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` (0-1) of them lie, by linear interpolation. At least one value."""
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def active_level(util: Sequence[float]) -> float:
    """The utilisation from which on this job counts as at work."""
    return max(_LEAST_ACTIVE, _ACTIVE_SHARE * percentile(util, 0.9))


def warm_up(util: Sequence[float], step_s: float) -> int | None:
    """Index of the first point of real work; ``None`` while there has been none.

    Start-up (imports, data, compilation) shows as idleness with single blips. Work begins at the first active
    point after which activity is kept up: over a window of 10 s (longer for a job that works in bursts, until
    five bursts fit, at most 60 s) at least half as dense as in the later half of the series."""
    if not util:
        return None
    level = active_level(util)
    active = [value >= level for value in util]
    later = active[len(active) // 2 :]
    density = sum(later) / len(later)
    if density <= 0:
        return None
    window_s = min(max(_LEAST_WINDOW, _BURSTS / density * step_s), _MOST_WINDOW)
    window = max(round(window_s / step_s), 1)
    total = sum(active[:window])
    for start, is_active in enumerate(active):
        size = min(window, len(active) - start)
        if 2 * size < window:
            return None  # too near the end to tell work from a blip
        if is_active and total >= 0.5 * density * size:
            return start
        total -= is_active
        if start + window < len(active):
            total += active[start + window]
    return None


def pauses(util: Sequence[float], step_s: float, level: float) -> list[tuple[int, int]]:
    """Idle stretches (first, end) of at least 3 s that are no part of the job's rhythm: evaluation, a
    checkpoint, waiting for data. A stretch whose like (within a factor of two) is seen three times is rhythm:
    it has been sampled often enough to be averaged over. Rarer ones would weigh by luck."""
    stretches: list[tuple[int, int]] = []
    start: int | None = None
    for i, value in enumerate((*util, math.inf)):
        if value < level:
            start = i if start is None else start
        elif start is not None:
            if (i - start) * step_s >= _LEAST_PAUSE_S:
                stretches.append((start, i))
            start = None
    lengths = [end - first for first, end in stretches]
    return [
        stretch
        for stretch, length in zip(stretches, lengths, strict=True)
        if sum(0.5 <= other / length <= 2.0 for other in lengths) < _RHYTHM
    ]


class Steadiness(Struct, frozen=True):
    """The three comparisons of the test for an unstable pattern (packing rule 4, L15), over means of 5 s.

    ``swing``: standard deviation of these means, in points of utilisation, against ``swing_limit``;
    ``turns``: how often they cross from well below to well above their mean or back;
    ``regularity``: highest autocorrelation at any lag of 2 blocks to half of them (1: exactly periodic)."""

    blocks: int
    swing: float
    swing_limit: float
    turns: int
    regularity: float

    @property
    def unstable(self) -> bool:
        """Large, recurring and irregular swings: the load beside a partner cannot be predicted."""
        return (
            self.blocks >= _LEAST_BLOCKS
            and self.swing > self.swing_limit
            and self.turns >= _LEAST_TURNS
            and self.regularity < _REGULAR
        )


def steadiness(util: Sequence[float], step_s: float) -> Steadiness:
    """Test whether the utilisation at work (start-up and rare pauses left out) is steady.

    Unstable is a job whose 5-s means have a standard deviation above 10 points and above 35 % of their mean,
    turn at least 4 times, and follow no rhythm (autocorrelation under 0.6). A single change of level, a rhythm
    of bursts, and noise within seconds are all stable."""
    size = max(round(BLOCK_S / step_s), 1)
    means = [sum(util[i : i + size]) / size for i in range(0, len(util) - size + 1, size)]
    if len(means) < 2:
        return Steadiness(len(means), 0.0, _SWING_POINTS, 0, 1.0)
    mean = sum(means) / len(means)
    off = [value - mean for value in means]
    power = sum(value * value for value in off)
    swing = math.sqrt(power / len(off))
    turns, side = 0, 0
    for value in off:
        now = 0 if abs(value) < 0.5 * swing else (1 if value > 0 else -1)
        if now and side and now != side:
            turns += 1
        side = now or side
    regularity = 0.0
    for lag in range(2, len(off) // 2 + 1):
        matched = sum(off[i] * off[i + lag] for i in range(len(off) - lag))
        regularity = max(regularity, matched / power * len(off) / (len(off) - lag) if power else 1.0)
    return Steadiness(len(means), swing, max(_SWING_POINTS, _SWING_SHARE * mean), turns, regularity)


class MemoryTrend(Struct, frozen=True):
    """The memory of a job on its fullest GPU: peak so far, newest, and how fast it grows (0 if it does not)."""

    peak_mib: float
    last_mib: float
    mib_per_s: float = 0.0

    @property
    def growing(self) -> bool:
        """Whether growth is sure enough to predict by."""
        return self.mib_per_s > 0

    def after(self, seconds: float) -> float:
        """The peak to reckon with by then, MiB."""
        return max(self.peak_mib, self.last_mib + self.mib_per_s * seconds)


def memory_trend(memory: Sequence[float], step_s: float) -> MemoryTrend:
    """Judge whether memory grows, from readings at equal steps after start-up (at least one).

    The series is cut into 24 bins, each with its highest reading. Growth is predicted where the bins
    rise by the Mann-Kendall test (z above 3), the newest half still holds at least a quarter of the rise (an
    allocator that has filled its cache has stopped), and the rise is at least 64 MiB and 2 %. Its speed is the
    median slope between any two bins of the newest half (Theil-Sen)."""
    peak, last = max(memory), memory[-1]
    flat = MemoryTrend(peak, last)
    size = len(memory) // _MEMORY_BINS
    if size < 1:
        return flat
    start = len(memory) - size * _MEMORY_BINS
    bins = [max(memory[i : i + size]) for i in range(start, len(memory), size)]
    n = len(bins)
    rises = sum((b > a) - (b < a) for i, a in enumerate(bins) for b in bins[i + 1 :])
    z = (rises - 1) / math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    rise = bins[-1] - bins[0]
    half = bins[n // 2 :]
    if z <= _SURE or rise < max(_LEAST_GROWTH_MIB, _LEAST_GROWTH_SHARE * peak):
        return flat
    if half[-1] - half[0] < 0.25 * rise:
        return flat
    slopes = sorted((b - a) / (j * size * step_s) for i, a in enumerate(half) for j, b in enumerate(half[i + 1 :], 1))
    return MemoryTrend(peak, last, max(slopes[len(slopes) // 2], 0.0))


Moment = tuple[float, TimeShares | None]
"""Seconds, and the shares of time in them, where known."""


class HostUse(Struct, frozen=True):
    """A job's use of its node since the reading before. ``busy_cores``: CPU seconds in a second. ``cores``: how many
    it has. ``storage``: the share (0-1) of the time in which one of its processes waited for storage, ``None`` where
    the node does not report it; ``storage_by``: how that was found."""

    busy_cores: float
    cores: int
    storage: float | None = None
    storage_by: str = ""


def shares_in(use: HostUse, gpu: float) -> TimeShares:
    """The shares of a moment that a job spent on storage, CPU and GPU.

    ``gpu``: share (0-1) of the moment in which its GPU worked for it. CPU time counts in two cases: all cores of the
    job are busy; or one core is busy while the job neither computes on its GPU nor waits for storage. One busy core
    is enough, because more cores do not help an iteration that one thread prepares."""
    gpu = _share(gpu)
    storage = None if use.storage is None else _share(use.storage)
    one = min(_share(use.busy_cores), 1.0 - gpu - (storage or 0.0))
    return TimeShares(storage, max(_share(use.busy_cores / max(use.cores, 1)), one), gpu, use.storage_by)


def mean_shares(moments: Sequence[Moment], least_s: float = 0.0) -> TimeShares | None:
    """The mean shares over moments; unknown ones are left out. ``None`` where less than ``least_s`` seconds are
    known, or none. Storage is known where it is for at least half of them."""
    known = [(step_s, shares) for step_s, shares in moments if shares is not None]
    total_s = sum(step_s for step_s, _ in known)
    if total_s <= 0.0 or total_s < least_s:
        return None
    told = [(step_s, shares.storage, shares.storage_by) for step_s, shares in known if shares.storage is not None]
    told_s = sum(step_s for step_s, _, _ in told)
    cpu = sum(step_s * shares.cpu for step_s, shares in known) / total_s
    gpu = sum(step_s * shares.gpu for step_s, shares in known) / total_s
    if not told or 2.0 * told_s < total_s:
        return TimeShares(None, cpu, gpu)
    return TimeShares(sum(step_s * share for step_s, share, _ in told) / told_s, cpu, gpu, told[-1][2])


def _share(value: float) -> float:
    return min(max(value, 0.0), 1.0)
