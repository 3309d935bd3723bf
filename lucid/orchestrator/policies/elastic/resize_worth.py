"""Is a resize worth what the restart costs? Where that cost is measured: on a real cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from lucid.core.job import Running
from lucid.orchestrator.policies.elastic.plan_draft import Entry, PlanDraft, limits_of
from lucid.orchestrator.policies.queue import attained_s

__all__ = ["keep_unless_worth", "left_s", "restarts_s", "stacked"]

Ints = NDArray[np.intp]
Speed = Callable[[int, Ints], float]
"""Of a job, by its number, on so many GPUs of each node; in any unit, for it is compared for one job only. NaN where
it is not known."""


def restarts_s(entries: Sequence[Entry], otherwise_s: float) -> list[float]:
    """What a restart is expected to cost each job, s: as measured, ``otherwise_s`` where nothing was."""
    costs = (entry.restart_s if isinstance(entry, Running) else None for entry in entries)
    return [otherwise_s if cost_s is None else cost_s for cost_s in costs]


def left_s(entry: Running, now_s: float) -> float:
    """Seconds that a job will run yet on the GPUs that it has: by its number of epochs and the times that it reports;
    where these are not known, as long as it has run."""
    progress, epochs = entry.progress, limits_of(entry).epochs
    if progress is None or epochs is None or not progress.epoch_s:
        return attained_s(entry, now_s)
    gpus, epoch_s = next((pair for pair in progress.epoch_s if pair[0] == entry.gpus), progress.epoch_s[-1])
    return max(epochs - progress.epochs, 0.0) * epoch_s * gpus / max(entry.gpus, 1)


def stacked(rows: Sequence[Ints], draft: PlanDraft) -> Ints:
    """(J, N) from the row of each job."""
    return np.stack(rows) if rows else np.zeros((0, len(draft.capacity)), dtype=np.intp)


def keep_unless_worth(draft: PlanDraft, entries: Sequence[Entry], rows: Ints, speed: Speed, now_s: float) -> Ints:
    """(J, N) GPUs of each job on each node, where jobs keep what they have for which a change would save less time
    than their restart costs, as far as no other job is to have those GPUs."""
    base, kept = draft.base(entries), rows.copy()
    measured = [
        (j, entry, entry.restart_s)
        for j, entry in enumerate(entries)
        if isinstance(entry, Running) and entry.restart_s is not None and not np.array_equal(rows[j], base[j])
        if limits_of(entry).allows(base[j][base[j] > 0].tolist())
    ]
    not_worth = [
        (j, entry) for j, entry, cost_s in measured if _saves_s(entry, j, base, rows, speed, now_s) <= cost_s
    ]
    again = True
    while again:  # who keeps its GPUs gives others back what they had
        again = False
        for j, _ in not_worth:
            if not np.array_equal(kept[j], base[j]):
                others = kept.sum(axis=0) - kept[j]
                if (others + base[j] <= draft.capacity).all():
                    kept[j], again = base[j], True
    return kept


def _saves_s(entry: Running, j: int, base: Ints, rows: Ints, speed: Speed, now_s: float) -> float:
    """Of what the job has left to run; below 0 where it is slower afterwards, infinite where nobody knows."""
    now, then = speed(j, base[j]), speed(j, rows[j])
    if np.isnan(now) or np.isnan(then):
        return np.inf
    return left_s(entry, now_s) * (1.0 - now / then) if then > 0 else -np.inf
