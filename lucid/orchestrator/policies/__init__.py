"""The policies that come with Lucid, by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from lucid.config import PolicySettings
from lucid.core.job import Pending, Running
from lucid.core.ports import Predictor
from lucid.core.prediction import Prediction
from lucid.orchestrator.policies.backfill import BackfillPolicy
from lucid.orchestrator.policies.drf import DrfPolicy
from lucid.orchestrator.policies.elastic import ElasticPolicy
from lucid.orchestrator.policies.lucid import LucidPolicy
from lucid.orchestrator.policies.muri import ATTAINED, REMAINING, MuriPolicy, PriorityRule
from lucid.orchestrator.policies.optimus import OptimusPolicy
from lucid.orchestrator.policies.pollux import PolluxPolicy
from lucid.orchestrator.policies.queue import PreemptiveQueuePolicy, QueueKeys, QueuePolicy, attained_s
from lucid.orchestrator.policies.sia import SiaPolicy
from lucid.orchestrator.policies.tiresias import TiresiasPolicy
from lucid.orchestrator.policy import Policy, PolicyFactory

__all__ = ["BUILT_IN", "ESTIMATES", "Estimates"]

_LAST = float("inf")


_Entries = Sequence[Pending | Running]
_Known = Mapping[str, Prediction]


def _submitted(entries: _Entries, predictions: _Known, now_s: float) -> list[float]:  # noqa: ARG001
    return [entry.job.submit_s for entry in entries]


def _duration(entries: _Entries, predictions: _Known, now_s: float) -> list[float]:  # noqa: ARG001
    return [found.duration_s if (found := predictions.get(entry.job.id)) else _LAST for entry in entries]


def _service(entries: _Entries, predictions: _Known, now_s: float) -> list[float]:
    return _times_gpus(entries, _duration(entries, predictions, now_s))


def _times_gpus(entries: _Entries, values: Iterable[float]) -> list[float]:
    return [value * entry.job.gpus if value < _LAST else _LAST for entry, value in zip(entries, values, strict=True)]


def _left_s(entry: Pending | Running, found: Prediction | None, overhead_s: float, now_s: float) -> float:
    return _LAST if found is None else found.duration_s + overhead_s * entry.restarts - attained_s(entry, now_s)


def _remaining(overhead_s: float) -> QueueKeys:
    def keys(entries: _Entries, predictions: _Known, now_s: float) -> list[float]:
        return [_left_s(entry, predictions.get(entry.job.id), overhead_s, now_s) for entry in entries]

    return keys


def _fifo(settings: PolicySettings, predictor: Predictor) -> Policy:  # noqa: ARG001
    return QueuePolicy("fifo", "submission", _submitted)


def _backfill(settings: PolicySettings, predictor: Predictor) -> Policy:  # noqa: ARG001
    return BackfillPolicy(settings.backfill)


def _sjf(settings: PolicySettings, predictor: Predictor) -> Policy:  # noqa: ARG001
    return QueuePolicy("sjf", "duration", _duration)


def _srtf(settings: PolicySettings, predictor: Predictor) -> Policy:  # noqa: ARG001
    return PreemptiveQueuePolicy("srtf", "remaining time", _remaining(settings.restart_overhead_s))


def _qssf(settings: PolicySettings, predictor: Predictor) -> Policy:  # noqa: ARG001
    return QueuePolicy("qssf", "duration x GPUs", _service)


def _tiresias(settings: PolicySettings, predictor: Predictor) -> Policy:  # noqa: ARG001
    return TiresiasPolicy(settings.tiresias)


def _srsf(settings: PolicySettings, predictor: Predictor) -> Policy:  # noqa: ARG001
    remaining = _remaining(settings.restart_overhead_s)

    def keys(entries: _Entries, predictions: _Known, now_s: float) -> list[float]:
        return _times_gpus(entries, remaining(entries, predictions, now_s))

    return PreemptiveQueuePolicy("srsf", "remaining time x GPUs", keys)


def _muri(name: str, rule: PriorityRule, **changes: object) -> PolicyFactory:
    def make(settings: PolicySettings, predictor: Predictor) -> Policy:  # noqa: ARG001
        chosen = settings.muri.model_copy(update=changes)
        return MuriPolicy(name, rule, chosen, same_user=settings.packing.same_user_only)

    return make


def _elastic(settings: PolicySettings, predictor: Predictor) -> Policy:  # noqa: ARG001
    return ElasticPolicy("elastic")


def _elastic_fcfs(settings: PolicySettings, predictor: Predictor) -> Policy:  # noqa: ARG001
    return ElasticPolicy("elastic-fcfs", "fcfs")


def _elastic_ef(settings: PolicySettings, predictor: Predictor) -> Policy:  # noqa: ARG001
    return ElasticPolicy("elastic-ef", "ef")


def _pollux(settings: PolicySettings, predictor: Predictor) -> Policy:  # noqa: ARG001
    return PolluxPolicy(settings.pollux)


def _sia(settings: PolicySettings, predictor: Predictor) -> Policy:  # noqa: ARG001
    return SiaPolicy(settings.sia)


def _optimus(settings: PolicySettings, predictor: Predictor) -> Policy:  # noqa: ARG001
    return OptimusPolicy("optimus", settings.optimus, fitted=False)


def _optimus_fitted(settings: PolicySettings, predictor: Predictor) -> Policy:  # noqa: ARG001
    return OptimusPolicy("optimus-fitted", settings.optimus, fitted=True)


def _drf(settings: PolicySettings, predictor: Predictor) -> Policy:  # noqa: ARG001
    return DrfPolicy(settings.optimus)


BUILT_IN: dict[str, PolicyFactory] = {
    "fifo": _fifo,
    "backfill": _backfill,
    "sjf": _sjf,
    "srtf": _srtf,
    "qssf": _qssf,
    "tiresias": _tiresias,
    "srsf": _srsf,
    "muri-s": _muri("muri-s", REMAINING),
    "muri-l": _muri("muri-l", ATTAINED),
    "muri-s-no-unpack": _muri("muri-s-no-unpack", REMAINING, unpack=False),
    "muri-l-no-unpack": _muri("muri-l-no-unpack", ATTAINED, unpack=False),
    "muri-l-no-matching": _muri("muri-l-no-matching", ATTAINED, unpack=False, matching="by_priority"),
    "muri-l-worst-order": _muri("muri-l-worst-order", ATTAINED, unpack=False, ordering="worst"),
    "muri-l-2": _muri("muri-l-2", ATTAINED, unpack=False, group_size=2),
    "muri-l-3": _muri("muri-l-3", ATTAINED, unpack=False, group_size=3),
    "elastic": _elastic,
    "elastic-fcfs": _elastic_fcfs,
    "elastic-ef": _elastic_ef,
    "pollux": _pollux,
    "sia": _sia,
    "optimus": _optimus,
    "optimus-fitted": _optimus_fitted,
    "optimus-drf": _drf,
    "lucid": LucidPolicy.make,
}


class Estimates(StrEnum):
    """What a policy needs to know of durations."""

    NONE = "none"
    GIVEN = "given"
    """Estimates, as good as they are."""
    LIMITS = "limits"
    """Users' time limits; where there are none, estimates times a factor."""
    TRUE = "true"
    """It is defined on true durations, which only a replay has."""


ESTIMATES: dict[str, Estimates] = {
    "fifo": Estimates.NONE,
    "backfill": Estimates.LIMITS,
    "tiresias": Estimates.NONE,
    "pollux": Estimates.NONE,
    "sia": Estimates.NONE,
    "optimus": Estimates.TRUE,
    "optimus-fitted": Estimates.NONE,
    "optimus-drf": Estimates.NONE,
    "sjf": Estimates.TRUE,
    "srtf": Estimates.TRUE,
    "srsf": Estimates.TRUE,
    "muri-s": Estimates.TRUE,
    "muri-s-no-unpack": Estimates.TRUE,
    "muri-l": Estimates.NONE,
    "muri-l-no-unpack": Estimates.NONE,
    "muri-l-no-matching": Estimates.NONE,
    "muri-l-worst-order": Estimates.NONE,
    "muri-l-2": Estimates.NONE,
    "muri-l-3": Estimates.NONE,
    "elastic": Estimates.TRUE,
    "elastic-fcfs": Estimates.NONE,
    "elastic-ef": Estimates.TRUE,
    "qssf": Estimates.GIVEN,
    "lucid": Estimates.GIVEN,
}
