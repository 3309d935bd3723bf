"""How fast two jobs of a pair really run: the cards' work together against what each did alone.

Nothing in a job is touched, so its speed is judged by the work that its GPUs do for it. A step of training moves the
same bytes whether alone or not, so traffic to device memory goes with the speed of the steps; time in which some
kernel runs does not (kernels that wait for each other's units run for longer). Caches shared by two jobs make each
move somewhat more, so speeds come out somewhat too high; they are an estimate, and say by which rule.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt
from typing import Final

from lucid.core.job import JobProfile
from lucid.profiler.summary import FORETELL_S, Spell, Summary

__all__ = ["LEAST_TOGETHER_S", "SeenSpeed", "seen_speed", "watched"]

LEAST_TOGETHER_S: Final = 60.0
"""A pair is judged from so many seconds together on."""
_LEAST_TRAFFIC: Final = 5.0
"""Jobs with less memory traffic (percent) cannot be judged by it: noise would decide."""
_MOST: Final = 1.2
"""A speed above 1 only says that the job is not slowed; phases of a job differ."""


@dataclass(frozen=True, slots=True)
class SeenSpeed:
    """Normalised speed of one job beside its partner. ``method``: ``own traffic`` (its processes' share of memory
    time), ``DRAM traffic`` or ``memory time`` of the cards: the mean speed of both, weighted by traffic."""

    speed: float
    method: str


def seen_speed(own: JobProfile, partner: JobProfile | None, together: Spell) -> SeenSpeed | None:
    """The speed of a job beside its partner; ``None`` where it cannot be told. Profiles are of both jobs alone.

    In order of trust:

    1. DRAM activity of the cards (DCGM, GPM): together / (own + partner's), as bytes add up.
    2. The job's own share of memory time by process: together / alone.
    3. Memory time of the cards (NVML): it is busy while either moves data, so with both at speed s and otherwise
       independent m = 1 - (1 - s a)(1 - s b); solved for s.
    """
    if together.seconds < LEAST_TOGETHER_S:
        return None
    if partner is not None and together.dram_active is not None:
        a, b = own.dram_active, partner.dram_active
        if a is not None and b is not None and a + b >= _LEAST_TRAFFIC:
            return _seen(together.dram_active / (a + b), "DRAM traffic")
    if together.mem_util is not None and own.mem_util >= _LEAST_TRAFFIC:
        return _seen(together.mem_util / own.mem_util, "own traffic")
    if partner is not None and together.card_mem_util is not None:
        a, b, m = own.mem_util / 100, partner.mem_util / 100, together.card_mem_util / 100
        if 100 * (a + b) >= _LEAST_TRAFFIC:
            # a b s^2 - (a + b) s + m = 0, the smaller root; m above what full speed makes leaves no root
            root = (a + b) ** 2 - 4 * a * b * m
            if a * b < 1e-9:
                return _seen(m / (a + b), "memory time")
            return _seen((a + b - sqrt(max(root, 0.0))) / (2 * a * b), "memory time")
    return None


def _seen(speed: float, method: str) -> SeenSpeed:
    return SeenSpeed(min(max(speed, 0.0), _MOST), method)


def watched(summary: Summary, before: JobProfile | None, partner: JobProfile | None) -> Summary:
    """The summary of a job that has, or had, a partner, with what was seen beside it: its speed, an unstable
    pattern and growing memory go into its profile, which where this run has none is the one from ``before``.
    ``partner``: profile of the present partner alone."""
    base = summary.profile or before
    if base is None:
        return summary
    base = replace(base, seen_speed=None, seen_beside=None)
    if summary.together is None or summary.partner is None:
        return replace(summary, profile=base)
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
    return replace(summary, profile=profile, seen_by="" if seen is None else seen.method)
