"""Several policies on one cluster: each plans partitions of its own, and one plans all others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from lucid.core.decision import PartitionPlan, Plan
from lucid.core.job import Job
from lucid.core.ports import Capability, Predictor
from lucid.core.snapshot import Snapshot
from lucid.errors import UnsafePlan
from lucid.orchestrator.policy import Policy, make_policy
from lucid.orchestrator.rules import rules_of

if TYPE_CHECKING:
    from lucid.config import PolicySettings

__all__ = ["PoliciesByPartition", "make_policies", "planned_by"]


class PoliciesByPartition:
    """Plans as one policy. No policy sees the partitions of another; the profiling partition is the first one's.

    ``name`` is that of the first policy, and so are the rules of partitions that have no policy of their own.
    """

    def __init__(self, rest: Policy, own: Mapping[str, Policy]) -> None:
        """``own``: by partition; the same object for partitions that one policy plans. ``rest``: of all others."""
        self._rest, self._own = rest, dict(own)
        self.name = rest.name
        self.own_names: Mapping[str, str] = {name: policy.name for name, policy in own.items()}
        """The policy's name, by partition that has one of its own."""
        self.needs: frozenset[Capability] = rest.needs.union(*(policy.needs for policy in own.values()))
        self.rules = replace(rules_of(rest), own={name: rules_of(policy) for name, policy in own.items()})

    @property
    def policies(self) -> tuple[Policy, ...]:
        """All of them, each once."""
        return tuple(dict.fromkeys((self._rest, *self._own.values())))

    def policy_of(self, partition: str) -> Policy:
        """The one that plans this partition."""
        return self._own.get(partition, self._rest)

    def profiled(self, job: Job) -> bool:
        """As the policy of the job's partition has it."""
        return self.policy_of(job.vc).profiled(job)

    def plan(self, snapshot: Snapshot) -> Plan:
        """Each policy's plan of its partitions, in one.

        Raises:
            UnsafePlan: a policy plans a partition of another, by whose rules that would be checked.
        """
        parts: dict[str, PartitionPlan] = {}
        for policy, seen in self.split(snapshot):
            parts.update(planned_by(policy, seen))
        return Plan(snapshot.now_s, {name: parts[name] for name in snapshot.partitions if name in parts})

    def split(self, snapshot: Snapshot) -> Iterator[tuple[Policy, Snapshot]]:
        """Each policy that has partitions here, with what it sees."""
        for policy in self.policies:
            mine = {name: p for name, p in snapshot.partitions.items() if self.policy_of(name) is policy}
            if mine:
                yield policy, replace(snapshot, partitions=mine)


def planned_by(policy: Policy, snapshot: Snapshot) -> Mapping[str, PartitionPlan]:
    """A policy's plans of the partitions of a snapshot that holds only its own.

    Raises:
        UnsafePlan: it plans another one, by whose rules that would be checked.
    """
    made = policy.plan(snapshot).partitions
    for name in made.keys() - snapshot.partitions.keys():
        raise UnsafePlan(f"policy {policy.name!r} plans partition {name!r}, which is not its own")
    return made


def make_policies(name: str, own: Mapping[str, str], settings: PolicySettings, predictor: Predictor) -> Policy:
    """The policy called ``name``, and beside it others for the partitions in ``own``, by name.

    Raises:
        ConfigError: a policy is not known, or the package that adds it cannot be imported.
    """
    rest = make_policy(name, settings, predictor)
    if not own:
        return rest
    made = {other: make_policy(other, settings, predictor) for other in own.values()}
    return PoliciesByPartition(rest, {partition: made[other] for partition, other in own.items()})
