"""The anchor of an estimate: the median of the user's finished jobs, or what there is for a user without any."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from lucid.models.duration.features import FACT_NAMES, profile_columns
from lucid.models.duration.jobtable import PROFILE_COLUMNS, FloatArray, JobTable

__all__ = [
    "COUNT",
    "DECILES",
    "DEMAND",
    "NEAR",
    "NEAR_USERS",
    "anchor_log",
    "measured",
    "running_median_log",
]

BoolArray = npt.NDArray[np.bool_]

COUNT: Final = FACT_NAMES.index("user_count")
DECILES: Final = (FACT_NAMES.index("user_low_decile"), FACT_NAMES.index("user_high_decile"))
DEMAND: Final = FACT_NAMES.index("demand_mean")
NEAR: Final = FACT_NAMES.index("near_median")
NEAR_USERS: Final = FACT_NAMES.index("near_users")
_MEDIAN: Final = FACT_NAMES.index("user_median")


def anchor_log(facts: FloatArray, default_log: float) -> FloatArray:
    """Median of the user's jobs; of a user without any the users' median near the time limit, else the mean of the
    same GPU demand, else `default_log`; logs, shape (n,)."""
    near = facts[:, NEAR]
    return np.where((facts[:, COUNT] > 0) | np.isnan(near), running_median_log(facts, default_log), near)


def running_median_log(facts: FloatArray, default_log: float) -> FloatArray:
    """The yardstick: median of the user's jobs, else mean of the same GPU demand, else `default_log`; logs, (n,)."""
    demand = np.where(np.isnan(facts[:, DEMAND]), default_log, facts[:, DEMAND])
    return np.where(facts[:, COUNT] > 0, facts[:, _MEDIAN], demand)


def measured(jobs: JobTable) -> BoolArray:
    """Which jobs have a profile, shape (n,)."""
    columns = profile_columns(jobs)
    return np.asarray(np.isfinite([columns[name] for name in PROFILE_COLUMNS]).any(axis=0), dtype=np.bool_)
