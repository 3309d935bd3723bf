"""The anchor of an estimate: the median of the user's finished jobs, or its replacement."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from lucid.models.duration.features import FACT_NAMES, profile_columns
from lucid.models.duration.jobtable import PROFILE_COLUMNS, FloatArray, JobTable

__all__ = [
    "ANCHORS",
    "COUNT",
    "DECILES",
    "DEMAND",
    "FEWEST_OF_REQUEST",
    "REQUEST_COUNT",
    "anchor_log",
    "measured",
    "of_request",
]

BoolArray = npt.NDArray[np.bool_]

ANCHORS: Final = ("user", "request")
"""Anchors that a history may choose from."""
FEWEST_OF_REQUEST: Final = 2
"""A request must have come this often before its own median is taken."""
COUNT: Final = FACT_NAMES.index("user_count")
REQUEST_COUNT: Final = FACT_NAMES.index("request_count")
DECILES: Final = (FACT_NAMES.index("user_low_decile"), FACT_NAMES.index("user_high_decile"))
DEMAND: Final = FACT_NAMES.index("demand_mean")
_MEDIAN: Final = FACT_NAMES.index("user_median")
_REQUEST_MEDIAN: Final = FACT_NAMES.index("request_median")


def anchor_log(facts: FloatArray, default_log: float, anchor: str = "user") -> FloatArray:
    """Median of the user's jobs, else mean of the same GPU demand, else `default_log`; logs, shape (n,). With
    `anchor` "request" the user's jobs with the same request go before all the user's jobs."""
    demand = np.where(np.isnan(facts[:, DEMAND]), default_log, facts[:, DEMAND])
    own = facts[:, _MEDIAN]
    if anchor == "request":
        own = np.where(of_request(facts), facts[:, _REQUEST_MEDIAN], own)
    return np.where(facts[:, COUNT] > 0, own, demand)


def measured(jobs: JobTable) -> BoolArray:
    """Which jobs have a profile, shape (n,)."""
    columns = profile_columns(jobs)
    return np.asarray(np.isfinite([columns[name] for name in PROFILE_COLUMNS]).any(axis=0), dtype=np.bool_)


def of_request(facts: FloatArray) -> BoolArray:
    """Which jobs have a median of their own request, shape (n,)."""
    return np.asarray(facts[:, REQUEST_COUNT] >= FEWEST_OF_REQUEST, dtype=np.bool_)
