"""Short test runs that tell how fast a job is (O9)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

__all__ = ["POINTS", "merge_points", "next_probe"]

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
        known: points measured already.
        rng: chance.
        diagonal: only p = w, as published.
        most: most servers, and workers, of a test run.
    """
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
