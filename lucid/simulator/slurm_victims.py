"""Whom plain Slurm preempts for a job, without Lucid: select/cons_tres with its default parameters."""

from __future__ import annotations

from collections.abc import Callable

from lucid.core.job import Job, Running
from lucid.core.ledger import Ledger
from lucid.core.placement import Placement
from lucid.core.snapshot import Partition
from lucid.orchestrator.capacity.placement import consolidated

__all__ = ["slurm_claim"]

_LOOKS = 3
"""So often Slurm goes through its candidates (preempt_reorder_count=1)."""


def slurm_claim(
    job: Job, partition: Partition, now_s: float, tier_of: Callable[[Job], int], youngest_first: bool = False
) -> tuple[Placement, tuple[Running, ...]] | None:
    """GPUs for the job, and who is preempted for them, nobody where free GPUs will do; ``None`` where preempting all
    that may be does not suffice.

    Slurm takes candidates away one after the other until the job fits: those of the lowest tier first, then those on
    the fewest nodes, then in order of submission; with ``youngest_first`` those that started last. Then it puts the
    one that made it fit first, those on most of the chosen nodes next, and looks again. Preempted are those that were
    taken away and hold GPUs of the chosen nodes, whether the job needs these GPUs or not. How long they have run does
    not count otherwise. (On a real Slurm the nodes may be others where several fit.)
    """
    order = [entry for entry in partition.running if entry.yields and entry.yields.lets(job, now_s)]
    if youngest_first:
        order.sort(key=lambda entry: -entry.start_s)
    else:
        order.sort(key=lambda entry: (tier_of(entry.job), len(entry.placement), entry.job.submit_s, entry.job.rank))
    found = consolidated(Ledger(partition, now_s), job)
    if found is not None:
        return found, ()
    gone: list[Running] = []
    for _ in range(_LOOKS):
        ledger, gone, found = Ledger(partition, now_s), [], None
        for entry in order:
            gone.append(entry)
            ledger.give_back([entry])
            found = consolidated(ledger, job)
            if found is not None:
                break
        if found is None:
            return None
        nodes = {part.node for part in found}
        first = sorted(gone[:-1], key=lambda entry: -_common(entry, nodes))
        order = [gone[-1], *first, *order[len(gone) :]]
    assert found is not None
    nodes = {part.node for part in found}
    return found, tuple(entry for entry in gone if _common(entry, nodes))


def _common(entry: Running, nodes: set[str]) -> int:
    return sum(part.node in nodes for part in entry.placement)
