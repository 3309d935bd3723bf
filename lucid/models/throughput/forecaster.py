"""The throughput model as a `Forecaster`: what the deciding half is given, live and in the simulator."""

from __future__ import annotations

import math
from collections import defaultdict
from datetime import UTC, datetime

import numpy as np

from lucid.core.arrivals import ArrivalForecast
from lucid.core.job import Job
from lucid.models.throughput.arrivals import ArrivalForecaster
from lucid.models.throughput.bins import BIN_S, Bins
from lucid.models.throughput.inputs import REACH_DAYS
from lucid.models.throughput.model import ThroughputModel

__all__ = ["LearnedForecaster"]

_DAY_S = 86400.0


class LearnedForecaster:
    """The model says how many GPUs the whole cluster is about to be asked for; seasonal means say which share of them
    each VC asks for. Seasonal means answer alone while there is no model, and until the submissions seen reach back
    as far as the model looks (three weeks).

    ``version`` names the model in explanations. ``epoch_s`` is added to times of jobs, so that hours and weekdays are
    those of the calendar.
    """

    def __init__(
        self, model: ThroughputModel | None, version: str, means: ArrivalForecaster, epoch_s: float = 0.0
    ) -> None:
        self.model = model
        self._name = f"throughput {version}"
        self._means = means
        self._epoch_s = epoch_s
        self._jobs: defaultdict[int, float] = defaultdict(float)
        self._gpus: defaultdict[int, float] = defaultdict(float)
        self._made_for: tuple[int, ThroughputModel] | None = None
        self._made = ArrivalForecast()

    @property
    def width_s(self) -> float:
        """Width of a bin."""
        return BIN_S if self.model is None else self.model.width_s

    def saw(self, job: Job) -> None:
        """Take in a job when it is first seen. Called once for each."""
        self._means.saw(job)
        if job.gpus > 0:
            at = math.floor((job.submit_s + self._epoch_s) / self.width_s)
            self._jobs[at] += 1
            self._gpus[at] += job.gpus

    def forecast(self, now_s: float) -> ArrivalForecast:
        """From whole bins before ``now_s`` alone; the same object until the next bin begins.

        Raises:
            ModelError: the model needs counts other than those of submissions.
        """
        plain = self._means.forecast(now_s)
        if self.model is None:
            return plain
        made_for = (math.floor((now_s + self._epoch_s) / self.width_s), self.model)
        if made_for != self._made_for:
            bins = self.past(now_s, REACH_DAYS + 1)
            enough = bins is not None and len(bins.start) * self.width_s >= (REACH_DAYS + 1) * _DAY_S
            self._made = self._shared_out(self.model.gpus_per_hour(bins), plain) if bins and enough else plain
            self._made_for = made_for
        return self._made

    def past(self, now_s: float, days: float = math.inf) -> Bins | None:
        """Whole bins of at most so many days before ``now_s``; ``None`` where there are fewer than two."""
        width_s = self.width_s
        end = math.floor((now_s + self._epoch_s) / width_s)
        first = min(self._jobs, default=end)
        if days < math.inf:
            first = max(first, end - round(days * _DAY_S / width_s))
        if end - first < 2:
            return None
        start = tuple(datetime.fromtimestamp(at * width_s, UTC) for at in range(first, end))
        jobs, gpus = (np.array([of.get(at, 0.0) for at in range(first, end)]) for of in (self._jobs, self._gpus))
        return Bins(start, jobs, gpus)

    def _shared_out(self, gpus_per_hour: float, plain: ArrivalForecast) -> ArrivalForecast:
        by_vc, profiled = plain.gpus_per_hour, plain.profiled_per_hour
        if not any(by_vc.values()):  # nothing of late, nor at this time of day: as in the past week
            by_vc, profiled = self._means.week()
        share = gpus_per_hour / (sum(by_vc.values()) or 1.0)
        return ArrivalForecast(self._name, {vc: share * rate for vc, rate in by_vc.items()}, share * profiled)
