"""What a job does with its time, measured from outside: storage, CPU and GPU (Muri's stage times, row M2).

M2 counts each instant for the resource that is used most at that instant. Readings come once a second, and an
iteration often takes less, so that a second holds all of its stages. Here a second is therefore divided by its
readings instead of being given to the one that is highest. Where stages are longer than a second both come to the
same: each second is then nearly all of one stage.

Two things that are busy at once are not two stages. A process that waits for its GPU in a busy loop, as CUDA's does
by default, keeps a core busy, and so do data loaders that work ahead. So CPU time counts only where neither the GPU
works nor storage is waited for, unless all cores of the job are busy.
"""

from __future__ import annotations

from collections.abc import Sequence

from lucid.core.frozen import dataclass
from lucid.core.job import TimeShares

__all__ = ["HostUse", "mean_shares", "shares_in"]

Moment = tuple[float, TimeShares | None]
"""Seconds, and what is known of them."""


@dataclass(frozen=True, slots=True)
class HostUse:
    """A job on its node since the reading before. ``busy_cores``: CPU seconds in a second. ``cores``: how many it
    has. ``storage``: the share (0-1) of the time in which one of its processes waited for storage, ``None`` where the
    node does not tell; ``storage_by``: how that was found."""

    busy_cores: float
    cores: int
    storage: float | None = None
    storage_by: str = ""


def shares_in(use: HostUse, gpu: float) -> TimeShares:
    """What a job did in a moment.

    ``gpu``: share (0-1) of the moment in which its GPU worked for it. CPU time counts in two cases: all cores of the
    job are busy; or one core is busy while the job neither computes on its GPU nor waits for storage. One busy core
    is enough, because more cores do not help an iteration that one thread prepares.
    """
    gpu = _share(gpu)
    storage = None if use.storage is None else _share(use.storage)
    one = min(_share(use.busy_cores), 1.0 - gpu - (storage or 0.0))
    return TimeShares(storage, max(_share(use.busy_cores / max(use.cores, 1)), one), gpu, use.storage_by)


def mean_shares(moments: Sequence[Moment], least_s: float = 0.0) -> TimeShares | None:
    """Over moments; those of which nothing is known are left out. ``None`` where less than ``least_s`` seconds are
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
