"""Reasons of the profiling stage: which jobs pass through it, when it ends, and where a job goes then."""

from __future__ import annotations

from msgspec import Struct

from lucid.core.names import Shown
from lucid.core.reason import Reason
from lucid.core.times import reached


class SkipsProfiling(Reason, Struct, frozen=True):
    """Is the job above the profiling scale limit N_prof (L2)? Such a job goes straight to its VC."""

    gpus: int
    n_prof: int

    def __bool__(self) -> bool:
        return self.gpus > self.n_prof


class ProfileTime(Reason, Struct, frozen=True):
    """Has the profiling run reached its limit T_prof (L2)?"""

    ran_s: float
    t_prof_s: float

    def __bool__(self) -> bool:
        return reached(self.ran_s, self.t_prof_s)


class NobodyWaits(Reason, Struct, frozen=True):
    """May a profiled job keep its profiling node? ``waiting`` jobs want one."""

    waiting: int

    def __bool__(self) -> bool:
        return self.waiting == 0


class CarryNode(Reason, Struct, frozen=True):
    """Is this one of the profiling nodes on which jobs may carry on? The others stay clear, so that a profiling job
    which wants a whole node never waits for one that carries on."""

    node: Shown
    may: bool

    def __bool__(self) -> bool:
        return self.may


class HomeWaits(Reason, Struct, frozen=True):
    """Do jobs already wait in the job's own VC? Only then is carrying on better than making room."""

    vc: Shown
    waiting: int

    def __bool__(self) -> bool:
        return self.waiting > 0


class Requeueable(Reason, Struct, frozen=True):
    """May the job be started over? Not if it was submitted with ``--no-requeue`` or is interactive. Else ``rule``
    (policy.profiling.restarts) says: all jobs (``allowed``), jobs whose users asked for it (``asked``), or none
    (``never``)."""

    requeueable: bool
    rule: Shown = "allowed"
    asked: bool = False

    def __bool__(self) -> bool:
        return self.requeueable and (self.rule == "allowed" or (self.rule == "asked" and self.asked))


class ProfilerPressure(Reason, Struct, frozen=True):
    """Is there a burst of profiling jobs? ``queue_s``: how long the profiling queue would take at the usual T_prof,
    with what the forecast of ``by`` expects within one T_prof: ``gpus_per_hour`` for profiling nodes."""

    queue_s: float
    bound_s: float
    gpus_per_hour: float = 0.0
    by: Shown = ""

    def __bool__(self) -> bool:
        return self.queue_s > self.bound_s


class HomeHasRoom(Reason, Struct, frozen=True):
    """Could the job start in its own VC at once, with no job waiting there before it?"""

    vc: Shown
    free_gpus: int
    room: bool

    def __bool__(self) -> bool:
        return self.room


class Overflow(Reason, Struct, frozen=True):
    """Was there no place in the job's own VC, in this very plan, so that it starts on a profiling node?"""

    vc: Shown
    placed: bool

    def __bool__(self) -> bool:
        return not self.placed


class ProfilingFits(Reason, Struct, frozen=True):
    """Could any profiling node that is up hold the job?"""

    gpus: int
    possible: bool

    def __bool__(self) -> bool:
        return self.possible


class ProfilingTaken(Reason, Struct, frozen=True):
    """Do jobs that Lucid does not manage hold GPUs of the profiling nodes? Lucid does not wait for such jobs."""

    gpus: int

    def __bool__(self) -> bool:
        return self.gpus > 0


class WaitedForProfiling(Reason, Struct, frozen=True):
    """Has the job waited for a profiling node longer than it should? Fewest-GPUs-first could starve it."""

    waited_s: float
    most_s: float

    def __bool__(self) -> bool:
        return reached(self.waited_s, self.most_s)
