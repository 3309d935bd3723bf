"""Safety rules that every plan must pass before anything of it is applied, whatever policy made it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from operator import attrgetter

from lucid.config import LendingSettings
from lucid.core.decision import (
    Action,
    Decision,
    Hold,
    PartitionPlan,
    Plan,
    Regroup,
    Release,
    Requeue,
    Resize,
    Start,
)
from lucid.core.job import Job, Pending, Running, Stage
from lucid.core.reason import Unsafe
from lucid.core.restart import Restarts, may_restart
from lucid.core.snapshot import Partition, Snapshot
from lucid.errors import UnsafeAction, UnsafePlan
from lucid.orchestrator.check_book import Book
from lucid.orchestrator.check_groups import check_groups
from lucid.orchestrator.check_quotas import check_quotas

__all__ = ["SafetyCheck", "check_partition"]


_JOB_ID = attrgetter("job.id")


class SafetyCheck:
    """Checks plans. A partition's plan that was checked against the same partition before is not checked
    again (policies hand unchanged plans out anew). ``group_limit``: most jobs that the policy may interleave on
    the same GPUs; 1 forbids it. ``restarts``: whom it may start over; ``None`` where the policy has no such rule.
    ``lending``: what VCs of a pool may have beyond their quotas; ``None``: nothing. ``own``: group limit and rule on
    restarts of the partitions that have a policy of their own."""

    def __init__(
        self,
        group_limit: int = 1,
        restarts: Restarts | None = None,
        lending: LendingSettings | None = None,
        own: Mapping[str, tuple[int, Restarts | None]] | None = None,
    ) -> None:
        self._rules, self._lending, self._own = (group_limit, restarts), lending, own or {}
        self._passed: dict[str, tuple[Partition, PartitionPlan]] = {}

    def __call__(self, snapshot: Snapshot, plan: Plan) -> None:
        """Pass in silence, or raise.

        Raises:
            UnsafePlan: naming the rule, the job and the resource.
        """
        for name in plan.partitions:
            if name not in snapshot.partitions:
                raise UnsafePlan(f"the plan names partition {name!r}, which the cluster does not have")
        for name, partition in snapshot.partitions.items():
            part = plan.partitions.get(name)
            others = _Elsewhere(snapshot, plan, partition)
            if part is None:
                if partition.pending:
                    raise UnsafePlan(
                        f"partition {name!r}: the plan decides none of its {len(partition.pending)} pending jobs"
                    )
                continue
            passed = self._passed.get(name)
            if passed is not None and passed[0] is partition and passed[1] is part:
                continue
            check_partition(partition, part, *self._own.get(name, self._rules), others, now_s=snapshot.now_s)
            check_quotas(partition, part, self._lending, snapshot.predictions)
            self._passed[name] = (partition, part)
        _once(plan)

    def safe_part(self, snapshot: Snapshot, plan: Plan) -> tuple[Plan, list[UnsafeAction]]:
        """The plan without the actions that break a rule, and what was wrong with each. Their jobs wait.

        Raises:
            UnsafePlan: what is wrong is not the matter of single actions.
        """
        unsafe: list[UnsafeAction] = []
        while True:
            try:
                self(snapshot, plan)
            except UnsafeAction as error:
                unsafe.append(error)
                plan = _without(snapshot, plan, error)
            else:
                return plan, unsafe


def _without(snapshot: Snapshot, plan: Plan, error: UnsafeAction) -> Plan:
    """The plan without one job's action; every round of ``safe_part`` has one action less."""
    parts = dict(plan.partitions)
    for name, part in plan.partitions.items():
        left = tuple(action for action in part.actions if action.job_id != error.job_id)
        if len(left) == len(part.actions):
            continue
        decisions = {job_id: decision for job_id, decision in part.decisions.items() if job_id != error.job_id}
        if any(entry.job.id == error.job_id for entry in snapshot.partitions[name].pending):
            decisions[error.job_id] = Hold((Unsafe(str(error)),))
        parts[name] = replace(part, decisions=decisions, actions=left)
    return replace(plan, partitions=parts)


def _once(plan: Plan) -> None:
    seen: set[str] = set()
    for part in plan.partitions.values():
        for action in part.actions:
            if action.job_id in seen:
                raise UnsafeAction(f"job {action.job_id}: the plan has two actions for it", action.job_id)
            seen.add(action.job_id)


class _Elsewhere:
    """What a partition's plan has to do with others: a job that waits in a VC may be started in profiling."""

    def __init__(self, snapshot: Snapshot, plan: Plan, partition: Partition) -> None:
        self._snapshot, self._plan, self._partition = snapshot, plan, partition

    def started(self, job_id: str) -> bool:
        """Is this job, which waits here, decided by the profiling partition's plan?"""
        profiling = self._snapshot.profiling
        if profiling is None or profiling is self._partition:
            return False
        part = self._plan.partitions.get(profiling.name)
        return part is not None and isinstance(part.decisions.get(job_id), Start)

    def waiting(self) -> dict[str, Pending]:
        """Jobs of other partitions that this plan may start: only the profiling partition's plan may start any."""
        if not self._partition.profiling:
            return {}
        parts = [part for part in self._snapshot.partitions.values() if part is not self._partition]
        return {entry.job.id: entry for part in parts for entry in part.pending}


def check_partition(
    partition: Partition,
    plan: PartitionPlan,
    group_limit: int = 1,
    restarts: Restarts | None = None,
    elsewhere: _Elsewhere | None = None,
    *,
    now_s: float = 0.0,
) -> None:
    """Check one partition's decisions against its state.

    The rules: every pending job is decided; what is decided is also done; only pending jobs start and only
    running ones are requeued, resized, regrouped, released or kept; only elastic jobs without a partner are
    resized, and only jobs without one regrouped; GPUs named exist on available nodes and are as many as the job
    asked for, or as its elastic limits allow, on no fewer nodes than it asked for, and on none that closes before
    the job's time limit ends, or it is requeued because its user allows that; a GPU holds at most two jobs, both
    on exactly the same GPUs (so of equal count), both measured, their memory peaks within the card's, unless they are
    one interleaved group (``check_groups``); CPUs and host memory of a node are not exceeded by what the plan
    starts; only jobs for which ``restarts`` allows it are started over.

    Raises:
        UnsafePlan: naming the rule, the job and the resource.
    """
    decisions = plan.decisions
    ids = list(map(_JOB_ID, partition.pending))
    if not all(map(decisions.__contains__, ids)):
        lost = [i for i in ids if i not in decisions and (elsewhere is None or not elsewhere.started(i))]
        if lost:
            raise UnsafePlan(f"job {lost[0]}: it is pending in {partition.name!r}, and the plan does not decide it")
    if len(decisions) - list(map(type, decisions.values())).count(Hold) > len(plan.actions):
        acting = {action.job_id for action in plan.actions}
        idle = next(i for i, d in decisions.items() if not isinstance(d, Hold) and i not in acting)
        kind = type(decisions[idle]).__name__.lower()
        raise UnsafePlan(f"job {idle}: the plan decides to {kind} it, but has no action for that")
    if not plan.actions:
        return
    pending = {entry.job.id: entry for entry in partition.pending}
    # nothing is asked about a running job where the plan only starts jobs
    only_starts = all(isinstance(action.decision, Start) for action in plan.actions)
    running = {} if only_starts else {entry.job.id: entry for entry in partition.running}
    if elsewhere is not None and any(a.job_id not in pending and isinstance(a.decision, Start) for a in plan.actions):
        pending = {**elsewhere.waiting(), **pending}
    touched = {
        part.node
        for action in plan.actions
        if isinstance(action.decision, Start | Resize | Regroup)
        for part in action.decision.placement
    }
    book = Book(partition, touched, now_s)
    for action in plan.actions:  # what leaves makes room first, as the cluster will apply it
        try:
            _known(action, partition, decisions.get(action.job_id), pending, running)
            if restarts is not None and isinstance(action.decision, Requeue | Release) and action.job_id in running:
                _restarted(running[action.job_id].job, restarts)
        except UnsafePlan as error:
            raise UnsafeAction(str(error), action.job_id) from None
        if isinstance(action.decision, Requeue | Resize | Regroup | Release) and action.job_id in running:
            book.remove(running[action.job_id])
    for action in plan.actions:
        try:
            _enter(book, action, pending, running)
        except UnsafePlan as error:
            raise UnsafeAction(str(error), action.job_id) from None
    check_groups(partition, plan, group_limit)


def _enter(book: Book, action: Action, pending: Mapping[str, Pending], running: Mapping[str, Running]) -> None:
    decision = action.decision
    if isinstance(decision, Start):
        entry = pending[action.job_id]
        book.add(entry.job, entry.profile, decision.placement, decision.beside, decision.group, decision.until_s)
    elif isinstance(decision, Resize):
        book.add(running[action.job_id].job, running[action.job_id].profile, decision.placement, None)
    elif isinstance(decision, Regroup):
        moved = running[action.job_id]
        book.add(moved.job, moved.profile, decision.placement, None, decision.group)


def _restarted(job: Job, restarts: Restarts) -> None:
    if not may_restart(job, restarts):
        raise UnsafePlan(
            f"job {job.id}: the plan starts it over, which policy.profiling.restarts = {restarts!r} forbids"
        )


def _known(
    action: Action,
    partition: Partition,
    decision: Decision | None,
    pending: Mapping[str, Pending],
    running: Mapping[str, Running],
) -> None:
    job_id, wanted = action.job_id, action.decision
    if action.partition != partition.name or decision is not wanted:
        raise UnsafePlan(f"job {job_id}: its action and its decision in partition {partition.name!r} differ")
    if isinstance(wanted, Start):
        possible = job_id in pending
    elif isinstance(wanted, Requeue):
        possible = job_id in running
    elif isinstance(wanted, Resize | Regroup):
        entry = running.get(job_id)
        possible = entry is not None and entry.partner is None
        if isinstance(wanted, Resize):
            possible = possible and entry is not None and entry.job.elastic is not None and not entry.group
    else:
        possible = partition.profiling and (
            (job_id in pending and isinstance(wanted, Release))
            or (job_id in running and running[job_id].stage is Stage.PROFILE)
        )
    if not possible:
        raise UnsafePlan(
            f"job {job_id}: the plan cannot {type(wanted).__name__.lower()} it in partition {partition.name!r}, "
            "because the job is not in the state for that"
        )
