"""What is known of a job when it is submitted, as columns for models: its request, and facts of jobs that had ended.

Durations are compared as ``log(seconds + 10)``: heavy tails need a logarithm, and below about ten seconds
differences mean nothing to a scheduler (many jobs fail within the first second).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lucid.models.duration.jobtable import PROFILE_COLUMNS, FloatArray, JobTable
from lucid.models.duration.running import STAT_NAMES

__all__ = [
    "FACT_NAMES",
    "HABIT_FEATURES",
    "LEVELS",
    "LOG_OFFSET_S",
    "REQUEST_FEATURES",
    "feature_columns",
    "feature_types",
    "from_log",
    "name_stem",
    "profile_columns",
    "to_log",
]

LOG_OFFSET_S: Final = 10.0

LEVELS: Final = ("user", "request", "name")
_DIGITS: Final = re.compile(r"\d+", re.ASCII)
_DAY_S: Final = 86_400.0
_EPOCH_WEEKDAY: Final = 3  # 1 January 1970 was a Thursday, Monday counting 0


def to_log(seconds: npt.ArrayLike) -> FloatArray:
    """Seconds to log(s + 10); same shape."""
    return np.log(np.asarray(seconds, dtype=np.float64) + LOG_OFFSET_S)


def from_log(value: npt.ArrayLike) -> FloatArray:
    """Inverse of `to_log`, never below zero; same shape."""
    # Rounded to microseconds, so that whole seconds survive the way there and back.
    return np.maximum(np.round(np.exp(np.asarray(value, dtype=np.float64)) - LOG_OFFSET_S, 6), 0.0)


@lru_cache(maxsize=16_384)
def name_stem(name: str | None) -> str | None:
    """A job name without what differs from run to run, case and numbers: ``Train-12`` -> ``train-#``."""
    return None if name is None else _DIGITS.sub("#", name.lower())


def feature_types() -> dict[str, str]:
    """Feature name to interpret's feature type, in the order a model is trained with."""
    return {
        **dict.fromkeys(_CATEGORICAL, "nominal"),
        **dict.fromkeys((*REQUEST_FEATURES[3:], *_TIME, *_HISTORY, *HABIT_FEATURES), "continuous"),
    }


def profile_columns(jobs: JobTable) -> dict[str, FloatArray]:
    """What corrects the estimate of a profiled job: columns of length n, NaN where nothing was measured.

    They are kept out of `feature_columns`: a job without a profile is either new or ended before it was measured, so
    a model that saw both together would take every job at its submission for a short one.
    """
    nothing = np.full(len(jobs), np.nan)
    return {**{name: jobs.profile.get(name, nothing) for name in PROFILE_COLUMNS}, "gpus": jobs.gpus}


def feature_columns(
    jobs: JobTable, facts: FloatArray, anchor: FloatArray, bucket: Sequence[str | None]
) -> dict[str, Any]:
    """All features as columns of length n, from requests, `facts` and the names' buckets.

    `anchor` (n,) is the log duration that a model corrects; the history enters as differences from it, so
    that what is learned from one user's habits carries over to another's.
    """
    fact = {name: facts[:, number] for number, name in enumerate(FACT_NAMES)}
    return {
        "user": jobs.user,
        "account": jobs.account,
        "partition": jobs.partition,
        "qos": jobs.qos,
        "name": np.array(bucket, dtype=object),
        "gpus": jobs.gpus,
        "cpus": jobs.cpus,
        "nodes": jobs.nodes,
        "memory_mib": jobs.memory_mib,
        "limit_s": jobs.limit_s,
        "hour": jobs.submit_s % _DAY_S / 3600.0,
        "weekday": np.floor(jobs.submit_s / _DAY_S + _EPOCH_WEEKDAY) % 7,
        "user_jobs": fact["user_count"],
        "user_spread": fact["user_spread"],
        "user_idle_s": jobs.submit_s - fact["user_last_end_s"],
        "user_last": fact["user_last"] - anchor,
        "user_last_3": fact["user_median3"] - anchor,
        "user_last_11": fact["user_median11"] - anchor,
        "user_trend": fact["user_slow_mean"] - anchor,
        "user_upper": fact["user_upper"] - anchor,
        "same_request_jobs": fact["request_count"],
        "same_request": fact["request_median"] - anchor,
        "same_request_recent": fact["request_fast_mean"] - anchor,
        "same_request_last": fact["request_last"] - anchor,
        "same_name_jobs": fact["name_count"],
        "same_name": fact["name_median"] - anchor,
        "limit_ratio": to_log(jobs.limit_s) - anchor,
    }


FACT_NAMES: Final = (
    *(f"{level}_{name}" for level in LEVELS for name in STAT_NAMES),
    *("demand_mean", "near_median", "near_users"),
    *("champion", "champion_number", "option", "option_ratio", "judged"),
)
"""Of each level its statistics; for a user without a job the mean of the GPU demand, and the median near the time
limit; what serves the user (`lucid.models.duration.gate`)."""
# How the user's jobs ran of late and how the most similar ones ran, each relative to the anchor.
HABIT_FEATURES: Final = (
    *("user_last_11", "user_trend", "user_upper", "same_request", "same_request_recent", "same_name"),
)
# What is known of a job whose user has no history.
REQUEST_FEATURES: Final = ("partition", "qos", "name", "gpus", "cpus", "nodes", "memory_mib", "limit_s")
_CATEGORICAL: Final = ("user", "account", "partition", "qos", "name")
_TIME: Final = ("hour", "weekday")
_HISTORY: Final = (
    *("user_jobs", "user_spread", "user_idle_s", "user_last", "user_last_3"),
    *("same_request_jobs", "same_request_last", "same_name_jobs", "limit_ratio"),
)
