"""What a duration model answers: estimates with intervals, the choice of model, and the anchor.

The anchor is the median of the user's finished jobs, or a substitute for a user without any."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from lucid.models.duration.features import FACT_NAMES, profile_columns
from lucid.models.duration.jobtable import PROFILE_COLUMNS, FloatArray, JobTable, TextArray


class Choice(Struct, frozen=True):
    """Which additive model serves users for whose jobs it has proved better, and how every candidate did.

    `weight` is that of the additive model (0: there is none). `scores` maps each candidate to its validation score
    relative to the running median: the mean of the ratios of log error and absolute error; below 1 is better."""

    name: str = "no model"
    weight: float = 0.0
    scores: Mapping[str, float] = field(default_factory=dict)


class Estimates(Struct, frozen=True):
    """Per job, arrays of shape (n,): seconds, and where the estimate comes from (`source`).

    `scale`, shape (n, 2), is how far the user's jobs range below and above the estimate, in logs."""

    point_s: FloatArray
    low_s: FloatArray
    high_s: FloatArray
    source: TextArray
    scale: FloatArray


BoolArray = npt.NDArray[np.bool_]

COUNT: Final = FACT_NAMES.index("user_count")
DECILES: Final = (FACT_NAMES.index("user_low_decile"), FACT_NAMES.index("user_high_decile"))
DEMAND: Final = FACT_NAMES.index("demand_mean")
NEAR: Final = FACT_NAMES.index("near_median")
NEAR_USERS: Final = FACT_NAMES.index("near_users")
_MEDIAN: Final = FACT_NAMES.index("user_median")


def anchor_log(facts: FloatArray, default_log: float) -> FloatArray:
    """The anchor, as logs of shape (n,): the median of the user's jobs; for a user without any the users' median near
    the time limit, else the mean of the same GPU demand, else `default_log`."""
    near = facts[:, NEAR]
    return np.where((facts[:, COUNT] > 0) | np.isnan(near), running_median_log(facts, default_log), near)


def running_median_log(facts: FloatArray, default_log: float) -> FloatArray:
    """The running median that estimates are compared with, as logs (n,): the median of the user's jobs, else the mean
    of the same GPU demand, else `default_log`."""
    demand = np.where(np.isnan(facts[:, DEMAND]), default_log, facts[:, DEMAND])
    return np.where(facts[:, COUNT] > 0, facts[:, _MEDIAN], demand)


def measured(jobs: JobTable) -> BoolArray:
    """Which jobs have a profile, shape (n,)."""
    columns = profile_columns(jobs)
    return np.asarray(np.isfinite([columns[name] for name in PROFILE_COLUMNS]).any(axis=0), dtype=np.bool_)
