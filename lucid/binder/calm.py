"""Calm (acceptance row L17): while next to no job of a VC waits, its jobs share GPUs only to start at once.

Two jobs on the same GPUs each run slower. What they leave free is worth that only if somebody comes who would wait
without it, before they end. Where nobody has had to wait for a time, nobody is expected to for as long again. Less
than a day says nothing, since load follows the hours of the day, and estimates of single jobs are poor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lucid.core.frozen import dataclass
from lucid.core.reason import Calm
from lucid.core.rounding import past

if TYPE_CHECKING:
    from lucid.config import PackingSettings

__all__ = ["CalmSince", "calm_for", "calm_since", "looks_at_calm"]

_FEW = 0.01
"""A VC is calm while at most this share of its jobs waits: by Little's law, while waiting is at most such a part of
its jobs' completion times."""
_DAY_S = 86400.0
"""A shorter calm may be a night or a weekend's hour, after which everybody comes."""


@dataclass(frozen=True, slots=True)
class CalmSince:
    """Rides from plan to plan of a VC. ``at_s``: since when it has been calm, or seen at all; ``None`` while it is
    not."""

    at_s: float | None


def looks_at_calm(settings: PackingSettings) -> bool:
    """Does sharing depend on how calm a VC is?"""
    return bool(settings.gss) and not settings.when_calm


def calm_since(before: CalmSince | None, waiting: int, jobs: int, now_s: float) -> CalmSince:
    """What a plan leaves that lets ``waiting`` of the VC's ``jobs`` wait. ``before``: what the plan before left."""
    if past(waiting, _FEW * jobs):
        return CalmSince(None)
    return before if before is not None and before.at_s is not None else CalmSince(now_s)


def calm_for(before: CalmSince | None, vc: str, estimate_s: float, now_s: float) -> Calm:
    """Has the VC been calm for a day, and for as long as a job is expected to run? Nothing is known of the time
    before the first plan, so that counts as busy."""
    at_s = now_s if before is None or before.at_s is None else before.at_s
    return Calm(vc, now_s - at_s, max(estimate_s, _DAY_S))
