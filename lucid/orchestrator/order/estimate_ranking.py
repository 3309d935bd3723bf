"""``TrustBook``: how well estimates rank jobs by length, measured on the jobs that ended last.

Ordered by estimate, jobs wait for less in sum than in order of submission, as far as estimates put short jobs before
long ones. The gain is that saving, as a share of what true durations would have saved (``lucid.models.ranking``).
Noise has a gain of about 0 +- 1/sqrt(jobs), so only a gain beyond that counts (docs/decisions/0053). Naive estimates
are measured beside the given ones, and used where they put the jobs that wait at the same time in a better order."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import inf, isnan
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from lucid.core.job import Pending
from lucid.core.reasons.queue import Unranked
from lucid.models.ranking import HOUR_S, QUEUED, gain_of, ranks_of, saved_of

_WINDOW = 300
"""How many of the jobs that ended last are used."""
_VCS = 256
"""How many VCs are remembered."""
_LEAST = 10
"""With fewer ended jobs nothing is concluded, and estimates are trusted."""
_OWN = 100
"""A VC with so many ended jobs is judged by its own, others by those of the whole cluster."""
_EVERY = 10
"""The gain is measured again after so many more jobs have ended."""
_TO_TRUST, _TO_KEEP = 2.5, 1.0
"""Standard errors above chance at which estimates become trusted, and above which they stay so."""
_WORTH_REPORTING = 0.1
"""A gain that moved by less is not published anew: published gains go into decisions."""
HISTORY = "history"
"""``Unranked.by`` of the naive estimates: tables of what jobs alike took (``lucid.models.duration.hazards``)."""

_HOURS = 48
"""So many of the last hours in which jobs queued are looked at, …"""
_MOST = 100
"""… and so many jobs of each."""
_LEAD = 0.05
"""The gain in the queue by which others' estimates must be better before they are followed."""

_Column: TypeAlias = npt.NDArray[np.float64]
_Estimates: TypeAlias = Callable[[str], tuple[float, float | None] | None]
_NONE = float("nan")
"""Stands for a naive estimate that is missing."""


class _Window:
    """The jobs that ended last, one a row: both estimates, and the real duration, s."""

    __slots__ = ("_end", "_kept")

    def __init__(self) -> None:
        self._kept, self._end = np.empty((2 * _WINDOW, 3)), 0

    def add(self, given_s: float, naive_s: float | None, ran_s: float) -> None:
        if self._end == len(self._kept):
            self._kept[: _WINDOW - 1], self._end = self._kept[1 - _WINDOW :], _WINDOW - 1
        self._kept[self._end] = given_s, _NONE if naive_s is None else naive_s, ran_s
        self._end += 1

    @property
    def rows(self) -> _Column:
        return self._kept[max(self._end - _WINDOW, 0) : self._end]


class _Hour:
    """The jobs that stood in one queue within an hour, by id, where not all have ended, and as columns: GPUs, both
    estimates, and how long they ran, s (NaN while that is not known)."""

    __slots__ = ("_saved", "_saved_at", "columns", "open")

    def __init__(self, ids: Sequence[str], rows: Sequence[tuple[float, float, float | None, float | None]]) -> None:
        kept = [[_NONE if cell is None else cell for cell in row] for row in rows]
        self.columns = np.array(kept, float).reshape(-1, 4)
        self.open = {job_id: at for at, (job_id, row) in enumerate(zip(ids, kept, strict=True)) if isnan(row[3])}
        self._saved: tuple[int, Sequence[float]] = (0, ())
        self._saved_at = -1

    def ended(self, job_id: str, ran_s: float) -> None:
        at = self.open.pop(job_id, None)
        if at is not None:
            self.columns[at, 3] = ran_s

    def saved(self, running: Mapping[str, float]) -> tuple[int, Sequence[float]]:
        """Of how many jobs enough is known, and the GPU-seconds that are saved among them by the right order, and
        by the given and the naive estimates. Counted anew when another of the hour's jobs has ended."""
        if self._saved_at != len(self.open):
            self._saved_at, rows = len(self.open), self._known(running)
            rows = rows[~np.isnan(rows[:, 2])]
            gpus = rows[:, 0]
            self._saved = len(rows), saved_of((gpus * rows[:, 1], gpus * rows[:, 2]), gpus * rows[:, 3])
        return self._saved

    def _known(self, running: Mapping[str, float]) -> _Column:
        """The rows of those that have ended, and of those that have run for longer than half of these."""
        rows = self.columns
        ended: _Column = rows[~np.isnan(rows[:, 3])]
        if len(ended) and self.open and running:
            median_s = np.sort(ended[:, 3])[len(ended) // 2]
            going = [(at, ran_s) for i, at in self.open.items() if (ran_s := running.get(i, 0.0)) > median_s]
            if going:
                more = rows[[at for at, _ in going]]
                more[:, 3] = [ran_s for _, ran_s in going]
                ended = np.concatenate((ended, more))
        return ended


class _Queue:
    """Who stands in one VC's queue within this hour: their GPUs, and of those that have ended both estimates and how
    long they ran."""

    __slots__ = ("came", "due_s", "gone")

    def __init__(self) -> None:
        self.came: dict[str, int] = {}
        self.gone: dict[str, tuple[float, float | None, float]] = {}
        self.due_s = -inf


class TrustBook:
    """The jobs that ended last, by VC and of the whole cluster, and how well estimates ranked them."""

    def __init__(self) -> None:
        self._rows: OrderedDict[str, _Window] = OrderedDict({"": _Window()})
        self._fresh: dict[str, int] = {}
        """Jobs that ended since the last measurement, by VC."""
        self._queues: dict[str, _Queue] = {}
        self._hours: dict[str, deque[_Hour]] = {}
        """The last hours of each VC's queue, and of all queues as ""."""
        self._leads: dict[str, float | None] = {}
        """By how much the naive estimates' gain in these was greater, unless there are new hours since."""
        self.checks = 0
        """How often the gain was measured."""
        self.unranked: Mapping[str, Unranked] = {}
        """The published comparison by VC, and that of the whole cluster as "". The same object as long as it is
        equal."""

    def waits(self, vc: str, job_id: str, gpus: int) -> None:
        """Learn of a job that waits."""
        self._queues.setdefault(vc, _Queue()).came[job_id] = gpus

    def observe_queue(self, vc: str, waiting: Collection[Pending], estimates: _Estimates, now_s: float) -> None:
        """Each hour, note who stood in the VC's queue since the last, if jobs queue there. ``waiting``: who waits
        now; ``estimates``: both estimates of a job, unless it has left."""
        queue = self._queues.get(vc)
        if queue is None or queue.due_s - HOUR_S <= now_s < queue.due_s:
            return
        queue.due_s = now_s + HOUR_S
        came, gone = queue.came, queue.gone
        queue.came, queue.gone = {e.job.id: came[e.job.id] for e in waiting if e.job.id in came}, {}
        if len(queue.came) < QUEUED:
            return
        ids, rows = [], []
        for job_id in [*came][:: -(-len(came) // _MOST)]:
            ended, known = gone.get(job_id), estimates(job_id)
            if ended is not None or known is not None:
                ids.append(job_id)
                rows.append((float(came[job_id]), *(ended or (*known, None))))  # type: ignore[misc]
        hour = _Hour(ids, rows)
        for name in ("", vc):
            self._hours.setdefault(name, deque(maxlen=_HOURS)).append(hour)
            self._leads.pop(name, None)

    def ended(self, vc: str, given_s: float, naive_s: float | None, ran_s: float, job_id: str = "") -> None:
        """Learn from a job that has ended, and from the estimates while it waited."""
        queue = self._queues.get(vc)
        if queue is not None:
            if job_id in queue.came:
                queue.gone[job_id] = given_s, naive_s, ran_s
            for hour in self._hours.get(vc, ()):
                hour.ended(job_id, ran_s)
        for name in dict.fromkeys(("", vc)):
            if name not in self._rows:
                self._rows[name] = _Window()
            self._rows[name].add(given_s, naive_s, ran_s)
            self._fresh[name] = self._fresh.get(name, 0) + 1
        self._rows.move_to_end(vc)
        if len(self._rows) > _VCS:
            gone = next(name for name in self._rows if name)
            del self._rows[gone]
            for kept in (self._fresh, self._queues, self._hours, self._leads):
                kept.pop(gone, None)
            self.unranked = {name: one for name, one in self.unranked.items() if name != gone}

    @property
    def by(self) -> dict[str, str]:
        """The source of the estimates that ranked best (``Unranked.by``), by VC, and of the whole cluster as ""."""
        return {vc: one.by for vc, one in self.unranked.items()}

    @property
    def due(self) -> bool:
        """Whether enough jobs have ended to measure again."""
        return self._fresh.get("", 0) >= _EVERY

    def check(self, running: Mapping[str, tuple[str, float, float | None, float]]) -> None:
        """Measure again for the cluster, and for VCs of which enough jobs have ended. ``running``: VC, both estimates
        and the time run so far, s, of each running job, by id. A job counts by that time once it is more than half of
        what the ended jobs took: windows of ended jobs alone lack the long ones."""
        self.checks += 1
        due = [name for name, fresh in self._fresh.items() if fresh >= _EVERY]
        vcs = [row[0] for row in running.values()]
        rows = np.array([row[1:] for row in running.values()], float).reshape(-1, 3)
        told = dict(self.unranked)
        for name in due:
            self._fresh[name] = 0
            if name in self._hours and name not in self._leads:
                self._leads[name] = _lead(self._hours[name], {job_id: row[3] for job_id, row in running.items()})
            before = told.get(name)
            going = rows[[vc == name for vc in vcs]] if name else rows
            found = self._found(name, going, before if before is not None else told.get(""))
            if found is not None and (before is None or _differs(found, before)):
                told[name] = found
        if told != self.unranked:
            self.unranked = told

    def _found(self, name: str, going: _Column, before: Unranked | None) -> Unranked | None:
        ended = self._rows[name].rows
        median_s = np.sort(ended[:, 2])[len(ended) // 2]
        rows = np.concatenate((ended, going[going[:, 2] > median_s][-_WINDOW:]))
        if len(rows) < (_OWN if name else _LEAST):
            return None
        given_s, naive_s, ran_s = rows.T.copy()
        chance, by = 1.0 / len(rows) ** 0.5, "" if before is None else before.by

        def judged(source: str, gain: float) -> Unranked:
            keeps = by == source and not before
            return Unranked(name, len(rows), gain, round((_TO_KEEP if keeps else _TO_TRUST) * chance, 3), source)

        ranks = ranks_of(ran_s)
        given = judged("", gain_of(given_s, ran_s, ranks))
        besides = ~np.isnan(naive_s)
        if not besides.any():
            return given
        if besides.all():
            naive = judged(HISTORY, gain_of(naive_s, ran_s, ranks))
        else:
            naive = judged(HISTORY, gain_of(naive_s[besides], ran_s[besides]))
        if bool(given) != bool(naive):
            return naive if given else given
        lead = self._leads.get(name)
        if lead is not None:
            return naive if lead > (-_LEAD if by else _LEAD) else given
        margin = 0.0 if by else _TO_TRUST * chance  # between two that rank, or two that do not, it stays
        return naive if naive.gain > given.gain + margin else given

    def to_dict(self) -> dict[str, Any]:
        """The jobs and comparisons as JSON."""
        kept = {name: window.rows.tolist() for name, window in self._rows.items()}
        rows = {
            name: [[None if isnan(s) else round(s, 1) for s in row] for row in rows] for name, rows in kept.items()
        }
        told = [[one.vc, one.jobs, one.gain, one.needed, one.by] for one in self.unranked.values()]
        return {"rows": rows, "told": told}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TrustBook:
        """The trust book that ``to_dict`` wrote, to a tenth of a second.

        Raises: KeyError, TypeError, ValueError: the data has another shape."""
        made, told = cls(), dict[str, Unranked]()
        for name, rows in data["rows"].items():
            window = made._rows[str(name)] = _Window()
            for given, naive, ran in rows:
                window.add(float(given), None if naive is None else float(naive), float(ran))
        for vc, jobs, gain, needed, by in data["told"]:
            told[str(vc)] = Unranked(str(vc), int(jobs), float(gain), float(needed), str(by))
        made.unranked = told
        return made


def _lead(hours: Iterable[_Hour], running: Mapping[str, float]) -> float | None:
    """By how much the gain in the queue of the naive estimates is greater; ``None``: too little is known.
    ``running``: how long each running job has run."""
    found = [hour.saved(running) for hour in hours]
    best, given, naive = np.array([saved for _, saved in found]).sum(axis=0)
    if sum(count for count, _ in found) < _OWN or best <= 1e-9:
        return None
    return float((naive - given) / best)


def _differs(found: Unranked, before: Unranked) -> bool:
    return found.by != before.by or bool(found) != bool(before) or abs(found.gain - before.gain) > _WORTH_REPORTING
