"""Training of elastic jobs in a replay: how far a job gets on which GPUs, by tables or measurements.

The cluster asks a ``Training`` how long nothing changes, lets so much time pass, and asks again: at each milestone
the rate may differ. Policies see what the job reports (``core.job.Progress``).

Applications are those that Pollux's authors measured (rows P1-P22), one folder each: ``placements.csv`` and
``scalability.csv`` hold step times, ``validation-M.csv`` one training run with batch size M; values between
measurements are interpolated. Progress counts steps at the initial batch size. A step with a batch r times as large
is worth ``gain`` of them, by the gradient's noise at that time; its duration follows from the placement."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from lucid.core.job import Job, Progress
from lucid.core.prediction import MeasuredRun
from lucid.core.times import past
from lucid.errors import TraceError
from lucid.orchestrator.policies.rounds.goodput import (
    BatchLimits,
    GoodputModel,
    GradParams,
    Observations,
    PerfParams,
    fit_perf_params,
)

if TYPE_CHECKING:
    from scipy.interpolate import LinearNDInterpolator


class Training(Protocol):
    """One elastic job in the system, with its progress. Times are seconds alone on its GPUs."""

    @property
    def done(self) -> bool:
        """Whether the job has reached its target."""
        ...

    def place(self, layout: tuple[int, ...], delay_s: float) -> None:
        """Go on with so many GPUs on each of some nodes, after ``delay_s`` in which nothing is learnt."""
        ...

    def leave(self) -> None:
        """Take the job off its GPUs; its progress is kept in a checkpoint."""
        ...

    def left_s(self) -> float:
        """Seconds, the delay included, until the rate changes or the target is reached."""
        ...

    def advance(self, seconds: float) -> None:
        """Let time pass, at most ``left_s()``."""
        ...

    def progress(self) -> Progress:
        """The job's report."""
        ...


class Learning(Protocol):
    """The truth about a job before it starts, as the trace holds it."""

    @property
    def epochs(self) -> float:
        """Passes over the data that it takes with its batch as submitted."""
        ...

    def measured(self, most: int) -> MeasuredRun:
        """The data of an earlier measured run, for up to ``most`` GPUs."""
        ...

    def epoch_s(self, most: int) -> tuple[float, ...]:
        """Seconds of one epoch on 1, 2, ..., ``most`` GPUs of as few nodes as possible."""
        ...

    def begin(self, job: Job, agent: bool) -> Training:
        """The training of the job on its arrival; with an ``agent`` it chooses its batch itself."""
        ...


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

    def begin(self, job: Job, agent: bool) -> Training:  # noqa: ARG002 - part of the protocol
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
        return self._gpus > 0 and not past(self.left_s(), 0.0)

    def place(self, layout: tuple[int, ...], delay_s: float) -> None:
        self._gpus, self._delay_s = sum(layout), delay_s

    def leave(self) -> None:
        self._gpus = 0

    def left_s(self) -> float:
        return self._delay_s + max(self._truth.epochs - self._done, 0.0) * self._rate_s()

    def advance(self, seconds: float) -> None:
        waited_s = min(seconds, self._delay_s)
        self._delay_s -= waited_s
        if seconds > waited_s:
            self._done += (seconds - waited_s) / self._rate_s()
            self._seen.setdefault(self._gpus, self._rate_s())

    def progress(self) -> Progress:
        return Progress(self._done, tuple(self._seen.items()), batch=self._batch if self._gpus else 0)

    def _rate_s(self) -> float:
        return self._truth.table[min(self._gpus, len(self._truth.table)) - 1]


Floats = NDArray[np.float64]

_ATOMIC_MAX = {"yolov3": 8}
"""Most samples per GPU in the authors' evaluation, where that is below what was measured."""


@dataclass(frozen=True, slots=True)
class _Run:
    """One training run: by epoch, progress in steps of the initial batch size, steps done, validation metric,
    gradient."""

    progress: Floats
    iteration: Floats
    metric: Floats
    grad_sqr: Floats
    grad_var: Floats


class Application:
    """One application. Batch sizes in samples, times in seconds, progress in steps at ``init_batch``.

    Args:
        name: its name.
        runs: training runs by batch size.
        placed: (n, 4) local batch, nodes, step and synchronisation time, by placement.
        scaled: (n, 5) nodes, GPUs, local batch, step and synchronisation time."""

    def __init__(
        self,
        name: str,
        runs: Mapping[int, _Run],
        placed: Mapping[tuple[int, ...], Floats],
        scaled: Floats,
    ) -> None:
        self.name = name
        self.batches = sorted(runs)
        self._runs = runs
        self._placed = placed
        self.init_batch, self.most_batch = self.batches[0], self.batches[-1]
        local = [row for rows in placed.values() for row in rows[:, 0]]
        self.atomic_min = int(min(local))
        self.atomic_max = _ATOMIC_MAX.get(name, int(max(local)))
        self.epochs = min(len(run.progress) for run in runs.values())
        self.node_gpus = max(max(placement) for placement in placed)
        self.most_gpus = int(max(scaled[:, 1].max(initial=1), max(sum(placement) for placement in placed)))
        self._most_nodes = int(max(scaled[:, 0].max(initial=1), max(len(placement) for placement in placed)))
        self._points = _points(placed, scaled)
        self._between: LinearNDInterpolator | None = None
        self._model: GoodputModel | None = None
        self._times: dict[tuple[tuple[int, ...], int], tuple[float, float]] = {}
        self._gradients: dict[tuple[int, int], tuple[float, float]] = {}
        self.progress_at = [0.0, *(min(float(r.progress[e]) for r in runs.values()) for e in range(self.epochs))]
        """Progress at which epoch 0, 1, ... ends: that of the run which got least far."""

    @property
    def samples(self) -> float:
        """Samples in a pass over the data."""
        return self.progress_at[-1] / self.epochs * self.init_batch

    def times(self, layout: tuple[int, ...], atomic: int) -> tuple[float, float]:
        """Seconds of a step and, within it, of synchronisation, on so many GPUs of each of some nodes.

        The placement itself where it was measured (nodes in a ring, so any rotation of it), else between
        placements of as many nodes and GPUs; outside of all that was measured by the model of step times
        that fits the measurements best."""
        ring = min(layout[i:] + layout[:i] for i in range(len(layout)))
        found = self._times.get((ring, atomic))
        if found is None:
            found = self._times[ring, atomic] = self._step_times(ring, atomic)
        return found

    def _step_times(self, ring: tuple[int, ...], atomic: int) -> tuple[float, float]:
        rows = self._placed.get(ring)
        if rows is not None:
            at = np.interp(atomic, rows[:, 0], rows[:, 1]), np.interp(atomic, rows[:, 0], rows[:, 2])
            return float(at[0]), float(at[1])
        if self._between is None:
            from scipy.interpolate import LinearNDInterpolator

            self._between = LinearNDInterpolator(self._points[:, :3], self._points[:, 3:])
        nodes, gpus = min(len(ring), self._most_nodes), sum(ring)
        step_s, sync_s = self._between(nodes, gpus, atomic).ravel().tolist()
        if math.isfinite(step_s):
            return step_s, sync_s
        if self._model is None:
            p = self._points
            seen = Observations.from_columns(p[:, 0], p[:, 1], p[:, 2], np.maximum(p[:, 3] - p[:, 4], 1e-6), p[:, 3])
            self._model = GoodputModel(fit_perf_params(seen).params, GradParams(1.0, 0.0), self.init_batch)
        step_s = gpus * atomic / float(self._model.throughput(len(ring), gpus, atomic, 0))
        perf: PerfParams = self._model.perf
        return step_s, max(step_s - (perf.alpha_c + perf.beta_c * atomic), 0.0)

    def gradient(self, batch: int, epoch: int) -> tuple[float, float]:
        """Squared norm and variance of the gradient during an epoch (from 0), between the nearest batch sizes."""
        found = self._gradients.get((batch, epoch))
        if found is None:
            sqr = self._mix(batch, lambda run: float(run.grad_sqr[epoch]))
            var = self._mix(batch, lambda run: float(run.grad_var[epoch]))
            found = self._gradients[batch, epoch] = (sqr, var)
        return found

    def iterations(self, batch: int, epochs: int) -> float:
        """Steps that the measured run with this batch size had done after so many epochs (from 1), between the
        nearest batch sizes. The gradient's noise gives another number, up to 9 % larger."""
        return self._mix(batch, lambda run: float(run.iteration[epochs - 1]))

    def loss(self, batch: int, epochs: int) -> float:
        """Best validation loss after so many epochs (from 1), relative to the first; of a metric that rises,
        what it lacks of 1 (or of 100 where it counts in percent)."""

        def loss_of(run: _Run) -> float:
            metric = run.metric
            if metric[0] < metric[-1]:
                metric = (100.0 if metric.max() > 1.0 else 1.0) - metric
            return float(metric[:epochs].min() / metric[0])

        return self._mix(batch, loss_of)

    def _mix(self, batch: int, loss_of: Callable[[_Run], float]) -> float:
        size = min(max(batch, self.init_batch), self.most_batch)
        above = next(b for b in self.batches if b >= size)
        if above == size:
            return loss_of(self._runs[above])
        below = max(b for b in self.batches if b <= size)
        part = (size - below) / (above - below)
        return (1 - part) * loss_of(self._runs[below]) + part * loss_of(self._runs[above])

    def passes(self, batch: int, gpus: int) -> tuple[int, int]:
        """Samples per GPU and pass, and extra passes, with which so many GPUs make up a total batch size."""
        local = math.ceil(batch / gpus - 1e-8)
        accum = math.ceil(local / self.atomic_max - 1e-8) - 1
        if gpus == 1 and batch > self.init_batch:
            accum = max(1, accum)
        return self.within(gpus, math.ceil(local / (accum + 1) - 1e-8), accum)

    def within(self, gpus: int, atomic: int, accum: int) -> tuple[int, int]:
        """Samples and extra passes, cut to the largest batch size."""
        return max(min(atomic, self.most_batch // (gpus * (accum + 1))), 1), accum


def _points(placed: Mapping[tuple[int, ...], Floats], scaled: Floats) -> Floats:
    """(n, 5) nodes, GPUs, local batch, mean step and synchronisation time."""
    groups: dict[tuple[int, int, float], list[tuple[float, float]]] = defaultdict(list)
    for placement, rows in placed.items():
        for local, step_s, sync_s in rows.tolist():
            groups[len(placement), sum(placement), local].append((step_s, sync_s))
    means = [(*key, *np.mean(times, axis=0).tolist()) for key, times in sorted(groups.items())]
    return np.concatenate([np.array(means, dtype=np.float64).reshape(-1, 5), scaled.reshape(-1, 5)])


def read_application(folder: Path) -> Application:
    """Read one application's folder.

    Raises:
        TraceError: a file is missing, or a row of it is bad; the message names file, line and remedy."""
    if not folder.is_dir():
        raise TraceError(
            f"{folder}: there is no such folder. Every application of a Pollux workload needs a folder of its name "
            "with its profiles: name the folder that has them with --applications, or put them beside the workload"
        )
    placed: dict[tuple[int, ...], list[list[float]]] = defaultdict(list)
    names = ("placement", "local_bsz", "step_time", "sync_time")
    for cells in _table(folder / "placements.csv", names):
        placed[tuple(int(digit) for digit in str(int(cells[0])))].append(cells[1:])
    scaled = _table(folder / "scalability.csv", ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time"))
    runs: dict[int, _Run] = {}
    for path in sorted(folder.glob("validation-*.csv")):
        size = path.stem.partition("-")[2]
        if not size.isdigit():
            raise TraceError(f"{path}: its name must end in a batch size, as in validation-128.csv; rename it")
        rows = np.array(_table(path, ("progress", "iteration", "metric", "grad_sqr", "grad_var")))
        runs[int(size)] = _Run(*(np.ascontiguousarray(column) for column in rows.T))
    if not runs:
        raise TraceError(f"{folder}: no validation-*.csv in it; every application needs its training runs there")
    tables = {key: np.array(sorted(rows)) for key, rows in placed.items()}
    return Application(folder.name, runs, tables, np.array(scaled))


def _table(path: Path, columns: Sequence[str]) -> list[list[float]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            missing = [name for name in columns if name not in (reader.fieldnames or ())]
            if missing:
                raise TraceError(f"{path}, line 1: no column {', '.join(missing)}; is this one of Pollux's profiles?")
            rows: list[list[float]] = []
            for row in reader:
                for name in columns:
                    if not _sound(row[name]):
                        raise TraceError(
                            f"{path}, line {reader.line_num}, column {name!r}: {row[name]!r} is not a number of at "
                            "least 0; correct the row"
                        )
                rows.append([float(row[name]) for name in columns])
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(
            f"{path}: cannot be read ({error}); the folder of an application needs placements.csv, scalability.csv "
            "and validation-*.csv"
        ) from None
    if not rows:
        raise TraceError(f"{path}: it has no rows; an application needs measurements")
    return rows


def _sound(text: str | None) -> bool:
    try:
        return 0.0 <= float(text or "") < math.inf
    except ValueError:
        return False


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
            steps += (app.progress_at[epoch + 1] - app.progress_at[epoch]) / _gain(app, batch, epoch)
        return steps * batch / app.samples

    def measured(self, most: int) -> MeasuredRun:
        """The measured run as Pollux's authors reckon it for Optimus: a pass takes as many steps as if every step
        were exactly one batch, though GPUs that do not divide it take a little more. In the last epoch one step is
        left."""
        app, batch = self.app, self.batch
        steps = app.samples / batch
        done = [app.iterations(batch, epoch + 1) for epoch in range(app.epochs)]
        left = (*((done[-1] - count) / steps for count in done[:-1]), 1 / steps)
        times = (_iteration_s(app, layout, *app.passes(batch, sum(layout))) for layout in self._layouts(most))
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
        return self.app.samples / (gpus * atomic * (accum + 1)) * _iteration_s(self.app, layout, atomic, accum)

    def begin(self, job: Job, agent: bool) -> Training:  # noqa: ARG002 - part of the protocol
        """The training of the job on its arrival."""
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
        """Note how fast the present configuration is; fit the model anew if it is a new one."""
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
