"""The jobs of ``make demo-elastic``, and what the simulator expects of them."""

from __future__ import annotations

import argparse
import importlib
import itertools
import math
import os
import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.optimize
import scipy.sparse
from msgspec import structs

from benchmarks.figure import Figure
from lucid.config.load import settings_from
from lucid.config.policy import PolicySettings
from lucid.core.decision import PartitionPlan
from lucid.core.job import Elastic, Job, Progress
from lucid.core.placement import Placement
from lucid.core.ports import Predictor
from lucid.core.prediction import MeasuredRun
from lucid.core.snapshot import Partition, Snapshot
from lucid.orchestrator.policy import PartitionPolicy, Policy
from lucid.orchestrator.registry import adding_policy, make_policy
from lucid.simulator.cluster.training import EpochTable, Training
from lucid.simulator.layout import NodeShape
from lucid.simulator.scenario import Scenario, simulate
from lucid.simulator.traces.record import Trace, TraceJob

__all__ = [
    "ADAPTING", "EVERY_S", "JCT_TARGET", "MEAN_S", "NODES", "NODE_GPUS", "RESTART_S", "ROUND_S", "STEPS", "TARGET",
    "Curve", "Expected", "Model", "Small", "apart", "figures", "forecast", "least_makespan_s", "loss_noise",
    "small_jobs",
]  # fmt: skip

REPO = Path(__file__).resolve().parents[1]
TARGET, JCT_TARGET = 0.75, 0.85
"""Makespan and average JCT beside fixed size."""
NODES, NODE_GPUS, STEPS, MOST_GPUS = 4, 4, 20, 8
MEAN_S = 8.0
"""Between submissions, on average."""
ROUND_S = 5.0
"""Between two decisions of a policy by rounds: jobs of one to four minutes would see only a few of the usual 60 s."""
RESTART_S = 2.7
"""What a restart took in the runs of docs/systems/elastic.md."""
ADAPTING = ("pollux",)
"""Policies under which a job chooses its batch."""

EVERY_S, LOOK_S, START_S = 3.0, 1.0, 1.5
"""As in the runs of docs/systems/elastic.md: a job keeps its GPUs for at least so long, lucidd looks so often,
and a job needs so long for its start."""

Curve = list[tuple[float, float]]
"""Validation loss by epochs, in order of the epochs."""


@dataclass(frozen=True)
class Model:
    """How fast a kind of job is: a pass over m samples on one GPU takes ``pass_s + sample_s * m``, and synchronising
    ``sync_s`` within a node, twice as long across nodes, and a tenth more for each GPU beyond two."""

    batch: int
    pass_s: float
    sample_s: float
    sync_s: float

    def step_s(self, nodes: int, gpus: int, local: int, passes: int = 1) -> float:
        sync_s = 0.0 if gpus < 2 else self.sync_s * (2 if nodes > 1 else 1) * (1 + 0.1 * (gpus - 2))
        return passes * (self.pass_s + self.sample_s * local) + sync_s

    def epoch_s(self, gpus: int) -> float:
        """With the initial batch, on as few nodes as can be."""
        return STEPS * self.step_s(-(-gpus // NODE_GPUS), gpus, max(self.batch // gpus, 1))


MODELS = (Model(64, 0.008, 0.092 / 64, 0.004), Model(128, 0.010, 0.390 / 128, 0.015))
"""A small one, of which eight GPUs are worth 3.1, and a large one, of which they are worth 3.7, at the initial batch
size."""


@dataclass(frozen=True)
class Small:
    """One job, as its user submits it."""

    at_s: float
    gpus: int
    epochs: int
    model: Model
    seed: int

    @property
    def alone_s(self) -> float:
        """Seconds that it takes at the size that its user asks for."""
        return self.epochs * self.model.epoch_s(self.gpus)

    @property
    def options(self) -> str:
        """Of its program."""
        m = self.model
        return (
            f"--epochs {self.epochs} --steps {STEPS} --batch {m.batch} --most {8 * m.batch} --pass-s {m.pass_s} "
            f"--sample-s {m.sample_s:.6f} --sync-s {m.sync_s} --seed {self.seed}"
        )


def small_jobs(count: int, seed: int, mean_s: float) -> list[Small]:
    """As users of a cluster for training submit: seven of ten ask for one GPU, two for two, one for four; four of
    five take 60 to 90 s at that size, the others 180 to 240 s; submissions at random, ``mean_s`` apart on average."""
    draw = random.Random(seed)
    at_s, found = 0.0, []
    for number in range(count):
        gpus = draw.choices((1, 2, 4), (7, 2, 1))[0]
        model = draw.choice(MODELS)
        alone_s = draw.uniform(60, 90) if draw.random() < 0.8 else draw.uniform(180, 240)
        found.append(Small(at_s, gpus, max(round(alone_s / model.epoch_s(gpus)), 1), model, 100 + number))
        at_s += draw.expovariate(1 / mean_s)
    return found


# -- what the simulator expects ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Expected:
    """Of one run: seconds, and how often a job was resized or stopped."""

    makespan_s: float
    jct_s: float
    restarts: int


class _AsLive(PartitionPolicy):
    """A policy that knows as much as lucidd: what a restart costs, epoch times only as reported; a job starts on as
    many GPUs as its user wrote at the most, and is resized after its first epoch at the earliest."""

    def __init__(self, inner: PartitionPolicy, restart_s: float) -> None:
        super().__init__()
        self.name, self.needs, self.rules = inner.name, inner.needs, inner.rules
        self._inner, self._restart_s = inner, restart_s
        self._since: dict[str, tuple[Placement, float]] = {}

    def plan_partition(self, partition: Partition, snapshot: Snapshot) -> PartitionPlan:
        now_s = snapshot.now_s
        running = []
        for entry in partition.running:
            placement, since_s = self._since.get(entry.job.id, ((), 0.0))
            if placement != entry.placement:
                since_s = now_s
                self._since[entry.job.id] = (entry.placement, now_s)
            keeps = now_s - since_s < EVERY_S or entry.progress is None or entry.progress.epochs < 1.0
            job = replace(entry.job, elastic=None) if keeps else entry.job
            running.append(replace(entry, job=job, restart_s=self._restart_s))
        pending = [
            e if e.restarts or e.job.elastic is None else replace(e, job=_written(e.job)) for e in partition.pending
        ]
        part = replace(partition, running=tuple(running), pending=tuple(pending))
        said = {job: structs.replace(found, epoch_s=()) for job, found in snapshot.predictions.items()}
        made = self._inner.plan_partition(part, replace(snapshot, predictions=said))
        return structs.replace(made, wake_s=now_s + LOOK_S) if running or pending else made


def _written(job: Job) -> Job:
    assert job.elastic is not None
    return replace(job, elastic=replace(job.elastic, max_gpus=max(job.gpus, job.elastic.min_gpus)))


def forecast(wanted: Sequence[Small], policy: str, interval_s: float, restart_s: float) -> Expected:
    """What lucidd is expected to bring. ``restart_s``: what a restart takes."""
    items = []
    for number, one in enumerate(wanted):
        m = one.model
        limits = Elastic(MOST_GPUS, 1, m.batch, m.batch, 8 * m.batch, 1, 8 * m.batch, epochs=float(one.epochs))
        job = Job(str(number), "vc-a", one.gpus, one.at_s, number, elastic=limits)
        learning: Any = _Adapting(one) if policy in ADAPTING else _table(one)
        items.append(TraceJob(job, one.alone_s, learning=learning))
    rounds = {"interval_s": interval_s}
    sections = {
        "policy": {**{name: {**rounds, "restart_s": restart_s} for name in ADAPTING}, "optimus": rounds},
        "overheads": {"rescale_s": restart_s, "elastic_start_s": START_S},
    }
    settings = settings_from(sections, "elastic stream")
    scenario = Scenario(Trace("demo", tuple(items)), {"vc-a": NODES}, NodeShape(gpus=NODE_GPUS), settings=settings)
    settings_of = scenario.settings.policy

    def as_live(_: PolicySettings, predictor: Predictor) -> Policy:
        return _AsLive(make_policy(policy, settings_of, predictor), restart_s)

    with adding_policy("as-live", as_live):
        outcomes = simulate(scenario, policy if policy == "fifo" else "as-live").outcomes
    return Expected(
        max(o.end_s for o in outcomes),
        sum(o.jct_s for o in outcomes) / len(outcomes),
        sum(o.resizes + o.preemptions for o in outcomes),
    )


def least_makespan_s(wanted: Sequence[Small]) -> float:
    """No schedule at the initial batch sizes ends earlier, s: the linear programme in which jobs change their size
    at any moment for nothing, hold parts of GPUs, and need not fit on nodes. Found to within a second."""
    low, high = max(one.at_s for one in wanted), forecast(wanted, "fifo", ROUND_S, 0.0).makespan_s
    while high - low > 1.0:
        middle = (low + high) / 2
        low, high = (low, middle) if _ends_by(wanted, middle) else (middle, high)
    return high


def _ends_by(wanted: Sequence[Small], end_s: float) -> bool:
    """Variables: seconds of job j on g GPUs between the k-th submission and the next."""
    cuts = [*sorted({one.at_s for one in wanted}), end_s]
    spans = [(k, start_s, stop_s - start_s) for k, (start_s, stop_s) in enumerate(itertools.pairwise(cuts))]
    free = [
        (j, k, gpus)
        for j, one in enumerate(wanted)
        for k, start_s, _ in spans
        if start_s >= one.at_s
        for gpus in range(1, MOST_GPUS + 1)
    ]
    jobs, parts = len(wanted), len(spans)
    rows = scipy.sparse.lil_array((jobs * parts + parts + jobs, len(free)))
    for column, (j, k, gpus) in enumerate(free):
        rows[j * parts + k, column] = 1.0
        rows[jobs * parts + k, column] = gpus
        rows[jobs * parts + parts + j, column] = -1.0 / wanted[j].model.epoch_s(gpus)
    lengths = [length_s for _, _, length_s in spans]
    at_most = [*(lengths * jobs), *(NODES * NODE_GPUS * length for length in lengths), *(-o.epochs for o in wanted)]
    done = scipy.optimize.linprog(np.zeros(len(free)), A_ub=rows.tocsr(), b_ub=at_most, method="highs")
    return bool(done.status == 0)


STREAMS = 12


def figures(runs: int) -> Iterator[Figure]:  # noqa: ARG001 - all is deterministic
    """Streams 1 to 12 of the demonstration in the simulator: makespans beside fixed size and beside the bound,
    average JCT beside fixed size, and restarts."""
    sys.path[:1] = [str(REPO / "slurm"), str(REPO)]
    ratios: dict[str, list[float]] = {"elastic": [], "pollux": [], "bound": []}
    jcts: dict[str, list[float]] = {"elastic": [], "pollux": []}
    restarts: dict[str, list[float]] = {"elastic": [], "pollux": []}
    for seed in range(1, STREAMS + 1):
        wanted = small_jobs(20, seed, MEAN_S)
        fixed = forecast(wanted, "fifo", ROUND_S, RESTART_S)
        for policy in jcts:
            found = forecast(wanted, policy, ROUND_S, RESTART_S)
            ratios[policy].append(found.makespan_s / fixed.makespan_s)
            jcts[policy].append(found.jct_s / fixed.jct_s)
            restarts[policy].append(found.restarts)
        ratios["bound"].append(least_makespan_s(wanted) / fixed.makespan_s)
        words = ", ".join(f"{name} {found[-1]:.2f}" for name, found in ratios.items() if name != "elastic")
        yield Figure(f"elastic / fixed size, makespan, stream {seed}", ratios["elastic"][-1], "", note=words)
    for what, table, target in (("makespan", ratios, TARGET), ("average JCT", jcts, JCT_TARGET)):
        for name, every in table.items():
            met = sum(ratio <= target for ratio in every)
            words = f"{name} / fixed size, {what}, median of {STREAMS} streams"
            asked = None if name == "bound" else target
            yield Figure(words, statistics.median(every), "", STREAMS, at_most=asked, note=f"{met} within {target}")
    for name, every in restarts.items():
        yield Figure(f"{name}, restarts, median of {STREAMS} streams", statistics.median(every), "", STREAMS)


# -- losses ----------------------------------------------------------------------------------------------------------


def apart(one: Curve, other: Curve) -> float:
    """Root of the mean squared difference of two curves, at the epochs of the first that the other covers too."""
    x, y = zip(*other, strict=True)
    common = [(epoch, loss) for epoch, loss in one if x[0] <= epoch <= x[-1]]
    squares = [(loss - float(np.interp(epoch, x, y))) ** 2 for epoch, loss in common]
    return math.sqrt(sum(squares) / len(squares)) if squares else math.inf


def loss_noise(wanted: Sequence[Small]) -> float:
    """How far two curves of one job are apart whose points come in another order, mean of all jobs."""
    return statistics.mean(apart(_curve(one, 0), _curve(one, 1024)) for one in wanted)


def _curve(one: Small, first: int) -> Curve:
    """Of the program, run without its sleeps at its initial batch size from point ``first`` on."""
    return [(float(epoch), job.data.loss(job.state["w"])) for epoch, job in enumerate(_epochs(one, first), start=1)]


def _table(one: Small) -> EpochTable:
    return EpochTable(float(one.epochs), tuple(one.model.epoch_s(gpus) for gpus in range(1, MOST_GPUS + 1)))


class _Adapting:
    """A job that chooses its batch. Its gradients by epoch are those of the program, run without its sleeps."""

    def __init__(self, one: Small) -> None:
        self.one = one
        self.gradients = _gradients(one)

    @property
    def epochs(self) -> float:
        return float(self.one.epochs)

    def measured(self, most: int) -> MeasuredRun:
        return _table(self.one).measured(most)

    def epoch_s(self, most: int) -> tuple[float, ...]:
        return _table(self.one).epoch_s(most)

    def begin(self, job: Job, agent: bool) -> Training:  # noqa: ARG002 - part of the protocol
        return _AdaptingTraining(self)


class _AdaptingTraining:
    """Progress in epochs at the initial batch size; each epoch has one noise of the gradient, and one batch."""

    def __init__(self, truth: _Adapting) -> None:
        self._truth, self._one, self._model = truth, truth.one, truth.one.model
        self._layout: tuple[int, ...] = ()
        self._delay_s = self._done = 0.0
        self._batch, self._epoch_s = self._model.batch, math.inf
        self._seen: dict[int, float] = {}

    @property
    def done(self) -> bool:
        return self._done >= self._one.epochs - 1e-9

    @property
    def _gradient(self) -> tuple[float, float]:
        return self._truth.gradients[min(int(self._done + 1e-9), self._one.epochs - 1)]

    def place(self, layout: tuple[int, ...], delay_s: float) -> None:
        self._layout, self._delay_s = layout, delay_s
        self._choose()

    def leave(self) -> None:
        self._layout = ()

    def _choose(self) -> None:
        gpus, m, (sqr, var) = sum(self._layout), self._model, self._gradient
        best = 0.0
        for i in range(16):
            low = max(m.batch, gpus)
            wanted = low * (8 * m.batch / low) ** (i / 15)
            passes = 2 if gpus == 1 and wanted > m.batch else 1
            local = math.ceil(wanted / gpus / passes - 1e-9)
            batch = local * gpus * passes
            gain = (var + sqr) / (var * m.batch / batch + sqr)
            rate = gain / m.step_s(len(self._layout), gpus, local, passes)
            if rate > best:
                best, self._batch = rate, batch
        self._epoch_s = STEPS / best

    def left_s(self) -> float:
        return 0.0 if self.done else self._delay_s + (math.floor(self._done + 1e-9) + 1 - self._done) * self._epoch_s

    def advance(self, seconds: float) -> None:
        if not self._layout or self.done:
            return
        waited_s = min(seconds, self._delay_s)
        self._delay_s -= waited_s
        if seconds > waited_s:
            self._done += (seconds - waited_s) / self._epoch_s
            self._seen[sum(self._layout)] = self._epoch_s
            if abs(self._done - round(self._done)) < 1e-6:
                self._done = float(round(self._done))
                self._choose()

    def progress(self) -> Progress:
        m = self._model
        perf = (m.pass_s, m.sample_s, 2 * m.sync_s, 0.2 * m.sync_s, m.sync_s, 0.1 * m.sync_s, 1.0)
        batch = self._batch if self._layout else 0
        return Progress(self._done, tuple(self._seen.items()), (), batch, perf, self._gradient)


def _gradients(one: Small) -> list[tuple[float, float]]:
    """Squared norm and variance at the initial batch size, by epoch."""
    return [job.statistics() for job in _epochs(one, 0)]


def _epochs(one: Small, first: int) -> Iterator[Any]:
    """Its training at a fixed batch, which takes no longer than it computes: the job after each epoch. ``first``: the
    point that it begins with."""
    program = importlib.import_module("benchmarks.adaptive_sgd")
    os.environ["SLURM_JOB_ID"] = "0"
    job = program.Job(
        argparse.Namespace(
            epochs=one.epochs, steps=STEPS, batch=one.model.batch, most=8 * one.model.batch, pass_s=0.0, sample_s=0.0,
            sync_s=0.0, seed=one.seed, how="fixed",
        )
    )  # fmt: skip
    job.state["drawn"] = first
    for _ in range(one.epochs):
        for _ in range(STEPS):
            job.step()
        yield job
