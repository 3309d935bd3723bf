"""Which jobs Lucid decides about: whose VC a job is of, who holds it, and in which of ten states it is. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum, auto

from lucid.config.live import DaemonSettings
from lucid.places import Mode
from lucid.slurm.own.reasons import may_end, may_start
from lucid.slurm.own.waits import begins_s, in_queue, left_to_slurm, parked
from lucid.slurm.records.fields import says
from lucid.slurm.records.job import SlurmJob
from lucid.slurm.records.request import UNREAD
from lucid.slurm.view.observation import Observation, home_of
from lucid.store.port import GivenUp, JobNote


class JobState(Enum):
    """The state of a job between Slurm and Lucid, worked out by ``Ownership.state`` alone. Each says what leads out
    of it; the job's end, or the loss of its tag, leads out of all."""

    NOT_OURS = auto()
    """The job has no tag of ours, or asks for no GPUs: Slurm alone decides, and Lucid counts the GPUs that it
    holds."""
    PARKED = auto()
    """The job waits with a begin time that job_submit.lua or Lucid set, and is not in the queue: it has a dependency
    or a begin time of its own. To QUEUED once that has come (``Repair``); to RELEASED if no lucidd renews the begin
    time."""
    QUEUED = auto()
    """The job waits, and Lucid holds it, or has parked it in its queue. To STARTING, or EMPTYING where others have to
    leave first (``Actions``); to RELEASED, or PARKED by a dependency (``Repair``); to HELD_BY_USER."""
    EMPTYING = auto()
    """The job has its chosen GPUs written into it, and is held until the jobs there have left. To STARTING
    (``Emptied``), or back to QUEUED where they do not leave in time."""
    STARTING = auto()
    """The job has its chosen GPUs written into it, and is released. To RUNNING by Slurm; back to QUEUED, or RELEASED,
    where Slurm does not start it in time (``Repair``)."""
    RUNNING = auto()
    """The job holds GPUs. To QUEUED by a requeue (``Stops``), to RESIZING (``Resizes``)."""
    RESIZING = auto()
    """The job was asked to stop, and goes on elsewhere. To STARTING once it has stopped (``Resizes``); to QUEUED
    where its user or Slurm wants it otherwise meanwhile."""
    HELD_BY_USER = auto()
    """The job is held by its user, an administrator or Slurm itself. To QUEUED or RELEASED when they release it."""
    RELEASED = auto()
    """The job was released as its user wrote it, and Slurm orders it. To RUNNING by Slurm; to QUEUED again where the
    reason for the release has ended (``Releases``)."""
    ENDED = auto()
    """The job has left, or is leaving."""


ASSIGNED = (JobState.STARTING, JobState.EMPTYING)
"""States of a job whose chosen GPUs are written into it, and that does not run yet."""


Barred = Callable[[SlurmJob, float], tuple[str, float] | None]
"""From a waiting job and the time (Unix s): Slurm's reason against starting it now, and when it is tried again."""


class Ownership:
    """Works out whose a job is from Slurm's records and Lucid's notes."""

    def __init__(self, settings: DaemonSettings, barred: Barred) -> None:
        self._settings = settings
        self._rooms = settings.rooms
        self.barred = barred
        self.not_yet: Mapping[str, str] = {}
        """Jobs that are kept out of the queue for now, since they joined it late (``own.release.not_yet``), each with
        one that goes before it."""
        self.draws: Callable[[SlurmJob], str] = lambda job: ""  # noqa: ARG005
        """The reservation into which Slurm draws a job that does not ask for it (``Closings.draws``)."""

    def home(self, job: SlurmJob, note: JobNote | None) -> str:
        """The job's VC (`home_of`)."""
        if job.partition not in self._rooms and "," not in job.partition:
            return job.partition  # asked several times of each job at each look
        return home_of(job.partition, job.admin_comment, note, self._settings.partitions, self._rooms)

    def stays(self, job: SlurmJob, home: str) -> str:
        """By what the job is kept in its partition, in words; empty where it may be moved to borrow, or to be
        profiled."""
        if says(job.comment, "stay"):
            return "by its own word (lucid:stay)"
        return "by the partition's setting (daemon.stay)" if home in self._settings.stay else ""

    def ours(self, job: SlurmJob) -> bool:
        """Whether the job bears our mark, as a job that Lucid may hold."""
        mark = job.tag
        return mark is not None and (mark.get("skip") is None or "held" in mark)

    def holds(self, job: SlurmJob, note: JobNote | None) -> bool:
        """Is this a waiting job that Lucid holds, and nobody else, or that is parked in its queue? job_submit.lua
        writes ``lucid:held`` into the comment of a job that its user or an administrator holds (``v=2`` in the tag:
        it knows how). A job that was requeued and held by others after Lucid had let it go is theirs to release."""
        if not (job.pending and job.asks and self.ours(job)) or (job.held and says(job.comment, "held")):
            return False
        if not job.held:
            return in_queue(job, note) and (note is None or not (note.where or note.released))
        if note is None or not note.released or (job.launch_failed and not note.given_up):
            return True
        if job.unread:
            return False
        return (job.tag or {}).get("v") == "2" and job.restarts == note.restarts

    def state(self, job: SlurmJob, note: JobNote | None, now_s: float) -> JobState:
        """The state of the job."""
        if note is not None and note.going_to and not job.ended:
            return JobState.RESIZING
        if job.running:
            return JobState.RUNNING
        if not job.pending:
            return JobState.ENDED
        if note is not None and note.where and not job.held:
            return JobState.STARTING
        if not job.asks or not self.ours(job):
            return JobState.NOT_OURS
        if self.holds(job, note):
            empties = note is not None and note.where and note.claims and not note.released and job.held
            return JobState.EMPTYING if empties else JobState.QUEUED
        if job.held:
            return JobState.HELD_BY_USER
        return JobState.PARKED if parked(job, note, now_s) else JobState.RELEASED

    def leaves(self, job: SlurmJob) -> str:
        """Why a job that Lucid holds is Slurm's alone from now on, since its user changed it; empty if it is not. The
        rules are those that job_submit.lua has for new jobs."""
        if job.unread:
            return UNREAD
        if job.reservation:
            return f"it asks for reservation {job.reservation}"
        drawn = self.draws(job)
        return drawn and f"Slurm may start it in reservation {drawn}, which is for its user or account (MAGNETIC)"

    def waits_for(self, job: SlurmJob, note: JobNote | None, now_s: float) -> str:
        """Why a job that Lucid holds is not in the queue yet, by what its user asked for; empty if it is."""
        if job.dependency:
            return "it has a dependency"
        return "it has a begin time" if begins_s(job, note, now_s) else ""

    def decides(self, job: SlurmJob, note: JobNote | None, facts: Observation) -> bool:
        """Whether this is a waiting job that Lucid holds and has to decide, in a partition that it packs."""
        if self.state(job, note, facts.now_s) is not JobState.QUEUED or self.leaves(job):
            return False
        if job.id in self.not_yet or left_to_slurm(job) or self.waits_for(job, note, facts.now_s):
            return False
        if note is not None and (note.given_up or (note.released and (job.launch_failed or job.never_runs))):
            return False  # counted as a try before it is tried again (mend)
        return facts.modes.get(self.home(job, note)) is Mode.PACK

    def aside(self, job: SlurmJob, note: JobNote | None, facts: Observation) -> str:
        """Why nobody decides a waiting job of ours at present; empty for all others."""
        state = self.state(job, note, facts.now_s)
        if not job.pending or state in ASSIGNED or not (job.asks and self.ours(job)):
            return ""
        if job.unread:
            return f"{UNREAD} ({job.unread})"
        if facts.modes.get(self.home(job, note)) is not Mode.PACK:
            return ""
        if job.never_runs:
            return f"Slurm holds it itself ({job.reason}): no node can give what it asks for"
        if note is not None and state is JobState.RESIZING:
            return f"it is resized: it goes on on {note.going_to}"
        if state is JobState.QUEUED:
            words = self.waits_for(job, note, facts.now_s)
            if words:
                return f"{words}: it joins the queue when that has come"
            words = left_to_slurm(job)
            if before := self.not_yet.get(job.id):
                return (
                    f"job {before} goes before it: that one joined the queue earlier, and asks for as many GPUs or "
                    f"fewer (lucidctl explain {before} says when it starts)"
                )
            return (
                words
                and f"Lucid hands it over to Slurm once no job held before it asks for as many GPUs or fewer: {words}"
            )
        if state is JobState.PARKED:
            words = self.waits_for(job, note, facts.now_s)
            return f"{words}: it joins the queue when that has come" if words else "it is about to join the queue"
        if state is JobState.HELD_BY_USER:
            return "its user or an administrator holds it (scontrol release ends that)"
        if note is not None and note.given_up:
            words = "released as its user wrote it"
            if note.given_up_for is GivenUp.SLURM:
                words += f", since Slurm did not start it as Lucid asked ({note.given_up})"
            else:
                words += f": {note.given_up}"
            return f"{words}: it queues again once that has ended" if may_end(note) else words
        return f"Slurm alone decides about it ({job.reason})"

    def may_start_yet(self, job: SlurmJob, note: JobNote) -> bool:
        """Whether Slurm may still start a released job, at any moment or once its GPUs are empty. Not where its
        reason says otherwise, nor after a requeue that Lucid did not ask for."""
        if job.restarts != note.restarts:
            return False
        return job.held or may_start(job)
