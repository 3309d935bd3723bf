"""Features of a job at its submission: its request, its name's bucket, statistics of jobs ended by then.

Durations are compared as ``log(seconds + 10)``: heavy tails need a logarithm, and below about ten seconds differences
mean nothing to a scheduler (many jobs fail within the first second).

Alike job names (``train-a-1``, ``train-b``, ...) share a bucket, by Levenshtein distance and affinity propagation
(Frey and Dueck, Science 315, 2007), which needs every pairwise similarity, n² of them. To stay bounded at 100,000
names:

1. case and numbers are normalised away first (`name_stem`), which merges most of what differs between runs;
2. only the `SAMPLE` most frequent stems (ties: the alphabet) are clustered, so time and memory do not depend on n;
3. every other stem joins its nearest exemplar, compared block by block, if at least `CLOSE` similar;
   else it has no bucket: O(n × exemplars) time, O(block × exemplars) memory. The `KEPT` most frequent
   stems are remembered; a rarer one counts as new, and a new name falls back on its user's history.

A job is judged by what was known when it was submitted, but only once it has ended. So every key keeps its statistics
after each of its jobs: a look-up by time gives the same answer whether or not somebody predicted the job
meanwhile."""

from __future__ import annotations

import math
import re
from array import array
from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lucid.core.codec import from_json
from lucid.core.times import DAY_S
from lucid.models.duration.jobtable import PROFILE_COLUMNS, FloatArray, JobTable

STAT_NAMES: Final = (
    *("count", "median", "upper", "spread", "last", "median3", "median11", "slow_mean", "fast_mean"),
    *("low_decile", "high_decile", "last_end_s"),
)
EMPTY: Final = (0.0, *([math.nan] * (len(STAT_NAMES) - 1)))
NEAR: Final = 1
"""How many half octaves of time limit below and above a job's own count as near it."""
FEWEST_NEAR: Final = 8
"""How many users must have had a job near a time limit before their median is used: of three the median is a
guess."""
# Oldest durations beyond this many per key are forgotten: bounds memory and insertion on years of history.
_WINDOW: Final = 20_000
_RECENT: Final = 11
# Weight of the newest duration in the two running means of log durations: some 50 and some 10 jobs of memory.
_SLOW: Final = 0.02
_FAST: Final = 0.1
_WIDTH: Final = len(STAT_NAMES)


class Running:
    """Statistics of one key's log durations, in the order of `STAT_NAMES`."""

    __slots__ = ("_ends", "_fast", "_order", "_recent", "_slow", "_sorted", "_states", "stats")

    def __init__(self) -> None:
        self._order: deque[float] = deque()
        self._sorted: list[float] = []
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._slow = self._fast = math.nan
        self._ends = array("d")
        self._states = array("d")
        self.stats: tuple[float, ...] = EMPTY

    def add(self, value: float, end_s: float) -> None:
        """Add the log duration of a job that ended at `end_s`."""
        self._order.append(value)
        insort(self._sorted, value)
        self._recent.append(value)
        first = len(self._order) == 1
        self._slow = value if first else self._slow + _SLOW * (value - self._slow)
        self._fast = value if first else self._fast + _FAST * (value - self._fast)
        if len(self._order) > _WINDOW:
            del self._sorted[bisect_left(self._sorted, self._order.popleft())]
        recent, ordered = list(self._recent), self._sorted
        upper = _quantile(ordered, 0.75)
        self.stats = (
            float(len(ordered)),
            _median(ordered),
            upper,
            upper - _quantile(ordered, 0.25),
            value,
            _median(sorted(recent[-3:])),
            _median(sorted(recent)),
            self._slow,
            self._fast,
            _quantile(ordered, 0.1),
            _quantile(ordered, 0.9),
            end_s,
        )
        self._ends.append(end_s)
        self._states.extend(self.stats)
        if len(self._ends) > 2 * _WINDOW:
            del self._ends[:_WINDOW]
            del self._states[: _WINDOW * _WIDTH]

    def at(self, time_s: float) -> tuple[float, ...]:
        """The statistics of the jobs that had ended before `time_s` (`EMPTY`: none had)."""
        known = bisect_left(self._ends, time_s)
        return tuple(self._states[(known - 1) * _WIDTH : known * _WIDTH]) if known else EMPTY


class Near:
    """How long users' jobs with a time limit like a given one took; each user has one voice.

    A voice is the median of one user's jobs whose limits lie in one half octave. The next new user is one more user,
    not one more job of a busy one."""

    def __init__(self) -> None:
        self._voices: dict[int, dict[str | None, list[float]]] = {}

    def add(self, user: str | None, limit_s: float, value: float) -> None:
        """Add one log duration of a job with this limit; without a limit nothing is kept."""
        if limit_s > 0.0 and math.isfinite(limit_s):
            insort(self._voices.setdefault(_octave(limit_s), {}).setdefault(user, []), value)

    def median(self, limit_s: float) -> tuple[float, float]:
        """The median over the voices near a limit, in logs, and the number of these users; NaN for fewer than
        eight."""
        if not (limit_s > 0.0 and math.isfinite(limit_s)):
            return math.nan, 0.0
        at = _octave(limit_s)
        near = [self._voices[place] for place in range(at - NEAR, at + NEAR + 1) if place in self._voices]
        users = float(len({user for voices in near for user in voices}))
        if users < FEWEST_NEAR:
            return math.nan, users
        return _median(sorted(_median(values) for voices in near for values in voices.values())), users


def _octave(limit_s: float) -> int:
    return round(2.0 * math.log2(limit_s))


def _median(ordered: Sequence[float]) -> float:
    # The mean of the middle two is taken in seconds, as the running-median baseline takes it.
    size = len(ordered)
    low, high = ordered[(size - 1) // 2], ordered[size // 2]
    return low if low == high else math.log(0.5 * (math.exp(low) + math.exp(high)))


def _quantile(ordered: Sequence[float], level: float) -> float:
    return ordered[min(int(level * len(ordered)), len(ordered) - 1)]


LOG_OFFSET_S: Final = 10.0

LEVELS: Final = ("user", "request", "name")
_DIGITS: Final = re.compile(r"\d+", re.ASCII)
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
    """A job name without what differs from run to run (case and numbers): ``Train-12`` -> ``train-#``."""
    return None if name is None else _DIGITS.sub("#", name.lower())


def feature_types() -> dict[str, str]:
    """Feature name to interpret's feature type, in the order a model is trained with."""
    return {
        **dict.fromkeys(_CATEGORICAL, "nominal"),
        **dict.fromkeys((*REQUEST_FEATURES[3:], *_TIME, *_HISTORY, *HABIT_FEATURES), "continuous"),
    }


def profile_columns(jobs: JobTable) -> dict[str, FloatArray]:
    """Features that correct the estimate of a profiled job: columns of length n, NaN where nothing was measured.

    They are kept out of `feature_columns`: a job without a profile is either new or ended before it was measured, so
    a model that saw both together would take every job at its submission for a short one."""
    nothing = np.full(len(jobs), np.nan)
    return {**{name: jobs.profile.get(name, nothing) for name in PROFILE_COLUMNS}, "gpus": jobs.gpus}


def feature_columns(
    jobs: JobTable, facts: FloatArray, anchor: FloatArray, bucket: Sequence[str | None]
) -> dict[str, Any]:
    """All features as columns of length n, from requests, `facts` and the names' buckets.

    `anchor` (n,) is the log duration that a model corrects; the history enters as differences from it, so
    that what is learned from one user's habits carries over to another's."""
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
        "hour": jobs.submit_s % DAY_S / 3600.0,
        "weekday": np.floor(jobs.submit_s / DAY_S + _EPOCH_WEEKDAY) % 7,
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
"""Names of the facts: the statistics of each level; for a user without a job the mean of the GPU demand, and the
median near the time limit; what serves the user (`lucid.models.duration.gate`)."""
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


SAMPLE: Final = 400
CLOSE: Final = 0.6
KEPT: Final = 20_000
_BLOCK: Final = 4096
# Compared characters of a stem: bounds the quadratic cost of one comparison.
_LONGEST: Final = 64


class NameBuckets:
    """The buckets of alike names. `bucket_of`: stem to bucket label; a label is the exemplar's stem followed by
    ``*``."""

    def __init__(self, bucket_of: Mapping[str, str] = MappingProxyType({})) -> None:
        self.bucket_of = bucket_of

    @classmethod
    def fit(cls, names: Iterable[str | None]) -> NameBuckets:
        """Group the names seen in training; deterministic, whatever the order of `names`."""
        counts = Counter(stem for name in names if (stem := name_stem(name)))
        stems = sorted(counts, key=lambda stem: (-counts[stem], stem))
        if not stems:
            return cls()
        exemplars = _exemplars(stems[:SAMPLE])
        return cls(_nearest(stems[:KEPT], exemplars))

    def __call__(self, names: Sequence[str | None]) -> list[str | None]:
        """The bucket of every name; None where the name is absent or like none of the known ones."""
        seen: dict[str | None, str | None] = {}
        for name in names:
            if name not in seen:
                seen[name] = self.bucket_of.get(name_stem(name) or "")
        return [seen[name] for name in names]

    def to_json(self) -> Mapping[str, str]:
        """Stem to bucket."""
        return self.bucket_of

    @classmethod
    def from_json(cls, data: object) -> NameBuckets:
        """The buckets that `to_json` wrote; raises ValueError where it wrote something else."""
        return cls(from_json(dict[str, str], data))


def _exemplars(stems: Sequence[str]) -> list[str]:
    # Imported here: only training needs them, and importing costs the daemon a second.
    import warnings

    from sklearn.cluster import AffinityPropagation
    from sklearn.exceptions import ConvergenceWarning

    if len(stems) <= 2:
        return list(stems)
    with warnings.catch_warnings():
        # Names that are all equally (un)like never settle; whatever it has by then is still a grouping.
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.filterwarnings("ignore", message="All samples have mutually equal similarities")
        fitted = AffinityPropagation(affinity="precomputed", random_state=0, max_iter=200).fit(
            _similarity(stems, stems)
        )
    centres = fitted.cluster_centers_indices_
    exemplars = [stems[int(index)] for index in centres]
    if not exemplars:
        return list(stems)
    # A frequent stem that is like none of the exemplars is a bucket of its own.
    alone = _similarity(stems, exemplars).max(axis=1) < CLOSE
    return exemplars + [stem for stem, is_alone in zip(stems, alone.tolist(), strict=True) if is_alone]


def _nearest(stems: Sequence[str], exemplars: Sequence[str]) -> dict[str, str]:
    bucket_of: dict[str, str] = {}
    for start in range(0, len(stems), _BLOCK):
        block = stems[start : start + _BLOCK]
        similarity = _similarity(block, exemplars)
        best = similarity.argmax(axis=1)
        for row, stem in enumerate(block):
            if similarity[row, best[row]] >= CLOSE:
                bucket_of[stem] = exemplars[int(best[row])] + "*"
    return bucket_of


def _similarity(left: Sequence[str], right: Sequence[str]) -> Any:
    """1 - Levenshtein distance / longer length, shape (left, right)."""
    from rapidfuzz.distance import Levenshtein
    from rapidfuzz.process import cdist

    return cdist(
        [stem[:_LONGEST] for stem in left],
        [stem[:_LONGEST] for stem in right],
        scorer=Levenshtein.normalized_similarity,
        dtype=np.float32,
        workers=1,
    )
