"""The policies that come with Lucid, by name."""

from __future__ import annotations

from enum import StrEnum

from lucid.config import PolicySettings
from lucid.core.job import Pending, Running
from lucid.core.ports import Predictor
from lucid.core.prediction import Prediction
from lucid.orchestrator.policies.lucid import LucidPolicy
from lucid.orchestrator.policies.queue import PreemptiveQueuePolicy, QueuePolicy, attained_s
from lucid.orchestrator.policies.tiresias import TiresiasPolicy
from lucid.orchestrator.policy import Policy, PolicyFactory

__all__ = ["BUILT_IN", "ESTIMATES", "Estimates"]

_LAST = float("inf")


def _submitted(entry: Pending | Running, prediction: Prediction | None, now_s: float) -> float:  # noqa: ARG001
    return entry.job.submit_s


def _duration(entry: Pending | Running, prediction: Prediction | None, now_s: float) -> float:  # noqa: ARG001
    return prediction.duration_s if prediction else _LAST


def _service(entry: Pending | Running, prediction: Prediction | None, now_s: float) -> float:  # noqa: ARG001
    return prediction.duration_s * entry.job.gpus if prediction else _LAST


def _remaining(overhead_s: float) -> PreemptiveQueuePolicy:
    def key(entry: Pending | Running, prediction: Prediction | None, now_s: float) -> float:
        if prediction is None:
            return _LAST
        return prediction.duration_s + overhead_s * entry.restarts - attained_s(entry, now_s)

    return PreemptiveQueuePolicy("srtf", "remaining time", key)


def _fifo(settings: PolicySettings, predictor: Predictor) -> Policy:  # noqa: ARG001
    return QueuePolicy("fifo", "submission", _submitted)


def _sjf(settings: PolicySettings, predictor: Predictor) -> Policy:  # noqa: ARG001
    return QueuePolicy("sjf", "duration", _duration)


def _srtf(settings: PolicySettings, predictor: Predictor) -> Policy:  # noqa: ARG001
    return _remaining(settings.restart_overhead_s)


def _qssf(settings: PolicySettings, predictor: Predictor) -> Policy:  # noqa: ARG001
    return QueuePolicy("qssf", "duration x GPUs", _service)


def _tiresias(settings: PolicySettings, predictor: Predictor) -> Policy:  # noqa: ARG001
    return TiresiasPolicy(settings.tiresias)


BUILT_IN: dict[str, PolicyFactory] = {
    "fifo": _fifo,
    "sjf": _sjf,
    "srtf": _srtf,
    "qssf": _qssf,
    "tiresias": _tiresias,
    "lucid": LucidPolicy.make,
}


class Estimates(StrEnum):
    """What a policy needs to know of durations."""

    NONE = "none"
    GIVEN = "given"
    """Estimates, as good as they are."""
    TRUE = "true"
    """It is defined on true durations, which only a replay has."""


ESTIMATES: dict[str, Estimates] = {
    "fifo": Estimates.NONE,
    "tiresias": Estimates.NONE,
    "sjf": Estimates.TRUE,
    "srtf": Estimates.TRUE,
    "qssf": Estimates.GIVEN,
    "lucid": Estimates.GIVEN,
}
