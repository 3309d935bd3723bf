"""The truth about jobs trained as Pollux's authors measured them, and the agent in such a job (rows P1-P22).

Progress counts steps at the initial batch size. A step with a batch r times as large is worth ``gain`` of them,
which follows from the gradient's noise at that time; how long it takes follows from the placement.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from lucid.core.job import Job, Progress
from lucid.core.prediction import MeasuredRun
from lucid.core.rounding import past
from lucid.simulator.elastic.applications import Application
from lucid.simulator.elastic.training import Training
from lucid.systems.pollux import BatchLimits, GoodputModel, GradParams, Observations, PerfParams, fit_perf_params

__all__ = ["AppLearning"]

_AGENT_S = 30.0
"""The agent looks at new step times, and perhaps changes the batch, so often until nothing is new."""


@dataclass(frozen=True, slots=True)
class AppLearning:
    """A job that trains ``app`` with total batch size ``batch`` (samples) as submitted; ``pinned``: an agent
    keeps that batch, too."""

    app: Application
    batch: int
    pinned: bool = False

    @property
    def epochs(self) -> float:
        """Passes over the data: more than the application's own epochs the more a large batch wastes."""
        app, batch = self.app, self.batch
        steps = 0.0
        for epoch in range(app.epochs):
            steps += (app.progress_at[epoch + 1] - app.progress_at[epoch]) / _gain(app, batch, epoch)
        return steps * batch / app.samples

    def measured(self, most: int) -> MeasuredRun:
        """As Pollux's authors reckon for Optimus: a pass takes as many steps as if every step were exactly one batch,
        though GPUs that do not divide it take a little more. In the last epoch one step is left."""
        app, batch = self.app, self.batch
        steps = app.samples / batch
        done = [app.iterations(batch, epoch + 1) for epoch in range(app.epochs)]
        left = (*((done[-1] - count) / steps for count in done[:-1]), 1 / steps)
        times = (_iteration_s(app, layout, *app.passes(batch, sum(layout))) for layout in self._layouts(most))
        return MeasuredRun(left, tuple(steps * step_s for step_s in times))

    def epoch_s(self, most: int) -> tuple[float, ...]:
        """On nodes of as many GPUs as the application was measured on."""
        return tuple(self._pass_s(layout) for layout in self._layouts(most))

    def _layouts(self, most: int) -> list[tuple[int, ...]]:
        width = self.app.node_gpus
        return [(*[width] * (g // width), *([g % width] if g % width else [])) for g in range(1, most + 1)]

    def _pass_s(self, layout: tuple[int, ...]) -> float:
        gpus = sum(layout)
        atomic, accum = self.app.passes(self.batch, gpus)
        return self.app.samples / (gpus * atomic * (accum + 1)) * _iteration_s(self.app, layout, atomic, accum)

    def begin(self, job: Job, agent: bool) -> Training:  # noqa: ARG002 - part of the protocol
        """The job on its arrival."""
        return _AppTraining(self.app, self.batch, agent and not self.pinned, agent)


def _gain(app: Application, batch: int, epoch: int) -> float:
    """Progress of one step: (var + sqr) / (var / r + sqr), r = M / M0 (P7)."""
    sqr, var = app.gradient(batch, epoch)
    return (var + sqr) / (var * app.init_batch / batch + sqr)


def _iteration_s(app: Application, layout: tuple[int, ...], atomic: int, accum: int) -> float:
    """Seconds from one update of the weights to the next (P14)."""
    step_s, sync_s = app.times(layout, atomic)
    return step_s + (step_s - sync_s) * accum


class _AppTraining:
    """``chooses``: its agent may change the batch; ``reports``: there is an agent that fits and reports."""

    def __init__(self, app: Application, batch: int, chooses: bool, reports: bool) -> None:
        self._app = app
        self._batch = batch
        self._chooses = chooses
        self._reports = reports
        self._layout: tuple[int, ...] = ()
        self._atomic = self._accum = 0
        self._delay_s = 0.0
        self._agent_s = math.inf
        """Seconds until the agent looks again."""
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
            steps = ran_s / _iteration_s(self._app, self._layout, self._atomic, self._accum)
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
        """Note how fast the present configuration is; fit the model anew where it was not seen before."""
        app, gpus = self._app, sum(self._layout)
        step_s, sync_s = app.times(self._layout, self._atomic)
        pass_s = app.samples / self._total * _iteration_s(app, self._layout, self._atomic, self._accum)
        self._epoch_s[gpus] = pass_s
        if not self._reports:
            return
        self._gradient = app.gradient(self._total, self._epoch)
        key = len(self._layout), gpus, self._atomic
        if key not in self._seen:
            self._seen[key] = (max(step_s - sync_s, 1e-6), step_s)
            nodes, replicas, atomic = zip(*self._seen, strict=True)
            passes, steps = zip(*self._seen.values(), strict=True)
            seen = Observations.of(nodes, replicas, atomic, passes, steps)
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
        gain = _gain(app, self._total, self._epoch)
        self._rate = gain / _iteration_s(app, self._layout, self._atomic, self._accum)

    def progress(self) -> Progress:
        return Progress(
            self._samples / self._app.samples,
            tuple(self._epoch_s.items()),
            self._losses,
            self._total if self._layout else 0,
            () if self._perf is None else tuple(self._perf),
            self._gradient,
        )
