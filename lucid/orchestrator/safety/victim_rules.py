"""The safety check's rules on jobs that a plan preempts."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from lucid.core.decision import Start
from lucid.core.job import Job, Running
from lucid.core.rounding import reached
from lucid.errors import UnsafePlan

__all__ = ["check_victims"]


def check_victims(
    job: Job, start: Start, running: Mapping[str, Running], leaving: Collection[str], now_s: float
) -> None:
    """Check whom the start of a job preempts: running jobs that give way to it now, each of which holds one of its
    GPUs, and nothing else happens to; it starts alone, on whole GPUs. That nobody else holds its GPUs is the rule for
    every start. ``leaving``: jobs to which the plan does something else.

    Raises:
        UnsafePlan: naming the rule and the jobs.
    """
    if start.slots or start.beside is not None or start.group:
        raise UnsafePlan(f"job {job.id}: it preempts others, and would not have its GPUs to itself")
    wanted = dict(start.placement)
    for victim in start.preempts:
        entry = running.get(victim)
        if entry is None:
            raise UnsafePlan(f"job {job.id}: it preempts job {victim}, which does not run here")
        yields = entry.yields
        if yields is None or (yields.to is not None and job.qos not in yields.to):
            raise UnsafePlan(f"job {job.id}: it preempts job {victim}, which does not give way to it")
        if not reached(now_s, yields.from_s):
            raise UnsafePlan(
                f"job {job.id}: it preempts job {victim}, which may not be preempted for {yields.from_s - now_s:g} s"
            )
        if victim in leaving:
            raise UnsafePlan(f"job {job.id}: it preempts job {victim}, of which the plan decides something else")
        if not any(wanted.get(name, 0) & mask for name, mask in entry.placement):
            raise UnsafePlan(f"job {job.id}: it preempts job {victim}, which holds none of its GPUs")
