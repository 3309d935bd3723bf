"""How fast the two jobs of a pair really run: the cards' work together, compared with the work of each alone.

Nothing in a job is touched, so its speed is judged by the work that its GPUs do for it. A step of training keeps the
same SMs at work for the same time and moves about the same bytes, whether alone or not; time in which some kernel
runs does not follow the speed (kernels that wait for each other's units run for longer). Measured on one H100 under
MPS (15 pairs of the calibration suite, docs/decisions/0035-gpu.md): speeds by SM activity are within 0.03 of the
steps' own, without a bias; by traffic they are 0.09 too high, for two jobs in one cache cause traffic of their
own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from msgspec import structs

from lucid.core.job import JobProfile
from lucid.profiler.summary import FORETELL_S, Spell, Summary

LEAST_TOGETHER_S: Final = 60.0
"""The least seconds together after which a pair is judged."""
_LEAST_TRAFFIC: Final = 5.0
"""Jobs with less SM activity or memory traffic (percent) cannot be judged by it: noise would decide."""
_MOST: Final = 1.2
"""The highest speed reported: above 1 it only says that the job is not slowed, for phases of a job differ."""


@dataclass(frozen=True, slots=True)
class SeenSpeed:
    """Normalised speed of one job beside its partner. ``method``: ``SM activity``, ``DRAM traffic`` or
    ``memory time`` of the cards: the mean speed of both, weighted by what each uses of it alone."""

    speed: float
    method: str


def seen_speed(own: JobProfile, partner: JobProfile | None, together: Spell) -> SeenSpeed | None:
    """The speed of a job beside its partner; ``None`` where it cannot be told. Profiles are of both jobs alone.

    In order of trust:

    1. SM activity of the cards (DCGM, GPM): together / (own + partner's), as the work of SMs adds up.
    2. DRAM activity of the cards (DCGM, GPM) in the same way, as bytes add up.
    3. Memory time of the cards (NVML) in the same way: measured, it adds up like traffic.

    Shares of a job's own processes say nothing: under MPS the driver charges them to the server, and under
    time-slicing they came out as 0.8 to 1.5 of those alone at true speeds of 0.5 to 0.8."""
    if together.seconds < LEAST_TOGETHER_S:
        return None
    if partner is None:
        return None
    return (
        _added_up(own.sm_active, partner.sm_active, together.sm_active, "SM activity")
        or _added_up(own.dram_active, partner.dram_active, together.dram_active, "DRAM traffic")
        or _added_up(own.mem_util, partner.mem_util, together.card_mem_util, "memory time")
    )


def _added_up(own: float | None, partner: float | None, both: float | None, method: str) -> SeenSpeed | None:
    if own is None or partner is None or both is None or own + partner < _LEAST_TRAFFIC:
        return None
    return SeenSpeed(min(max(both / (own + partner), 0.0), _MOST), method)


def watched(summary: Summary, before: JobProfile | None, partner: JobProfile | None) -> Summary:
    """The summary of a job that has, or had, a partner, with the measurements beside it: its speed, an unstable
    pattern and growing memory go into its profile; where this run has none, into the one from ``before``.
    ``partner``: profile of the present partner alone."""
    base = summary.profile or before
    if base is None:
        return summary
    base = replace(base, seen_speed=None, seen_beside=None)
    if summary.together is None or summary.partner is None:
        return structs.replace(summary, profile=base)
    seen = seen_speed(base, partner, summary.together)
    memory = summary.memory
    if memory is not None and memory.growing:
        base = replace(base, mem_growing=True, gpu_mem_mib=max(base.gpu_mem_mib, memory.after(FORETELL_S)))
    profile = replace(
        base,
        seen_speed=None if seen is None else seen.speed,
        seen_beside=None if seen is None else summary.partner,
        unstable=base.unstable or (summary.beside is not None and summary.beside.unstable),
    )
    return structs.replace(summary, profile=profile, seen_by="" if seen is None else seen.method)
