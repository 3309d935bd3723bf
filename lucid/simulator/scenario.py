"""``Scenario``: all that one replay is made of, from files and names; ``simulate`` replays it to a finished run.

``ReplayOptions`` is what simulate, compare, tune and ``lucid.replay`` ask of one replay, as one value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from lucid.binder.contention import contention_speeds
from lucid.config.load import Settings
from lucid.config.policy import (
    LIVE_DEFAULTS,
    PolicySettings,
    with_defaults,
)
from lucid.core.job import Job
from lucid.core.node import Node
from lucid.core.ports import Capability, Forecaster, Predictor, Recorder
from lucid.errors import ConfigError
from lucid.models.history import NEWEST, HistoryPredictor, naive_for
from lucid.models.packing.pair_memory import PairMemory, WithMemory
from lucid.models.throughput.forecaster import LearnedForecaster
from lucid.models.throughput.model import ArrivalForecaster, ThroughputModel
from lucid.orchestrator.policies.backfill import CALC_PERIOD_S
from lucid.orchestrator.policies.muri.policy import MuriPolicy
from lucid.orchestrator.policy import Policy, rules_of
from lucid.orchestrator.registry import ESTIMATES, Estimates, find_policy, make_policy
from lucid.simulator.cluster.cluster import Layout, SimulatedCluster
from lucid.simulator.cluster.jobs import Parts
from lucid.simulator.cluster.nodes import Outages
from lucid.simulator.cluster.state import Semantics
from lucid.simulator.cluster.truth import Interference, Interleaving, OraclePredictor
from lucid.simulator.cluster.usage import HALF_LIFE_S, UsageBook, lending_costs
from lucid.simulator.engine import Progress, Run, run
from lucid.simulator.layout import NodeShape, build_layout, lend_profiling_nodes, read_vcs, sized_to_load, sized_vcs
from lucid.simulator.predictors import (
    DryRunPredictor,
    GivenPredictor,
    PackingModels,
    WalkForward,
    WalkForwardForecaster,
    packing_predictor,
)
from lucid.simulator.published_semantics import lengthened, published_lucid, published_policy, ticked
from lucid.simulator.start_forecast import Forecasts, StartForecasts
from lucid.simulator.traces.record import Trace
from lucid.simulator.traces.window import POOL


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """The options by the names of their parameters on the command line, whose help says what each means.

    Raises: ConfigError: two of them contradict each other."""

    fmt: str | None = None
    applications: Path | None = None
    skip_bad: bool = False
    begin: str | None = None
    days: float | None = None
    workloads: str = "trace"
    seed: int = 1
    vcs: Path | None = None
    nodes: int | None = None
    load: float | None = None
    pool: bool = False
    gpus_per_node: int = 8
    gpu_mem_mib: int = 24576
    cpus_per_node: int = 0
    mem_mib_per_node: int = 0
    profiling_nodes: int | None = None
    events: Path | None = None
    config: Path | None = None
    lending: str | None = None
    predictor: str = "history"
    estimate_specs: Sequence[str] = ()
    profiles: Path | None = None
    pairs: Path | None = None
    semantics: str | None = None
    as_live: bool = False
    remember_pairs: bool = True

    def __post_init__(self) -> None:
        given = {"--vcs": self.vcs, "--nodes": self.nodes, "--load": self.load}
        said = [name for name, value in given.items() if value is not None]
        if len(said) > 1:
            raise ConfigError(f"{' and '.join(said)} each say how many nodes there are; give one of them")
        if self.pool and (self.lending or "off") != "off":
            raise ConfigError("--pool leaves one VC, and --lending is of several; leave one of them out")

    @property
    def shape(self) -> NodeShape:
        """The shape of every node."""
        return NodeShape(self.gpus_per_node, self.gpu_mem_mib, self.cpus_per_node, self.mem_mib_per_node)

    def nodes_of(self, trace: Trace, walled: Trace | None = None) -> dict[str, int]:
        """Nodes by VC for a trace; ``walled``: the trace with its VCs, where ``trace`` was pooled.

        Raises: ConfigError: the nodes cannot hold the largest jobs, or `sized_to_load`. TraceError: the file of VCs
        cannot be read."""
        if self.vcs is not None:
            found = read_vcs(self.vcs)
        elif self.load is not None:
            found = sized_to_load(trace, self.gpus_per_node, self.load, self.profiling_nodes)
        else:
            # sized to the trace, a pool has the nodes of its VCs: only the walls go
            found = sized_vcs(trace if self.nodes or walled is None else walled, self.gpus_per_node, self.nodes)
        return {POOL: sum(found.values())} if self.pool else found

    def sizing_notes(self, load: float | None) -> list[str]:
        """How the nodes were chosen, where nobody gave them; ``load``: the load that they came to."""
        found = ["--pool: all jobs are in one VC, which has the nodes of all VCs"] if self.pool else []
        if self.load is not None:
            found.append(f"the nodes were chosen for a load of {self.load:g}; on whole nodes it is {load or 0.0:.3f}")
        elif self.vcs is None and self.nodes is None:
            found.append("no --vcs or --nodes: VCs were sized to run all jobs at once for 95 % of the time")
        return found


PREDICTORS = ("history", "learned", "oracle")
"""What estimates durations where no estimates are given: means over the past, the learned models, the truth."""


_FEW_NODES = 4
"""Up to so many nodes none can be spared for profiling: the stage gains less than the others miss
(docs/decisions/0054)."""


@dataclass(frozen=True, slots=True)
class Throughput:
    """A throughput model, its name in explanations (``v3``), and the submissions before the trace begins, with times
    on the trace's own scale (below 0). ``model``: ``None`` for seasonal means that know those submissions."""

    model: ThroughputModel | None
    version: str = ""
    before: Sequence[Job] = ()


@dataclass(frozen=True, slots=True)
class Scenario:
    """A trace, the cluster to replay it on, and the knowledge of the predictor.

    ``vcs``: nodes by VC; ``None`` sizes them to the trace. ``profiling_nodes``: how many of them profile; ``None``
    takes 2 %, and none where ``not_profiled`` says why. ``durations_s``: given estimates by policy name, "" standing
    for all others. ``predictor``: one of ``PREDICTORS``, where no estimates are given. ``packing``: models of share
    scores and pairs, where estimates are given, or by ``learned``; without it as ``history`` does.
    ``remember_pairs``: pairs are measured after a minute, parted where
    they are slow, and judged by earlier measurements of such pairs, as lucidd does. ``throughput``: the model that
    forecasts submissions; without it seasonal means do, or with ``learned`` a model of the trace's own past.
    ``recent``: under ``lucid`` the history uses the newest jobs alone. ``lends``: every policy that can borrow beyond
    a quota does, unless the settings have another ``policy.lending.mode``. ``outages``: when nodes are closed or
    down; only the honest semantics know that."""

    trace: Trace
    vcs: Mapping[str, int] | None = None
    shape: NodeShape = field(default_factory=NodeShape)
    interference: Interference = contention_speeds
    settings: Settings = field(default_factory=Settings)
    profiling_nodes: int | None = None
    durations_s: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    estimates_name: str = "estimates"
    predictor: str = "history"
    packing: PackingModels | None = None
    semantics: Semantics = Semantics.HONEST
    remember_pairs: bool = True
    throughput: Throughput | None = None
    lends: bool = False
    recent: bool = True
    outages: Outages | None = None

    def layout(self) -> Layout:
        """Nodes by VC, profiling nodes included."""
        vcs = self.vcs if self.vcs is not None else sized_vcs(self.trace, self.shape.gpus)
        return build_layout(vcs, self.shape)

    @property
    def not_profiled(self) -> str:
        """Why no job goes through a profiling stage, and no node is set aside for it; empty where jobs do."""
        profiling = self.settings.policy.profiling
        if self.semantics.published or self.profiling_nodes is not None:
            return ""
        unsaid = "policy.profiling.enabled" not in self.settings.given
        if unsaid and not any(item.profile for item in self.trace.jobs):
            return "no job is profiled first, and no node set aside for that: the trace has no GPU readings"
        if unsaid and sum(map(len, self.layout().values())) <= _FEW_NODES:
            return "no job is profiled first: a node set aside for that would be a quarter of the cluster or more"
        if profiling.enabled and not lend_profiling_nodes(self.layout(), self.trace, None)[1]:
            return "no job is profiled first: no VC can spare a node for that"
        return ""

    def predictor_for(self, policy: str) -> Predictor:
        """The predictor of a policy; policies defined on true durations get the oracle.

        Raises: ConfigError: no predictor of that name."""
        found = self._predictor(policy)
        return DryRunPredictor(self.trace, found) if self.staged else found

    @property
    def staged(self) -> bool:
        """Whether the trace says how long jobs spend on each resource, so that they can be interleaved."""
        return any(item.stages is not None for item in self.trace.jobs)

    def capabilities(self) -> frozenset[Capability]:
        """The capabilities of the simulated cluster on this trace, given nodes to profile on."""
        able = {Capability.PREEMPT, Capability.SHARE, Capability.PROFILE}
        if self.staged:
            able.add(Capability.INTERLEAVE)
        if any(item.learning is not None for item in self.trace.jobs):
            able |= {Capability.RESIZE, Capability.ADAPT, Capability.ORACLE}
        return frozenset(able)

    def forecaster_for(self, rules: PolicySettings, profiled: Callable[[Job], bool]) -> Forecaster | None:
        """The forecaster of submissions, where a policy under these rules uses forecasts."""
        if not rules.profiling.time_aware:
            return None
        means, epoch_s = ArrivalForecaster(profiled), self.trace.epoch_s or 0.0
        if self.throughput is None:
            return WalkForwardForecaster(means, epoch_s=epoch_s) if self.predictor == "learned" else means
        found = LearnedForecaster(self.throughput.model, self.throughput.version, means, epoch_s)
        for job in self.throughput.before:
            found.observe(job)
        return found

    def _predictor(self, policy: str) -> Predictor:
        kind = ESTIMATES.get(policy, Estimates.GIVEN)
        if kind is Estimates.TRUE:
            return OraclePredictor(self.trace, self.interference)
        if kind is Estimates.NONE:
            return HistoryPredictor()
        newest = NEWEST if policy == "lucid" and self.recent else None
        given = self.durations_s.get(policy, self.durations_s.get(""))
        if given is not None:
            measured = None if self.packing is None else packing_predictor(self.packing)
            return GivenPredictor(self.estimates_name, given, self.trace, HistoryPredictor(newest=newest), measured)
        if self.predictor == "oracle":
            return OraclePredictor(self.trace, self.interference)
        if self.predictor == "history":
            first_guess_s = self.settings.daemon.first_guess_s
            return GivenPredictor("history", {}, self.trace, HistoryPredictor(first_guess_s, newest))
        if self.predictor == "learned":
            given_or_history = GivenPredictor("history", {}, self.trace, HistoryPredictor(newest=newest))
            return WalkForward(
                given_or_history,
                self.packing,
                epoch_s=self.trace.epoch_s or 0.0,
                profiled_s=self.settings.policy.profiling.t_prof_s,
            )
        raise ConfigError(f"no predictor {self.predictor!r} (known: {', '.join(PREDICTORS)})")


def simulate(
    scenario: Scenario,
    policy: str,
    recorder: Recorder | None = None,
    progress: Progress | None = None,
    *,
    forecasts: Forecasts = "off",
) -> Run:
    """Replay the scenario's trace under one policy. ``forecasts``: of which waits the starts are forecast as it goes
    on; none where the published semantics are replayed, nor where jobs are resized or take turns, which planning
    ahead does not follow.

    Raises: ConfigError: an unknown policy or predictor, a VC without nodes, or settings the cluster cannot honour."""
    find_policy(policy)
    semantics = scenario.semantics
    if scenario.outages is not None and semantics not in (Semantics.HONEST, Semantics.AS_LIVE):
        raise ConfigError(f"--events is for --semantics honest; {semantics.value} reproduces a simulator")
    settings = scenario.settings
    parts = Parts(scenario.interference, settings.overheads, settings.policy.profiling, semantics=semantics)
    if semantics.published:
        trace, semantics, forecasts = scenario.trace, Semantics.HONEST, "off"
        scenario = replace(
            scenario,
            trace=ticked(trace, policy),
            semantics=semantics,
            remember_pairs=False,
            lends=False,
            recent=False,
        )
        if policy == "lucid":
            predictor = scenario.predictor_for(policy)
            return published_lucid(trace, scenario.layout(), parts, predictor, recorder, progress)
    if semantics is Semantics.MURI:
        scenario = replace(scenario, trace=lengthened(scenario.trace))
    predictor = scenario.predictor_for(policy)
    memory = PairMemory() if scenario.remember_pairs or semantics is Semantics.AS_LIVE else None
    if memory is not None:
        predictor = WithMemory(predictor, memory)
    as_live = LIVE_DEFAULTS if semantics is Semantics.AS_LIVE else {}
    rules = with_defaults(settings.policy, {**scenario.trace.evaluated_with, **as_live}, settings.given)
    if scenario.not_profiled:
        rules = rules.changed({"profiling.enabled": False})
    made = make_policy(policy, rules, predictor)
    if scenario.lends and rules_of(made).borrows:
        rules = with_defaults(rules, {"lending.mode": "borrow"}, settings.given)
        made = make_policy(policy, rules, predictor)
    if rules.lending.mode != "off" and not rules_of(made).quotas:
        raise ConfigError(f"policy {policy!r} knows no quotas: it cannot run with lending (policy.lending.mode)")
    if semantics is Semantics.MURI:
        made = published_policy(made, rules.muri)
    lent: list[Node] = []
    layout = scenario.layout()
    if Capability.PROFILE in made.needs:
        layout, lent = lend_profiling_nodes(layout, scenario.trace, scenario.profiling_nodes)
    parts = replace(
        parts,
        profiling_nodes=lent,
        agents=Capability.ADAPT in made.needs,
        interleaving=_interleaving(made) if scenario.staged else None,
        usage=_usage(settings.policy),
        memory=memory,
        pooled=rules.lending.mode != "off",
        outages=scenario.outages or Outages(),
        semantics=semantics,
    )
    cluster = SimulatedCluster(scenario.trace, layout, made.profiled, parts)
    forecaster = scenario.forecaster_for(rules, made.profiled)
    starts = None
    if forecasts != "off" and semantics is not Semantics.MURI and not made.needs & _NOT_PLANNED_AHEAD:
        starts = StartForecasts(make_policy(policy, rules, predictor), predictor.pair_speed, every=forecasts == "all")
    naive = naive_for(policy, rules) if scenario.recent else None
    count = len(scenario.trace.jobs)
    return run(cluster, made, predictor, recorder, progress, count, forecaster, starts, rules, naive)


def with_promise(scenario: Scenario, found: Run, progress: Progress | None = None) -> Run:
    """The run of the scenario, with the cost of lending to the VCs that lend: the scenario is replayed once more,
    each VC with its own nodes. The run of a policy that cannot borrow, or without a pool, stays as it is."""
    policy = scenario.settings.policy
    if not found.lent or not rules_of(make_policy(found.policy, policy, HistoryPredictor())).borrows:
        return found
    settings = scenario.settings.changed({"policy.lending.mode": "off"})
    walls = simulate(replace(scenario, settings=settings), found.policy, progress=progress)
    outcomes = ({o.job.id: o for o in run.outcomes} for run in (found, walls))
    return replace(found, promise=lending_costs(*outcomes))


_NOT_PLANNED_AHEAD = frozenset({Capability.RESIZE, Capability.ADAPT, Capability.ORACLE, Capability.INTERLEAVE})


def _usage(settings: PolicySettings) -> UsageBook:
    """The count of accounts' usage, where the policy uses it."""
    fair = settings.fairness
    if fair.share_bound <= 1.0 and not settings.backfill.weight_fair_share:
        return UsageBook()
    return UsageBook(HALF_LIFE_S, CALC_PERIOD_S, fair.shares)


def _interleaving(policy: Policy) -> Interleaving:
    """The executor of groups: it runs them in the order that the policy asks for."""
    if isinstance(policy, MuriPolicy):
        return Interleaving(policy.options.k, policy.options.ordering, policy.options.overhead)
    return Interleaving()
