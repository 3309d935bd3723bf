"""The safety check that every plan must pass before anything of it is applied, whatever policy made it.

The check uses only what a plan would do. It ignores reasons: what is permitted follows from the snapshot, the
settings, and the rules that the policy states (``lucid.orchestrator.policy``), which can only forbid."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from lucid.config.policy import PolicySettings
from lucid.core.decision import (
    Action,
    Decision,
    EndProfiling,
    Hold,
    Keep,
    PartitionPlan,
    Plan,
    Regroup,
    Requeue,
    Resize,
    Start,
    kind_of,
)
from lucid.core.job import Job, Pending, Restarts, Running, Stage, may_restart
from lucid.core.reasons.queue import Unsafe
from lucid.core.snapshot import Partition, Snapshot, changed_names
from lucid.errors import UnsafeAction, UnsafePlan
from lucid.orchestrator.planner import unplanned
from lucid.orchestrator.policy import PolicyRules, bad_gpu_of
from lucid.orchestrator.safety.groups import check_groups
from lucid.orchestrator.safety.holdings import Holdings
from lucid.orchestrator.safety.quotas import check_quotas, check_victims


def check_rules(
    action: Action,
    entry: Pending | Running,
    partition: Partition,
    rules: PolicyRules,
    restarts: Restarts,
) -> None:
    """Check one action on a job that is in the state for it, against the policy's rules and the settings.

    Args:
        rules: what the policy of that partition states; they can only forbid.
        restarts: which jobs the settings let it start over.

    Raises:
        UnsafePlan: naming the job, and the rule that is not stated or not kept."""
    decision, job = action.decision, entry.job
    if isinstance(decision, Start):
        _start(decision, entry, rules)
    elif isinstance(decision, Requeue) and decision.part:
        _stated(rules.pairs, "pairs", job, "parts it from another")
        if isinstance(entry, Running) and entry.partner is None:
            raise UnsafePlan(f"job {job.id}: the plan parts it from another, and it is alone on its GPUs")
        _restarted(job, restarts)
    elif isinstance(decision, Requeue) and isinstance(entry, Running) and bad_gpu_of(entry, partition) is not None:
        _restarted(job, "asked")
    elif isinstance(decision, Requeue):
        whom = ("anybody",) if job.elastic is None else ("anybody", "elastic")
        _stated(rules.preempts in whom, "preempts", job, "requeues it")
        if job.elastic is None and partition.live:
            _restarted(job, restarts)
    elif isinstance(decision, Resize):
        _stated(rules.resizes, "resizes", job, "resizes it")
    elif isinstance(decision, Regroup):
        _stated(rules.interleaves, "interleaves", job, "moves or regroups it")
        if partition.live and isinstance(entry, Running) and {*entry.placement} != {*decision.placement}:
            raise UnsafePlan(f"job {job.id}: the plan moves it to other GPUs, and on Slurm it would start over")
    else:
        _stated(rules.profiles, "profiles", job, "ends its profiling run")
        if isinstance(decision, EndProfiling) and isinstance(entry, Running):
            _restarted(job, restarts)


def _start(decision: Start, entry: Pending | Running, rules: PolicyRules) -> None:
    job = entry.job
    if isinstance(entry, Pending) and entry.barred:
        raise UnsafePlan(f"job {job.id}: the plan starts it, and Slurm would not: {entry.barred}")
    if decision.beside is not None:
        _stated(rules.pairs, "pairs", job, "starts it beside another")
    if decision.preempts:
        _stated(rules.claims, "claims", job, "starts it on GPUs of jobs that Slurm then preempts")
    if decision.slots:
        _stated(rules.pairs or rules.interleaves, "pairs", job, "starts it in slots")


def _stated(stated: bool, rule: str, job: Job, what: str) -> None:
    if not stated:
        raise UnsafePlan(f"job {job.id}: the plan {what}, and its policy does not state that it may (rules.{rule})")


def _restarted(job: Job, restarts: Restarts) -> None:
    if not may_restart(job, restarts):
        raise UnsafePlan(
            f"job {job.id}: the plan starts it over, which policy.profiling.restarts = {restarts!r} forbids"
        )


class SafetyCheck:
    """Checks plans. A partition's plan that does nothing, and was checked against the same partition before, is not
    checked again (policies hand unchanged plans out anew). ``rules``: what the policy states that it does.
    ``settings``: what of that the administrator permits."""

    def __init__(self, rules: PolicyRules, settings: PolicySettings) -> None:
        self._rules, self._settings = rules, settings
        self._passed: dict[str, tuple[Partition, PartitionPlan]] = {}
        self._turns: defaultdict[str, set[str]] = defaultdict(set)
        """By pool, the jobs that started beyond a quota in their turn."""
        self._last: tuple[Mapping[str, Partition], Mapping[str, PartitionPlan]] | None = None
        """The partitions and plans that were checked last."""
        self._open: set[str] = set()
        """The partitions whose plans did not pass for good."""

    def __call__(self, snapshot: Snapshot, plan: Plan) -> None:
        """Check the plan; return if it is safe.

        Raises: UnsafePlan: naming the rule, the job and the resource."""
        for error in self._unsafe(snapshot, plan, None):
            raise error

    def _unsafe(self, snapshot: Snapshot, plan: Plan, bad: dict[str, PartitionPlan] | None) -> list[UnsafeAction]:
        """Actions that break a rule; not all of them, since one may be safe only as long as another is done. ``bad``:
        takes new plans for partitions with which something else is wrong (``unplanned``); ``None``: that is raised.

        Raises: UnsafePlan: the fault is not one of single actions."""
        partitions, parts, passed = snapshot.partitions, plan.partitions, self._passed
        seen, planned = self._last or (None, None)
        self._last = None  # a rule that raises leaves some unchecked
        changed, new = changed_names(partitions, seen), changed_names(parts, planned)
        names: Iterable[str] = partitions
        if len(changed) < len(partitions) and len(new) < len(parts):
            names = sorted({*changed, *new, *self._open})
        else:
            self._open.clear()
            for name in parts.keys() - partitions.keys():
                raise UnsafePlan(f"the plan names partition {name!r}, which the cluster does not have")
        found: list[UnsafeAction] = []
        actions: list[Action] = []
        for name in names:
            partition, part, before = partitions[name], parts.get(name), passed.get(name)
            if before is not None and before[0] is partition and before[1] is part:
                self._open.discard(name)
                continue
            self._open.add(name)
            others = _Elsewhere(snapshot, plan, partition)
            try:
                if part is None:
                    if partition.pending:
                        raise UnsafePlan(
                            f"partition {name!r}: the plan decides none of its {len(partition.pending)} pending jobs"
                        )
                    continue
                found += _unsafe_of(
                    partition,
                    part,
                    self._rules.for_partition(name),
                    self._settings,
                    snapshot,
                    others,
                    self._turns[name],
                )
            except Exception as error:
                if bad is None or (part is not None and part.error):
                    raise
                bad[name] = unplanned(partition, snapshot, error)
                continue
            actions += part.actions
            if not part.actions and not others.asked:
                passed[name] = (partition, part)
                self._open.discard(name)
        self._last = (partitions, parts)
        return found or _twice(actions)

    def safe_part(self, snapshot: Snapshot, plan: Plan) -> tuple[Plan, list[UnsafeAction]]:
        """The plan without the actions that break a rule, and the fault of each. Their jobs wait. Where more is wrong
        with the plan of a partition, or it cannot be checked, all of its jobs wait (``unplanned``).

        Raises: UnsafePlan: the fault is not one of a single partition."""
        unsafe: list[UnsafeAction] = []
        while True:
            bad: dict[str, PartitionPlan] = {}
            found = self._unsafe(snapshot, plan, bad)
            if not found and not bad:
                return plan, unsafe
            unsafe += found
            plan = replace(plan, partitions={**plan.partitions, **bad})
            plan = _without(snapshot, plan, {error.job_id: error for error in reversed(found)})


def _without(snapshot: Snapshot, plan: Plan, errors: Mapping[str, UnsafeAction]) -> Plan:
    """The plan without the actions on these jobs, which wait where they are; every round of ``safe_part`` has fewer
    actions."""
    parts = dict(plan.partitions)
    for name, part in plan.partitions.items():
        pending = (entry.job.id for entry in snapshot.partitions[name].pending)
        holds: dict[str, Decision] = {i: Hold((Unsafe(str(errors[i])),)) for i in pending if i in errors}
        left = tuple(action for action in part.actions if action.job_id not in errors)
        if holds or len(left) < len(part.actions):
            kept = {job_id: decision for job_id, decision in part.decisions.items() if job_id not in errors}
            parts[name] = replace(part, decisions={**kept, **holds}, actions=left)
    return replace(plan, partitions=parts)


def _twice(actions: Sequence[Action]) -> list[UnsafeAction]:
    seen: set[str] = set()
    found: list[UnsafeAction] = []
    for action in actions if len(actions) > 1 else ():
        if action.job_id in seen:
            found.append(UnsafeAction(f"job {action.job_id}: the plan has two actions for it", action.job_id))
        seen.add(action.job_id)
    return found


class _Elsewhere:
    """How a partition's plan bears on other partitions: a job that waits in a VC may be started in profiling."""

    def __init__(self, snapshot: Snapshot, plan: Plan, partition: Partition) -> None:
        self._snapshot, self._plan, self._partition = snapshot, plan, partition
        self.asked = False
        """Whether anything was asked, so that the outcome depends on more than the partition and its plan."""

    def started(self, job_id: str) -> bool:
        """Whether the profiling partition's plan decides this job, which waits here."""
        self.asked = True
        profiling = self._snapshot.profiling
        if profiling is None or profiling is self._partition:
            return False
        part = self._plan.partitions.get(profiling.name)
        return part is not None and isinstance(part.decisions.get(job_id), Start)

    def waiting(self, rules: PolicyRules) -> dict[str, Pending]:
        """Jobs of other partitions that this plan may start. Only the profiling partition's plan may start any, and
        only jobs that the plan of their own partition leaves to it."""
        if not self._partition.profiling or not rules.profiles:
            return {}
        found: dict[str, Pending] = {}
        for name, partition in self._snapshot.partitions.items():
            own = self._plan.partitions.get(name)
            if partition is self._partition or own is None:
                continue
            found |= {e.job.id: e for e in partition.pending if not e.home_only and e.job.id not in own.decisions}
        return found


def check_partition(
    partition: Partition,
    plan: PartitionPlan,
    rules: PolicyRules,
    settings: PolicySettings,
    snapshot: Snapshot,
) -> None:
    """Check one partition's decisions against its state.

    The rules: every pending job is decided; what is decided is also done; only pending jobs start, and none that
    Slurm bars; only running ones are requeued, resized, regrouped, released or kept; only elastic jobs without a
    partner are resized, and only jobs without one regrouped; nothing is done that the policy does not state
    (``check_rules``); GPUs named exist on available nodes and are as many as the job asked for, or as its elastic
    limits allow, on no fewer nodes than it asked for, on no more if it is elastic, and on none that closes before
    the job's time limit ends; a GPU holds at most two jobs, both on exactly the same GPUs (so of equal count),
    both willing and measured (``check_pairs``), unless they are one interleaved group (``check_groups``);
    CPUs and host memory of a node are not exceeded by what the plan starts; a VC of a pool keeps to its quota
    (``check_quotas``); who is preempted gives way to the job that starts (``check_victims``).

    Raises:
        UnsafePlan: naming the rule, the job and the resource."""
    others = _Elsewhere(snapshot, Plan(snapshot.now_s, {partition.name: plan}), partition)
    for error in _unsafe_of(partition, plan, rules, settings, snapshot, others, set()):
        raise error


def _unsafe_of(
    partition: Partition,
    plan: PartitionPlan,
    rules: PolicyRules,
    settings: PolicySettings,
    snapshot: Snapshot,
    elsewhere: _Elsewhere,
    turns: set[str],
) -> list[UnsafeAction]:
    """The actions that break the first rule that any action of the plan breaks; the rules are those of
    ``check_partition``."""
    decisions = plan.decisions
    for waiting in partition.pending:
        job_id = waiting.job.id
        if job_id not in decisions and not elsewhere.started(job_id):
            raise UnsafePlan(f"job {job_id}: it is pending in {partition.name!r}, and the plan does not decide it")
    if decisions and len(decisions) - list(map(type, decisions.values())).count(Hold) > len(plan.actions):
        acting = {action.job_id for action in plan.actions}
        idle = next(i for i, d in decisions.items() if not isinstance(d, Hold) and i not in acting)
        kind = kind_of(decisions[idle])
        raise UnsafePlan(f"job {idle}: the plan decides to {kind} it, but has no action for that")
    if not plan.actions:
        return []
    pending = {entry.job.id: entry for entry in partition.pending}
    # nothing is asked about a running job where the plan only starts jobs
    only_starts = all(isinstance(a.decision, Start) and not a.decision.preempts for a in plan.actions)
    running = {} if only_starts else {entry.job.id: entry for entry in partition.running}
    if any(a.job_id not in pending and isinstance(a.decision, Start) for a in plan.actions):
        pending = {**elsewhere.waiting(rules), **pending}
    leaving = {a.job_id for a in plan.actions if not isinstance(a.decision, Start)}
    found: list[UnsafeAction] = []
    for action in plan.actions:
        try:
            entry = _known(action, partition, decisions.get(action.job_id), pending, running)
            check_rules(action, entry, partition, rules, settings.profiling.restarts)
            if isinstance(action.decision, Start) and action.decision.preempts:
                check_victims(entry.job, action.decision, running, leaving, snapshot.now_s)
        except UnsafePlan as error:
            found.append(UnsafeAction(str(error), action.job_id))
    if found:
        return found
    touched = {
        part.node
        for action in plan.actions
        if isinstance(action.decision, Start | Resize | Regroup)
        for part in action.decision.placement
    }
    book = Holdings(partition, touched, settings, snapshot)
    for action in plan.actions:  # what leaves makes room first, as the cluster will apply it
        if isinstance(action.decision, Requeue | Resize | Regroup | EndProfiling) and action.job_id in running:
            book.remove(running[action.job_id])
    for victim in {i for a in plan.actions if isinstance(a.decision, Start) for i in a.decision.preempts}:
        book.remove(running[victim])
    for action in plan.actions:
        try:
            _enter(book, action, pending, running)
        except UnsafePlan as error:
            found.append(UnsafeAction(str(error), action.job_id))
    if found:
        return found
    try:
        check_groups(partition, plan, rules.group_limit, settings.packing.same_user_only, pending)
    except UnsafeAction as error:
        return [error]
    return check_quotas(partition, plan, settings, rules.borrows, snapshot, turns)


def _enter(book: Holdings, action: Action, pending: Mapping[str, Pending], running: Mapping[str, Running]) -> None:
    decision = action.decision
    if isinstance(decision, Start):
        entry = pending[action.job_id]
        book.add(
            entry,
            decision.placement,
            decision.beside,
            decision.group,
        )
    elif isinstance(decision, Resize):
        book.add(running[action.job_id], decision.placement, None)
    elif isinstance(decision, Regroup):
        book.add(running[action.job_id], decision.placement, None, decision.group)


def _known(
    action: Action,
    partition: Partition,
    decision: Decision | None,
    pending: Mapping[str, Pending],
    running: Mapping[str, Running],
) -> Pending | Running:
    """The job as the snapshot shows it, if it is in the state for the action."""
    job_id, wanted = action.job_id, action.decision
    if action.partition != partition.name or decision is not wanted:
        raise UnsafePlan(f"job {job_id}: its action and its decision in partition {partition.name!r} differ")
    waits, runs = pending.get(job_id), running.get(job_id)
    entry: Pending | Running | None = None
    if isinstance(wanted, Start):
        entry = waits
    elif isinstance(wanted, Requeue):
        entry = runs
    elif isinstance(wanted, Resize | Regroup):
        possible = runs is not None and runs.partner is None
        if isinstance(wanted, Resize):
            possible = possible and runs is not None and runs.job.elastic is not None and not runs.group
        entry = runs if possible else None
    elif isinstance(wanted, EndProfiling | Keep) and partition.profiling:
        profiled = runs if runs is not None and runs.stage is Stage.PROFILE else None
        entry = profiled or (waits if isinstance(wanted, EndProfiling) else None)
    if entry is None:
        raise UnsafePlan(
            f"job {job_id}: the plan cannot {kind_of(wanted)} it in partition {partition.name!r}, "
            "because the job is not in the state for that"
        )
    return entry
