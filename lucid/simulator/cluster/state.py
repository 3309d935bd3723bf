"""What the simulated cluster keeps of each job (``Live``, ``JobOutcome``) and of each partition (``Room``), and which
simulator it follows (``Semantics``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from lucid.core.job import Job, Pending, Running
from lucid.core.node import Node
from lucid.core.placement import Placement
from lucid.core.snapshot import WAITING_ORDER, Changes, Partition
from lucid.simulator.cluster.training import Training
from lucid.simulator.traces.record import TraceJob


class Semantics(StrEnum):
    """How a replay treats what the published simulators leave out."""

    HONEST = "honest"
    """Profiling takes time and nodes, readings come when a sampler would have them, survivors speed up."""
    PUBLISHED = "published"
    """As Lucid's published simulator: profiling beside, and free of charge to, the main queue; a survivor of a
    pair stays slow; one second more for each job of srtf, tiresias and lucid. For parity only."""
    PUBLISHED_MENDED = "published-mended"
    """As ``published``, but survivors of pairs speed up."""
    MURI = "muri"
    """As Muri's published simulator, for parity with its traces and figures."""
    AS_LIVE = "as-live"
    """As lucidd acts on Slurm: jobs like one measured before bring its profile (``LikeProfiles``, as with
    ``daemon.reuse_profiles_days``), skip the profiling nodes, or go from there to their VC at once. A job that then
    runs alone for long enough is measured itself. A start takes a moment (``overheads.start_s``)."""

    @property
    def published(self) -> bool:
        """Whether it is the one that the published simulator of Lucid has."""
        return self in (Semantics.PUBLISHED, Semantics.PUBLISHED_MENDED)


class Event(IntEnum):
    """Kinds of event, in the order in which those at the same instant happen; arrivals come after all."""

    END = 0
    MEASURED = 1
    PAIR_SEEN = 2
    """The sampler judges a pair."""


@dataclass(slots=True)
class JobOutcome:
    """The outcome of one job. Times in seconds of the trace; ``queue_s`` is all time spent pending."""

    job: Job
    duration_s: float
    start_s: float = -1.0
    end_s: float = -1.0
    queue_s: float = 0.0
    profiled_s: float = 0.0
    ended_in_profiling: bool = False
    packed: bool = False
    packed_s: float = 0.0
    preemptions: int = 0
    resizes: int = 0
    placement: Placement = ()
    within_quota: bool = True
    """In a pool: whether its VC held no more than its quota when the job was submitted."""

    @property
    def jct_s(self) -> float:
        """Job completion time: from submission to end."""
        return self.end_s - self.job.submit_s


@dataclass(slots=True)
class Live:
    """The truth about a job in the system."""

    item: TraceJob
    outcome: JobOutcome
    work_s: float
    """The work left, in seconds alone on its GPUs."""
    partition: str
    speed: float = 1.0
    since_s: float = 0.0
    """When ``work_s`` was last brought up to date."""
    cold_s: float = 0.0
    """The cost of its last start, and of its group's, seconds."""
    ready_s: float = 0.0
    """No work is done before this time: the job is starting."""
    parted: bool = False
    """Whether the job was parted from a partner, and so runs alone."""
    home_only: bool = False
    """Whether the job came home from a profiling node. It is not lent to one again, or it would be started over for
    ever."""
    epoch: int = 0
    """Raised whenever the end in the heap becomes void."""
    run: int = 0
    """Raised whenever the job leaves its GPUs, so that a reading still in the heap becomes void."""
    view: Pending | Running | None = None
    training: Training | None = None
    """The training of an elastic job. ``work_s`` then is the time until its rate changes or it ends."""

    @property
    def running(self) -> Running:
        """The record of a job that is known to run."""
        assert isinstance(self.view, Running)
        return self.view


@dataclass(slots=True)
class Room:
    """A partition and its members, records by job id in order."""

    name: str
    nodes: tuple[Node, ...]
    profiling: bool
    quotas: Mapping[str, int] = field(default_factory=dict)
    pending: dict[str, Pending] = field(default_factory=dict)
    running: dict[str, Running] = field(default_factory=dict)
    stale: set[str] = field(default_factory=set)
    """The names of all rooms whose shown partition is out of date."""
    elastic: set[str] = field(default_factory=set)
    """Running elastic jobs, whose progress is new at every poll."""
    _shown: Partition | None = None
    _before: Partition | None = None
    """The partition that was shown last."""
    _touched: dict[str, Pending | Running | None] = field(default_factory=dict)
    """… and by id the jobs that are new or gone since, as they were then."""
    _in_order: bool = True
    """Is ``pending``? Not where a job comes back at the instant at which one that stands behind it came."""

    def put(self, view: Pending | Running) -> None:
        """Note that a job waits or runs here, or that its record is new."""
        job_id = view.job.id
        self._touch(job_id)
        if type(view) is Running:
            self.running[job_id] = view
            return
        assert isinstance(view, Pending)
        if self.pending and job_id not in self.pending:
            last = self.pending[next(reversed(self.pending))]
            self._in_order = self._in_order and WAITING_ORDER(last) <= WAITING_ORDER(view)
        self.pending[job_id] = view

    def drop(self, view: Pending | Running) -> None:
        """Note that a job no longer waits or runs here."""
        self._touch(view.job.id)
        del (self.pending if type(view) is Pending else self.running)[view.job.id]

    def changed(self) -> None:
        """Note that the shown partition is out of date."""
        self._shown = None
        self.stale.add(self.name)

    def _touch(self, job_id: str) -> None:
        if self._shown is not None:
            self.changed()
        if job_id not in self._touched:
            self._touched[job_id] = self._view_of(job_id)

    def _view_of(self, job_id: str) -> Pending | Running | None:
        return self.pending[job_id] if job_id in self.pending else self.running.get(job_id)

    def show(self) -> Partition:
        """The partition that policies see: the same object as before where nothing has changed."""
        if self._shown is None:
            running = tuple(self.running.values())
            if not self._in_order:
                self.pending = dict(sorted(self.pending.items(), key=lambda item: WAITING_ORDER(item[1])))
                self._in_order = True
            pending = tuple(self.pending.values())
            self._shown = Partition(self.name, self.nodes, pending, running, self.profiling, quotas=self.quotas)
            if self._before is not None:
                self._shown.follows(self._before, self._changes())
            self._before = self._shown
            self._touched.clear()
        return self._shown

    def _changes(self) -> Changes[Pending | Running]:
        new: list[Pending | Running] = []
        gone: list[Pending | Running] = []
        for job_id, was in self._touched.items():
            view = self._view_of(job_id)
            if view is not was:
                new += [view] if view else []
                gone += [was] if was else []
        return Changes(tuple(new), tuple(gone))
