"""The protocol and base class of policies, the rules that a policy states, and what holds for all of them.

For all policies: jobs that Slurm does not let start at present (``Pending.barred``) wait with Slurm's own words, and
no GPUs are kept for them; starts on nodes that sleep or boot say so; restartable jobs leave a GPU that is not well;
plans of unchanged partitions are kept. The safety check holds a policy's plans to its stated rules, and to the
settings."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, get_args

from msgspec import Struct, structs

from lucid.core.decision import Action, Decision, Hold, PartitionPlan, Plan, Plans, Requeue, Start, earliest
from lucid.core.gpu import GpuOut
from lucid.core.job import Job, Pending, Running, may_restart
from lucid.core.node import next_edge_s
from lucid.core.ports import Capability, Predictor
from lucid.core.reasons.queue import Boots, GpusOut, SlurmBars
from lucid.core.snapshot import Partition, Snapshot, changed_names
from lucid.errors import ConfigError

if TYPE_CHECKING:
    from lucid.config.policy import PolicySettings


def with_boots(partition: Partition, made: PartitionPlan, now_s: float) -> PartitionPlan:
    """The plan, with the boot among the reasons of each start that waits for one; the same object where none does."""
    wait = {node.name: node for node in partition.nodes if node.boot_s}
    told: dict[str, Start] = {}
    for action in made.actions if wait else ():
        if isinstance(action.decision, Start):
            mine = [wait[part.node] for part in action.decision.placement if part.node in wait]
            if mine:
                last = max(mine, key=lambda node: node.delay_s(now_s))
                boots = Boots(last.name, last.boots_since_s is None, last.delay_s(now_s), len(mine) - 1)
                told[action.job_id] = structs.replace(action.decision, reasons=(*action.decision.reasons, boots))
    if not told:
        return made
    actions = tuple(Action(a.job_id, a.partition, told.get(a.job_id, a.decision)) for a in made.actions)
    return structs.replace(made, decisions={**made.decisions, **told}, actions=actions)


def bad_gpu_of(entry: Running, partition: Partition) -> GpuOut | None:
    """The GPU that this job may have to leave since it gets no new start, the one that is out for longest."""
    nodes = {node.name: node for node in partition.nodes if node.left_out}
    found = [
        out
        for part in entry.placement
        if part.node in nodes
        for out in nodes[part.node].left_out
        if out.ends_jobs and part.mask >> out.bit & 1
    ]
    return min(found, key=lambda out: (out.since_s, out.name), default=None)


def off_bad_gpus(plan: PartitionPlan, partition: Partition) -> PartitionPlan:
    """The plan, with restartable jobs on such GPUs requeued, whatever policy made it."""
    if not any(out.ends_jobs for node in partition.nodes for out in node.left_out):
        return plan
    decisions: dict[str, Decision] = dict(plan.decisions)
    actions = list(plan.actions)
    for entry in partition.running:
        out = bad_gpu_of(entry, partition)
        if out is None or entry.job.id in decisions or not may_restart(entry.job, "asked"):
            continue
        why = GpusOut(1, out.node, out.index, out.since_s, out.words, out.by)
        decisions[entry.job.id] = leaves = Requeue((why,))
        actions.append(Action(entry.job.id, partition.name, leaves))
    return structs.replace(plan, decisions=decisions, actions=tuple(actions))


Preempts = Literal["nobody", "elastic", "anybody"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRules:
    """What a policy does beyond starting waiting jobs, each alone on whole free GPUs and within the quota of its VC.

    A policy that states nothing may do nothing more. What the settings forbid is forbidden whatever is stated here.

    Raises:
        ConfigError: a value is none of those that its field takes."""

    pairs: bool = False
    """Start jobs in slots and beside others, as ``policy.packing`` lets them share, and part pairs."""
    profiles: bool = False
    """End profiling runs, or let the jobs carry on; start jobs of VCs on profiling nodes."""
    preempts: Preempts = "nobody"
    """Which jobs it takes off their GPUs to make room: elastic ones, or any. Where a job that is not elastic would
    start over (on Slurm), ``policy.profiling.restarts`` must allow that, too."""
    claims: bool = False
    """Start jobs on GPUs of jobs that Slurm preempts for them (``Running.yields``)."""
    resizes: bool = False
    """Change the GPUs of elastic jobs that run."""
    interleaves: bool = False
    """Let running jobs go on in another group, or, in a replay, on other GPUs."""
    group_limit: int = 1
    """The most jobs that take turns on the same GPUs; more than 1 only where it interleaves."""
    quotas: bool = False
    """Plan a pool of VCs, each with a quota of GPUs."""
    borrows: bool = False
    """Start jobs beyond the quota of their VC, as far as ``policy.lending`` and ``policy.fairness`` let them."""
    reads_trust: bool = True
    """Read ``Snapshot.trust``. A replay measures how well estimates rank jobs only where a policy reads it."""
    own: Mapping[str, PolicyRules] = field(default_factory=dict)
    """Rules of partitions that differ from these, by name."""

    def __post_init__(self) -> None:
        switches = ("pairs", "profiles", "claims", "resizes", "interleaves", "quotas", "borrows", "reads_trust")
        wrong = [name for name in switches if not isinstance(getattr(self, name), bool)]
        if self.preempts not in get_args(Preempts):
            wrong.append("preempts")
        if type(self.group_limit) is not int or not 1 <= self.group_limit <= (99 if self.interleaves else 1):
            wrong.append("group_limit")
        if wrong:
            raise ConfigError(f"PolicyRules: {wrong[0]} cannot be {getattr(self, wrong[0])!r}")

    def for_partition(self, partition: str) -> PolicyRules:
        """The rules of one partition."""
        return self.own.get(partition, self)


_STATED: Final[Mapping[Capability, tuple[str, Callable[[PolicyRules], bool]]]] = {
    Capability.SHARE: ("pairs", lambda rules: rules.pairs),
    Capability.PROFILE: ("profiles", lambda rules: rules.profiles),
    Capability.PREEMPT: ("preempts", lambda rules: rules.preempts != "nobody"),
    Capability.RESIZE: ("resizes", lambda rules: rules.resizes),
    Capability.INTERLEAVE: ("interleaves", lambda rules: rules.interleaves),
}
"""By capability that a policy needs of the cluster, the rule by which it states that it uses it."""
_ALWAYS: Final = frozenset({Capability.PREEMPT, Capability.RESIZE, Capability.INTERLEAVE})
"""Capabilities that no plan uses on a cluster without them. (Pairs and profiling nodes may be left from before.)"""
_GONE: Final = {
    "group_limit": "interleaves and group_limit",
    "restarts": "pairs, profiles or preempts",
    "lending": "borrows",
    "own_rules": "own",
    "keeps_quotas": "quotas",
}
"""Where rules were stated until 0.1, and where they are stated now."""


def rules_of(policy: Any) -> PolicyRules:
    """The rules that a policy states; by default it may do nothing but start jobs.

    Raises: ConfigError: the rules are of another type, are stated as until 0.1, or do not fit what the policy needs
    of the cluster. The message names what is missing."""
    name, rules = policy.name, getattr(policy, "rules", None)
    see = "docs/write-a-policy.md says how a policy states its rules"
    if rules is None:
        old = next((old for old in _GONE if hasattr(policy, old)), None)
        if old is not None:
            raise ConfigError(
                f"policy {name!r} states its rules as {old!r}, which is read no more: it needs a member "
                f"rules = PolicyRules(...) with {_GONE[old]}; {see}"
            )
        rules = PolicyRules()
    if not isinstance(rules, PolicyRules) or not all(isinstance(own, PolicyRules) for own in rules.own.values()):
        raise ConfigError(f"policy {name!r}: its member rules has to be a PolicyRules, and is {rules!r}; {see}")
    every = (rules, *rules.own.values())
    for capability, (rule, states) in _STATED.items():
        stated = any(map(states, every))
        if capability in policy.needs and not stated:
            raise ConfigError(
                f"policy {name!r} needs {capability}, and does not state what for: its rules lack {rule}, as in "
                f"rules = PolicyRules({rule}=...); {see}"
            )
        if stated and capability in _ALWAYS and capability not in policy.needs:
            raise ConfigError(f"policy {name!r} states {rule}, and its needs lack {capability}; {see}")
    return rules


class Policy(Protocol):
    """Turns a snapshot into a plan. ``plan`` is a function of the snapshot alone: no clock, no chance, and what is
    kept between calls only saves work."""

    @property
    def name(self) -> str:
        """The policy's name on the command line."""
        ...

    @property
    def needs(self) -> frozenset[Capability]:
        """The capabilities that the cluster must have."""
        ...

    @property
    def rules(self) -> PolicyRules:
        """What the policy does beyond starting jobs: the safety check lets it do that, and no more."""
        ...

    def profiled(self, job: Job) -> bool:
        """Whether a new job goes through the profiling partition first, the same rule that job_submit applies."""
        ...

    def plan(self, snapshot: Snapshot) -> Plan:
        """Decide every pending job."""
        ...


Planner = Callable[[Partition, Snapshot], PartitionPlan]
"""Plans one partition; the rest of the snapshot may be read."""

PolicyFactory = Callable[["PolicySettings", Predictor], Policy]
"""Makes a policy from the settings; the predictor is for questions about pairs."""


class _Kept(Struct, frozen=True):
    """The last plan of a partition, and what it was made from. ``left``: the partition without the jobs that Slurm
    bars. ``others``: what else the plan depends on. ``until_s``: when it is made anew even so. ``plain``: whether all
    nodes are whole, always open, awake, and below no known switches."""

    whole: Partition
    left: Partition
    others: tuple[object, ...]
    plan: PartitionPlan
    until_s: float
    plain: bool


class PartitionPolicy(ABC):
    """Base of policies that plan each partition by itself.

    A partition's plan is kept and handed out again as long as the adapter hands out the same partition and
    the plan's wake time has not come."""

    name: str
    needs: frozenset[Capability] = frozenset()
    rules: PolicyRules = PolicyRules()
    guard: Callable[[Planner, Partition, Snapshot], PartitionPlan] | None = None
    """Called with ``plan_partition`` and its arguments in its place; returns another plan where that raises
    (``planner.isolated``). ``None``: ``plan`` raises it, too."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}
        """By partition, what its last plan was made from."""
        self.__last: tuple[Mapping[str, Partition], Plans] | None = None
        """What was planned last, and the plans."""
        self.__planned_s = -math.inf
        self.__places: dict[str, int] = {}
        self.__always: list[str] = []
        self.__barred: dict[str, Partition] = {}
        """The partitions in which Slurm bars jobs, without these."""

    def profiled(self, job: Job) -> bool:  # noqa: ARG002 - part of the protocol
        """False: most policies profile nothing."""
        return False

    def plan(self, snapshot: Snapshot) -> Plan:
        """Plan every partition that has changed or is due. Jobs that Slurm bars wait, whatever the policy."""
        now_s, whole, parts = snapshot.now_s, snapshot.partitions, dict[str, PartitionPlan]()
        if now_s < self.__planned_s:  # the clock was set back: kept plans would outlast their time
            self._kept, self.__last = {}, None
        self.__planned_s, known = now_s, self._kept
        alone, last = self.plans_alone, self.__last
        self.__last = None  # a plan that raises leaves some not planned
        changed = changed_names(whole, None if last is None else last[0])
        snapshot = self._without_barred(snapshot, changed)
        if last is None or len(changed) == len(whole):
            self.__places = {name: place for place, name in enumerate(whole)}
            self.__always = [name for name, partition in whole.items() if partition.profiling]
        if len(changed) == len(whole) or not alone:
            last = None
        for name in whole if last is None else self._due(changed, last[1], now_s):
            partition, kept = snapshot.partitions[name], known.get(name)
            others = () if alone and not partition.profiling else self.depends_on(partition, snapshot)
            if kept is not None and kept.left is partition and now_s < kept.until_s and kept.others == others:
                parts[name] = kept.plan
                continue
            if self.guard is None:
                part = self.plan_partition(partition, snapshot)
            else:
                part = self.guard(self.plan_partition, partition, snapshot)
            if kept is not None and kept.whole.nodes is partition.nodes:
                plain = kept.plain
            else:
                plain = not any(n.left_out or n.boot_s or n.windows or n.switches for n in partition.nodes)
            if not plain:
                part = _with_nodes(off_bad_gpus(part, partition), partition, now_s)
            if partition is not whole[name]:
                part = structs.replace(part, decisions={**part.decisions, **_bars(whole[name])})
            wake_s = math.inf if part.wake_s is None else part.wake_s
            known[name] = _Kept(whole[name], partition, others, part, -math.inf if part.actions else wake_s, plain)
            parts[name] = part
        plans = Plans(parts, None if last is None else last[1])
        self.__last = (whole, plans)
        return Plan(now_s, plans)

    def _due(self, changed: Collection[str], last: Plans, now_s: float) -> list[str]:
        """The partitions, in order, whose plan may not be the last one: those that changed, acted, or whose time has
        come, and profiling."""
        names = {*changed, *last.acting, *self.__always}
        if last.wake_s is not None and last.wake_s <= now_s:
            names.update(name for name, wake_s in last.wakes.items() if wake_s <= now_s)
        return sorted(names, key=self.__places.__getitem__)

    def _without_barred(self, snapshot: Snapshot, changed: Collection[str]) -> Snapshot:
        """The snapshot without the jobs that Slurm bars; the same objects as long as the same objects come in."""
        known, barred = self._kept, self.__barred
        if len(changed) == len(snapshot.partitions):
            barred.clear()
        for name in changed:
            partition, kept = snapshot.partitions[name], known.get(name)
            if kept is not None and kept.whole is partition:
                if kept.left is not partition:
                    barred[name] = kept.left
                continue
            barred.pop(name, None)
            looked: Sequence[Pending | Running] = partition.pending
            if kept is not None and kept.left is kept.whole:  # it had none
                looked = partition.since(kept.whole).came
            if [entry for entry in looked if type(entry) is Pending and entry.barred]:
                open_ = tuple([entry for entry in partition.pending if not entry.barred])
                barred[name] = replace(partition, pending=open_)
        return replace(snapshot, partitions={**snapshot.partitions, **barred}) if barred else snapshot

    def forget(self) -> None:
        """Plan every partition in which jobs wait anew the next time, since something has changed by which they wait
        and that no partition shows."""
        self._kept = {name: kept for name, kept in self._kept.items() if not kept.whole.pending}
        self.__last = None

    @property
    def plans_alone(self) -> bool:
        """Whether ``depends_on`` depends on no partition other than profiling, whatever the snapshot."""
        return type(self).depends_on is PartitionPolicy.depends_on

    def depends_on(self, partition: Partition, snapshot: Snapshot) -> tuple[object, ...]:  # noqa: ARG002
        """What else the plan of this partition depends on: a change there makes a kept plan void."""
        return ()

    def group_speeds(
        self,
        members: Sequence[Running],  # noqa: ARG002
        snapshot: Snapshot,  # noqa: ARG002
        partition: Partition,  # noqa: ARG002
    ) -> Mapping[str, float]:
        """The speeds of jobs that take turns on the same GPUs, by id, as a share of their speed alone, as the plan
        reckons them; empty where they are not known."""
        return {}

    @abstractmethod
    def plan_partition(self, partition: Partition, snapshot: Snapshot) -> PartitionPlan:
        """Decide one partition; the rest of the snapshot may be read."""


def _bars(partition: Partition) -> dict[str, Decision]:
    barred = (entry for entry in partition.pending if entry.barred)
    return {entry.job.id: Hold((SlurmBars(entry.barred, entry.retry_s),)) for entry in barred}


def _with_nodes(part: PartitionPlan, partition: Partition, now_s: float) -> PartitionPlan:
    """The plan, with the boots that its starts wait for, and a wake time when a node opens or closes."""
    part = with_boots(partition, part, now_s)
    edge_s = next_edge_s(partition.nodes, now_s)
    asked_s: list[float | None] = []
    if any(node.switches for node in partition.nodes):  # then any switch will do for one of them
        asked_s = [entry.job.switches_until_s for entry in partition.pending if entry.job.most_switches]
    ahead_s = [at_s for at_s in (edge_s, *asked_s) if at_s is not None and now_s < at_s < math.inf]
    return structs.replace(part, wake_s=earliest(part.wake_s, *ahead_s)) if ahead_s else part
