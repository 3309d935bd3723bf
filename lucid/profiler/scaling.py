"""Time-aware profiling (acceptance row L5): T_prof, N_prof and capacity follow the profiler's queue, and what is
forecast to join it.

In a burst, jobs that their own VC could start at once are sent there and measured where they run: that is the
paper's 'borrow idle VC nodes', without a node ever changing hands, so that no job has to move when they are
wanted back (docs/decisions/0007).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lucid.core.arrivals import ArrivalForecast
from lucid.core.frozen import dataclass
from lucid.core.job import Pending
from lucid.core.reason import ProfilerPressure
from lucid.core.snapshot import Partition

if TYPE_CHECKING:
    from lucid.config import ProfilingSettings

__all__ = ["ProfilingScale", "profiling_scale"]


@dataclass(frozen=True, slots=True)
class ProfilingScale:
    """What profiling is at present. ``borrow``: jobs may be sent home to be measured there."""

    t_prof_s: float
    n_prof: int
    borrow: bool
    pressure: ProfilerPressure


def profiling_scale(
    partition: Partition, waiting: Sequence[Pending], settings: ProfilingSettings, arrivals: ArrivalForecast
) -> ProfilingScale:
    """T_prof and N_prof for the queue there is, and the one that is forecast.

    The pressure is how long the queue would take at the usual T_prof if GPUs could be filled without gaps: the sum
    of waiting GPUs x T_prof over the GPUs there are. To the waiting GPUs are added those that ``arrivals`` expects
    within one T_prof, so that a forecast alone makes a burst where more is to come than the nodes can measure at the
    usual T_prof, if ``burst_wait_s`` is one T_prof. Up to ``burst_wait_s`` nothing changes. Beyond it T_prof
    shrinks in proportion, never under ``least_t_prof_s``, and N_prof halves with each doubling, never under 1.
    """
    gpus = sum(node.gpus for node in partition.nodes if node.available)
    per_hour = arrivals.profiled_per_hour if settings.time_aware else 0.0
    wanted = sum(entry.job.gpus for entry in waiting) + per_hour * settings.t_prof_s / 3600.0
    pressure_s = wanted * settings.t_prof_s / gpus if gpus else 0.0
    pressure = ProfilerPressure(pressure_s, settings.burst_wait_s, per_hour, arrivals.by if per_hour else "")
    if not settings.time_aware or not pressure:
        return ProfilingScale(settings.t_prof_s, settings.n_prof, False, pressure)
    times = pressure_s / settings.burst_wait_s
    least_s = min(settings.least_t_prof_s, settings.t_prof_s)
    halvings = int(times).bit_length() - 1  # 2: one, 4: two, 8: three ...
    return ProfilingScale(
        max(least_s, settings.t_prof_s / times),
        max(min(settings.n_prof, 1), settings.n_prof >> halvings),
        True,
        pressure,
    )
