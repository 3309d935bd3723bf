"""Dynamic sharing (acceptance row L17): default, apathetic, off, and back."""

from __future__ import annotations

from dataclasses import dataclass

from lucid.config import PackingSettings
from lucid.core.reason import SharingLevel
from lucid.core.rounding import ROUNDING

__all__ = ["SharingMode", "sharing_mode"]


@dataclass(frozen=True, slots=True)
class SharingMode:
    """What a VC's sharing is at present; rides from plan to plan. ``gss``: the capacity in force. ``calm_since_s``:
    since when less would do, ``None`` while it would not."""

    gss: int
    calm_since_s: float | None = None


def sharing_mode(
    idle_gpus: int,
    waiting_gpus: int,
    gpus_per_hour: float,
    settings: PackingSettings,
    before: SharingMode | None,
    now_s: float,
    by: str = "",
) -> tuple[SharingMode, SharingLevel, float | None]:
    """The mode for now, the comparison behind it, and when it may change although nothing else does.

    Demand is the waiting jobs, and the jobs that ``by`` forecasts within ``horizon_h``. Sharing slows no job
    down without need: with idle GPUs for twice the demand it is off, with enough for the demand only pairs of small
    score are made (GSS 1), else the default holds. Up at once, because jobs wait; down one step at a time, and
    only after ``calm_s`` of calm, so that it does not flap around the bound.
    """
    demand = waiting_gpus + gpus_per_hour * settings.horizon_h
    wanted = 0 if idle_gpus >= 2 * demand else min(1, settings.gss) if idle_gpus >= demand else settings.gss
    current = settings.gss if before is None else min(before.gss, settings.gss)
    wake_s: float | None = None
    if wanted >= current:
        mode = SharingMode(wanted)
    else:
        since_s = now_s if before is None or before.calm_since_s is None else before.calm_since_s
        steps = int((now_s - since_s + ROUNDING) // settings.calm_s) if settings.calm_s else current
        gss = max(wanted, current - steps)
        mode = SharingMode(gss, since_s + steps * settings.calm_s)
        if gss > wanted:
            wake_s = since_s + (steps + 1) * settings.calm_s
    return mode, SharingLevel(idle_gpus, waiting_gpus, gpus_per_hour, mode.gss, settings.gss, by), wake_s
