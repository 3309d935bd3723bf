"""Throughput as a kind of model: judged on bins that came after those it learned from."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Final

import numpy as np

from lucid.errors import ModelError
from lucid.models.throughput.arrivals import ArrivalForecaster
from lucid.models.throughput.bins import OTHERS, Bins, FloatArray, utc
from lucid.models.throughput.fit import check_enough, fit_throughput
from lucid.models.throughput.model import ThroughputModel
from lucid.models.upkeep.kind import SAMPLE, Kind, Tables, Task, split
from lucid.models.upkeep.library import Library, Version
from lucid.models.upkeep.update import Drift, Evidence, Rules, psi

__all__ = ["THROUGHPUT", "ThroughputKind"]

# A bin is ten minutes in the usual case: a week of them calls for training, a day is worth it.
_WEEK_BINS: Final = 1008
_DAY_BINS: Final = 144
_AGE: Final = 1
"""lucidd has just closed a bin when it asks."""


class ThroughputKind(Kind[ThroughputModel, Bins]):
    """Learns from submissions alone, which are all that lucidd counts. Of a loss: the mean of both targets' errors,
    relative to the forecast 'as in the newest bin'."""

    name = "throughput"
    data = "bins"
    stand_in = ArrivalForecaster.name
    model = ThroughputModel

    def for_service(self, model: ThroughputModel) -> ThroughputModel:
        """The model, if it was trained on submissions alone: lucidd counts nothing else."""
        if others := sorted({name for name in model.features if name.split("_")[0] in OTHERS}):
            raise ModelError(
                f"throughput: this version asks for {', '.join(others)}, which lucidd does not count; train it again"
            )
        return model

    def rules(self, rules: Rules) -> Rules:
        """Bounds in bins."""
        return replace(rules, new_jobs=_WEEK_BINS, least_jobs=_DAY_BINS, drift_jobs=_DAY_BINS)

    def tables(self, model: ThroughputModel) -> list[Tables]:
        """One for each target."""
        return [
            Tables(f"{what} submitted per bin", "square root of the count" if part.root else what, part.model)
            for what, part in (("GPU jobs", model.jobs), ("GPUs", model.gpus))
        ]

    def task(self, library: Library, data: Bins) -> Task[ThroughputModel]:
        """Fit on past bins, judge on later ones."""
        bins = data.submissions()
        version = self.in_service(library)
        number = np.arange(len(bins.start), dtype=np.float64)
        learned = None if version is None else _learned_bin(version, bins)
        first = int(split(number, learned, "bins")) + 1
        past = bins.upto(bins.start[first])
        facts = {
            "learned_until": past.start[-1].isoformat(),
            "learned_from": len(past.start),
            "judged_on": len(bins.start) - first,
            "inputs": {"jobs": _thinned(past.jobs), "gpus": _thinned(past.gpus)},
        }
        return Task(lambda: fit_throughput(past, _AGE), lambda model: _ratio(model, data, first), facts)

    def evidence(self, library: Library, data: Bins, now: datetime) -> Evidence:
        """New bins, the age of the version in service, drift of its error (against 'as in the newest bin') and of the
        counts."""
        version = self.in_service(library)
        if version is None:
            number = np.arange(len(data.start), dtype=np.float64)
            check_enough(data.upto(data.start[int(split(number, None, "bins")) + 1]), _AGE)
            return Evidence(now, None, len(data.start), Drift(None, 0))
        model, trained = self.read(version), datetime.fromisoformat(version.created)
        new = len(data.start) - 1 - int(_learned_bin(version, data))
        if new <= 0:
            return Evidence(now, trained, 0, Drift(None, 0))
        kept = version.facts.get("inputs", {})
        inputs = {name: psi(values, getattr(data, name)[-new:]) for name, values in kept.items()}
        return Evidence(now, trained, new, Drift(_ratio(model, data, len(data.start) - new), new, inputs))


THROUGHPUT: Final = ThroughputKind()


def _ratio(model: ThroughputModel, bins: Bins, first: int) -> float:
    first = max(first, model.age)
    truth = np.stack([bins.jobs, bins.gpus], axis=1)
    rows = slice(first - model.age, len(bins.start) - model.age)
    own = np.abs(model.predict(bins)[rows] - truth[first:]).mean(axis=0)
    same = np.abs(truth[rows] - truth[first:]).mean(axis=0)
    return float((own / np.maximum(same, 1e-9)).mean())


def _learned_bin(version: Version, bins: Bins) -> float:
    """Number of the newest bin that a version learned from."""
    until = utc(datetime.fromisoformat(str(version.facts.get("learned_until", bins.start[0]))))
    return float(sum(utc(start) <= until for start in bins.start) - 1)


def _thinned(values: FloatArray) -> list[float]:
    return [float(value) for value in values[np.unique(np.linspace(0, len(values) - 1, SAMPLE).astype(int))]]
