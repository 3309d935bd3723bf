"""How long jobs run, by tables of when jobs like them ended: asked anew while a job waits.

A table counts, for a group of jobs, how many of those that had run for so long ended before twice as long (a hazard).
Jobs that still run count as far as they have come: that five siblings run after 9 min is known long before one of
them has ended. Groups go from all jobs to those of one request; a narrower group's hazards are drawn towards the
broader one's as if two more jobs of it had ended that way. Nothing is trained, and every term is a count.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from operator import add, mul
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from msgspec.structs import replace

from lucid.core.job import Ended, Job, JobProfile, Pending, Running
from lucid.core.ports import PairSpeeds
from lucid.core.prediction import JUMBO, DurationTerms, Prediction, Term
from lucid.models.duration.features import LOG_OFFSET_S, name_stem
from lucid.models.history import Groups

if TYPE_CHECKING:
    from lucid.config.policy import PolicySettings

_Key: TypeAlias = tuple[str, ...]

_EDGES: Final = [10.0 * 2.0**at for at in range(19)]
"""Bins double, from 10 s to 30 days."""
_BINS: Final = len(_EDGES) + 1
_LOGS: Final = [
    math.log(middle_s + LOG_OFFSET_S) for middle_s in (5.0, *(edge_s * math.sqrt(2.0) for edge_s in _EDGES))
]
"""Of the middle of each bin."""
_STEPS: Final = [above - below for below, above in pairwise(_LOGS)]
_UNKNOWN: Final = [1.0 - 1.0 / left for left in range(_BINS, 0, -1)]
"""Before any job has ended: a job ends in each bin with the same probability."""
_WEIGHT: Final = 2.0
"""A broader group counts as so many jobs of the narrower one."""
_ALL, _SIZE, _LIMIT = "of all jobs", "of jobs of such a size", "of such a size and time limit"
_REQUEST = "of this very request"
_KEEPS: Final = {_ALL: 0.998, _SIZE: 0.995, _LIMIT: 0.995}
"""What an end leaves of the counts before it: all remember about the last 500 jobs, classes 200, …"""
_KEEPS_OWN: Final = 0.95
"""… those of one user 20."""
_ANEW_S: Final = 300.0
"""No estimate is asked anew sooner, and no broad table looked at."""
_TOLD: Final = 20
"""So many of a group's newest ends are told of."""


class _Table:
    """One group: the ends by bin, older ones counting less, and since when its running jobs run."""

    __slots__ = ("broad", "changed", "ends", "keeps", "newest", "next_s", "passed_s", "runs")

    def __init__(self, level: str) -> None:
        self.keeps = _KEEPS.get(level, _KEEPS_OWN)
        self.broad = level in _KEEPS
        self.ends = [0.0] * _BINS
        self.runs: dict[str, float] = {}
        self.newest: deque[float] = deque(maxlen=_TOLD)
        self.changed = 0
        """At which event (``HazardTables._event``)."""
        self.next_s, self.passed_s = math.inf, -math.inf
        """When a running job comes to its next bin, and when it was last seen that one had."""

    @property
    def known(self) -> bool:
        """Has a job of the group ended, or does one run?"""
        return bool(self.newest or self.runs)

    def going_on(self, wide: Sequence[float], now_s: float) -> list[float]:
        """Of the jobs that come to each bin, the share that runs on beyond it. ``wide``: the broader group's."""
        if now_s >= self.next_s:
            self.passed_s = now_s
        self.next_s = math.inf
        still = [0.0] * _BINS
        for began_s in self.runs.values():
            at = bisect_right(_EDGES, now_s - began_s)
            still[at] += 1.0
            if at < _BINS - 1:
                self.next_s = min(self.next_s, began_s + _EDGES[at])
        ends = self.ends
        # those that still run have run through the bins before theirs
        beyond = [*accumulate(map(add, reversed(ends[1:]), reversed(still[1:])))][::-1]
        return [
            (more + _WEIGHT * share) / (more + ended + _WEIGHT)
            for more, ended, share in zip((*beyond, 0.0), ends, wide, strict=True)
        ]


class _Sum(NamedTuple):
    """What tables from the broadest on say together: who goes on, the mean of logarithms, and each one's part."""

    going_on: Sequence[float]
    log_s: float = 0.0
    terms: tuple[Term, ...] = ()


class HazardTables:
    """A ``Predictor`` by such tables. Whoever follows a cluster tells it who waits and who runs (``follow``), and
    asks it now and then whose estimates have changed (``anew``)."""

    name = "tables"

    def __init__(self, first_guess_s: float = 3600.0) -> None:
        self._first_guess_s = first_guess_s
        self._tables: Groups[_Table] = Groups()
        self._keys: dict[str, tuple[_Key, ...]] = {}
        """The groups of each job that waits or runs."""
        self._waiting: dict[_Key, dict[str, None]] = {}
        """Those that wait, by request, in order of submission."""
        self._runs: set[str] = set()
        self._event = 0
        self._asked: dict[str, tuple[float, int]] = {}
        """When each partition was asked last, and after which event."""
        self._found: dict[_Key, Prediction] = {}
        """By request, as of …"""
        self._found_at = (math.nan, 0)
        self._broad: dict[_Key, tuple[float, _Sum]] = {}
        """What tables that are not of one user said together, by the narrowest, and when."""

    # -- what is learned ---------------------------------------------------------------------------------------

    def learn(self, ended: Sequence[Ended]) -> None:
        """Jobs that ended count in each of their groups."""
        self._event += 1
        for item in ended:
            self._gone(item.job.id)
            at = bisect_right(_EDGES, item.ran_s)
            for key in _groups(item.job):
                table = self._table(key)
                keeps = table.keeps
                table.ends = [keeps * count for count in table.ends]
                table.ends[at] += 1.0
                table.newest.append(item.ran_s)
                table.changed = self._event

    def follow(self, came: Iterable[Pending | Running], gone: Collection[str]) -> None:
        """Who waits and who runs by now: entries that are new or changed, and ids of those that left."""
        self._event += 1
        for entry in came:
            job = entry.job
            if isinstance(entry, Running) is (job.id in self._runs) and job.id in self._keys:
                continue
            self._gone(job.id)
            keys = self._keys[job.id] = _groups(job)
            if isinstance(entry, Pending):
                self._waiting.setdefault(keys[-1], {})[job.id] = None
                continue
            self._runs.add(job.id)
            for key in keys:
                table = self._table(key)
                table.runs[job.id] = entry.start_s - entry.ran_s
                table.changed = self._event
        for job_id in gone:
            self._gone(job_id)

    def _table(self, key: _Key) -> _Table:
        return self._tables.learning(key, lambda: _Table(key[0]))

    def _gone(self, job_id: str) -> None:
        keys = self._keys.pop(job_id, ())
        if job_id not in self._runs:
            if keys:
                waiting = self._waiting[keys[-1]]
                del waiting[job_id]
                if not waiting:
                    del self._waiting[keys[-1]]
            return
        self._runs.discard(job_id)
        for key in keys:
            table = self._tables.get(key)
            if table is not None and table.runs.pop(job_id, None) is not None:
                table.changed = self._event

    # -- what is said ------------------------------------------------------------------------------------------

    def predict(self, job: Job, profile: JobProfile | None, now_s: float) -> Prediction:
        """By the job's request; no opinion on sharing: an unmodelled job counts as Jumbo."""
        found = self._of(_groups(job), now_s)
        if profile is None:
            return found
        return Prediction(
            found.duration_s, found.duration_source, JUMBO, self.name, duration_terms=found.duration_terms
        )

    def anew(self, partition: str, pending: Sequence[Pending], now_s: float) -> dict[str, Prediction]:
        """New estimates of those of a partition's waiting jobs of whose user or request something has ended, started,
        or run on since it was asked last; of none where that was a moment ago."""
        asked_s, event = self._asked.get(partition, (-math.inf, 0))
        if now_s < asked_s + _ANEW_S:
            return {}
        changed: set[_Key] = set()
        probes: dict[str, int] = {}
        """The first of the jobs of a request that nobody has seen run, with how many they are."""
        mine = [(entry.job.id, keys[-1]) for entry in pending if (keys := self._keys.get(entry.job.id))]
        for request in dict.fromkeys(request for _, request in mine):
            ids = self._waiting.get(request)
            if ids is None:
                continue
            first = next(iter(ids))
            if len(ids) > 1 and self._unseen(request):
                probes[first] = len(ids)
                changed.add(request)
            elif self._changed_since(self._keys[first], asked_s, event, now_s):
                changed.add(request)
        self._asked[partition] = (now_s, self._event)
        if not changed:
            return {}
        said: dict[str, Prediction] = {}
        for job_id, request in mine:
            if request in changed:
                said[job_id] = self._of(self._keys[job_id], now_s)
        for job_id in probes.keys() & said.keys():
            said[job_id] = replace(said[job_id], alike=probes[job_id])
        return said

    def _changed_since(self, keys: tuple[_Key, ...], asked_s: float, event: int, now_s: float) -> bool:
        """Has a user's or a request's table changed?"""
        for key in reversed(keys):
            table = self._tables.get(key)
            if table is None:
                continue
            if table.broad:
                break
            if table.changed > event or table.passed_s > asked_s or now_s >= table.next_s:
                return True
        return False

    def _unseen(self, request: _Key) -> bool:
        """Has no job of this request ended, and does none run?"""
        table = self._tables.get(request)
        return request[0] == _REQUEST and (table is None or not table.known)

    def _of(self, keys: tuple[_Key, ...], now_s: float) -> Prediction:
        if self._found_at != (now_s, self._event):
            self._found_at = (now_s, self._event)
            self._found.clear()
        found = self._found.get(keys[-1])
        if found is None:
            found = self._found[keys[-1]] = self._made(keys, now_s)
        return found

    def _made(self, keys: tuple[_Key, ...], now_s: float) -> Prediction:
        broad = [key for key in keys if key[0] in _KEEPS]
        said_s, found = self._broad.get(broad[-1], (-math.inf, _Sum(_UNKNOWN)))
        if not found.terms or now_s >= said_s + _ANEW_S:
            found = self._add(_Sum(_UNKNOWN), broad, now_s)
            self._broad[broad[-1]] = now_s, found
        found = self._add(found, keys[len(broad) :], now_s)
        if not found.terms:
            return Prediction(self._first_guess_s, f"{self.name}: no job has ended yet")
        last = found.terms[-1]
        return Prediction(
            max(math.exp(found.log_s) - LOG_OFFSET_S, 1.0),
            f"{self.name}: {last.name}, {last.value}",
            duration_terms=DurationTerms(0.0, found.terms, found.log_s, LOG_OFFSET_S, *_range(found.going_on)),
        )

    def _add(self, found: _Sum, keys: Sequence[_Key], now_s: float) -> _Sum:
        """With what the tables of narrower groups say."""
        for key in keys:
            table = self._tables.get(key)
            if table is not None and table.known:
                going_on = table.going_on(found.going_on, now_s)
                log_s = _LOGS[0] + sum(map(mul, _STEPS, accumulate(going_on, mul)))
                term = Term(key[0], _counts(table, now_s), log_s - found.log_s)
                found = _Sum(going_on, log_s, (*found.terms, term))
        return found

    def pair_speed(self, a: JobProfile, b: JobProfile) -> PairSpeeds:  # noqa: ARG002
        """No opinion."""
        return None


def _groups(job: Job) -> tuple[_Key, ...]:
    limit_s = -1.0 if job.time_limit_s is None else job.time_limit_s
    return _groups_of(job.user, job.name, job.gpus, limit_s, job.cpus, job.mem_mib, job.min_nodes)


@lru_cache(maxsize=16_384)
def _groups_of(
    user: str, name: str, gpus: int, limit_s: float, cpus: int, mem_mib: int, nodes: int
) -> tuple[_Key, ...]:
    """The groups of jobs with this request, from all to those with the very same."""
    size = str(gpus.bit_length())
    keys: list[_Key] = [(_ALL,), (_SIZE, size)]
    if limit_s >= 0:
        keys.append((_LIMIT, size, str(int(math.log2(max(limit_s, 60.0))))))
    stem = name_stem(name) or ""
    if user:
        keys += [("of the same user", user), ("of the same user and GPUs", user, str(gpus))]
        if stem:
            keys.append(("of the same user and such a name", user, stem))
    if user or cpus or mem_mib:
        said = (gpus, limit_s, cpus, mem_mib, nodes)
        keys.append((_REQUEST, user, stem, *map(str, said)))
    return tuple(keys)


def _range(going_on: Sequence[float]) -> tuple[float, float]:
    """Between which edges 8 of 10 jobs end."""
    low_s = 0.0
    for left, edge_s in zip(accumulate(going_on, mul), _EDGES, strict=False):
        if left > 0.9:
            low_s = edge_s
        if left < 0.1:
            return low_s, edge_s
    return low_s, _EDGES[-1]


def _counts(table: _Table, now_s: float) -> str:
    """``3 ended after 4 to 6 min, 5 still run after 9 min``."""
    told: list[str] = []
    if table.newest:
        told.append(f"{len(table.newest)} ended after {_span(min(table.newest), max(table.newest))}")
    if table.runs:
        count = len(table.runs)
        since_s = now_s - min(table.runs.values())
        told.append(f"{count} still run{'s' * (count == 1)} after {_span(since_s, since_s)}")
    return ", ".join(told)


def _span(low_s: float, high_s: float) -> str:
    """``4 to 6 min``."""
    unit, size = "s", 1.0
    for longer, seconds in (("min", 60.0), ("h", 3600.0), ("d", 86400.0)):
        if high_s < 2 * seconds:
            break
        unit, size = longer, seconds
    low, high = f"{low_s / size:.0f}", f"{high_s / size:.0f}"
    return f"{high} {unit}" if low == high else f"{low} to {high} {unit}"


def naive_for(policy: str, settings: PolicySettings) -> HazardTables | None:
    """The tables that ``lucid`` uses where they put the jobs that wait in a better order (docs/decisions/0071);
    ``None`` where the policy does not use how well estimates rank."""
    measured = settings.fairness.estimates == "measured" and settings.lending.mode == "off"
    return HazardTables() if measured and policy == "lucid" else None
