"""``DurationHistory``: facts about a job from the jobs that had ended when it was submitted.

It is fed finished jobs in order of their ends, and answers for any job by the history at that moment. `replay` runs a
log through it in the order of events, so that every row of training data sees exactly what a live daemon would have
seen: a job counts only once it has ended."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Final

import numpy as np

from lucid.models.duration.features import EMPTY, FACT_NAMES, LEVELS, Near, Running, name_stem, to_log
from lucid.models.duration.gate import NOBODY, STATISTICS, Record, Serving, statistics_of
from lucid.models.duration.jobtable import FloatArray, JobTable

Said = Callable[[JobTable, FloatArray], FloatArray]
"""The tables' estimates of jobs with these facts: log(duration + 10), shape (n,)."""
_Keys = tuple[Hashable, ...]
_KEPT: Final = len(LEVELS) * len(EMPTY)
_CHOSEN: Final = FACT_NAMES.index("champion")
_USED: Final = tuple(FACT_NAMES.index(name) for name in STATISTICS)
_COUNTS: Final = tuple(FACT_NAMES.index(f"{name.split('_')[0]}_count") for name in STATISTICS)


class DurationHistory:
    """Running statistics of finished jobs: by user, by user and request, by user and name, by GPU demand, by time
    limit; and each user's record of each estimate (`lucid.models.duration.gate`)."""

    def __init__(self) -> None:
        self._running: dict[Hashable, Running] = {}
        self._near = Near()
        self._demand: dict[float, tuple[int, float]] = {}
        self._all = (0, 0.0)
        self._records: dict[str | None, Record] = {}
        self._tables: Said | None = None
        self._judged_from_s = -math.inf

    @classmethod
    def from_jobs(cls, jobs: JobTable) -> DurationHistory:
        """The history after all of `jobs` have ended."""
        history = cls()
        history.add(jobs)
        return history

    def judge(self, tables: Said | None, records: Mapping[str, Sequence[float]], learned_until_s: float) -> None:
        """Judge `tables` too from now on, on jobs that ended after they had learned; `records` of earlier jobs
        replace those kept here."""
        self._tables, self._judged_from_s = tables, learned_until_s
        self._records = {user or None: Record(sums) for user, sums in records.items()}

    @property
    def records(self) -> dict[str, list[float]]:
        """The record of every user, ready for JSON; "" is the user without a name."""
        return {user or "": record.sums for user, record in self._records.items()}

    def add(self, finished: JobTable) -> None:
        """Add jobs that have ended, in order of their ends; those without a duration are left out."""
        self._take_in(finished.select(np.array(_by_end(finished), dtype=np.intp)))

    def facts(self, jobs: JobTable) -> FloatArray:
        """The facts of every row at this moment, shape (n, len(FACT_NAMES)); logs of s + 10."""
        seen: dict[Hashable, int] = {}
        rows: list[tuple[float, ...]] = []
        where = np.empty(len(jobs), dtype=np.intp)
        limits = np.nan_to_num(jobs.limit_s, nan=-1.0).tolist()
        for index, key in enumerate(zip(_keys(jobs), jobs.gpus.tolist(), limits, strict=True)):
            found = seen.get(key)
            if found is None:
                found = seen[key] = len(rows)
                rows.append(self._facts(*key))
            where[index] = found
        return np.array(rows, dtype=np.float64).reshape(len(rows), len(FACT_NAMES))[where]

    def replay(self, jobs: JobTable, said: FloatArray | None = None) -> FloatArray:
        """Facts for every row as they stood when it was submitted, shape (n, len(FACT_NAMES)).

        A job is added once its end is before the submission in question: strictly, so that a job which ended in its
        first second does not see itself. `said`, shape (n,), logs, replaces the estimates of the tables."""
        keys, gpus, values = _keys(jobs), jobs.gpus.tolist(), to_log(jobs.duration_s).tolist()
        submits, ends = jobs.submit_s.tolist(), jobs.end_s.tolist()
        limits = jobs.limit_s.tolist()
        finishing = _by_end(jobs)
        facts = np.empty((len(jobs), len(FACT_NAMES)), dtype=np.float64)
        done = 0
        for index in np.argsort(jobs.submit_s, kind="stable").tolist():
            while done < len(finishing) and ends[finishing[done]] < submits[index]:
                ended = finishing[done]
                self._add(keys[ended], gpus[ended], limits[ended], values[ended], ends[ended])
                done += 1
            facts[index] = self._facts(keys[index], gpus[index], limits[index])
        return self.rejudge(jobs, facts, said)

    def rejudge(self, jobs: JobTable, facts: FloatArray, said: FloatArray | None = None) -> FloatArray:
        """The `facts` of `replay` with the columns of what serves set anew, shape (n, len(FACT_NAMES)), after judging
        those of `jobs`, which this history has replayed, that ended before the last submission."""
        keys, submits = _keys(jobs), jobs.submit_s.tolist()
        last_s = max(submits, default=-math.inf)
        rows = [row for row in _by_end(jobs) if jobs.end_s[row] < last_s]
        self._judge(
            jobs.select(np.array(rows, dtype=np.intp)),
            [keys[row] for row in rows],
            None if said is None else said[rows],
        )
        facts = facts.copy()
        for index, (key, submit_s) in enumerate(zip(keys, submits, strict=True)):
            record = self._records.get(_user(key))
            serving = NOBODY if record is None else record.choice_at(submit_s)
            facts[index, _CHOSEN:] = _chosen(facts[index].tolist(), serving)
        return facts

    def finish(self, jobs: JobTable, said: FloatArray | None = None) -> None:
        """Add and judge those of replayed `jobs` that ended at the last submission or later."""
        last_s = max(jobs.submit_s.tolist(), default=-math.inf)
        rows = [row for row in _by_end(jobs) if jobs.end_s[row] >= last_s]
        self._take_in(jobs.select(np.array(rows, dtype=np.intp)), None if said is None else said[rows])

    def _take_in(self, ended: JobTable, said: FloatArray | None = None) -> None:
        keys, values = _keys(ended), to_log(ended.duration_s).tolist()
        for index, (key, value) in enumerate(zip(keys, values, strict=True)):
            self._add(key, ended.gpus[index].item(), ended.limit_s[index].item(), value, ended.end_s[index].item())
        self._judge(ended, keys, said)

    def _add(self, keys: _Keys, gpus: float, limit_s: float, value: float, end_s: float) -> None:
        for key in keys:
            running = self._running.get(key)
            if running is None:
                running = self._running[key] = Running()
            running.add(value, end_s)
        self._near.add(_user(keys), limit_s, value)
        count, total = self._demand.get(gpus, (0, 0.0))
        self._demand[gpus] = (count + 1, total + value)
        self._all = (self._all[0] + 1, self._all[1] + value)

    def _facts(self, keys: _Keys, gpus: float, limit_s: float) -> tuple[float, ...]:
        """The statistics of each level, the substitutes for a user without a job, and what serves the user."""
        row: tuple[float, ...] = ()
        for key in keys:
            running = self._running.get(key)
            row += EMPTY if running is None else running.stats
        if row[0] > 0:
            near = (math.nan, 0.0)
        else:
            near = self._near.median(limit_s)
        count, total = self._demand.get(gpus) or self._all
        record = self._records.get(_user(keys))
        serving = NOBODY if record is None else record.choice
        return (*row, total / count if count else math.nan, *near, *_chosen(row, serving))

    def _then(self, keys: _Keys, submit_s: float) -> tuple[float, ...]:
        """The statistics of each level as they stood at a submission."""
        row: tuple[float, ...] = ()
        for key in keys:
            row += self._running[key].at(submit_s)
        return row

    def _judge(self, ended: JobTable, keys: Sequence[_Keys], said: FloatArray | None = None) -> None:
        """Judge jobs that ended, in order of their ends, by what was known at the submission of each."""
        submits, ends = ended.submit_s.tolist(), ended.end_s.tolist()
        rows = [index for index, end_s in enumerate(ends) if end_s > self._judged_from_s]
        then = [self._then(keys[index], submits[index]) for index in rows]
        known = [number for number, row in enumerate(then) if row[0] > 0]
        rows, then = [rows[number] for number in known], [then[number] for number in known]
        if not rows:
            return
        part = ended.select(rows)
        by_tables = np.full(len(rows), np.nan)
        if said is not None:
            by_tables = said[rows]
        elif self._tables is not None:
            facts = np.full((len(rows), len(FACT_NAMES)), np.nan)
            facts[:, :_KEPT] = then
            by_tables = self._tables(part, facts)
        truths = to_log(part.duration_s).tolist()
        limits = np.nan_to_num(to_log(part.limit_s), nan=math.inf).tolist()
        for row, index, tables, truth, limit in zip(then, rows, by_tables.tolist(), truths, limits, strict=True):
            user = _user(keys[index])
            record = self._records.get(user)
            if record is None:
                record = self._records[user] = Record()
            record.add(_statistics(row), tables, truth, limit, submits[index], ends[index])


def _user(keys: _Keys) -> str | None:
    user = keys[0]
    assert user is None or isinstance(user, str)
    return user


def _statistics(row: Sequence[float]) -> list[float]:
    """The statistics to choose from, in a row of facts whose user has jobs."""
    counts = [math.inf if at == 0 else row[at] for at in _COUNTS]
    return statistics_of(row[_USED[0]], [row[at] for at in _USED], counts)


def _chosen(row: Sequence[float], serving: Serving) -> tuple[float, float, float, float, float]:
    champion = _statistics(row)[serving.best] if row[0] > 0 else math.nan
    return champion, float(serving.best), float(serving.served), serving.ratio, serving.judged


def _by_end(jobs: JobTable) -> list[int]:
    order = np.argsort(jobs.end_s, kind="stable")
    known = np.isfinite(jobs.end_s[order]) & np.isfinite(jobs.duration_s[order])
    return [int(index) for index in order[known]]


def _keys(jobs: JobTable) -> list[_Keys]:
    """One key per level for every row; NaN becomes -1, since NaN is no equal of itself."""
    numbers = (jobs.nodes, jobs.gpus, jobs.cpus, jobs.memory_mib, jobs.limit_s)
    requests = zip(
        jobs.user,
        jobs.partition,
        jobs.qos,
        *(np.nan_to_num(n, nan=-1.0).tolist() for n in numbers),
        strict=True,
    )
    stems = {name: name_stem(name) for name in set(jobs.name.tolist())}
    return [
        (user, request, (user, stems[name]))
        for user, request, name in zip(jobs.user.tolist(), requests, jobs.name.tolist(), strict=True)
    ]
