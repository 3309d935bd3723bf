"""``TurnJobs``: jobs that take turns on their GPUs: which opted in, and what one iteration takes.

A user opts in with the word ``lucid:turns`` in the job's comment. job_submit.lua writes that into the tag, which no
user can change. Seconds of an iteration come from the job's report. A job that has not reported reuses the report of
an earlier job of the same user, name and number of GPUs: Muri's cache (row M1). Where there is none, what its node
measured from outside counts, of it or of an earlier one: shares of time, of which no group of more than two is made
(row M2)."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

from lucid.core.job import JobProfile, TimeShares
from lucid.core.prediction import StageTimes
from lucid.slurm.elastic.reports import Reports
from lucid.slurm.records.fields import parse_mark
from lucid.slurm.records.job import SlurmJob
from lucid.store.sqlite import SqliteStore

_MOST_KEPT = 1000
_SAME = 0.2
"""Reports that differ by less than this share of an iteration count as equal: no plan changes for noise."""
_LEAST_SHARE = 0.05
"""The least share of time on some resource: a job with less on every resource cannot be placed by it (M2's
threshold)."""
_VIEW = "stage_times"

_Key = tuple[str, str, int]


def takes_turns(record: SlurmJob) -> bool:
    """Whether the job's user opted in when it was submitted."""
    tag = record.admin_comment
    return "turns=1" in tag and (parse_mark(tag) or {}).get("turns") == "1"


class TurnJobs:
    """What is known of jobs that take turns. ``interleaves``: whether the policy of a VC forms groups; else no job
    takes turns there, and nothing is read."""

    def __init__(self, reports: Reports, interleaves: Callable[[str], bool], store: SqliteStore) -> None:
        self._reports = reports
        self._interleaves = interleaves
        self._store = store
        self._own: dict[str, StageTimes] = {}
        self._rounds: dict[str, tuple[float, int]] = {}
        self._earlier = _kept(store)
        self._new = False
        self.words: dict[str, str] = {}
        """The state of each job whose user opted in, in words, as of the last poll."""

    def stage_times_of(
        self, record: SlurmJob, vc: str, now_s: float, whole_because: str, profile: JobProfile | None
    ) -> StageTimes | None:
        """Seconds of one iteration of a job that may take turns, or shares of its time; the same object as long as
        its reports are about the same. ``vc``: its home. ``whole_because``: why its request cannot be said in slots,
        in words. ``profile``: its profile, if it was measured."""
        if not takes_turns(record):
            return None
        why = ""
        if not self._interleaves(vc):
            why = "the policy of its partition forms no groups"
        elif whole_because:
            why = whole_because
        elif record.min_nodes > 1:
            why = "it runs on several nodes"
        if why:
            self.words[record.id] = f"it takes no turns: {why}"
            return None
        found, source = self._own.get(record.id), "its own report"
        report = self._reports.report_of(record.id, record.uid, now_s)
        said = None if report is None or report.said is None else report.said.stages
        key = (record.user, record.name, record.gpus)
        if said is not None and (found is None or not _alike(said, found)):
            found = self._own[record.id] = said
            if record.user:
                self._note(key, said)
        if found is None and record.user:
            found, source = self._earlier.get(key), "an earlier job of the same name, user and number of GPUs"
        shares = None if found is not None or profile is None else profile.shares
        if shares is not None and max(shares.storage or 0.0, shares.cpu, shares.gpu) >= _LEAST_SHARE:
            self.words[record.id] = _measured(shares)
            return StageTimes((shares.storage or 0.0, shares.cpu, shares.gpu, 0.0), 1.0, outside=True)
        refused = "" if report is None else report.refused
        self.words[record.id] = _standing(found, source, refused, profile is not None)
        return found

    def in_turns(self, record: SlurmJob, vc: str, now_s: float) -> tuple[float, int] | None:
        """Seconds of one iteration of a job in its group, and how many jobs take turns there, as it last reported;
        the same object as long as they are about the same. ``vc``: its home."""
        if not self._interleaves(vc) or not takes_turns(record):
            return None
        report = self._reports.report_of(record.id, record.uid, now_s)
        said = None if report is None or report.said is None else report.said.in_turns
        known = self._rounds.get(record.id)
        if said and known and said[1] == known[1] and abs(said[0] - known[0]) <= _SAME * known[0]:
            return known
        if said is None:
            self._rounds.pop(record.id, None)
        else:
            self._rounds[record.id] = said
        return said

    def _note(self, key: _Key, stages: StageTimes) -> None:
        self._earlier.pop(key, None)
        self._earlier[key] = stages
        while len(self._earlier) > _MOST_KEPT:
            del self._earlier[next(iter(self._earlier))]
        self._new = True

    def keep(self) -> None:
        """Write new stage times into the store, if there are any."""
        if self._new:
            rows = [[*key, list(item.times_s), item.iteration_s] for key, item in self._earlier.items()]
            self._store.put_view(_VIEW, rows)
        self._new = False

    def forget_all_but(self, alive: Collection[str]) -> None:
        """Forget all jobs but these."""
        self._own = {job_id: item for job_id, item in self._own.items() if job_id in alive}
        self._rounds = {job_id: item for job_id, item in self._rounds.items() if job_id in alive}
        self.words = {job_id: words for job_id, words in self.words.items() if job_id in alive}


def _alike(a: StageTimes, b: StageTimes) -> bool:
    most_s = _SAME * b.iteration_s
    pairs = zip((*a.times_s, a.iteration_s), (*b.times_s, b.iteration_s), strict=True)
    return all(abs(one - other) <= most_s for one, other in pairs)


def _standing(stages: StageTimes | None, source: str, refused: str, measured: bool) -> str:
    if stages is None:
        return (
            "it may take turns with others, once it has reported its stage times"
            f"{f' ({refused})' if refused else ''}, or share its GPUs with one job, once its node has measured them"
        )
    names = ("storage", "CPU", "GPU", "network")
    times = ", ".join(f"{name} {time_s:.3g} s" for name, time_s in zip(names, stages.times_s, strict=True))
    may = "it may take turns with others" + ("" if measured else ", once its GPU memory is measured")
    return f"{may}; one iteration takes {stages.iteration_s:.3g} s: {times} (by {source})"


def _measured(shares: TimeShares) -> str:
    known = {"storage": shares.storage, "CPU": shares.cpu, "GPU": shares.gpu}
    times = ", ".join(f"{name} {'not known' if share is None else f'{share:.0%}'}" for name, share in known.items())
    by = f", storage by {shares.storage_by}" if shares.storage_by else ""
    return f"it may share its GPUs with one other job; of its time it spends: {times} (measured on its node{by})"


def _kept(store: SqliteStore) -> dict[_Key, StageTimes]:
    """The stage times that an earlier lucidd stored; rows that cannot be read are left out, and learnt anew."""
    found: dict[_Key, StageTimes] = {}
    rows = store.view(_VIEW)
    for row in rows if isinstance(rows, list) else []:
        try:
            user, name, gpus, times, iteration_s = row
            times_s = tuple(float(item) for item in times)
            good = len(times_s) == 4 and all(math.isfinite(item) and item >= 0 for item in (*times_s, iteration_s))
            if good and iteration_s > 0:
                found[str(user), str(name), int(gpus)] = StageTimes(times_s, float(iteration_s))
        except (TypeError, ValueError):
            continue
    return found
