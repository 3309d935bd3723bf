"""``PolicyHost``: runs a live cluster's policies, each for its partitions, and keeps an error to one partition.

It times each plan, records the predictor's answers on pairs so that a plan can be made again elsewhere, and gives a
partition whose planning fails a plan in which all jobs wait. A replay does without: there an error in a policy ends
the run, since an error in research code is not hidden."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from msgspec import structs

from lucid.core.decision import Action, Decision, EndProfiling, Hold, PartitionPlan, Plan, earliest
from lucid.core.job import Ended, Job, JobProfile
from lucid.core.ports import Capability, PairSpeeds, Predictor
from lucid.core.prediction import Prediction
from lucid.core.reasons.queue import Unplanned
from lucid.core.snapshot import Partition, Snapshot
from lucid.errors import UnsafePlan, words_of
from lucid.left_out import LeftOut
from lucid.orchestrator.policy import PartitionPolicy, Planner, Policy, rules_of
from lucid.orchestrator.registry import make_policy
from lucid.places import HELD_AT_MOST_S

if TYPE_CHECKING:
    from lucid.config.policy import PolicySettings


class PoliciesByPartition:
    """Several policies that plan as one. No policy sees the partitions of another; the profiling partition is the
    first one's.

    ``name`` is that of the first policy, and so are the rules of partitions that have no policy of their own."""

    def __init__(self, rest: Policy, own: Mapping[str, Policy]) -> None:
        """``own``: policies by partition; the same object for partitions that one policy plans. ``rest``: the policy
        of all other partitions."""
        self._rest, self._own = rest, dict(own)
        self.name = rest.name
        self.own_names: Mapping[str, str] = {name: policy.name for name, policy in own.items()}
        """The policy's name, by partition that has a policy of its own."""
        self.needs: frozenset[Capability] = rest.needs.union(*(policy.needs for policy in own.values()))
        self.rules = replace(rules_of(rest), own={name: rules_of(policy) for name, policy in own.items()})

    @property
    def policies(self) -> tuple[Policy, ...]:
        """All policies, each once."""
        return tuple(dict.fromkeys((self._rest, *self._own.values())))

    def policy_of(self, partition: str) -> Policy:
        """The policy that plans this partition."""
        return self._own.get(partition, self._rest)

    def profiled(self, job: Job) -> bool:
        """Whether the policy of the job's partition profiles the job."""
        return self.policy_of(job.vc).profiled(job)

    def plan(self, snapshot: Snapshot) -> Plan:
        """The plans of all policies, each of its partitions, in one.

        Raises: UnsafePlan: a policy plans a partition of another, by whose rules that would be checked."""
        parts: dict[str, PartitionPlan] = {}
        for policy, seen in self.split(snapshot):
            parts.update(planned_by(policy, seen))
        return Plan(snapshot.now_s, {name: parts[name] for name in snapshot.partitions if name in parts})

    def split(self, snapshot: Snapshot) -> Iterator[tuple[Policy, Snapshot]]:
        """Each policy that has partitions in the snapshot, with the snapshot that it sees."""
        for policy in self.policies:
            mine = {name: p for name, p in snapshot.partitions.items() if self.policy_of(name) is policy}
            if mine:
                yield policy, replace(snapshot, partitions=mine)


def planned_by(policy: Policy, snapshot: Snapshot) -> Mapping[str, PartitionPlan]:
    """A policy's plans of the partitions of a snapshot that holds only its own.

    Raises: UnsafePlan: the policy plans another's partition, by whose rules that would be checked."""
    made = policy.plan(snapshot).partitions
    for name in made.keys() - snapshot.partitions.keys():
        raise UnsafePlan(f"policy {policy.name!r} plans partition {name!r}, which is not its own")
    return made


def make_policies(name: str, own: Mapping[str, str], settings: PolicySettings, predictor: Predictor) -> Policy:
    """The policy called ``name``, and beside it others for the partitions in ``own``, by name.

    Raises:
        ConfigError: a policy is not known, or the package that adds it cannot be imported."""
    rest = make_policy(name, settings, predictor)
    if not own:
        return rest
    made = {other: make_policy(other, settings, predictor) for other in own.values()}
    return PoliciesByPartition(rest, {partition: made[other] for partition, other in own.items()})


_AGAIN_S: Final = 10.0
"""How often a partition in which nothing changes is tried again."""


def unplanned(partition: Partition, snapshot: Snapshot, error: BaseException) -> PartitionPlan:
    """The plan of a partition whose planning raised ``error``: all jobs wait, and what the previous plan left stays
    for the next. A job that has waited for ``HELD_AT_MOST_S`` to be profiled goes home, and is planned there."""
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
    """The policy, changed so that it raises for no single partition. For forecasts, whose plans are not carried
    out."""

    def guard(plan: Planner, partition: Partition, snapshot: Snapshot) -> PartitionPlan:
        try:
            return plan(partition, snapshot)
        except Exception as error:
            return structs.replace(unplanned(partition, snapshot, error), wake_s=None)

    for one in _each(policy):
        if isinstance(one, PartitionPolicy):
            one.guard = guard
    return policy


def _each(policy: Policy) -> tuple[Policy, ...]:
    return policy.policies if isinstance(policy, PoliciesByPartition) else (policy,)


class Isolation:
    """Plans with the policy that ``make`` makes; an error in one partition leaves the others planned.

    A policy that raised may have left its own state half changed. So a new policy tries the partition again: first
    with what earlier plans left for it, then without. The policy of the other partitions is made anew, once. It does
    not plan the failed partition until a plan of that one succeeds."""

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
        """Partitions that are left out for the policy of the others."""

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
        """The plan of one partition by policies that have planned nothing before."""
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
        """The plan made of each policy's partitions by themselves."""
        made, parts = self._make(), dict[str, PartitionPlan]()
        for _, seen in made.split(snapshot) if isinstance(made, PoliciesByPartition) else [(made, snapshot)]:
            mine, error = self._tried(seen)
            parts.update(mine if error is None else self._each_alone(seen))
        return Plan(snapshot.now_s, {name: parts[name] for name in snapshot.partitions if name in parts})

    def _each_alone(self, snapshot: Snapshot) -> Mapping[str, PartitionPlan]:
        """The plans of one policy's partitions where it raises for all of them together. Partitions that it can plan
        one by one, the profiling partition beside each, are planned together once more."""
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
        """The plans by a policy that has planned nothing before, or the exception that it raises."""
        try:
            return planned_by(self._guarded(), snapshot), None
        except Exception as error:
            return {}, error


def _forgetting(snapshot: Snapshot, partition: str) -> Snapshot:
    return replace(snapshot, memory={name: left for name, left in snapshot.memory.items() if name != partition})


Answers = Mapping[tuple[JobProfile, JobProfile], PairSpeeds]
"""The predictor's answers on pairs, by question."""


@dataclass(frozen=True, slots=True, eq=False)
class Context:
    """What a policy's plan was made from: the snapshot, the name of its predictor then, and the predictor's answers
    on pairs."""

    snapshot: Snapshot
    predictor: str
    answers: Answers


_SOURCE = "predictions of the models"


class Predictions:
    """A predictor as a live cluster asks it. With ``left_out`` no exception comes out of it, and ``first_guess_s`` is
    the duration of a job that it fails for. While a plan is made its answers on pairs are kept; predictions of jobs
    are in the snapshot anyway."""

    def __init__(self, predictor: Predictor, left_out: LeftOut | None = None, first_guess_s: float = 0.0) -> None:
        self._predictor = predictor
        self._left_out = left_out
        self._first_guess_s = first_guess_s
        self.answers: dict[tuple[JobProfile, JobProfile], PairSpeeds] | None = None

    @property
    def name(self) -> str:
        """The present name of the predictor."""
        return self._predictor.name

    def predict(self, job: Job, profile: JobProfile | None, now_s: float) -> Prediction:
        """The predictor's answer; the first guess, where it fails."""
        try:
            return self._predictor.predict(job, profile, now_s)
        except Exception as error:
            self._failed(f"job {job.id}", error)
            return Prediction(self._first_guess_s, "first guess, because the models failed")

    def pair_speed(self, a: JobProfile, b: JobProfile) -> PairSpeeds:
        """The predictor's answer; ``"failed"`` where it fails: the pair is not made."""
        found: PairSpeeds = "failed"
        try:
            found = self._predictor.pair_speed(a, b)
        except Exception as error:
            self._failed("a pair", error)
        if self.answers is not None:
            self.answers[a, b] = found
        return found

    def learn(self, ended: Sequence[Ended]) -> None:
        """Let the predictor learn of all that ran at once, or if that fails of each by itself."""
        if self._left_out is not None:
            ended = [item for item in ended if item.ran]
        try:
            self._predictor.learn(ended)
        except Exception as error:
            if len(ended) <= 1:
                self._failed(f"job {ended[0].job.id}" if ended else "none", error)
                return
            for one in ended:
                self.learn([one])

    def _failed(self, whom: str, error: Exception) -> None:
        if self._left_out is None:
            raise error
        self._left_out.one(_SOURCE, whom, error)


class PolicyHost:
    """Runs the policy that ``make`` makes: reports how long each plan took, isolates errors of single partitions
    (``Isolation``), and keeps what each partition's plan was made from; for a kept plan that is the state when it was
    made.

    What earlier plans left (``Snapshot.memory``) outlives a restart of lucidd, so one wrong entry would fail every
    cycle of every later lucidd. Planning without it costs what it is for: a shadow of plain order, a round."""

    def __init__(
        self,
        make: Callable[[Predictor], Policy],
        predictor: Predictor,
        *,
        forgot: Callable[[Mapping[str, object], Exception], None] | None = None,
        failed: Callable[[str, Exception], None] = lambda _name, _error: None,
        took: Callable[[float], None] = lambda _: None,
        clock_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """``forgot`` is called with a memory that the policy failed with, and the error; without it the plan raises
        what the policy raises. ``failed`` is called with each partition that could not be planned. ``took`` is called
        with the time that each plan took, by ``clock_s``."""
        self._heard = heard = predictor if isinstance(predictor, Predictions) else Predictions(predictor)
        self._inner = inner = make(heard)
        self._isolation = None if forgot is None else Isolation(lambda: make(heard), forgot, failed)
        self._took, self._clock_s = took, clock_s
        self.name = inner.name
        self.needs: frozenset[Capability] = inner.needs
        self.rules = rules_of(inner)
        self.own_names: Mapping[str, str] = inner.own_names if isinstance(inner, PoliciesByPartition) else {}
        self._made: dict[str, tuple[PartitionPlan, Context]] = {}

    def profiled(self, job: Job) -> bool:
        """Whether the policy profiles the job."""
        return self._inner.profiled(job)

    def plan(self, snapshot: Snapshot) -> Plan:
        """The policy's plan.

        Raises: Exception: the policy raised it, and there is no ``forgot``."""
        began_s = self._clock_s()
        try:
            return self._plan(snapshot)
        finally:
            self._took(self._clock_s() - began_s)

    def _plan(self, snapshot: Snapshot) -> Plan:
        answers: dict[tuple[JobProfile, JobProfile], PairSpeeds] = {}
        self._heard.answers = answers
        try:
            plan = (self._isolation or self._inner).plan(snapshot)
        finally:
            self._heard.answers = None
        now = Context(snapshot, self._heard.name, answers)
        known, self._made = self._made, {}
        for name, part in plan.partitions.items():
            before = known.get(name)
            self._made[name] = before if before is not None and before[0] is part else (part, now)
        return plan

    def made_from(self) -> Mapping[str, Context]:
        """By partition, what its part of the last plan was made from."""
        return {name: context for name, (_, context) in self._made.items()}
