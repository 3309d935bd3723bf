"""Safety rules of pools, by which a VC goes beyond its quota only by a loan or a turn; and of preempted jobs.

Any job may borrow where the settings say so. A turn by the starvation bound counts from when plain order would have
started the job, which cannot be seen in one snapshot. But plain order starts no job before it was submitted, so no
turn comes before the job has waited its share of the bound since then. And plain order never gives a VC more GPUs
than its own, so jobs that went beyond the quota in their turn hold no more than that together. This much is
checked."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import chain

from lucid.config.policy import PolicySettings
from lucid.core.decision import Action, EndProfiling, PartitionPlan, Regroup, Requeue, Resize, Start
from lucid.core.job import Job, Pending, Running
from lucid.core.placement import placement_gpus
from lucid.core.snapshot import Partition, Snapshot
from lucid.core.times import reached
from lucid.errors import UnsafeAction, UnsafePlan
from lucid.orchestrator.order.quotas import holders


def check_quotas(
    partition: Partition,
    plan: PartitionPlan,
    settings: PolicySettings,
    borrows: bool,
    snapshot: Snapshot,
    turns: set[str],
) -> list[UnsafeAction]:
    """Look at what a plan starts alone in a pool, in the order of its actions. Who joins a running job takes no GPU.

    Args:
        partition: its state before the plan; one without quotas has nothing to break.
        settings: what the administrator lets VCs lend.
        borrows: whether the policy states that it starts jobs beyond quotas.
        snapshot: for the time, and the estimates.
        turns: jobs of the partition that were let beyond a quota in their turn; brought up to date.

    Returns:
        What was wrong with each action that must not be done, naming the job, the VC and its quota."""
    unsafe: list[UnsafeAction] = []
    if not partition.quotas or not any(map(_takes_gpus, plan.actions)):
        return unsafe
    leaving = {a.job_id for a in plan.actions if isinstance(a.decision, Requeue | EndProfiling | Resize | Regroup)}
    held: dict[str, int] = {}
    staying = (e for e in partition.running if e.job.id not in leaving) if leaving else partition.running
    for placement, entry in holders(staying).items():
        held[entry.job.vc] = held.get(entry.job.vc, 0) + placement_gpus(placement)
    beyond = _Beyond(partition, settings, snapshot, turns) if borrows else None
    asked = {action.job_id for action in plan.actions}
    there: Iterable[Pending | Running] = chain(partition.running, partition.pending)
    jobs = {entry.job.id: entry.job for entry in there if entry.job.id in asked}
    for action in plan.actions:
        decision = action.decision
        if not _takes_gpus(action) or action.job_id not in jobs:
            continue
        assert isinstance(decision, Start | Resize | Regroup)
        job = jobs[action.job_id]
        quota, would_hold = partition.quotas.get(job.vc, 0), held.get(job.vc, 0) + placement_gpus(decision.placement)
        if would_hold <= quota or (beyond is not None and job.gpus <= quota and beyond.may(job, quota)):
            held[job.vc] = would_hold
            continue
        words = (
            f"job {job.id}: VC {job.vc} would hold {would_hold} GPUs of pool {partition.name!r}, its quota is "
            f"{quota}, and the job may not borrow"
        )
        unsafe.append(UnsafeAction(words, job.id))
    return unsafe


def _takes_gpus(action: Action) -> bool:
    decision = action.decision
    if isinstance(decision, Start):
        return decision.beside is None
    return isinstance(decision, Resize | Regroup)


class _Beyond:
    """Which jobs may start beyond the quota of their VC."""

    def __init__(self, partition: Partition, settings: PolicySettings, snapshot: Snapshot, turns: set[str]) -> None:
        self._settings, self._now_s, self._turns = settings, snapshot.now_s, turns
        entries: tuple[Pending | Running, ...] = (*partition.pending, *partition.running) if turns else ()
        there = [entry.job for entry in entries if entry.job.id in turns]
        turns.intersection_update(job.id for job in there)
        self._in_turn: dict[str, int] = {}
        """By VC, the GPUs of present jobs that went beyond the quota in their turn."""
        for job in there:
            self._in_turn[job.vc] = self._in_turn.get(job.vc, 0) + job.gpus

    def may(self, job: Job, quota: int) -> bool:
        return job.borrows and (self._settings.lending.mode == "borrow" or self._turn(job, quota))

    def _turn(self, job: Job, quota: int) -> bool:
        fairness = self._settings.fairness
        bound_s = fairness.beyond_plain_s
        if not bound_s or not reached(self._now_s, job.submit_s + fairness.keep_from * bound_s):
            return False
        if job.id not in self._turns:
            in_turn = self._in_turn.get(job.vc, 0) + job.gpus
            if in_turn > quota:
                return False
            self._in_turn[job.vc] = in_turn
            self._turns.add(job.id)
        return True


def check_victims(
    job: Job, start: Start, running: Mapping[str, Running], leaving: Collection[str], now_s: float
) -> None:
    """Check the jobs that a start preempts: each is running, gives way to the job now, holds one of its GPUs, and
    nothing else happens to it; and the job starts alone, on whole GPUs. (That no other job holds its GPUs is the rule
    for every start.) ``leaving``: jobs to which the plan does something else.

    Raises: UnsafePlan: naming the rule and the jobs."""
    if start.slots or start.beside is not None or start.group:
        raise UnsafePlan(f"job {job.id}: it preempts others, and would not have its GPUs to itself")
    wanted = dict(start.placement)
    for victim in start.preempts:
        entry = running.get(victim)
        if entry is None:
            raise UnsafePlan(f"job {job.id}: it preempts job {victim}, which does not run here")
        yields = entry.yields
        if yields is None or (yields.to is not None and job.qos not in yields.to):
            raise UnsafePlan(f"job {job.id}: it preempts job {victim}, which does not give way to it")
        if not reached(now_s, yields.from_s):
            raise UnsafePlan(
                f"job {job.id}: it preempts job {victim}, which may not be preempted for {yields.from_s - now_s:g} s"
            )
        if victim in leaving:
            raise UnsafePlan(f"job {job.id}: it preempts job {victim}, of which the plan decides something else")
        if not any(wanted.get(name, 0) & mask for name, mask in entry.placement):
            raise UnsafePlan(f"job {job.id}: it preempts job {victim}, which holds none of its GPUs")
