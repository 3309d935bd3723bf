"""Optimus's models: loss curves, speed on p servers and w workers, epochs to go, and test runs (O2-O9)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lucid.orchestrator.policies.rounds.goodput import one_thread

Floats = NDArray[np.float64]
Kind = Literal["async", "sync"]

LEAST_LOSS_POINTS = 3
LEAST_SPEED_POINTS: dict[Kind, int] = {"async": 4, "sync": 5}


@dataclass(frozen=True, slots=True)
class LossModel:
    """loss(k) = 1 / (a k + b) + c, a, b, c >= 0: gradient descent converges like 1/k (O2)."""

    a: float
    b: float
    c: float

    def loss(self, epoch: ArrayLike) -> Floats:
        """Loss after ``epoch`` epochs."""
        return np.asarray(1 / (self.a * np.asarray(epoch, dtype=np.float64) + self.b) + self.c)


def loss_sigma(points: int) -> Floats:
    """(points,) standard deviations: divided by 4 for each later third, so that late points count more (O3)."""
    third = math.ceil(points / 3)
    return np.asarray(0.25 ** (np.arange(points) // third), dtype=np.float64)


def fit_loss(epochs: ArrayLike, losses: ArrayLike) -> LossModel | None:
    """The loss curve through the points seen so far (O2, O3).

    Args:
        epochs: (n,) epochs, in the order seen.
        losses: (n,) loss after each.

    Returns:
        The model; None with fewer than three points, or if no curve was found (a loss may rise at first)."""
    x, y = np.asarray(epochs, dtype=np.float64), np.asarray(losses, dtype=np.float64)
    if len(x) < LEAST_LOSS_POINTS:
        return None

    def curve(k: Floats, a: float, b: float, c: float) -> Floats:
        with np.errstate(divide="ignore"):
            return np.asarray(1 / (a * k + b) + c)

    def slope(k: Floats, a: float, b: float, _: float) -> Floats:
        with np.errstate(divide="ignore", invalid="ignore"):
            square = -1 / (a * k + b) ** 2
        return np.nan_to_num(np.stack([square * k, square, np.ones_like(k)], axis=1))

    found = _fit(curve, slope, x, y, 3, loss_sigma(len(x)))
    return None if found is None else LossModel(*found)


@dataclass(frozen=True, slots=True)
class SpeedModel:
    """Steps a second on p servers and w workers (O6, O7).

    async: w / (a + b w/p + c w + d p); sync: 1 / (a M/w + b + c w/p + d w + e p), M the total batch
    size; all parameters >= 0."""

    kind: Kind
    params: tuple[float, ...]
    batch: float

    def speed(self, servers: ArrayLike, workers: ArrayLike) -> Floats:
        """Steps a second; both arguments at least 1."""
        p, w = np.asarray(servers, dtype=np.float64), np.asarray(workers, dtype=np.float64)
        return _speed(self.kind, p, w, self.batch, self.params)


def _terms(kind: Kind, p: Floats, w: Floats, batch: float) -> tuple[Floats, Floats]:
    """Numerator, and the terms (n, parameters) whose sum is the denominator."""
    one = np.ones_like(w)
    if kind == "async":
        return w, np.stack([one, w / p, w, p], axis=-1)
    return one, np.stack([batch / w, one, w / p, w, p], axis=-1)


def _speed(kind: Kind, p: Floats, w: Floats, batch: float, x: Sequence[float]) -> Floats:
    top, terms = _terms(kind, p, w, batch)
    with np.errstate(divide="ignore"):  # the search passes through all-zero parameters
        return np.asarray(top / (terms @ np.asarray(x)))


def fit_speed(kind: Kind, points: Mapping[tuple[int, int], float], batch: float) -> SpeedModel | None:
    """The speed model through measured speeds (O6, O7).

    On points with p = w only, where the published probing stays, w/p is constant and c and d count the
    same number, so that two of the parameters cannot be told from two others (see
    above). The exact derivatives used here then leave such pairs balanced;
    the differences that the authors' code takes instead send them anywhere.

    Args:
        points: (servers, workers) -> steps a second.
        batch: total batch size M, samples.

    Returns:
        The model; None with fewer than 4 (async) or 5 (sync) points, or if none was found."""
    if len(points) < LEAST_SPEED_POINTS[kind]:
        return None
    place = np.array(list(points), dtype=np.float64)
    p, w = place[:, 0], place[:, 1]

    def curve(_: Floats, *x: float) -> Floats:
        return _speed(kind, p, w, batch, x)

    def slope(_: Floats, *x: float) -> Floats:
        top, terms = _terms(kind, p, w, batch)
        return np.asarray(-(top / (terms @ np.asarray(x)) ** 2)[:, None] * terms)

    count = 4 if kind == "async" else 5
    found = _fit(curve, slope, p, np.array(list(points.values())), count, np.ones(len(p)))
    return None if found is None else SpeedModel(kind, tuple(found), batch)


def _fit(curve: object, slope: object, x: Floats, y: Floats, count: int, sigma: Floats) -> list[float] | None:
    """Least squares within bounds >= 0 from a start of ones, as the authors call it."""
    try:
        from scipy.optimize import curve_fit

        with one_thread():
            found, _ = curve_fit(
                curve,
                x,
                y,
                p0=np.ones(count),
                sigma=sigma,
                absolute_sigma=True,
                bounds=(0, np.inf),
                jac=slope,
            )
    except (RuntimeError, ValueError):
        return None
    return [float(value) for value in found]


class SpeedEstimator:
    """Speed of one job: as measured where it was measured, else from the fit (O8).

    Args:
        batch: total batch size, samples.
        points: (servers, workers) -> measured steps a second."""

    def __init__(self, kind: Kind, batch: float, points: Mapping[tuple[int, int], float]) -> None:
        self.points = dict(points)
        self.model = fit_speed(kind, self.points, batch)

    def __call__(self, servers: int, workers: int) -> float | None:
        """Steps a second, or None while too little is known."""
        measured = self.points.get((servers, workers))
        if measured is not None:
            return measured
        return None if self.model is None else float(self.model.speed(servers, workers))


WINDOW = 10
LITTLE_CHANGE = 0.05
MOST_EPOCHS = 100
AFTER_FAILURE = 20


def converged_at(model: LossModel, progress: float) -> int | None:
    """The epoch at which the loss has hardly changed for ten (O4).

    The first epoch e with loss(e - i) - loss(e) <= 0.05 for i = 0..9, looked for from ten before the
    present progress on, with a full window.

    Returns:
        The epoch; None if it lies beyond 100."""
    start = max(0, int(progress) - WINDOW)
    loss = model.loss(np.arange(start, MOST_EPOCHS + 1))
    for end in range(WINDOW - 1, len(loss)):
        # All ten differences, as the rule says; for a falling curve the oldest is the largest.
        if (loss[end - WINDOW + 1 : end + 1] - loss[end] <= LITTLE_CHANGE).all():
            return start + end
    return None


def end_epoch(
    progress: float,
    *,
    specified: float | None = None,
    same_type: Sequence[float] = (),
    epochs: Sequence[float] = (),
    losses: Sequence[float] = (),
) -> float:
    """The epoch at which a job will end (O5).

    Args:
        specified: epochs that the user gave; they win.
        same_type: epochs known of jobs of the same type; their mean, rounded down, comes next.
        epochs: epochs at which the loss was seen.

    Returns:
        The specified or the mean number; else where the fitted loss converges, at least the present
        epoch; else ``progress`` + 20."""
    if specified is not None:
        return specified
    if same_type:
        return int(sum(same_type) / len(same_type))
    model = fit_loss(epochs, losses)
    found = None if model is None else converged_at(model, progress)
    return progress + AFTER_FAILURE if found is None else max(float(found), progress)


POINTS = 8
"""Measured (servers, workers) after which a job is known."""
_MOST = 10

Point = tuple[int, int]


def merge_points(jobs: Iterable[Mapping[Point, float]]) -> dict[Point, float]:
    """Points of jobs of one type: a point that several have measured is the mean of its speeds (O9)."""
    seen: dict[Point, list[float]] = {}
    for points in jobs:
        for point, speed in points.items():
            seen.setdefault(point, []).append(speed)
    return {point: sum(speeds) / len(speeds) for point, speeds in seen.items()}


def next_probe(
    known: Iterable[Point], rng: np.random.Generator, *, diagonal: bool = False, most: int = _MOST
) -> Point | None:
    """The (servers, workers) to measure next; None when enough is known (O9).

    The authors probe p = w in 1..10 at random. Along that line w/p does not vary, so that the fit cannot
    tell its parameter from the constant (the reference fits miss other points by up to a quarter); the
    default here takes p and w independently.

    Args:
        diagonal: only p = w, as published.
        most: most servers, and workers, of a test run."""
    done = set(known)
    if len(done) >= POINTS:
        return None
    free = [
        (p, w)
        for p in range(1, most + 1)
        for w in range(1, most + 1)
        if (p == w or not diagonal) and (p, w) not in done
    ]
    return free[int(rng.integers(len(free)))] if free else None
