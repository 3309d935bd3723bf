"""Turns by the starvation bound: which jobs have waited so long that they go before all others.

A job's turn comes when a share of the bound (``fairness.keep_from``) has passed since plain order would have started
it. Jobs whose turn has come go in order of their bounds. In a pool a turn comes as well when a job has waited for
``lending.turn_s`` and its VC's quota has room for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from lucid.core.decision import earliest
from lucid.core.job import Pending
from lucid.core.reasons.queue import OwnTurn, PlainOrder
from lucid.core.snapshot import Partition
from lucid.orchestrator.capacity.placement import Feasibility
from lucid.orchestrator.order.quotas import Quotas

if TYPE_CHECKING:
    from lucid.config.policy import FairnessSettings


class Turn(Struct, frozen=True):
    """A job whose turn has come, with the comparison that decided it."""

    entry: Pending
    why: PlainOrder | OwnTurn


def turns(
    partition: Partition,
    plain_starts_s: Mapping[str, float],
    next_end_s: float | None,
    now_s: float,
    settings: FairnessSettings,
) -> tuple[list[Turn], float | None]:
    """The jobs whose turn has come, earliest bound first; and when time alone may change this, s.

    ``plain_starts_s``: when plain order started those of the partition's pending jobs that it has started.
    ``next_end_s``: plain order starts no other job before this time."""
    bound_s = settings.beyond_plain_s
    assert bound_s is not None
    share_s = settings.keep_from * bound_s
    changes_s = None if next_end_s is None else next_end_s + share_s
    found: list[tuple[float, Turn]] = []
    feasible = Feasibility(partition, up_only=True)  # nodes kept for a job that cannot come would stand idle
    for entry in partition.pending:
        plain_s = plain_starts_s.get(entry.job.id)
        if plain_s is None or feasible.bar(entry.job) is not None:
            continue
        why = PlainOrder(plain_s, now_s, plain_s + share_s, plain_s + bound_s)
        if why:
            found.append((why.bound_s, Turn(entry, why)))
        else:
            changes_s = earliest(changes_s, why.turn_s)
    found.sort(key=lambda item: (item[0], item[1].entry.job.submit_s, item[1].entry.job.rank))
    return [turn for _, turn in found], changes_s


def own_turns(partition: Partition, quotas: Quotas, now_s: float, after_s: float) -> tuple[list[Turn], float | None]:
    """The jobs of a pool that have waited for ``after_s`` and have room in the quota of their VC, the longest wait
    first; and when time alone may change this, s."""
    found: list[Turn] = []
    changes_s: float | None = None
    feasible = Feasibility(partition, up_only=True)
    for entry in partition.pending:
        job = entry.job
        if not quotas.has_room(job):
            continue
        why = OwnTurn(job.vc, now_s - job.submit_s, after_s)
        if not why:
            changes_s = earliest(changes_s, job.submit_s + after_s)
        elif feasible.bar(job) is None:
            found.append(Turn(entry, why))
    found.sort(key=lambda turn: (turn.entry.job.submit_s, turn.entry.job.rank))
    return found, changes_s
