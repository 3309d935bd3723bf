"""Training of elastic jobs in a replay: how far a job gets on which GPUs, by tables or measurements.

A trace holds the truth about a job before it starts (``Learning``), and a job in the system has a ``Training`` with
its progress. The cluster asks it how long nothing changes, lets so much time pass, and asks again: at each milestone
the rate may differ. Times are seconds alone on its GPUs. Policies see what the job reports (``core.job.Progress``).
Training of applications that were measured is by ``Application``."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lucid.core.job import Job, Progress
from lucid.core.prediction import MeasuredRun
from lucid.core.times import past
from lucid.orchestrator.policies.rounds.goodput import (
    BatchLimits,
    GoodputModel,
    GradParams,
    Observations,
    PerfParams,
    fit_perf_params,
)
from lucid.simulator.cluster.application import Application


@dataclass(frozen=True, slots=True)
class EpochTable:
    """A job whose speed depends on its number of GPUs alone: ``table[g - 1]`` seconds an epoch on g GPUs.
    Beyond the table nothing gets faster. It takes ``epochs`` of them."""

    epochs: float
    table: tuple[float, ...]

    def measured(self, most: int) -> MeasuredRun:
        """The measured run: each epoch is one pass."""
        left = (max(self.epochs - epoch - 1.0, 0.0) for epoch in range(math.ceil(self.epochs)))
        return MeasuredRun(tuple(left), self.epoch_s(most))

    def epoch_s(self, most: int) -> tuple[float, ...]:
        """The table, drawn out to ``most`` GPUs."""
        return (*self.table, *[self.table[-1]] * (most - len(self.table)))[:most]

    def begin(self, job: Job, agent: bool) -> Training:  # noqa: ARG002 - as of AppLearning
        """The training; an agent would find nothing to choose."""
        return _TableTraining(self, 0 if job.elastic is None else job.elastic.batch)


class _TableTraining:
    def __init__(self, truth: EpochTable, batch: int) -> None:
        self._truth = truth
        self._batch = batch
        self._gpus = 0
        self._delay_s = 0.0
        self._done = 0.0
        self._seen: dict[int, float] = {}

    @property
    def done(self) -> bool:
        """Whether the job has reached its target."""
        return self._gpus > 0 and not past(self.left_s(), 0.0)

    def place(self, layout: tuple[int, ...], delay_s: float) -> None:
        """Go on with so many GPUs on each of some nodes, after ``delay_s`` in which nothing is learnt."""
        self._gpus, self._delay_s = sum(layout), delay_s

    def leave(self) -> None:
        """Take the job off its GPUs; its progress is kept in a checkpoint."""
        self._gpus = 0

    def left_s(self) -> float:
        """Seconds, the delay included, until the rate changes or the target is reached."""
        return self._delay_s + max(self._truth.epochs - self._done, 0.0) * self._rate_s()

    def advance(self, seconds: float) -> None:
        """Let time pass, at most ``left_s()``."""
        waited_s = min(seconds, self._delay_s)
        self._delay_s -= waited_s
        if seconds > waited_s:
            self._done += (seconds - waited_s) / self._rate_s()
            self._seen.setdefault(self._gpus, self._rate_s())

    def progress(self) -> Progress:
        return Progress(self._done, tuple(self._seen.items()), batch=self._batch if self._gpus else 0)

    def _rate_s(self) -> float:
        return self._truth.table[min(self._gpus, len(self._truth.table)) - 1]


_AGENT_S = 30.0
"""How often the agent reads new step times, and perhaps changes the batch, until nothing is new."""


@dataclass(frozen=True, slots=True)
class AppLearning:
    """A job that trains ``app`` with total batch size ``batch`` (samples) as submitted; ``pinned``: an agent
    keeps that batch, too."""

    app: Application
    batch: int
    pinned: bool = False

    @property
    def epochs(self) -> float:
        """Passes over the data: the more a large batch wastes, the more they exceed the application's own epochs."""
        app, batch = self.app, self.batch
        steps = 0.0
        for epoch in range(app.epochs):
            steps += (app.progress_at[epoch + 1] - app.progress_at[epoch]) / app.gain(batch, epoch)
        return steps * batch / app.samples

    def measured(self, most: int) -> MeasuredRun:
        """The measured run as Pollux's authors reckon it for Optimus: a pass takes as many steps as if every step
        were exactly one batch, though GPUs that do not divide it take a little more. In the last epoch one step is
        left."""
        app, batch = self.app, self.batch
        steps = app.samples / batch
        done = [app.iterations(batch, epoch + 1) for epoch in range(app.epochs)]
        left = (*((done[-1] - count) / steps for count in done[:-1]), 1 / steps)
        times = (app.iteration_s(layout, *app.passes(batch, sum(layout))) for layout in self._layouts(most))
        return MeasuredRun(left, tuple(steps * step_s for step_s in times))

    def epoch_s(self, most: int) -> tuple[float, ...]:
        """Seconds of an epoch on nodes with as many GPUs as those on which the application was measured."""
        return tuple(self._pass_s(layout) for layout in self._layouts(most))

    def _layouts(self, most: int) -> list[tuple[int, ...]]:
        width = self.app.node_gpus
        return [(*[width] * (g // width), *([g % width] if g % width else [])) for g in range(1, most + 1)]

    def _pass_s(self, layout: tuple[int, ...]) -> float:
        gpus = sum(layout)
        atomic, accum = self.app.passes(self.batch, gpus)
        return self.app.samples / (gpus * atomic * (accum + 1)) * self.app.iteration_s(layout, atomic, accum)

    def begin(self, job: Job, agent: bool) -> Training:  # noqa: ARG002 - as of EpochTable
        """The training of the job on its arrival."""
        return _AppTraining(self.app, self.batch, agent and not self.pinned, agent)


class _AppTraining:
    """The training of an application. ``chooses``: its agent may change the batch; ``reports``: there is an agent
    that fits and reports."""

    def __init__(self, app: Application, batch: int, chooses: bool, reports: bool) -> None:
        self._app = app
        self._batch = batch
        self._chooses = chooses
        self._reports = reports
        self._layout: tuple[int, ...] = ()
        self._atomic = self._accum = 0
        self._delay_s = 0.0
        self._agent_s = math.inf
        """Seconds until the agent reads again."""
        self._rate = 0.0
        """Progress a second."""
        self._progress = 0.0
        self._samples = 0.0
        self._epoch = 0
        self._losses: tuple[tuple[float, float], ...] = ()
        self._epoch_s: dict[int, float] = {}
        self._seen: dict[tuple[int, int, int], tuple[float, float]] = {}
        self._perf: PerfParams | None = None
        self._gradient: tuple[float, float] | None = None

    @property
    def done(self) -> bool:
        return self._epoch >= self._app.epochs

    def place(self, layout: tuple[int, ...], delay_s: float) -> None:
        self._layout, self._delay_s = layout, delay_s
        self._agent_s = delay_s + _AGENT_S if self._reports else math.inf
        self._choose()

    def leave(self) -> None:
        self._layout = ()
        self._atomic = self._accum = 0

    def left_s(self) -> float:
        if self.done:
            return 0.0
        return min(self._delay_s + self._to_boundary_s(), self._agent_s)

    def _to_boundary_s(self) -> float:
        return max(self._app.progress_at[self._epoch + 1] - self._progress, 0.0) / self._rate

    def advance(self, seconds: float) -> None:
        if not self._layout or self.done:
            return
        waited_s = min(seconds, self._delay_s)
        self._delay_s -= waited_s
        self._agent_s -= seconds
        ran_s = seconds - waited_s
        if ran_s > 0:
            self._measure()
            steps = ran_s / self._app.iteration_s(self._layout, self._atomic, self._accum)
            self._progress += ran_s * self._rate
            self._samples += steps * self._total
        if self._delay_s <= 0 and not past(self._to_boundary_s(), 0.0):
            self._progress = self._app.progress_at[self._epoch + 1]
            self._epoch += 1
            loss = self._app.loss(self._total, self._epoch)
            self._losses = (*self._losses, (self._samples / self._app.samples, loss))
            if not self.done:
                self._choose()
        elif not past(self._agent_s, 0.0):
            before = self._atomic, self._accum
            self._choose()
            # once a look has changed nothing, nothing is new before the next epoch
            self._agent_s = math.inf if before == (self._atomic, self._accum) else _AGENT_S

    @property
    def _total(self) -> int:
        """The total batch size now."""
        return sum(self._layout) * self._atomic * (self._accum + 1)

    def _measure(self) -> None:
        """Note how fast the present configuration is; fit the model anew if it is a new one."""
        app, gpus = self._app, sum(self._layout)
        step_s, sync_s = app.times(self._layout, self._atomic)
        pass_s = app.samples / self._total * app.iteration_s(self._layout, self._atomic, self._accum)
        self._epoch_s[gpus] = pass_s
        if not self._reports:
            return
        self._gradient = app.gradient(self._total, self._epoch)
        key = len(self._layout), gpus, self._atomic
        if key not in self._seen:
            self._seen[key] = (max(step_s - sync_s, 1e-6), step_s)
            nodes, replicas, atomic = zip(*self._seen, strict=True)
            passes, steps = zip(*self._seen.values(), strict=True)
            seen = Observations.from_columns(nodes, replicas, atomic, passes, steps)
            self._perf = fit_perf_params(seen, multi_start=False).params

    def _choose(self) -> None:
        """The batch for the present GPUs (P2, P3, P21): as submitted, or what has the best goodput."""
        app, gpus = self._app, sum(self._layout)
        if not self._chooses:
            self._atomic, self._accum = app.passes(self._batch, gpus)
        elif self._perf is None or self._gradient is None:
            self._atomic, self._accum = app.passes(max(app.init_batch, app.atomic_min * gpus), gpus)
        else:
            model = GoodputModel(self._perf, GradParams(*self._gradient), app.init_batch)
            limits = BatchLimits(app.init_batch, app.most_batch, app.atomic_min, app.atomic_max)
            best = model.optimize(len(self._layout), gpus, limits)
            if best.goodput > 0:
                self._atomic, self._accum = app.within(gpus, int(best.atomic), int(best.accum))
            else:
                self._atomic, self._accum = app.passes(max(app.init_batch, app.atomic_min * gpus), gpus)
        if self._chooses and self._agent_s == math.inf:
            self._agent_s = _AGENT_S
        gain = app.gain(self._total, self._epoch)
        self._rate = gain / app.iteration_s(self._layout, self._atomic, self._accum)

    def progress(self) -> Progress:
        return Progress(
            self._samples / self._app.samples,
            tuple(self._epoch_s.items()),
            self._losses,
            self._total if self._layout else 0,
            () if self._perf is None else tuple(self._perf),
            self._gradient,
        )


Training = _TableTraining | _AppTraining
Learning = EpochTable | AppLearning
