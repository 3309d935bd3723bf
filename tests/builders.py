"""Small builders for tests: every argument that a test does not care about has a plain value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lucid.config import OverheadSettings, PolicySettings, ProfilingSettings
from lucid.core.decision import Action, Decision, PartitionPlan, Plan
from lucid.core.job import Elastic, Ended, Job, JobProfile, Pending, Running
from lucid.core.node import Node
from lucid.core.placement import NodeGpus, Placement, mask_of
from lucid.core.ports import Applied, Predictor
from lucid.core.prediction import Prediction
from lucid.core.snapshot import Partition, Snapshot
from lucid.models.packing.pair_memory import PairMemory
from lucid.orchestrator.policy import Policy, make_policy
from lucid.simulator.cluster import JobOutcome, SimulatedCluster
from lucid.simulator.elastic.training import EpochTable
from lucid.simulator.engine import run
from lucid.simulator.interleaving import Interleaving
from lucid.simulator.traces import Trace, TraceJob
from lucid.simulator.truth import ContentionTruth, Interference

VC = "vc"

LIGHT = JobProfile(gpu_util=10.0, mem_util=5.0, gpu_mem_mib=4000.0)
"""Beside another of its kind it runs at more than 0.99 of its speed."""
HEAVY = JobProfile(gpu_util=100.0, mem_util=100.0, gpu_mem_mib=4000.0)
"""Beside another of its kind it runs at 0.59 of its speed."""


def nodes(count: int, gpus: int = 8, prefix: str = "n", **rest: Any) -> tuple[Node, ...]:
    """``count`` equal nodes n1, n2, ..."""
    return tuple(Node(f"{prefix}{i + 1}", gpus, **rest) for i in range(count))


def a_job(name: str, /, gpus: int = 1, submit_s: float = 0.0, vc: str = VC, **rest: Any) -> Job:
    """A job whose id is ``name``."""
    return Job(name, vc, gpus, submit_s, **rest)


def waits(
    name: str,
    /,
    gpus: int = 1,
    submit_s: float = 0.0,
    *,
    since_s: float | None = None,
    profile: JobProfile | None = None,
    ran_s: float = 0.0,
    restarts: int = 0,
    alone: bool = False,
    **rest: Any,
) -> Pending:
    """A pending job, waiting since its submission."""
    since_s = submit_s if since_s is None else since_s
    return Pending(a_job(name, gpus, submit_s, **rest), since_s, profile, ran_s, restarts, alone)


def at(text: str) -> Placement:
    """A placement as administrators write it: ``n1:0,3 n2:0-7``."""
    parts = []
    for item in text.split():
        name, _, gpus = item.partition(":")
        ranges = [part.split("-") for part in gpus.split(",")]
        parts.append(NodeGpus(name, mask_of(i for r in ranges for i in range(int(r[0]), int(r[-1]) + 1))))
    return tuple(parts)


def runs(
    name: str,
    where: str,
    /,
    start_s: float = 0.0,
    *,
    submit_s: float = 0.0,
    profile: JobProfile | None = None,
    partner: str | None = None,
    job: Mapping[str, Any] | None = None,
    **rest: Any,
) -> Running:
    """A running job that holds exactly the GPUs it asked for."""
    placement = at(where)
    gpus = sum(part.mask.bit_count() for part in placement)
    made = a_job(name, gpus, submit_s, **(job or {}))
    return Running(made, start_s, placement, profile=profile, partner=partner, **rest)


def part(
    machines: Iterable[Node],
    pending: Iterable[Pending] = (),
    running: Iterable[Running] = (),
    name: str = VC,
    profiling: bool = False,
) -> Partition:
    """One partition."""
    return Partition(name, tuple(machines), tuple(pending), tuple(running), profiling)


def guess(duration_s: float, score: int | None = None) -> Prediction:
    """A prediction of a test."""
    return Prediction(duration_s, "test", score, "test")


def snap(now_s: float, *parts: Partition, predictions: Mapping[str, Prediction] | None = None) -> Snapshot:
    """A snapshot; jobs without a prediction of their own get 1000 s, and share score 0 once measured."""
    known = dict(predictions or {})
    for partition in parts:
        for entry in (*partition.pending, *partition.running):
            known.setdefault(entry.job.id, guess(1000.0, None if entry.profile is None else 0))
    return Snapshot(now_s, {p.name: p for p in parts}, (), known)


@dataclass
class FixedPredictor:
    """Says what the test told it."""

    durations_s: Mapping[str, float] = field(default_factory=dict)
    scores: Mapping[str, int] = field(default_factory=dict)
    speed: Callable[[JobProfile, JobProfile], tuple[float, float] | None] = lambda a, b: None
    otherwise_s: float = 1000.0
    learnt: list[Ended] = field(default_factory=list)
    asked: int = 0
    name: str = "fixed"

    def predict(self, job: Job, profile: JobProfile | None, now_s: float) -> Prediction:
        self.asked += 1
        score = None if profile is None else self.scores.get(job.id, 0)
        return Prediction(self.durations_s.get(job.id, self.otherwise_s), self.name, score, self.name)

    def pair_speed(self, a: JobProfile, b: JobProfile) -> tuple[float, float] | None:
        return self.speed(a, b)

    def learn(self, ended: Sequence[Ended]) -> None:
        self.learnt += ended


def settings(**sections: Mapping[str, Any] | Any) -> PolicySettings:
    """Policy settings from sections: ``settings(packing={"gss": 1})``."""
    return PolicySettings.model_validate(sections)


def policy(name: str, predictor: Predictor | None = None, **sections: Any) -> Policy:
    """A built-in policy with these settings."""
    return make_policy(name, settings(**sections), predictor or FixedPredictor())


def decide(name: str, snapshot: Snapshot, predictor: Predictor | None = None, **sections: Any) -> PartitionPlan:
    """What the policy decides for the test's only VC."""
    return policy(name, predictor, **sections).plan(snapshot).partitions[VC]


def reason(decision: Decision | None, kind: type, made: type = object) -> Any:
    """The reason of one kind of a decision; and the decision is a ``made``."""
    assert decision is not None
    assert isinstance(decision, made)
    found = [item for item in decision.reasons if isinstance(item, kind)]
    assert found, f"no {kind.__name__} among {decision.reasons}"
    return found[0]


def kinds(decision: Decision | None) -> list[str]:
    """Kinds of a decision's reasons, in order."""
    return [item.kind for item in decision.reasons]


def by(
    name: str,
    /,
    gpus: int = 1,
    duration_s: float = 100.0,
    submit_s: float = 0.0,
    *,
    profile: JobProfile | None = None,
    label: int | None = None,
    state: str = "",
    **rest: Any,
) -> TraceJob:
    """A job of a trace with the truth about it."""
    return TraceJob(a_job(name, gpus, submit_s, **rest), duration_s, state, profile, label)


def elastic(
    name: str,
    /,
    gpus: int = 1,
    submit_s: float = 0.0,
    *,
    epochs: float = 10.0,
    table: Sequence[float] = (100.0, 55.0, 40.0, 32.0),
    limits: Mapping[str, Any] | None = None,
    **rest: Any,
) -> TraceJob:
    """An elastic job of a trace: ``table[g - 1]`` seconds an epoch on g GPUs, from 1 to so many."""
    sizes = {"batch": 64, "init_batch": 64, "most_batch": 64, "atomic_max": 64}
    wanted = Elastic(**{"max_gpus": len(table), **sizes, **(limits or {})})
    truth = EpochTable(epochs, tuple(table))
    job = a_job(name, gpus, submit_s, elastic=wanted, **rest)
    return TraceJob(job, epochs * table[gpus - 1], learning=truth)


def a_trace(*items: TraceJob) -> Trace:
    """A trace, sorted as readers hand it out."""
    return Trace("test", tuple(sorted(items, key=lambda i: (i.job.submit_s, i.job.rank))))


def a_cluster(
    trace: Trace,
    layout: Mapping[str, Sequence[Node]] | None = None,
    *,
    profiling_nodes: Sequence[Node] = (),
    profiled: Callable[[Job], bool] = lambda job: True,
    interference: Interference | None = None,
    overheads: OverheadSettings | None = None,
    profiling: ProfilingSettings | None = None,
    mend_survivors: bool = True,
    interleaving: Interleaving | None = None,
    agents: bool = False,
    memory: PairMemory | None = None,
    pooled: bool = False,
) -> SimulatedCluster:
    """The simulated cluster; one VC of one 8-GPU node unless told."""
    return SimulatedCluster(
        trace,
        layout or {vc: nodes(1, prefix=f"{vc}-") for vc in trace.vcs},
        interference or ContentionTruth(),
        overheads or OverheadSettings(),
        profiling or ProfilingSettings(),
        profiled,
        profiling_nodes=profiling_nodes,
        mend_survivors=mend_survivors,
        interleaving=interleaving,
        agents=agents,
        memory=memory,
        pooled=pooled,
    )


class Tape:
    """A recorder that keeps everything."""

    def __init__(self) -> None:
        self.cycles: list[tuple[Snapshot, Plan, Sequence[Applied]]] = []

    def record(self, snapshot: Snapshot, plan: Plan, applied: Sequence[Applied]) -> None:
        self.cycles.append((snapshot, plan, applied))

    def actions(self, job_id: str) -> list[tuple[float, Action]]:
        """Everything that was done to one job, with its time."""
        return [(p.now_s, a) for _, p, _ in self.cycles for a in p.actions if a.job_id == job_id]


def replay(
    name: str,
    trace: Trace,
    layout: Mapping[str, Sequence[Node]] | None = None,
    *,
    predictor: Predictor | None = None,
    profiling_nodes: Sequence[Node] = (),
    interference: Interference | None = None,
    overheads: OverheadSettings | None = None,
    **sections: Any,
) -> tuple[dict[str, JobOutcome], Tape]:
    """Run a policy over a trace; outcomes by job id, and the tape of all cycles."""
    predictor = predictor or FixedPredictor({item.job.id: item.duration_s for item in trace.jobs})
    chosen = policy(name, predictor, **sections)
    cluster = a_cluster(
        trace,
        layout,
        profiling_nodes=profiling_nodes,
        profiled=chosen.profiled,
        interference=interference,
        overheads=overheads,
        profiling=settings(**sections).profiling,
        pooled=settings(**sections).lending.mode != "off",
    )
    tape = Tape()
    result = run(cluster, chosen, predictor, tape)
    return {outcome.job.id: outcome for outcome in result.outcomes}, tape
