"""Durations as a kind of model: judged on jobs that ended after those it learned from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import numpy as np

from lucid.models.duration.anchor import running_median_log
from lucid.models.duration.features import from_log, to_log
from lucid.models.duration.fit import relative_loss
from lucid.models.duration.gate import OPTIONS, Record
from lucid.models.duration.history import DurationHistory
from lucid.models.duration.jobtable import JobTable
from lucid.models.duration.model import DurationModel
from lucid.models.upkeep.kind import SAMPLE, Kind, Tables, Task, split
from lucid.models.upkeep.library import Library
from lucid.models.upkeep.update import Drift, Evidence, category_psi, error_ratio, psi

__all__ = ["DURATION", "DurationKind"]

MOST_LOSS: Final = 1.01
"""A model is promoted only if its loss is at most this times the running median's."""
_RECENT: Final = 2000
_NUMBERS: Final = ("gpus", "cpus", "nodes", "memory_mib", "limit_s")
_NAMES: Final = ("user", "partition")
_WORDS: Final = {
    "median": "the median",
    "half": "the mean of median and best statistic",
    "statistic": "the best statistic",
    "tables": "the tables",
    "three": "the mean of all three",
}


class DurationKind(Kind[DurationModel, JobTable]):
    """How long jobs take."""

    name = "duration"
    data = "jobs"
    stand_in = "history means"
    model = DurationModel

    def words(self, model: DurationModel) -> list[str]:
        """How much it was trained on, and how each candidate did in validation."""
        choice = model.choice
        scores = [
            f"    validation, {name}: {score:.3f} of the running median's loss"
            for name, score in choice.scores.items()
        ]
        serving = [Record(sums).choice.served for sums in model.records.values()]
        counts = [f"{_WORDS[option]} {serving.count(number)}" for number, option in enumerate(OPTIONS)]
        return [
            f"  trained on {model.trained_jobs:,} jobs; tables: {model.choice.name}",
            f"    what had the best record on the jobs of {len(serving)} users: {', '.join(counts)}",
            *scores,
        ]

    def tables(self, model: DurationModel) -> list[Tables]:
        """Those of jobs whose users' records speak for them, and of profiled jobs, as far as there are any."""
        titles = (
            (f"Duration: {model.choice.name}, beside the user's median", model.tables),
            ("Duration of profiled jobs, beside the estimate at submission", model.profiled_tables),
        )
        return [Tables(title, "log of the factor", tables) for title, tables in titles if tables is not None]

    def task(self, library: Library, data: JobTable) -> Task[DurationModel]:
        """Fit on finished jobs, judge on jobs that ended later."""
        jobs = _ended(data).by_submit()
        version = self.in_service(library)
        learned_until = None if version is None else float(version.facts.get("learned_until", -math.inf))
        until_s = split(np.sort(jobs.end_s), learned_until, "jobs")
        past, later = jobs.take(jobs.end_s <= until_s), np.flatnonzero(jobs.end_s > until_s)
        judged = jobs.take(later)
        truth = to_log(judged.duration_s)

        def loss(model: DurationModel) -> float:
            facts = model.serve(DurationHistory()).replay(jobs)[later]
            anchor = running_median_log(facts, model.default_log)
            return relative_loss(anchor, model.point_log(judged, facts) - anchor, truth, judged.limit_s)

        known = {
            "learned_until": until_s,
            "learned_from": len(past),
            "judged_on": len(judged),
            "inputs": _inputs(past),
        }
        return Task(lambda: DurationModel.fit(past), loss, known, MOST_LOSS)

    def evidence(self, library: Library, data: JobTable, now: datetime) -> Evidence:
        """New jobs, the age of the version in service, drift of its error (against the running median, over the same
        jobs) and of its inputs."""
        jobs = _ended(data).by_submit()
        version = self.in_service(library)
        if version is None:
            return Evidence(now, None, len(jobs), Drift(None, 0))
        model = self.read(version)
        new = np.flatnonzero(jobs.end_s > float(version.facts.get("learned_until", -math.inf)))
        recent = new[np.argsort(jobs.end_s[new], kind="stable")][-_RECENT:]
        part, facts = jobs.take(recent), model.serve(DurationHistory()).replay(jobs)[recent]
        median = np.fmin(from_log(running_median_log(facts, model.default_log)), part.limit_s)
        point = model.predict_facts(part, facts).point_s
        inputs = _moved(version.facts.get("inputs", {}), part)
        drift = Drift(error_ratio(part.duration_s, point, median), len(part), inputs)
        return Evidence(now, datetime.fromisoformat(version.created), len(new), drift)


DURATION: Final = DurationKind()


def _ended(jobs: JobTable) -> JobTable:
    return jobs.take(np.isfinite(jobs.duration_s) & np.isfinite(jobs.end_s))


def _inputs(jobs: JobTable) -> dict[str, list[Any]]:
    """Up to `SAMPLE` evenly spaced values of every input, JSON-ready."""
    rows = np.unique(np.linspace(0, len(jobs) - 1, SAMPLE).astype(int)) if len(jobs) else np.empty(0, dtype=int)
    kept: dict[str, list[Any]] = {name: getattr(jobs, name)[rows].tolist() for name in _NAMES}
    for name in _NUMBERS:
        kept[name] = [None if value != value else value for value in getattr(jobs, name)[rows].tolist()]
    return kept


def _moved(kept: Mapping[str, Sequence[Any]], recent: JobTable) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, values in kept.items():
        if name in _NAMES:
            found[name] = category_psi(values, getattr(recent, name).tolist())
        elif name in _NUMBERS:
            before = np.array([math.nan if value is None else value for value in values], dtype=np.float64)
            found[name] = psi(before, getattr(recent, name))
    return found
