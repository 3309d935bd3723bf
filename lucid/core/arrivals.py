"""What is about to be submitted: the forecast of throughput, as decisions use it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from lucid.core.frozen import dataclass

__all__ = ["ArrivalForecast"]


@dataclass(frozen=True, slots=True)
class ArrivalForecast:
    """GPUs expected to be submitted per hour, in the hours to come.

    ``gpus_per_hour``: by VC. ``profiled_per_hour``: those of all VCs that go through profiling nodes first.
    ``by``: the forecaster that says so (``seasonal means``, ``throughput v3``), empty where there is none.
    """

    by: str = ""
    gpus_per_hour: Mapping[str, float] = field(default_factory=dict)
    profiled_per_hour: float = 0.0

    def of(self, *vcs: str) -> float:
        """GPUs per hour of these VCs; 0 where nothing is known of one."""
        return sum(self.gpus_per_hour.get(vc, 0.0) for vc in vcs)
