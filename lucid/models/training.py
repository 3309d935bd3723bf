"""When to train a model again or suspend a version: pure decisions from evidence.

Error drift is prequential (Gama et al. 2013): every prediction is scored when its job ends, before the job is learned
from. The model's mean absolute error over the recent jobs is compared with that of history means over the same jobs;
above 1 the model is worse than knowing nothing but means. Input drift is the population stability index, PSI = sum
(p_i - q_i) ln(p_i / q_i) over bins of the training data (customary reading: below 0.1 stable, above 0.25 a shift)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lucid.errors import ModelError

_FLOOR: Final = 1e-4  # a bin that is empty on one side would make the index infinite


class Action(StrEnum):
    """What the timer should do now."""

    NOTHING = "nothing"
    TRAIN = "train"
    FALL_BACK = "fall_back"  # train, and suspend the version in service until a new one is promoted


@dataclass(frozen=True)
class Rules:
    """The bounds of decisions. They hold at every site, for what they mean does not depend on the site."""

    new_jobs: int = 1000  # finished jobs not yet learned from that call for training
    least_jobs: int = 50  # below this many new jobs there is too little to learn from and to judge by
    most_age: timedelta = timedelta(days=7)
    drift_jobs: int = 100  # finished jobs that drift needs before it counts: over fewer, chance moves it as much
    ratio_train: float = 1.0  # model error / error of history means: above 1 the means know more than the model
    ratio_fall_back: float = 1.2  # above this the model does harm: a fifth more error than the means
    psi_train: float = 0.25  # the customary bound of a shift


@dataclass(frozen=True)
class Drift:
    """The measured drift: error ratio (None if too few jobs) and PSI per input."""

    ratio: float | None
    jobs: int
    inputs: Mapping[str, float] = field(default_factory=dict)

    @property
    def worst_input(self) -> tuple[str, float] | None:
        """The input that moved most, with its PSI."""
        return max(self.inputs.items(), key=lambda item: item[1]) if self.inputs else None

    def to_json(self) -> dict[str, Any]:
        """The drift as JSON, for status pages and logs."""
        return {"error_ratio": self.ratio, "jobs": self.jobs, "psi": dict(self.inputs)}


@dataclass(frozen=True)
class Evidence:
    """The evidence that `due` decides from; `trained` is None if no version is in service."""

    now: datetime
    trained: datetime | None
    new_jobs: int
    drift: Drift


@dataclass(frozen=True)
class Decision:
    """The decision what to do, and every reason for it (with the numbers compared)."""

    action: Action
    reasons: tuple[str, ...]


def due(evidence: Evidence, rules: Rules | None = None) -> Decision:
    """Whether to train now. Pure: the same evidence gives the same decision."""
    rules = rules or Rules()
    drift = evidence.drift
    reasons: list[str] = []
    fall_back = False
    if evidence.trained is None:
        reasons.append("no version is in service")
    else:
        age = evidence.now - evidence.trained
        if age >= rules.most_age:
            reasons.append(f"the version in service is {_days(age)} old, at most {_days(rules.most_age)}")
    if evidence.new_jobs >= rules.new_jobs:
        reasons.append(f"{evidence.new_jobs} jobs finished since, {rules.new_jobs} call for training")
    if drift.ratio is not None and drift.jobs >= rules.drift_jobs and drift.ratio > rules.ratio_train:
        bound = f"bound {rules.ratio_train:g}"
        reasons.append(f"error is {drift.ratio:.2f} of history means over {drift.jobs} jobs, {bound}")
        fall_back = drift.ratio > rules.ratio_fall_back
    worst = drift.worst_input
    if worst is not None and drift.jobs >= rules.drift_jobs and worst[1] > rules.psi_train:
        reasons.append(f"input {worst[0]} has moved: PSI {worst[1]:.2f}, bound {rules.psi_train:g}")
    if fall_back:
        return Decision(Action.FALL_BACK, (*reasons, f"above {rules.ratio_fall_back:g}: the version is suspended"))
    if not reasons:
        return Decision(Action.NOTHING, ("nothing calls for training",))
    if evidence.new_jobs < rules.least_jobs:
        held = f"but only {evidence.new_jobs} new jobs, fewer than {rules.least_jobs}"
        return Decision(Action.NOTHING, (*reasons, held))
    return Decision(Action.TRAIN, tuple(reasons))


def error_ratio(truth: npt.ArrayLike, predicted: npt.ArrayLike, history: npt.ArrayLike) -> float | None:
    """Model's mean absolute error over that of history means on the same jobs, shape (n,) each.

    None without jobs; infinite if history was right throughout and the model was not.

    Raises:
        ModelError: shapes differ."""
    real, model, means = (np.asarray(values, dtype=np.float64) for values in (truth, predicted, history))
    if not real.shape == model.shape == means.shape:
        raise ModelError(f"error drift: shapes {real.shape}, {model.shape}, {means.shape} differ; give one per job")
    if not real.size:
        return None
    own, other = float(np.abs(model - real).mean()), float(np.abs(means - real).mean())
    if other == 0.0:
        return 1.0 if own == 0.0 else float("inf")
    return own / other


def psi(trained: npt.ArrayLike, recent: npt.ArrayLike, *, bins: int = 10) -> float:
    """Population stability index of a number over quantile bins of the training data; missing is a bin too.

    0 if either side is empty, when nothing can be said."""
    old, new = np.asarray(trained, dtype=np.float64), np.asarray(recent, dtype=np.float64)
    known = old[~np.isnan(old)]
    if not old.size or not new.size:
        return 0.0
    edges = np.unique(np.quantile(known, np.linspace(0, 1, bins + 1)[1:-1])) if known.size else np.empty(0)
    return _index(_numbers_share(old, edges), _numbers_share(new, edges))


def category_psi(trained: Sequence[str | None], recent: Sequence[str | None], *, bins: int = 10) -> float:
    """Population stability index over the most frequent categories of the training data; all others, never seen
    ones among them, share one bin.

    Without that bound hundreds of users with a handful of jobs each would look like drift whenever the index is
    taken: of two samples of one distribution it is about (bins - 1) (1/n + 1/m)."""
    if not trained or not recent:
        return 0.0
    place = {name: number for number, (name, _) in enumerate(Counter(trained).most_common(bins - 1))}
    counts = [
        np.bincount([place.get(name, len(place)) for name in names], minlength=len(place) + 1)
        for names in (trained, recent)
    ]
    return _index(counts[0] / len(trained), counts[1] / len(recent))


def _numbers_share(values: npt.NDArray[np.float64], edges: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    place = np.searchsorted(edges, values, side="right") + 1
    place[np.isnan(values)] = 0
    return np.bincount(place, minlength=len(edges) + 2) / len(values)


def _index(old: npt.NDArray[np.float64], new: npt.NDArray[np.float64]) -> float:
    p, q = np.maximum(old, _FLOOR), np.maximum(new, _FLOOR)
    return float(((q - p) * np.log(q / p)).sum())


def _days(span: timedelta) -> str:
    return f"{span / timedelta(days=1):.1f} days"
