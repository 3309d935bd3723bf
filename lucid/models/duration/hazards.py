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
from typing import TYPE_CHECKING, Final, TypeAlias

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
_UNKNOWN: Final = [1.0 / left for left in range(_BINS, 0, -1)]
"""Hazards before any job has ended: a job ends in each bin with the same probability."""
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

    __slots__ = (
        *("at_s", "broad", "changed", "ends", "keeps", "newest", "next_s"),
        *("own", "passed_s", "rest", "runs", "stale", "words"),
    )

    def __init__(self, level: str) -> None:
        self.keeps = _KEEPS.get(level, _KEEPS_OWN)
        self.broad = level in _KEEPS
        self.ends = [0.0] * _BINS
        self.runs: dict[str, float] = {}
        self.newest: deque[float] = deque(maxlen=_TOLD)
        self.changed = 0
        """At which event (``HazardTables._event``)."""
        self.stale, self.at_s = True, -math.inf
        self.next_s, self.passed_s = math.inf, -math.inf
        """When a running job comes to its next bin, and when it was last seen that one had."""
        self.own = self.rest = self.ends
        """As of ``at_s``: its hazards are ``own`` and, of the broader group's, the share ``rest``; …"""
        self.words = ""
        """… and who that is."""

    def count(self, now_s: float) -> None:
        """Count who is at risk, unless that is known: of a broad table for some minutes."""
        if now_s < self.at_s + _ANEW_S if self.broad else not self.stale and now_s < self.next_s:
            return
        if now_s >= self.next_s:
            self.passed_s = now_s
        self.stale, self.at_s, self.next_s = False, now_s, math.inf
        running = [0] * _BINS
        for began_s in self.runs.values():
            at = bisect_right(_EDGES, now_s - began_s)
            running[at] += 1
            if at < _BINS - 1:
                self.next_s = min(self.next_s, began_s + _EDGES[at])
        at_risk, own, rest = _WEIGHT, [], []
        for ended, still in zip(reversed(self.ends), reversed(running), strict=True):
            at_risk += ended
            own.append(ended / at_risk)
            rest.append(_WEIGHT / at_risk)
            at_risk += still  # they have run through the bins before theirs
        self.own, self.rest = own[::-1], rest[::-1]
        self.words = _counts(self, now_s)


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
                table.stale, table.changed = True, self._event

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
                table.stale, table.changed = True, self._event
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
                table.stale, table.changed = True, self._event

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
        tables = [self._tables.get(key) for key in keys]
        return any(
            table is not None
            and not table.broad
            and (table.changed > event or table.passed_s > asked_s or now_s >= table.next_s)
            for table in tables
        )

    def _unseen(self, request: _Key) -> bool:
        """Has no job of this request ended, and does none run?"""
        table = self._tables.get(request)
        return request[0] == _REQUEST and (table is None or not (table.newest or table.runs))

    def _of(self, keys: tuple[_Key, ...], now_s: float) -> Prediction:
        if self._found_at != (now_s, self._event):
            self._found_at = (now_s, self._event)
            self._found.clear()
        found = self._found.get(keys[-1])
        if found is None:
            found = self._found[keys[-1]] = self._made(keys, now_s)
        return found

    def _made(self, keys: tuple[_Key, ...], now_s: float) -> Prediction:
        found: list[tuple[str, _Table]] = []
        for key in keys:
            table = self._tables.get(key)
            if table is not None and (table.newest or table.runs):
                table.count(now_s)
                found.append((key[0], table))
        if not found:
            return Prediction(self._first_guess_s, f"{self.name}: no job has ended yet")
        hazard, terms, before = _UNKNOWN, list[Term](), 0.0
        for name, table in found:
            hazard = [own + share * wide for own, share, wide in zip(table.own, table.rest, hazard, strict=True)]
            left, score = 1.0, 0.0
            for end, log_s in zip(hazard, _LOGS, strict=True):
                ending = left * end
                score += ending * log_s
                left -= ending
            terms.append(Term(name, table.words, score - before))
            before = score
        return Prediction(
            max(math.exp(before) - LOG_OFFSET_S, 1.0),
            f"{self.name}: {terms[-1].name}, {terms[-1].value}",
            duration_terms=DurationTerms(0.0, tuple(terms), before, LOG_OFFSET_S, *_range(hazard)),
        )

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


def _range(hazard: Sequence[float]) -> tuple[float, float]:
    """Between which edges 8 of 10 jobs end."""
    left, low_s = 1.0, 0.0
    for end, edge_s in zip(hazard, _EDGES, strict=False):
        left *= 1.0 - end
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
        told.append(f"{count} still run{'s' * (count == 1)} after {_span(*[now_s - min(table.runs.values())] * 2)}")
    return ", ".join(told)


def _span(low_s: float, high_s: float) -> str:
    """``4 to 6 min``."""
    unit, size = next(
        ((u, s) for u, s in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)) if high_s >= 2 * s), ("s", 1.0)
    )
    low, high = f"{low_s / size:.0f}", f"{high_s / size:.0f}"
    return f"{high} {unit}" if low == high else f"{low} to {high} {unit}"


def naive_for(policy: str, settings: PolicySettings) -> HazardTables | None:
    """The tables that ``lucid`` uses where they put the jobs that wait in a better order (docs/decisions/0071);
    ``None`` where the policy does not use how well estimates rank."""
    measured = settings.fairness.estimates == "measured" and settings.lending.mode == "off"
    return HazardTables() if measured and policy == "lucid" else None
