"""What a policy is, and how policies are found by name."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from lucid.core.decision import PartitionPlan, Plan, earliest
from lucid.core.job import Job, Running
from lucid.core.node import next_edge_s
from lucid.core.ports import Capability, Predictor
from lucid.core.snapshot import Partition, Snapshot
from lucid.errors import ConfigError, did_you_mean
from lucid.orchestrator.blocked_jobs import BlockedJobs
from lucid.orchestrator.boot_reasons import with_boots
from lucid.orchestrator.must_leave import off_bad_gpus
from lucid.orchestrator.plan_reuse import KeptParts
from lucid.orchestrator.rules import PolicyRules, rules_of

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from lucid.config import PolicySettings

__all__ = [
    "PartitionPolicy",
    "Planner",
    "Policy",
    "PolicyFactory",
    "adding_policy",
    "find_policy",
    "import_policy",
    "known_policies",
    "make_policy",
]

ENTRY_POINT_GROUP = "lucid.policies"


class Policy(Protocol):
    """Turns a snapshot into a plan. ``plan`` is a function of the snapshot alone: no clock, no chance, and
    what is kept between calls only saves work."""

    @property
    def name(self) -> str:
        """As it is called on the command line."""
        ...

    @property
    def needs(self) -> frozenset[Capability]:
        """What the cluster must be able to do."""
        ...

    @property
    def rules(self) -> PolicyRules:
        """What it does beyond starting jobs: the safety check lets it do that, and no more."""
        ...

    def profiled(self, job: Job) -> bool:
        """Does a new job go through the profiling partition first? The same rule that job_submit applies."""
        ...

    def plan(self, snapshot: Snapshot) -> Plan:
        """Decide every pending job."""
        ...


Planner = Callable[[Partition, Snapshot], PartitionPlan]
"""Plans one partition; the rest of the snapshot is there to look at."""

PolicyFactory = Callable[["PolicySettings", Predictor], Policy]
"""Makes a policy from the settings; the predictor is for questions about pairs."""

_ADDED: dict[str, PolicyFactory] = {}
"""Policies of the program that uses Lucid as a library (``adding_policy``)."""


class PartitionPolicy(ABC):
    """Base of policies that plan each partition by itself.

    A partition's plan is kept and handed out again as long as the adapter hands out the same partition and
    the plan's wake time has not come.
    """

    name: str
    needs: frozenset[Capability] = frozenset()
    rules: PolicyRules = PolicyRules()
    guard: Callable[[Planner, Partition, Snapshot], PartitionPlan] | None = None
    """Calls ``plan_partition`` in the place of ``plan``, and says what is planned where that raises (``isolation``).
    ``None``: ``plan`` raises it, too."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Partition, tuple[object, ...], PartitionPlan, bool]] = {}
        """By partition: as it was, what else its plan depends on, the plan, and are its nodes always open, awake, and
        below no switches that are known?"""
        self._barred = BlockedJobs()
        self._parts = KeptParts()

    def profiled(self, job: Job) -> bool:  # noqa: ARG002 - part of the protocol
        """Most policies profile nothing."""
        return False

    def plan(self, snapshot: Snapshot) -> Plan:
        """Plan every partition that has changed or is due. Jobs that Slurm bars wait, whatever the policy."""
        looked: dict[str, PartitionPlan] = {}
        now_s = snapshot.now_s
        whole, snapshot = snapshot, self._barred.without(snapshot)
        for name in self._parts.to_look_at(snapshot.partitions, now_s, alone=self.plans_alone):
            partition = snapshot.partitions[name]
            kept, others = self._kept.get(name), self.looks_at(partition, snapshot)
            if (
                kept is not None
                and kept[0] is partition
                and kept[1] == others
                and not kept[2].actions
                and (kept[2].wake_s is None or now_s < kept[2].wake_s)
            ):
                looked[name] = kept[2]
                continue
            if self.guard is None:
                part = self.plan_partition(partition, snapshot)
            else:
                part = self.guard(self.plan_partition, partition, snapshot)
            part = off_bad_gpus(part, partition)
            if kept is not None and kept[0].nodes is partition.nodes:
                plain = kept[3]
            else:
                plain = not any(node.boot_s or node.windows or node.switches for node in partition.nodes)
            if not plain:
                part = _with_nodes(part, partition, now_s)
            self._kept[name] = (partition, others, part, plain)
            looked[name] = part
        parts: Mapping[str, PartitionPlan] = self._parts.with_fresh(snapshot.partitions, looked)
        if whole is not snapshot:
            parts = {name: self._barred.joined(whole.partitions[name], part) for name, part in parts.items()}
        return Plan(now_s, parts)

    def forget(self) -> None:
        """Plan every partition anew, the next time: something has changed that no partition shows."""
        self._kept.clear()
        self._parts = KeptParts()

    @property
    def plans_alone(self) -> bool:
        """Does ``looks_at`` say nothing of partitions other than profiling, whatever the snapshot?"""
        return type(self).looks_at is PartitionPolicy.looks_at

    def looks_at(self, partition: Partition, snapshot: Snapshot) -> tuple[object, ...]:  # noqa: ARG002
        """What else the plan of this partition depends on: a change there makes a kept plan void."""
        return ()

    def group_speeds(
        self,
        members: Sequence[Running],  # noqa: ARG002
        snapshot: Snapshot,  # noqa: ARG002
        partition: Partition,  # noqa: ARG002
    ) -> Mapping[str, float]:
        """How fast the jobs that take turns on the same GPUs run, by id, as a share of their speed alone, as the plan
        reckons it; empty where that is not known."""
        return {}

    @abstractmethod
    def plan_partition(self, partition: Partition, snapshot: Snapshot) -> PartitionPlan:
        """Decide one partition; the rest of the snapshot is there to look at."""


def _with_nodes(part: PartitionPlan, partition: Partition, now_s: float) -> PartitionPlan:
    """The plan, with the boots that its starts wait for; it is made anew when a node opens or closes."""
    part = with_boots(partition, part, now_s)
    edge_s = next_edge_s(partition.nodes, now_s)
    asked_s: list[float | None] = []
    if any(node.switches for node in partition.nodes):  # then any switch will do for one of them
        asked_s = [entry.job.switches_until_s for entry in partition.pending if entry.job.most_switches]
    ahead_s = [at_s for at_s in (edge_s, *asked_s) if at_s is not None and now_s < at_s < math.inf]
    return replace(part, wake_s=earliest(part.wake_s, *ahead_s)) if ahead_s else part


def known_policies() -> dict[str, PolicyFactory]:
    """Every policy by name: those that come with Lucid, then those that installed packages add under the
    entry point group ``lucid.policies`` (they cannot replace ours)."""
    from importlib.metadata import entry_points

    from lucid.orchestrator.policies import BUILT_IN

    found: dict[str, PolicyFactory] = {}
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        found[entry.name] = _lazy(entry)
    return {**found, **_ADDED, **BUILT_IN}


def _lazy(entry: EntryPoint) -> PolicyFactory:
    def make(settings: PolicySettings, predictor: Predictor) -> Policy:
        return _load(entry)(settings, predictor)

    return make


def _load(entry: EntryPoint) -> PolicyFactory:
    try:
        factory: PolicyFactory = entry.load()
    except (ImportError, AttributeError) as error:
        package = entry.dist.name if entry.dist is not None else "an installed package"
        raise ConfigError(
            f"policy {entry.name!r} of {package} cannot be loaded ({entry.value}): {error}; repair or uninstall it"
        ) from None
    return factory


@contextmanager
def adding_policy(name: str, factory: PolicyFactory) -> Iterator[str]:
    """Know a policy of the program's own while this lasts; yields its name.

    Raises:
        ConfigError: there is a policy of this name already.
    """
    if name in known_policies():
        raise ConfigError(f"there is a policy {name!r} already; give yours another name")
    _ADDED[name] = factory
    try:
        yield name
    finally:
        del _ADDED[name]


def import_policy(name: str) -> None:
    """Import the package that adds policy ``name``, if one does: its kinds of reason are known from then on. Those of
    our own policies are known already.

    Raises:
        ConfigError: it cannot be imported.
    """
    from lucid.orchestrator.policies import BUILT_IN

    if name in BUILT_IN:
        return
    from importlib.metadata import entry_points  # most commands never ask what is installed, and this takes 20 ms

    for entry in entry_points(group=ENTRY_POINT_GROUP, name=name):
        _load(entry)


def find_policy(name: str) -> PolicyFactory:
    """The factory of the policy called ``name``.

    Raises:
        ConfigError: there is none; the message lists those there are.
    """
    from lucid.orchestrator.policies import BUILT_IN

    if name in BUILT_IN:  # looking up what is installed reads a file of every package: more time than ten plans
        return BUILT_IN[name]
    known = known_policies()
    if name not in known:
        raise ConfigError(f"no policy {name!r}{did_you_mean(name, known)}; known: {', '.join(sorted(known))}")
    return known[name]


def make_policy(name: str, settings: PolicySettings, predictor: Predictor) -> Policy:
    """The policy called ``name``.

    Raises:
        ConfigError: there is none, as ``find_policy``; the package that adds it cannot be imported; its factory lacks
            what it needs (ours: a solver); or it does not state its rules as they are read.
    """
    made = find_policy(name)(settings, predictor)
    rules_of(made)
    return made
