"""A trace, a simulated cluster, and a policy that runs over them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lucid.config.policy import OverheadSettings, ProfilingSettings
from lucid.core.decision import Action, Plan
from lucid.core.job import Job
from lucid.core.node import Node
from lucid.core.ports import Applied, Predictor
from lucid.core.snapshot import Snapshot
from lucid.models.packing.pair_memory import PairMemory
from lucid.simulator.cluster.cluster import SimulatedCluster
from lucid.simulator.cluster.nodes import Outages
from lucid.simulator.cluster.state import JobOutcome
from lucid.simulator.cluster.truth import ContentionTruth, Interference, Interleaving
from lucid.simulator.engine import run
from lucid.simulator.traces.record import Trace, TraceJob
from scenes.jobs import nodes
from scenes.plans import FixedPredictor, policy, settings


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
    outages: Outages | None = None,
    measured_before: bool = False,
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
        outages=outages,
        measured_before=measured_before,
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
    outages: Outages | None = None,
    naive: Predictor | None = None,
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
        outages=outages,
    )
    tape = Tape()
    result = run(cluster, chosen, predictor, tape, settings=settings(**sections), naive=naive)
    return {outcome.job.id: outcome for outcome in result.outcomes}, tape
