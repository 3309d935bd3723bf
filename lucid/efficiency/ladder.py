"""The steps that meet a job whose GPUs do nothing: its user is told, told again, and the job is cancelled.

lucidd takes the steps by this rule, and the dry run over the past says by it whom they would have met.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from lucid.config import IdleSettings
from lucid.efficiency.judge import JobUse

__all__ = ["FRESH_S", "Met", "Step", "due", "idle_since", "idle_stretches", "measured", "meets", "works"]

FRESH_S = 120.0
"""Of a job that runs, the last reading is no older when a step is taken."""
_LEAST_MEASURED_S = 3600.0
"""Of each GPU."""


class Step(StrEnum):
    """In the order in which they are taken."""

    TELL = "tell"
    TELL_AGAIN = "tell_again"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True)
class Met:
    """What a stretch without work leads to: the steps, each with its time, Unix s. ``begin_s``, ``end_s``: of the
    stretch; ``end_s`` is the job's end where the job was idle until then. ``back_gpu_h``: GPU-hours that the job held
    after it would have been cancelled."""

    job: JobUse
    begin_s: float
    end_s: float
    steps: tuple[tuple[Step, float], ...]
    back_gpu_h: float = 0.0


def measured(job: JobUse) -> bool:
    """Is enough known of each GPU of the job to take any step?"""
    return len(job.use) >= job.gpus and all(use.measured_s >= _LEAST_MEASURED_S for use in job.use)


def idle_stretches(job: JobUse) -> list[tuple[float, float]]:
    """When all GPUs of a job did nothing, Unix s; of a job of which any GPU was not sampled, nothing is known."""
    if not measured(job):
        return []
    found = [(one.begin_s, one.end_s) for one in job.use[0].idle]
    for use in job.use[1:]:
        both = [
            (max(begin, one.begin_s), min(end, one.end_s))
            for begin, end in found
            for one in use.idle
            if one.end_s > begin and one.begin_s < end
        ]
        found = both
    return sorted(found)


def idle_since(job: JobUse) -> float | None:
    """Since when no GPU of a job that runs has done anything, by readings that are fresh, Unix s."""
    return next((begin_s for begin_s, end_s in idle_stretches(job) if job.end_s - end_s <= FRESH_S), None)


def works(job: JobUse) -> bool:
    """Do fresh readings show that a GPU of it works?"""
    fresh = bool(job.use) and all(job.end_s - use.end_s <= FRESH_S for use in job.use)
    return fresh and idle_since(job) is None


def meets(job: JobUse, settings: IdleSettings) -> list[Met]:
    """The stretches of a job in which a step would have been taken, were every step switched on; cancelled are jobs
    of the VCs that ``settings.cancel`` names, and after that there is nothing more."""
    found: list[Met] = []
    for begin_s, end_s in idle_stretches(job):
        until_s = job.end_s if job.end_s - end_s <= FRESH_S else end_s
        tell_s = begin_s + settings.tell_after_s
        again_s = tell_s + settings.again_after_s
        cancel_s = again_s + settings.cancel_after_s
        times = [(Step.TELL, tell_s), (Step.TELL_AGAIN, again_s)]
        if job.vc in settings.cancel:
            times.append((Step.CANCEL, cancel_s))
        steps = tuple((step, at_s) for step, at_s in times if at_s < until_s)
        if not steps:
            continue
        ends = steps[-1][0] is Step.CANCEL
        back_h = job.gpus * (job.end_s - cancel_s) / 3600.0 if ends else 0.0
        found.append(Met(job, begin_s, until_s, steps, back_h))
        if ends:
            break
    return found


def due(job: JobUse, taken: Sequence[tuple[Step, float]], settings: IdleSettings) -> tuple[Step, float] | None:
    """The step to take now at a job that runs, and since when its GPUs have done nothing; ``None``: none.

    ``taken``: the steps of this stretch so far, each with the time at which it was really taken: the next one waits
    its full time after that, however late it was.
    """
    now_s, begin_s, times = job.end_s, idle_since(job), dict(taken)
    if begin_s is None:
        return None
    if Step.TELL not in times:
        return (Step.TELL, begin_s) if now_s - begin_s >= settings.tell_after_s else None
    if Step.TELL_AGAIN not in times:
        waited_s = now_s - times[Step.TELL]
        return (Step.TELL_AGAIN, begin_s) if waited_s >= settings.again_after_s else None
    if Step.CANCEL not in times and job.vc in settings.cancel:
        waited_s = now_s - times[Step.TELL_AGAIN]
        return (Step.CANCEL, begin_s) if waited_s >= settings.cancel_after_s else None
    return None
