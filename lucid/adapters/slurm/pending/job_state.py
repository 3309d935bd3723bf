"""Where a job stands between Slurm and Lucid. ``Ownership.state`` works it out, and nothing else does."""

from __future__ import annotations

from enum import Enum, auto

__all__ = ["TOLD", "JobState"]


class JobState(Enum):
    """Each says what leads out of it; that the job ends, or that its tag is taken away, leads out of all."""

    NOT_OURS = auto()
    """It has no tag of ours, or asks for no GPUs: Slurm alone decides, and Lucid counts the GPUs that it holds."""
    PARKED = auto()
    """It waits with a begin time that job_submit.lua or Lucid set, and is not in the queue: it has a dependency or a
    begin time of its own. To QUEUED once that has come (``Repair``); to LET_GO if no lucidd renews the begin time."""
    QUEUED = auto()
    """It waits, and Lucid holds it, or has parked it in its queue. To STARTING, or EMPTYING where others have to
    leave first (``Actions``); to LET_GO, or PARKED by a dependency (``Repair``); to HELD_BY_USER."""
    EMPTYING = auto()
    """It was told which GPUs it gets, and is held until the jobs there have left. To STARTING (``Emptied``), or back
    to QUEUED where they do not leave in time."""
    STARTING = auto()
    """It was told which GPUs it gets, and released. To RUNNING by Slurm; back to QUEUED, or LET_GO, where Slurm does
    not start it in time (``Repair``)."""
    RUNNING = auto()
    """It holds GPUs. To QUEUED by a requeue (``Stops``), to RESIZING (``Resizes``)."""
    RESIZING = auto()
    """It was told to stop, and goes on elsewhere. To STARTING once it has stopped (``Resizes``); to QUEUED where its
    user or Slurm wants it otherwise meanwhile."""
    HELD_BY_USER = auto()
    """Its user, an administrator or Slurm itself holds it. To QUEUED or LET_GO when they release it."""
    LET_GO = auto()
    """It was released as its user wrote it, and Slurm orders it. To RUNNING by Slurm; to QUEUED again where the
    reason for it has ended (``LetGo``)."""
    ENDED = auto()
    """It has left, or is leaving."""


TOLD = (JobState.STARTING, JobState.EMPTYING)
"""It knows which GPUs it gets, and does not run yet."""
