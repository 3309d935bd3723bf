"""Safety rules of interleaved groups: jobs that take turns on the same GPUs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping

from lucid.core.decision import EndProfiling, PartitionPlan, Regroup, Requeue, Start
from lucid.core.job import Job, JobProfile, Pending, Running
from lucid.core.placement import Placement
from lucid.core.snapshot import Partition
from lucid.errors import UnsafeAction, UnsafePlan

_Member = tuple[Job, JobProfile | None, Placement, tuple[str, ...]]


def check_groups(
    partition: Partition, plan: PartitionPlan, limit: int, same_user_only: bool, waiting: Mapping[str, Pending]
) -> None:
    """Check the groups that exist once the plan is carried out.

    The rules: a group names each of its members once, two to ``limit`` of them; all name the same group, are there
    and hold exactly the same GPUs, of the count that each asked for; no other job holds these GPUs; every member
    lets itself be shared, and is in no pair; the memory peaks of the measured members fit on each card
    together, and its nodes have a slot for each. On Slurm every member was measured and has said that it takes turns,
    and where the settings say so, all are of one user. A group that loses a member is formed anew in the same plan.
    A group that the plan has nothing to do with is as the cluster shows it, and is not checked.

    Args:
        partition: its state before the plan.
        limit: the most jobs in a group, as the policy states it; 1 allows none.
        same_user_only: whether only jobs of one user share GPUs, on Slurm.
        waiting: all that the plan may start, by job id.

    Raises:
        UnsafeAction: naming the rule, the group and the job, and an action that the plan is to do without."""
    named = (action.decision for action in plan.actions)
    if limit == 1 and not any(isinstance(decision, Start | Regroup) and decision.group for decision in named):
        return
    after = _after(partition, plan, waiting)
    if not any(member[3] for member in after.values()):
        return
    on_gpus: dict[tuple[str, int], set[str]] = defaultdict(set)
    for job_id, (_, _, placement, _) in after.items():
        for name, mask in placement:
            for bit in range(mask.bit_length()):
                if mask >> bit & 1:
                    on_gpus[name, bit].add(job_id)
    paired = {entry.job.id for entry in partition.running if entry.partner is not None}
    paired |= {action.decision.beside or "" for action in plan.actions if isinstance(action.decision, Start)}
    acts = [action.job_id for action in plan.actions]
    seen: set[tuple[str, ...]] = set()
    for job_id, member in after.items():
        group = member[3]
        if not group:
            continue
        concerned = {*group, job_id, *(i for name, mask in member[2] for i in _on(on_gpus, name, mask))}
        guilty = next((i for i in acts if i in concerned), None)
        if guilty is None:
            continue
        try:
            _check_member(job_id, member, group not in seen, after, on_gpus, paired, partition, limit)
            if partition.live:
                _check_willing(group, after, same_user_only)
        except UnsafePlan as error:
            raise UnsafeAction(str(error), guilty) from None
        seen.add(group)


def _on(on_gpus: Mapping[tuple[str, int], set[str]], name: str, mask: int) -> set[str]:
    """The jobs that hold any of these GPUs of a node."""
    return set().union(*(on_gpus[name, bit] for bit in range(mask.bit_length()) if mask >> bit & 1))


def _check_member(
    job_id: str,
    member: _Member,
    first: bool,
    after: Mapping[str, _Member],
    on_gpus: Mapping[tuple[str, int], set[str]],
    paired: Collection[str],
    partition: Partition,
    limit: int,
) -> None:
    """Check one member of a group. ``first``: it is the first of its group, which is checked with it."""
    group = member[3]
    words = f"group {' '.join(group)}"
    if job_id not in group:
        raise UnsafePlan(f"job {job_id}: it runs in {words}, which does not name it")
    if first:
        _check_group(words, group, after, partition, limit)
    for name, mask in member[2]:
        for bit in range(mask.bit_length()):
            if mask >> bit & 1 and on_gpus[name, bit] != set(group):
                strangers = sorted(on_gpus[name, bit] ^ set(group))
                raise UnsafePlan(f"{words}: GPU {bit} of node {name!r} is not the group's alone ({strangers})")
    if job_id in paired:
        raise UnsafePlan(f"job {job_id}: it is in {words} and in a pair at once")


def _check_willing(group: tuple[str, ...], after: Mapping[str, _Member], same_user_only: bool) -> None:
    words = f"group {' '.join(group)}"
    for job_id in group:
        job, profile, _, _ = after[job_id]
        if not job.takes_turns or profile is None:
            why = "has not said that it takes turns" if not job.takes_turns else "has not been measured"
            raise UnsafePlan(f"{words}: job {job_id} {why}")
        if same_user_only and job.user != after[group[0]][0].user:
            raise UnsafePlan(f"{words}: job {job_id} is of another user than job {group[0]}")


def _after(partition: Partition, plan: PartitionPlan, waiting: Mapping[str, Pending]) -> dict[str, _Member]:
    """By job id, what each job holds once the plan is carried out."""
    after: dict[str, _Member] = {e.job.id: (e.job, e.profile, e.placement, e.group) for e in partition.running}
    entries: dict[str, Pending | Running] = {**waiting, **{entry.job.id: entry for entry in partition.running}}
    for action in plan.actions:
        decision, entry = action.decision, entries[action.job_id]
        if isinstance(decision, Start | Regroup):
            after[action.job_id] = (entry.job, entry.profile, decision.placement, decision.group)
        elif isinstance(decision, Requeue | EndProfiling):
            after.pop(action.job_id, None)
    return after


def _check_group(
    words: str, group: tuple[str, ...], after: Mapping[str, _Member], partition: Partition, limit: int
) -> None:
    if len(set(group)) != len(group) or not 2 <= len(group) <= limit:
        raise UnsafePlan(
            f"{words}: it has {len(group)} jobs; the policy may interleave 2 to {limit}, each named once"
        )
    missing = [job_id for job_id in group if job_id not in after]
    if missing:
        raise UnsafePlan(f"{words}: {', '.join(missing)} would not run; the group must be formed anew")
    first = after[group[0]]
    peaks_mib = 0.0
    for job_id in group:
        job, profile, placement, named = after[job_id]
        if named != group:
            raise UnsafePlan(f"{words}: job {job_id} is not in it but in {' '.join(named) or 'none'}")
        if sorted(placement) != sorted(first[2]) or job.gpus != first[0].gpus:
            raise UnsafePlan(f"{words}: job {job_id} holds other GPUs than job {group[0]}")
        if not job.shareable:
            raise UnsafePlan(f"{words}: job {job_id} may not be shared")
        peaks_mib += 0.0 if profile is None else profile.gpu_mem_mib
    for node in partition.nodes:
        if 0 < node.slots < len(group) and any(name == node.name for name, _ in first[2]):
            raise UnsafePlan(f"{words}: {len(group)} jobs, and a GPU of {node.name!r} has {node.slots} slots")
        if peaks_mib > node.gpu_mem_mib and any(name == node.name for name, _ in first[2]):
            raise UnsafePlan(
                f"{words}: its memory peaks of {peaks_mib:g} MiB in all do not fit on a GPU of {node.name!r} "
                f"with {node.gpu_mem_mib} MiB"
            )
