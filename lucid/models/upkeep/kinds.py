"""Keeping each kind of model: what it is trained on, what is held back to judge it, and when it is due.

Durations and throughput are judged on what came later: the new version learns up to a moment ``learned_until``,
both versions are judged on what ended after that, and the one in service had learned less. Share scores and pairs
come from a table without times: every third configuration (pair) that the version in service has not learned from
is held back to judge by, and once judged the new version learns from it too.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import numpy as np

from lucid.errors import ModelError
from lucid.models.duration.features import from_log, replay, to_log
from lucid.models.duration.fit import relative_loss
from lucid.models.duration.jobtable import FloatArray, JobTable
from lucid.models.duration.model import DurationModel, FitSettings, anchor_log
from lucid.models.packing.measured import Pairing, Usage
from lucid.models.packing.pair_speed import PairModel, fit_pairs
from lucid.models.packing.share_score import ShareTree, fit_share, share_labels
from lucid.models.throughput.model import Bins, ThroughputModel, fit_throughput
from lucid.models.upkeep.library import Library, Trained
from lucid.models.upkeep.update import Drift, Evidence, category_psi, error_ratio, psi

__all__ = [
    "KINDS",
    "Loaded",
    "duration_evidence",
    "load_kind",
    "measured_evidence",
    "throughput_evidence",
    "train_duration",
    "train_pairs",
    "train_share",
    "train_throughput",
]

KINDS: Final = ("duration", "share", "pairs", "throughput")
Loaded = DurationModel | ShareTree | PairModel | ThroughputModel

# A model of durations is promoted only if its loss is at most this times the running median's.
MOST_LOSS: Final = 1.02
_FIRST_SHARE: Final = 0.8  # without a version in service: learned from, the rest judges
_LATER_SHARE: Final = 0.5  # of what is new since the version in service
_LEAST_JUDGED: Final = 20
_SAMPLE: Final = 500  # values of each input kept with a version, for the drift of inputs
_RECENT: Final = 2000
_NUMBERS: Final = ("gpus", "cpus", "nodes", "memory_mib", "limit_s")
_NAMES: Final = ("user", "partition")
_THIRD: Final = 3


def load_kind(name: str, data: Mapping[str, Any], source: str) -> Loaded:
    """The model of that kind from its JSON.

    Raises:
        ModelError: no such kind, or the data does not check.
    """
    if name == "duration":
        return DurationModel.from_json(data, source=source)
    if name == "share":
        return ShareTree.from_json(data, source=source)
    if name == "pairs":
        return PairModel.from_json(data, source=source)
    if name == "throughput":
        return ThroughputModel.from_json(data, source=source)
    raise ModelError(f"{source}: no kind of model is called {name!r}; known are {', '.join(KINDS)}")


# -- durations ------------------------------------------------------------------------------------------------


def train_duration(
    library: Library, jobs: JobTable, settings: FitSettings | None = None, source: str = ""
) -> Trained:
    """Fit on finished jobs, judge on those that ended later, store, promote if not worse.

    Raises:
        ModelError: too few jobs ended since the version in service learned.
        TrainingRuns: another training runs.
    """
    jobs = _ended(jobs).by_submit()
    until_s = _split(np.sort(jobs.end_s), _learned_until(library, "duration"), "jobs")
    past, later = jobs.take(jobs.end_s <= until_s), np.flatnonzero(jobs.end_s > until_s)
    facts = replay(jobs)[later]
    judged = jobs.take(later)
    truth = to_log(judged.duration_s)

    def loss(model: DurationModel) -> float:
        anchor = anchor_log(facts, model.default_log)
        return relative_loss(anchor, model.point_log(judged, facts) - anchor, truth, judged.limit_s)

    return library.train(
        "duration",
        lambda: DurationModel.fit(past, settings),
        DurationModel.to_json,
        lambda data: DurationModel.from_json(data, source="duration"),
        loss,
        {
            "learned_until": until_s,
            "learned_from": len(past),
            "judged_on": len(judged),
            "source": source,
            "inputs": _inputs(past),
        },
        most=MOST_LOSS,
    )


def duration_evidence(library: Library, jobs: JobTable, now: datetime) -> Evidence:
    """What speaks for training durations again: new jobs, the age of the version in service, drift of its error
    (against the running median, over the same jobs) and of its inputs.

    Raises:
        ModelError: the version in service does not load.
    """
    jobs = _ended(jobs).by_submit()
    if library.serving("duration") is None:
        return Evidence(now, None, len(jobs), Drift(None, 0))
    version = library.show("duration")
    model = DurationModel.from_json(version.data, source=f"duration v{version.number}")
    new = np.flatnonzero(jobs.end_s > float(version.facts.get("learned_until", -math.inf)))
    recent = new[np.argsort(jobs.end_s[new], kind="stable")][-_RECENT:]
    part, facts = jobs.take(recent), replay(jobs)[recent]
    median = np.fmin(from_log(anchor_log(facts, model.default_log)), part.limit_s)
    point = model.predict_facts(part, facts).point_s
    inputs = _moved(version.facts.get("inputs", {}), part)
    drift = Drift(error_ratio(part.duration_s, point, median), len(part), inputs)
    return Evidence(now, datetime.fromisoformat(version.created), len(new), drift)


def _ended(jobs: JobTable) -> JobTable:
    return jobs.take(np.isfinite(jobs.duration_s) & np.isfinite(jobs.end_s))


def _inputs(jobs: JobTable) -> dict[str, list[Any]]:
    """Up to `_SAMPLE` evenly spaced values of every input, JSON-ready."""
    rows = np.unique(np.linspace(0, len(jobs) - 1, _SAMPLE).astype(int)) if len(jobs) else np.empty(0, dtype=int)
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


# -- throughput -----------------------------------------------------------------------------------------------


def train_throughput(library: Library, bins: Bins, age: int = 1, source: str = "") -> Trained:
    """Fit on past bins, judge on later ones (mean of both targets' errors, relative to 'as in the newest bin').

    Raises:
        ModelError: too few bins, or too few since the version in service learned.
        TrainingRuns: another training runs.
    """
    number = np.arange(len(bins.start), dtype=np.float64)
    learned = _learned_bin(library, bins)
    first = int(_split(number, learned, "bins")) + 1
    past = bins.upto(bins.start[first])

    def loss(model: ThroughputModel) -> float:
        return _throughput_ratio(model, bins, first)

    return library.train(
        "throughput",
        lambda: fit_throughput(past, age),
        ThroughputModel.to_json,
        lambda data: ThroughputModel.from_json(data, source="throughput"),
        loss,
        {
            "learned_until": past.start[-1].isoformat(),
            "learned_from": len(past.start),
            "judged_on": len(bins.start) - first,
            "source": source,
            "inputs": {"jobs": _thinned(past.jobs), "gpus": _thinned(past.gpus)},
        },
    )


def throughput_evidence(library: Library, bins: Bins, now: datetime) -> Evidence:
    """As `duration_evidence`; the error is held against 'as in the newest known bin'.

    Raises:
        ModelError: the version in service does not load, or is of another bin width.
    """
    if library.serving("throughput") is None:
        return Evidence(now, None, len(bins.start), Drift(None, 0))
    version = library.show("throughput")
    model = ThroughputModel.from_json(version.data, source=f"throughput v{version.number}")
    learned = _learned_bin(library, bins)
    new = len(bins.start) - 1 - int(learned if learned is not None else -1)
    if new <= 0:
        return Evidence(now, datetime.fromisoformat(version.created), 0, Drift(None, 0))
    kept = version.facts.get("inputs", {})
    inputs = {name: psi(values, getattr(bins, name)[-new:]) for name, values in kept.items()}
    drift = Drift(_throughput_ratio(model, bins, len(bins.start) - new), new, inputs)
    return Evidence(now, datetime.fromisoformat(version.created), new, drift)


def _throughput_ratio(model: ThroughputModel, bins: Bins, first: int) -> float:
    first = max(first, model.age)
    truth = np.stack([bins.jobs, bins.gpus], axis=1)
    rows = slice(first - model.age, len(bins.start) - model.age)
    own = np.abs(model.predict(bins)[rows] - truth[first:]).mean(axis=0)
    same = np.abs(truth[rows] - truth[first:]).mean(axis=0)
    return float((own / np.maximum(same, 1e-9)).mean())


def _learned_bin(library: Library, bins: Bins) -> float | None:
    """Number of the newest bin that the version in service learned from, or None."""
    if library.serving("throughput") is None:
        return None
    until = datetime.fromisoformat(str(library.show("throughput").facts.get("learned_until", bins.start[0])))
    if (until.tzinfo is None) != (bins.start[0].tzinfo is None):
        raise ModelError(
            "throughput: the version in service learned from bins with other time zones; use a new library"
        )
    return float(sum(start <= until for start in bins.start) - 1)


def _thinned(values: FloatArray) -> list[float]:
    return [float(value) for value in values[np.unique(np.linspace(0, len(values) - 1, _SAMPLE).astype(int))]]


# -- share scores and pairs -----------------------------------------------------------------------------------


def train_share(
    library: Library, usages: Sequence[Usage], pairings: Sequence[Pairing], *, amp: bool = False, source: str = ""
) -> Trained:
    """Grow the share tree; the loss is the mean squared distance of share scores of configurations held back.

    Labels are those of the profiles, else computed from the pairs.

    Raises:
        ModelError: nothing new was measured, or no configuration has a label.
        TrainingRuns: another training runs.
    """
    known = _labelled(usages, pairings)
    digests = [_label_digest(*item) for item in known]
    held = _held(library, "share", digests)
    rest = [item for item, out in zip(known, held, strict=True) if not out]
    judged = [item for item, out in zip(known, held, strict=True) if out]

    def fit(items: Sequence[tuple[Usage, int]]) -> Callable[[], ShareTree]:
        return lambda: fit_share([usage for usage, _ in items], [label for _, label in items], amp=amp)

    def loss(tree: ShareTree) -> float:
        scores = tree.predict([usage for usage, _ in judged])
        return float(np.square(scores - np.array([label for _, label in judged])).mean())

    return library.train(
        "share",
        fit(rest),
        ShareTree.to_json,
        lambda data: ShareTree.from_json(data, source="share"),
        loss,
        _measured_facts(digests, judged, source),
        final=fit(known),
    )


def train_pairs(library: Library, pairings: Sequence[Pairing], source: str = "") -> Trained:
    """Fit the pair model; the loss is the mean absolute error of the slower side's speed of pairs held back.

    Raises:
        ModelError: nothing new was measured, or no pair is free of interference.
        TrainingRuns: another training runs.
    """
    digests = [_pair_digest(pairing) for pairing in pairings]
    held = _held(library, "pairs", digests)
    rest = [pairing for pairing, out in zip(pairings, held, strict=True) if not out]
    judged = [pairing for pairing, out in zip(pairings, held, strict=True) if out]
    truth = np.array([pairing.slower for pairing in judged])

    def loss(model: PairModel) -> float:
        return float(np.abs(model.speeds([(p.first, p.second) for p in judged]).min(axis=1) - truth).mean())

    return library.train(
        "pairs",
        lambda: fit_pairs(rest),
        PairModel.to_json,
        lambda data: PairModel.from_json(data, source="pairs"),
        loss,
        _measured_facts(digests, judged, source),
        final=lambda: fit_pairs(pairings),
    )


def measured_evidence(
    library: Library, name: str, usages: Sequence[Usage], pairings: Sequence[Pairing], now: datetime
) -> Evidence:
    """What speaks for growing the share tree (`name` share) or fitting the pair model (pairs) again: new
    measurements. They do not age, and nothing is predicted that could drift."""
    digests = (
        [_pair_digest(pairing) for pairing in pairings]
        if name == "pairs"
        else [_label_digest(*item) for item in _labelled(usages, pairings)]
    )
    if library.serving(name) is None:
        return Evidence(now, None, len(digests), Drift(None, 0))
    known = set(library.show(name).facts.get("learned", ()))
    return Evidence(now, now, sum(digest not in known for digest in digests), Drift(None, 0))


def _labelled(usages: Sequence[Usage], pairings: Sequence[Pairing]) -> list[tuple[Usage, int]]:
    """Configurations with the label that their measurer gave, else the one computed from pairs."""
    labels = [
        given.label if given.label is not None else computed
        for given, computed in zip(usages, share_labels(usages, pairings), strict=True)
    ]
    return [(usage, label) for usage, label in zip(usages, labels, strict=True) if label is not None]


def _held(library: Library, name: str, digests: Sequence[str]) -> list[bool]:
    """Which rows judge: every third, in the order of the digests, of those not learned from before."""
    known = set(library.show(name).facts.get("learned", ())) if library.serving(name) is not None else set()
    new = sorted({digest for digest in digests if digest not in known})
    if len(new) < _THIRD:
        raise ModelError(f"{name}: {len(new)} new measurements since the version in service; measure more first")
    held = set(new[::_THIRD])
    return [digest in held for digest in digests]


def _measured_facts(digests: Sequence[str], judged: Sequence[object], source: str) -> dict[str, Any]:
    return {
        "learned_from": len(digests),
        "judged_on": len(judged),
        "source": source,
        "learned": sorted(set(digests)),
    }


def _pair_digest(pairing: Pairing) -> str:
    sides = sorted(
        [(str(pairing.first.config), pairing.speed_first), (str(pairing.second.config), pairing.speed_second)]
    )
    return _digest(repr(sides))


def _label_digest(usage: Usage, label: int) -> str:
    return _digest(f"{usage.config}:{label}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:12]


# -- where to part what was before from what came later -------------------------------------------------------


def _learned_until(library: Library, name: str) -> float | None:
    if library.serving(name) is None:
        return None
    return float(library.show(name).facts.get("learned_until", -math.inf))


def _split(times: FloatArray, learned_until: float | None, what: str) -> float:
    """The moment up to which to learn; `times` ascend. What came after it judges."""
    new = times if learned_until is None else times[times > learned_until]
    share = _FIRST_SHARE if learned_until is None else _LATER_SHARE
    until = float(new[max(0, int(len(new) * share) - 1)]) if len(new) else -math.inf
    judged = int((times > until).sum())
    if len(new) < 2 * _LEAST_JUDGED or judged < _LEAST_JUDGED:
        raise ModelError(
            f"{len(new)} {what} are new since the version in service learned, too few to judge by "
            f"(at least {2 * _LEAST_JUDGED}); train when more have come"
        )
    return until
