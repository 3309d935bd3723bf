"""Applications that Pollux's authors measured (rows P1-P22): step times by GPUs, and what a step is worth.

One folder each: ``placements.csv`` and ``scalability.csv`` hold step times, ``validation-M.csv`` one training run
with batch size M; values between measurements are interpolated. Progress counts steps at the initial batch size. A
step with a batch r times as large is worth ``gain`` of them, by the gradient's noise at that time; its duration
follows from the placement."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lucid.accounting.log_rows import number, table_rows
from lucid.errors import TraceError
from lucid.orchestrator.policies.rounds.goodput import (
    GoodputModel,
    GradParams,
    Observations,
    PerfParams,
    fit_perf_params,
)

if TYPE_CHECKING:
    from scipy.interpolate import LinearNDInterpolator

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

    def gain(self, batch: int, epoch: int) -> float:
        """Progress of one step: (var + sqr) / (var / r + sqr), r = M / M0 (P7)."""
        sqr, var = self.gradient(batch, epoch)
        return (var + sqr) / (var * self.init_batch / batch + sqr)

    def iteration_s(self, layout: tuple[int, ...], atomic: int, accum: int) -> float:
        """Seconds from one update of the weights to the next (P14)."""
        step_s, sync_s = self.times(layout, atomic)
        return step_s + (step_s - sync_s) * accum

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
    remedy = "the folder of an application needs placements.csv, scalability.csv and validation-*.csv"
    rows: list[list[float]] = []
    for line, row in table_rows(path, columns, remedy):
        rows.append([number(row[name]) for name in columns])
        for name, value in zip(columns, rows[-1], strict=True):
            if not 0.0 <= value < math.inf:
                raise TraceError(
                    f"{path}, line {line}, column {name!r}: {row[name]!r} is not a number of at least 0; correct the "
                    "row"
                )
    if not rows:
        raise TraceError(f"{path}: it has no rows; an application needs measurements")
    return rows
