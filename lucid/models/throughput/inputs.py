"""Inputs of the throughput model: hour and weekday, lags, rolling statistics, the same time a day and weeks ago."""

from __future__ import annotations

from typing import Final

import numpy as np

from lucid.models.throughput.bins import Bins, FloatArray, day_of

__all__ = ["REACH_DAYS", "newest_columns", "throughput_columns"]

REACH_DAYS: Final = 21
"""The oldest input is three weeks old."""
_LAGS: Final = (0, 1, 2)
_MEANS: Final = (6, 18, 36, 144)  # bins; 144 bins of 10 minutes are a day
_MEDIANS: Final = (6, 18)
_SPREADS: Final = (6, 36)
_HALF_LIVES: Final = (2, 6)
_SOFT_REACH: Final = 8  # half-lives after which a weight (2^-8) no longer matters


def throughput_columns(bins: Bins, age: int) -> dict[str, FloatArray]:
    """Inputs of every row s (bin s the newest known, bin s + age predicted), each of shape (n,).

    Values that reach back before the first bin are nan (the model's "missing").
    """
    coming = [start + age * bins.width for start in bins.start]
    columns = {
        "hour": np.array([time.hour + time.minute / 60 for time in coming], dtype=np.float64),
        "weekday": np.array([time.weekday() for time in coming], dtype=np.float64),
    }
    day = day_of(bins.width)
    for name, counts in (("jobs", bins.jobs), ("gpus", bins.gpus)):
        for lag in _LAGS:
            columns[f"{name}_lag{lag}"] = _shift(counts, lag)
        for span in _MEANS:
            columns[f"{name}_mean{span}"] = _rolling(counts, span, "mean")
        for span in _MEDIANS:
            columns[f"{name}_median{span}"] = _rolling(counts, span, "median")
        for span in _SPREADS:
            columns[f"{name}_std{span}"] = _rolling(counts, span, "std")
        for half_life in _HALF_LIVES:
            columns[f"{name}_soft{half_life}"] = _soft_sum(counts, half_life)
        # The hour around the same time of day: its newest bin lies two bins after that time.
        around = _rolling(counts, 5, "mean")
        for label, days in (("day", 1), ("week", 7)):
            columns[f"{name}_{label}_ago"] = _shift(around, days * day - 2 - age)
        typical = _rolling(counts, 5, "median")
        weeks = [_shift(typical, week * 7 * day - 2 - age) for week in (1, 2, 3)]
        columns[f"{name}_weeks"] = np.mean(weeks, axis=0)
    for name, counts in bins.others.items():
        columns[f"{name}_lag0"] = counts
        columns[f"{name}_soft2"] = _soft_sum(counts, 2)
    return columns


def newest_columns(bins: Bins, age: int) -> dict[str, FloatArray]:
    """The last row of `throughput_columns`, each of shape (1,), at a fraction of the work: most inputs look at the
    newest bins alone. The bins must reach back three weeks and two hours.
    """
    recent = slice(-max(_MEANS), None)
    others = {name: counts[recent] for name, counts in bins.others.items()}
    tail = Bins(bins.start[recent], bins.jobs[recent], bins.gpus[recent], others)
    columns = {name: column[-1:] for name, column in throughput_columns(tail, age).items()}
    day = day_of(bins.width)
    for name, counts in (("jobs", bins.jobs), ("gpus", bins.gpus)):

        def around(days: int, counts: FloatArray = counts) -> FloatArray:
            newest = len(counts) - (days * day - 2 - age)
            return counts[newest - 5 : newest]

        columns[f"{name}_day_ago"] = around(1).mean(keepdims=True)
        columns[f"{name}_week_ago"] = around(7).mean(keepdims=True)
        columns[f"{name}_weeks"] = np.mean([[np.median(around(7 * week))] for week in (1, 2, 3)], axis=0)
    return columns


def _shift(values: FloatArray, lag: int) -> FloatArray:
    shifted = np.full(len(values), np.nan)
    if lag < len(values):
        shifted[lag:] = values[: len(values) - lag]
    return shifted


def _rolling(values: FloatArray, span: int, what: str) -> FloatArray:
    out = np.full(len(values), np.nan)
    if len(values) < span:
        return out
    windows = np.lib.stride_tricks.sliding_window_view(values, span)
    if what == "std":
        out[span - 1 :] = windows.std(axis=1, ddof=1)
    else:
        out[span - 1 :] = windows.mean(axis=1) if what == "mean" else np.median(windows, axis=1)
    return out


def _soft_sum(values: FloatArray, half_life: int) -> FloatArray:
    """Weighted mean of the last bins, weights halving every `half_life` bins."""
    weights = 0.5 ** (np.arange(_SOFT_REACH * half_life) / half_life)
    weights /= weights.sum()
    out = np.full(len(values), np.nan)
    if len(values) >= len(weights):
        out[len(weights) - 1 :] = np.convolve(values, weights, mode="valid")
    return out
