"""A trace, a simulated cluster, and a policy that runs over them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lucid.binder.contention import contention_speeds
from lucid.config.policy import OverheadSettings
from lucid.core.decision import Action, Plan
from lucid.core.job import Job
from lucid.core.node import Node
from lucid.core.ports import Applied, Predictor
from lucid.core.snapshot import Snapshot
from lucid.simulator.cluster.cluster import SimulatedCluster
from lucid.simulator.cluster.jobs import Parts
from lucid.simulator.cluster.nodes import Outages
from lucid.simulator.cluster.state import JobOutcome
from lucid.simulator.cluster.truth import Interference
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
    profiled: Callable[[Job], bool] = lambda job: True,
    **parts: Any,
) -> SimulatedCluster:
    """The simulated cluster; one VC of one 8-GPU node unless told."""
    layout = layout or {vc: nodes(1, prefix=f"{vc}-") for vc in trace.vcs}
    return SimulatedCluster(trace, layout, profiled, Parts(**parts))


class Tape:
    def __init__(self) -> None:
        self.cycles: list[tuple[Snapshot, Plan, Sequence[Applied]]] = []

    def record(self, snapshot: Snapshot, plan: Plan, applied: Sequence[Applied]) -> None:
        self.cycles.append((snapshot, plan, applied))

    def actions(self, job_id: str) -> list[tuple[float, Action]]:
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
    tape, rules = Tape(), settings(**sections)
    cluster = a_cluster(
        trace, layout, profiled=chosen.profiled, profiling_nodes=profiling_nodes, profiling=rules.profiling,
        interference=interference or contention_speeds, overheads=overheads or OverheadSettings(),
        outages=outages or Outages(), pooled=rules.lending.mode != "off",
    )  # fmt: skip
    result = run(cluster, chosen, predictor, tape, settings=rules, naive=naive)
    return {outcome.job.id: outcome for outcome in result.outcomes}, tape
