"""Slurm's reasons against starting a job, read from its word for a pending one, and remembered as obstacles.

Slurm checks limits, licences and reservations only once a job is released, so Lucid learns of them by trying: a job
that was released and shows such a reason is taken back at the next poll. It waits then (``Pending.barred``), and so
do the other jobs of the same user, account and QOS that the same limit concerns: they are not tried in vain one after
the other. One of them is tried again when a job of theirs has ended, or after a time that doubles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from msgspec.structs import replace

from lucid.core.times import doubled_s
from lucid.slurm.own.waits import to_come
from lucid.slurm.records.job import SlurmJob
from lucid.store.port import GivenUp, JobNote

NOT_IN_TIME = "Slurm did not start a job like it in time"
"""The obstacle where Slurm was late. While Lucid waits for Slurm, the GPUs that the job was to have are kept from
others. So a late start counts against its user's jobs as a limit does: a user who sends many jobs that Slurm cannot
start keeps few GPUs from others, and seldom. The end of another job of theirs does not lift it."""


class Outlook(Enum):
    """What a pending reason says of a job that was released to start."""

    WAITS = "waits"
    """The job may start at any moment."""
    BARRED = "barred"
    """Slurm will not start the job for now, through no fault of its request: a limit, a licence, a reservation."""
    UNFIT = "unfit"
    """Slurm cannot start the job where and as it was asked to."""


_WAITS = frozenset(
    [
        "", "None", "Priority", "Resources", "Cleaning", "Prolog", "BeginTime", "SchedDefer", "JobHeldUser",
        "JobHeldAdmin", "SystemFailure", "JobLaunchFailure", "NonZeroExitCode", "RaisedSignal", "MpiPortsBusy",
        "BurstBufferResources", "BurstBufferStageIn", "BurstBufferOperation", "FedJobLock",
    ]
)  # fmt: skip
"""Reasons of a job that may start at any moment; just after its release it may still show the old one."""
_UNFIT = (
    "PartitionNodeLimit",
    "PartitionConfig",
    "BadConstraints",
    "Constraints",
    "ReqNodeNotAvail",
    "NodeDown",
    "FrontEndDown",
    "QOSMin",
)
_OWN = (
    *("PartitionNodeLimit", "PartitionConfig", "BadConstraints", "Constraints", "Invalid", "Requested node config"),
    "QOSMin",
)
"""How Slurm's reasons and refusals begin where the job's own request cannot be met. A QOS whose jobs must have so
many GPUs (MinTRES) counts those of a job in slots as none."""
_ALONE = ("PerJob", "PerNode", "Wall", "Time", "Minute", "Mins")
"""Limits on one job's own request, which say nothing of other jobs."""
_COUNTED = ("MaxJobs", "SubmitJob", "JobLimit", "GrpJobs", "JobsLimit")
"""Limits on the number of jobs, which count each job as one, whatever it asks for."""
_FIRST_S, _MOST_S = 30.0, 600.0
"""How long after a barred job is tried again when no job of its user, account or QOS has ended; doubled each time."""
_GONE = 64
"""Once so many at a time have started, the limit is gone."""


CROWDED = "jobs without GPUs have the CPUs or the memory that it needs, and only Slurm can order these"
NO_NODE = "no node has the CPUs and the memory that it asks for beside its GPUs"
UNPACKED, QUOTA = "is not packed", "(daemon.pool.quotas)"
"""How these reasons end."""


def outlook(reason: str) -> Outlook:
    """The outlook of a job with this reason. An unknown reason bars: Slurm is right about its own limits."""
    if of_reservation(reason):
        return Outlook.BARRED
    word = reason.partition(",")[0].partition("(")[0].strip()
    if word in _WAITS:
        return Outlook.WAITS
    return Outlook.UNFIT if word.startswith(_UNFIT) else Outlook.BARRED


def of_reservation(reason: str) -> bool:
    """Whether Slurm keeps the nodes for somebody else, now or soon. (``ReqNodeNotAvail`` also says that a node is
    down.)"""
    return reason.startswith(("ReqNodeNotAvail", "Reserv", "Resv")) and "reserv" in reason.lower()


def may_start(job: SlurmJob) -> bool:
    """Whether Slurm may start a released job at any moment. This holds also for a job that reaches into a window and
    that Slurm's backfill may shorten, though Slurm's first check refuses it."""
    return outlook(job.reason) is Outlook.WAITS or (job.time_min_s > 0 and of_reservation(job.reason))


def passes(words: str) -> bool:
    """Whether Slurm's reason may pass while the job stays as it is (a window for maintenance, nodes that are down).
    An unknown reason may."""
    return not words.startswith(_OWN)


def may_end(note: JobNote) -> bool:
    """Whether the reason may end for which a job was released, so that it queues again. False where only Slurm can
    order the jobs that keep it out."""
    for_slurm = note.given_up_for is GivenUp.SLURM
    return note.given_up_for is not GivenUp.CROWDED and (not for_slurm or passes(note.given_up))


def with_cause(note: JobNote) -> JobNote:
    """The note with its cause set, for a note of Lucid 0.1, which has the reason in words alone."""
    why = note.given_up
    if not why or note.given_up_for is not None:
        return note
    found = {CROWDED: GivenUp.CROWDED, NO_NODE: GivenUp.NO_NODE}.get(why, GivenUp.SLURM)
    found = GivenUp.UNPACKED if why.endswith(UNPACKED) else GivenUp.QUOTA if why.endswith(QUOTA) else found
    return replace(note, given_up_for=found)


_Key = tuple[str, ...]
"""The jobs that an obstacle concerns: those of (user, account, QOS, partition), or a single job: (id,)."""


def whose_limit(reason: str) -> bool:
    """Whether the reason is a limit of the user, account or QOS, which holds in every partition."""
    return reason.startswith(("QOS", "Assoc")) or "PerAccount" in reason or "PerUser" in reason


def of_one_job(reason: str) -> bool:
    """Whether the reason is a limit on what a single job asks for, which stays whatever other jobs do."""
    return any(word in reason for word in _ALONE)


@dataclass(slots=True)
class Obstacle:
    """One limit. ``gpus``: the smallest request that it stopped. ``width``: how many jobs may be tried at a time once
    ``retry_s`` has come; it doubles with each that starts, and is 1 again after one that does not."""

    reason: str
    gpus: int
    retry_s: float
    times: int = 1
    width: int = 1
    trying: set[str] = field(default_factory=set)

    def concerns(self, job: SlurmJob) -> bool:
        """Whether the limit also stops this job of the same user, account, QOS and partition."""
        return job.gpus >= self.gpus or any(word in self.reason for word in _COUNTED)

    def blocks(self, job: SlurmJob, now_s: float) -> bool:
        """Whether this job has to wait for the limit, or for the outcome of the jobs that are being tried."""
        if job.id in self.trying or not self.concerns(job):
            return False
        waits_s = doubled_s(_FIRST_S, self.times - 1, _MOST_S)
        return to_come(self.retry_s, now_s, waits_s) or len(self.trying) >= self.width


class Obstacles:
    """All obstacles at present."""

    def __init__(self) -> None:
        self._found: dict[_Key, dict[str, Obstacle]] = {}
        self._running: dict[str, _Key] = {}

    def observe(self, jobs: Sequence[SlurmJob], now_s: float) -> None:
        """Take in one poll. A job that has ended since the last one makes room under the limits of its user, account
        and QOS. A job that was tried and runs shows that its obstacle gives way."""
        running: dict[str, _Key] = {job.id: (job.user, job.account, job.qos) for job in jobs if job.running}
        gone = [who for job_id, who in self._running.items() if job_id not in running]
        self._running = running
        if not self._found:
            return
        waiting = [job for job in jobs if job.pending]
        keys = {key for job in waiting for key in _keys(job)}
        released = {job.id for job in waiting if not job.held}
        users, accounts, qos = ({who[i] for who in gone} for i in range(3))
        for job in waiting:
            for key in _keys(job):
                for obstacle in self._found.get(key, {}).values():
                    if obstacle.reason == NOT_IN_TIME:
                        continue
                    if job.user in users or job.account in accounts or job.qos in qos:
                        obstacle.retry_s = min(obstacle.retry_s, now_s)
        for key, found in list(self._found.items()):
            for reason, obstacle in list(found.items()):
                started = obstacle.trying & running.keys()
                if started:
                    obstacle.width, obstacle.times = obstacle.width * 2 ** len(started), 0
                obstacle.trying &= released
                if key not in keys or obstacle.width >= _GONE:
                    del found[reason]
            if not found:
                del self._found[key]

    def met(self, job: SlurmJob, reason: str, now_s: float) -> Obstacle:
        """Record that the job was tried, and that Slurm gave this reason for not starting it; returns the
        obstacle."""
        found = self._found.setdefault(_key(job, reason), {})
        before = found.get(reason)
        times = 1 if before is None else before.times + 1
        wait_s = doubled_s(_FIRST_S, times - 1, _MOST_S)
        gpus = job.gpus if before is None else min(before.gpus, job.gpus)
        trying = set() if before is None else before.trying - {job.id}
        found[reason] = Obstacle(reason, gpus, now_s + wait_s, times, 1, trying)
        return found[reason]

    def obstacle_of(self, job: SlurmJob, now_s: float) -> Obstacle | None:
        """The obstacle against trying this waiting job now; ``None`` where there is none."""
        if not self._found:
            return None
        every = (o for key in _keys(job) for o in self._found.get(key, {}).values())
        return next((obstacle for obstacle in every if obstacle.blocks(job, now_s)), None)

    def tries(self, job: SlurmJob) -> None:
        """Record that the job is about to be released: others that the same limits concern wait for the outcome."""
        for key in _keys(job):
            for obstacle in self._found.get(key, {}).values():
                if obstacle.concerns(job):
                    obstacle.trying.add(job.id)


def _keys(job: SlurmJob) -> tuple[_Key, _Key]:
    return (job.user, job.account, job.qos, job.partition), (job.id,)


def _key(job: SlurmJob, reason: str) -> _Key:
    shared = reason == NOT_IN_TIME or (whose_limit(reason) and not of_one_job(reason))
    return _keys(job)[0 if shared else 1]
