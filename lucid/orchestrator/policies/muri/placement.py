"""Placement of Muri's groups: running groups keep their GPUs, others go from the largest to the smallest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from lucid.core.decision import Action, Decision, Regroup, Requeue, Start
from lucid.core.job import Job, Pending, Running
from lucid.core.ledger import Ledger
from lucid.core.placement import Placement
from lucid.core.reason import Reason
from lucid.core.snapshot import Partition

Place = Callable[[Ledger, Job], Placement | None]
"""Finds free GPUs for a job."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Jobs that are to run on the same GPUs, by id: one job alone, or a group."""

    jobs: tuple[str, ...]
    placement: Placement

    @property
    def group(self) -> tuple[str, ...]:
        """The group as decisions name it: empty for a job alone."""
        return self.jobs if len(self.jobs) > 1 else ()


def arrange(
    partition: Partition, groups: Sequence[Sequence[Job]], now_s: float, place: Place, stay: bool = True
) -> tuple[list[Placed], Ledger]:
    """Find GPUs for groups, each of jobs of one GPU count.

    With ``stay``, running groups keep their GPUs, and a new group takes the GPUs of a running member, if all can
    be placed so; else everything is placed anew. A group needs the CPUs and the host memory of all its members;
    one for which there are not enough is taken apart, and its members are placed one by one as far as they go.

    Returns:
        What can be placed, and what is free then."""
    whole = [_whole(members) for members in groups]
    placements, ledger = _try(partition, groups, now_s, whole, place, stay)
    if stay and None in placements:
        placements, ledger = _try(partition, groups, now_s, whole, place, False)
    placed: list[Placed] = []
    for members, placement in zip(groups, placements, strict=True):
        if placement is not None:
            placed.append(Placed(tuple(job.id for job in members), placement))
            continue
        for job in members if len(members) > 1 else ():
            alone = place(ledger, job)
            if alone is not None:
                ledger.claim(job, alone)
                placed.append(Placed((job.id,), alone))
    return placed, ledger


def _whole(members: Sequence[Job]) -> Job:
    """A stand-in job with the needs of the whole group."""
    first = members[0]
    if len(members) == 1:
        return first
    limits_s = [job.time_limit_s for job in members if job.time_limit_s is not None]
    return replace(
        first,
        cpus=sum(job.cpus for job in members),
        mem_mib=sum(job.mem_mib for job in members),
        time_limit_s=max(limits_s) if len(limits_s) == len(members) else None,
    )


def _try(
    partition: Partition,
    groups: Sequence[Sequence[Job]],
    now_s: float,
    whole: Sequence[Job],
    place: Place,
    stay: bool,
) -> tuple[list[Placement | None], Ledger]:
    ledger = Ledger(replace(partition, running=()), now_s)
    placements: list[Placement | None] = [None] * len(groups)
    if stay:
        _stay(partition, groups, whole, placements, ledger)
    left = [i for i, placement in enumerate(placements) if placement is None]
    for i in sorted(left, key=lambda i: -whole[i].gpus):
        placement = place(ledger, whole[i])
        if placement is not None:
            ledger.claim(whole[i], placement)
            placements[i] = placement
    return placements, ledger


def _stay(
    partition: Partition,
    groups: Sequence[Sequence[Job]],
    whole: Sequence[Job],
    placements: list[Placement | None],
    ledger: Ledger,
) -> None:
    """Let running groups keep their GPUs; then let each new group take the GPUs of its first running member, if
    possible."""
    running = {entry.job.id: entry for entry in partition.running}
    up = {node.name for node in partition.nodes if node.available}
    taken: set[Placement] = set()
    for i, members in enumerate(groups):
        entry = running.get(members[0].id)
        if entry is not None and set(entry.group or (entry.job.id,)) == {job.id for job in members}:
            placements[i] = entry.placement
            taken.add(entry.placement)
            ledger.claim(whole[i], entry.placement)
    for i, members in enumerate(groups):
        for entry in (running[job.id] for job in members if placements[i] is None and job.id in running):
            here = entry.placement
            if here in taken or not all(part.node in up for part in here) or not _host_fits(ledger, whole[i], here):
                continue
            placements[i] = here
            taken.add(here)
            ledger.claim(whole[i], here)
            break


def _host_fits(ledger: Ledger, job: Job, placement: Placement) -> bool:
    return not ledger.selective or all(
        ledger.host_fits(ledger.index[name], job, mask.bit_count()) for name, mask in placement
    )


def moves(
    partition: Partition,
    placed: Sequence[Placed],
    why: Callable[[Placed, Pending | Running], tuple[Reason, ...]],
    why_not: Callable[[Running], tuple[Reason, ...]],
) -> tuple[dict[str, Decision], list[Action]]:
    """The decisions that carry out this placement: waiting jobs start, running jobs elsewhere or in another group are
    regrouped, and running jobs without a place are requeued. Pending jobs without a place are left to the caller.

    ``why`` gives the reasons of a start or a regrouping, ``why_not`` those of a requeue."""
    pending: Mapping[str, Pending] = {entry.job.id: entry for entry in partition.pending}
    running: Mapping[str, Running] = {entry.job.id: entry for entry in partition.running}
    decisions: dict[str, Decision] = {}
    actions: list[Action] = []
    here: set[str] = set()
    for item in placed:
        here.update(item.jobs)
        for job_id in item.jobs:
            entry = running.get(job_id)
            if entry is None:
                start = Start(item.placement, why(item, pending[job_id]), group=item.group)
                decisions[job_id] = start
                actions.append(Action(job_id, partition.name, start))
            elif entry.placement != item.placement or set(entry.group) != set(item.group):
                regroup = Regroup(item.placement, why(item, entry), item.group)
                decisions[job_id] = regroup
                actions.append(Action(job_id, partition.name, regroup))
    for entry in partition.running:
        if entry.job.id not in here and entry.job.gpus > 0:
            requeue = Requeue(why_not(entry))
            decisions[entry.job.id] = requeue
            actions.append(Action(entry.job.id, partition.name, requeue))
    return decisions, actions
