"""A partition that cannot be planned stops no other: the plan that it gets, and how the others are planned.

This is for a live cluster. A replay ends with what a policy raises: an error in research code is not hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from lucid.core.decision import Action, Decision, EndProfiling, Hold, PartitionPlan, Plan, earliest
from lucid.core.reason import Unplanned
from lucid.core.snapshot import Partition, Snapshot
from lucid.errors import words_of
from lucid.orchestrator.by_partition import PoliciesByPartition, planned_by
from lucid.orchestrator.policy import PartitionPolicy, Planner, Policy
from lucid.places import HELD_AT_MOST_S

__all__ = ["Isolation", "isolated", "unplanned"]

_AGAIN_S: Final = 10.0
"""A partition in which nothing changes is tried again so often."""


def unplanned(partition: Partition, snapshot: Snapshot, error: BaseException) -> PartitionPlan:
    """The plan of a partition whose planning raised ``error``: all jobs wait, and what the plan before left stays for
    the next. A job that has waited to be profiled for ``HELD_AT_MOST_S`` goes home, and is planned there."""
    words = words_of(error)
    waits, goes = Hold((Unplanned(words),)), EndProfiling((Unplanned(words),))
    decisions: dict[str, Decision] = {}
    again_s: float | None = snapshot.now_s + _AGAIN_S
    for entry in partition.pending:
        end_s = entry.since_s + HELD_AT_MOST_S
        late = partition.profiling and not entry.barred and end_s <= snapshot.now_s
        decisions[entry.job.id] = goes if late else waits
        if partition.profiling and end_s > snapshot.now_s:
            again_s = earliest(again_s, end_s)
    actions = tuple(Action(job_id, partition.name, goes) for job_id, made in decisions.items() if made is goes)
    return PartitionPlan(decisions, actions, again_s, snapshot.memory.get(partition.name), words)


def isolated(policy: Policy) -> Policy:
    """The policy, changed so that it raises for no single partition. For forecasts, which nobody carries out."""

    def guard(plan: Planner, partition: Partition, snapshot: Snapshot) -> PartitionPlan:
        try:
            return plan(partition, snapshot)
        except Exception as error:
            return replace(unplanned(partition, snapshot, error), wake_s=None)

    for one in _each(policy):
        if isinstance(one, PartitionPolicy):
            one.guard = guard
    return policy


def _each(policy: Policy) -> tuple[Policy, ...]:
    return policy.policies if isinstance(policy, PoliciesByPartition) else (policy,)


class Isolation:
    """Plans as the policy that ``make`` makes; an error in one partition leaves the others planned.

    A policy that raised may have left its own state half changed. So a new policy tries the partition again: first
    with what earlier plans left for it, then without. The policy of the other partitions is made anew, once. It does
    not plan the failed partition until a plan of that one succeeds.
    """

    def __init__(
        self,
        make: Callable[[], Policy],
        forgot: Callable[[Mapping[str, object], Exception], None],
        failed: Callable[[str, Exception], None],
    ) -> None:
        """``forgot`` is called with what earlier plans left, if a plan fails with it and succeeds without it.
        ``failed`` is called with the name and error of each partition that cannot be planned, and with the name ""
        if a policy raises for several partitions together and for none of them alone."""
        self._make, self._forgot, self._failed = make, forgot, failed
        self._policy: Policy | None = None
        self._out: set[str] = set()
        """Partitions that the policy of the others is not asked for."""

    def plan(self, snapshot: Snapshot) -> Plan:
        """The plan; in a partition that could not be planned all jobs wait."""
        if self._policy is None:
            self._policy = self._guarded()
        try:
            return self._policy.plan(snapshot)
        except Exception:  # of a policy that plans all partitions at once, or between two of them
            self._policy = None
            return self._in_parts(snapshot)

    def _guarded(self) -> Policy:
        made = self._make()
        for one in _each(made):
            if isinstance(one, PartitionPolicy):
                one.guard = self._guard
        return made

    def _guard(self, plan: Planner, partition: Partition, snapshot: Snapshot) -> PartitionPlan:
        if partition.name not in self._out:
            try:
                return plan(partition, snapshot)
            except Exception:
                self._policy = None
        return self._anew(partition, snapshot)

    def _anew(self, partition: Partition, snapshot: Snapshot) -> PartitionPlan:
        """By policies that have planned nothing before."""
        name, first = partition.name, None
        for seen in (snapshot, *([_forgetting(snapshot, name)] if name in snapshot.memory else [])):
            made = self._make()
            policy = made.policy_of(name) if isinstance(made, PoliciesByPartition) else made
            assert isinstance(policy, PartitionPolicy)
            try:
                part = policy.plan_partition(partition, seen)
            except Exception as error:
                first = first or error
                continue
            self._out.discard(name)
            if first is not None:
                self._forgot({name: snapshot.memory[name]}, first)
            return part
        assert first is not None
        self._out.add(name)
        self._failed(name, first)
        return unplanned(partition, snapshot, first)

    def _in_parts(self, snapshot: Snapshot) -> Plan:
        """Each policy's partitions by themselves."""
        made, parts = self._make(), dict[str, PartitionPlan]()
        for _, seen in made.split(snapshot) if isinstance(made, PoliciesByPartition) else [(made, snapshot)]:
            mine, error = self._tried(seen)
            parts.update(mine if error is None else self._each_alone(seen))
        return Plan(snapshot.now_s, {name: parts[name] for name in snapshot.partitions if name in parts})

    def _each_alone(self, snapshot: Snapshot) -> Mapping[str, PartitionPlan]:
        """The partitions of one policy, which raises for all of them together: those that it can plan one by one, the
        profiling partition beside each, once more together."""
        alone: dict[str, PartitionPlan] = {}
        bad: dict[str, Exception] = {}
        beside: dict[str, Partition] = {}
        seen = snapshot
        for partition in sorted(snapshot.partitions.values(), key=lambda one: not one.profiling):
            name, one = partition.name, replace(snapshot, partitions={**beside, partition.name: partition})
            found, error = self._tried(one)
            if error is not None and name in snapshot.memory:
                found, still = self._tried(_forgetting(one, name))
                if still is None:
                    self._forgot({name: snapshot.memory[name]}, error)
                    seen, error = _forgetting(seen, name), None
            if error is not None:
                bad[name] = error
                self._failed(name, error)
                continue
            alone |= {name: found[name]} if name in found else {}
            beside |= {name: partition} if partition.profiling else {}
        rest = {name: one for name, one in snapshot.partitions.items() if name not in bad}
        made, error = self._tried(replace(seen, partitions=rest))
        if error is not None:
            self._failed("", error)
            made = alone
        return {**made, **{name: unplanned(snapshot.partitions[name], snapshot, why) for name, why in bad.items()}}

    def _tried(self, snapshot: Snapshot) -> tuple[Mapping[str, PartitionPlan], Exception | None]:
        """The plans by a policy that has planned nothing before, or what it raises."""
        try:
            return planned_by(self._guarded(), snapshot), None
        except Exception as error:
            return {}, error


def _forgetting(snapshot: Snapshot, partition: str) -> Snapshot:
    return replace(snapshot, memory={name: left for name, left in snapshot.memory.items() if name != partition})
