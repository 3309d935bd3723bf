"""The rows of the store, lucidd's memory between cycles and over restarts, with ``JobNote`` and its errors."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path

from msgspec import Struct, field

from lucid.core.codec import fitting
from lucid.core.job import JobProfile
from lucid.core.prediction import Prediction
from lucid.errors import StoreError
from lucid.text import digits

SEEN = "seen"
"""The result of a row that is no action: something that lucidd saw happen to the job."""
RELEASED = "let go"
"""The verb of an action that hands a job over to Slurm for good, as its user wrote it."""
_MOST_PID = 1 << 22
"""Linux's own bound on pids."""


class LeaseLost(StoreError):
    """Another daemon holds the lease; this one must not act any more."""


class StoreGone(StoreError):
    """The file was deleted or replaced under an open store: what is written there reaches nobody."""


class StoreDamaged(StoreError):
    """The file is not what was written there."""


class StoreUnreadable(StoreError):
    """This user may not read the store."""


class Lease(Struct, frozen=True):
    """The right to act. ``token`` only ever rises: a write with an old one is refused."""

    holder: str
    token: int
    until_s: float


class GivenUp(StrEnum):
    """Why a waiting job was released as its user wrote it."""

    SLURM = "slurm"
    """Slurm did not start it as Lucid asked."""
    UNPACKED = "unpacked"
    QUOTA = "quota"
    NO_NODE = "no_node"
    CROWDED = "crowded"
    """Jobs without GPUs hold its CPUs or memory, and only Slurm can order these."""


class JobNote(Struct, frozen=True):
    """Lucid's note on one job that it touched.

    ``as_written``: the request as the user wrote it, field by field, to give it back. ``home``: its VC. ``submit_s``:
    when it was submitted (a requeue makes Slurm set its SubmitTime anew). ``to_home``: it is on its way from
    profiling to its VC. ``kept``: it carries on on its profiling node. ``alone``: parted by rule, not to be packed
    again. ``where``: the GPUs chosen for its start at ``asked_s`` (written before Slurm is asked); ``shards``: as
    slots that others may join; ``released``: Slurm has taken the release. ``wait_since_s``: when its present wait
    began. ``ran_s``: wall time of its earlier runs. ``site_factor``: the last one written. ``tries``: starts in its
    VC that Slurm refused or did not bring about; ``refusal``: Slurm's words at the last of them; ``retry_s``: not
    tried again before then. ``given_up_for``: why it was released as its user wrote it, ``given_up`` in words
    (Slurm's, or Lucid's); where that reason may end it queues again, after Slurm's words no sooner than ``retry_s``.

    For an elastic job: ``going_to``: the GPUs on which it is to go on, from its stop (``stopped_s``) until it is
    asked to start there; ``leaves``: those that it holds until it has stopped. ``restart_s``: seconds from there
    until it ran again, the last time. ``most_gpus``: Slurm's limits kept it from starting on more than about so many,
    0 where none did; ``most_why``: the limit; ``most_until_s``: until when that is assumed to hold, 0 for the job's
    life.

    ``listed``: the list of nodes that Lucid wrote last into its request: any other is its user's. ``parked_s``: the
    begin time that Lucid set last to keep it waiting; ``parked_before_s``: the one before, which it still has if
    Slurm was not reached; ``depends``: it was parked for its dependency and has not joined the queue since;
    ``requeued``: its number of restarts after the last requeue that Lucid asked for, whose begin time nobody has to
    wait for. ``claims``: the jobs that are to give way to it, from the request to start until it runs, their ids
    separated by blanks. ``tag``: its AdminComment with job_submit.lua's tag: the site may write something else there
    later."""

    job_id: str
    user: str = ""
    name: str = ""
    home: str = ""
    as_written: Mapping[str, str] = field(default_factory=dict)
    to_home: bool = False
    kept: bool = False
    alone: bool = False
    shards: bool = False
    where: str = ""
    asked_s: float = 0.0
    released: bool = False
    wait_since_s: float = 0.0
    ran_s: float = 0.0
    restarts: int = 0
    site_factor: int = 0
    submit_s: float = 0.0
    tries: int = 0
    refusal: str = ""
    retry_s: float = 0.0
    given_up: str = ""
    given_up_for: GivenUp | None = None
    going_to: str = ""
    leaves: str = ""
    stopped_s: float = 0.0
    restart_s: float = 0.0
    most_gpus: int = 0
    most_why: str = ""
    most_until_s: float = 0.0
    parked_s: float = 0.0
    parked_before_s: float = 0.0
    depends: bool = False
    listed: str = ""
    requeued: int = 0
    claims: str = ""
    tag: str = ""

    @property
    def leases(self) -> tuple[float, float]:
        """The begin times that Lucid has set and that Slurm may have."""
        return self.parked_s, self.parked_before_s


class ProfileRow(Struct, frozen=True):
    """A profile with the job that it was measured on."""

    job_id: str
    user: str
    name: str
    gpus: int
    profile: JobProfile
    at_s: float


class PredictionRow(Struct, frozen=True):
    """The prediction for a job of this user when it was last decided."""

    job_id: str
    at_s: float
    user: str
    prediction: Prediction


class ActionRow(Struct, frozen=True):
    """One thing done to Slurm. ``result``: empty while under way, ``done``, or the words of the refusal."""

    id: int
    at_s: float
    job_id: str
    verb: str
    detail: str
    token: int
    result: str = ""


def same_host(holder: str) -> bool:
    """Whether the holder of a lease (``host:pid:…``) is (or was) a process of this machine."""
    return holder.partition(":")[0] == socket.gethostname()


def holder_is_dead(holder: str) -> bool:
    """Whether the holder (``host:pid:…``) is a process of this machine that is gone, or that has ended and waits for
    its parent to notice. Elsewhere nobody can tell: its lease must run out."""
    pid = holder.partition(":")[2].partition(":")[0]
    if not same_host(holder) or not (pid.isascii() and pid.isdecimal()):
        return False
    number = digits(pid)
    if number is None or number > _MOST_PID:
        return True  # no Linux has ever had such a process
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return _has_ended(number)


def _has_ended(pid: int) -> bool:
    """Whether the process is a zombie, by Linux's /proc; false where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[:1] == [b"Z"]
    except OSError:
        return False


def note_of(job_id: str, text: str | bytes, told: Callable[[Exception], None]) -> JobNote:
    """A job's note, field by field: a field that cannot be read is as in a new note, and passed to ``told``; one of
    another version is passed over. A note is never left out as a whole, for its job would be taken for one that Lucid
    never touched, and be forgotten too late."""
    try:
        data = json.loads(text)
        if not isinstance(data, dict):
            raise TypeError("the note is not a JSON object")
    except Exception as error:
        told(error)
        return JobNote(job_id)
    good = fitting(JobNote, data)
    lost = sorted((data.keys() & JobNote.__annotations__.keys()) - good.keys())
    if lost:
        told(TypeError(f"{', '.join(lost)} cannot be read"))
    return JobNote(**{**good, "job_id": job_id})
