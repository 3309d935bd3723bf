"""What a client of Slurm is asked for and given: changes of a job, a job that holds a GPU; and the breaker before
it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from lucid.accounting.values import JOB_NUMBER
from lucid.core.times import doubled_s
from lucid.errors import ActionRefused, ClusterUnavailable, ClusterUnreadable, Refusal

_OLDEST = (23, 11)
"""The first Slurm on which a pending job's request can be replaced (22.05 adds to it)."""

_NOT_LEFT = ("pending execution", "temporarily unavailable", "already completing", "in progress")
"""Slurm's words about a job that has not left COMPLETING, which is no fault of its request."""

T = TypeVar("T")


def served(version: tuple[int, int]) -> tuple[int, int]:
    """The release of a Slurm, if Lucid serves it.

    Raises:
        ClusterUnreadable: it is too old."""
    if version < _OLDEST:
        raise ClusterUnreadable(f"this is Slurm {version[0]}.{version[1]:02}, and Lucid needs Slurm 23.11 or later")
    return version


def declined(words: str) -> ActionRefused:
    """The error for a change that Slurm declined in these words."""
    leaves = any(part in words for part in _NOT_LEFT)
    return ActionRefused(words, Refusal.NODES_NOT_FREE_YET if leaves else Refusal.SLURM)


def checked_id(job_id: str) -> str:
    """The job id, if it is one: nothing else may ever reach a command line.

    Raises: ActionRefused: it is not."""
    if not JOB_NUMBER.fullmatch(job_id):
        raise ActionRefused(f"{job_id!r} is not a Slurm job id")
    return job_id


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of a pending job. ``None`` leaves a field as it is, an empty string clears it."""

    partition: str | None = None
    tres_per_node: str | None = None
    tres_per_job: str | None = None
    tres_per_socket: str | None = None
    tres_per_task: str | None = None
    req_nodes: str | None = None
    start_now: bool = False
    start_at_s: float | None = None
    """The begin time (Unix s); ``start_now`` goes before it."""
    site_factor: int | None = None
    extra: str | None = None
    """The Extra, with only items that Lucid writes (``prolog_extra``): no text of a user goes into a command."""
    cpus_per_tres: str | None = None
    mem_per_tres: str | None = None
    num_cpus: int | None = None
    """CPUs of the whole job."""
    mem_node_mib: int | None = None
    """Memory on each of the job's nodes."""
    num_nodes: int | None = None
    max_nodes: int | None = None
    """With ``num_nodes``: the upper bound of the number of nodes."""
    switches: int | None = None
    """``--switches``, with a wait of a second, for a job that has waited for them."""
    first: Changes | None = None
    """An update of its own that has to come before, for what Slurm does not do in one."""

    @property
    def nodes(self) -> str | None:
        """The number of nodes as Slurm takes it: ``2``, or ``1-2``."""
        if self.num_nodes is None or self.max_nodes is None:
            return None if self.num_nodes is None else str(self.num_nodes)
        return f"{self.num_nodes}-{self.max_nodes}"


@dataclass(frozen=True, slots=True)
class HeldGpu:
    """A job that only holds a GPU. ``gres`` names the GPU as Slurm takes it; ``limit_min`` is its time limit,
    minutes; ``after``: the jobs that must have ended before; ``words``: its comment."""

    name: str
    node: str
    partition: str
    gres: str
    limit_min: int
    after: tuple[str, ...] = ()
    words: str = ""


@dataclass(slots=True)
class Calls:
    """How often Slurm was asked and written to, and how long it took lately."""

    reads: int = 0
    writes: int = 0
    refused: int = 0
    failed: int = 0
    last_s: float = 0.0
    slowest_s: float = 0.0


@dataclass(slots=True)
class Breaker:
    """Stops asking a Slurm that is slow or does not answer, so that Lucid never adds to its trouble.

    It opens after ``errors`` failures in a row, or after ``slow`` answers in a row that took longer than
    ``latency_s``; stays open for ``rest_s``, twice as long each further time (at most ``most_s``), and then lets one
    call through, whose success closes it."""

    monotonic_s: Callable[[], float]
    latency_s: float = 5.0
    errors: int = 3
    slow: int = 3
    rest_s: float = 15.0
    most_s: float = 300.0
    calls: Calls = field(default_factory=Calls)
    _bad: int = 0
    _sluggish: int = 0
    _opened: int = 0
    _open_until_s: float = 0.0
    why: str = ""

    @property
    def open_s(self) -> float:
        """Seconds until the next call is let through; 0 when closed."""
        return max(self._open_until_s - self.monotonic_s(), 0.0)

    def check(self) -> None:
        """Pass, or raise ``ClusterUnavailable`` while open."""
        if self.open_s > 0:
            raise ClusterUnavailable(f"Slurm is not asked for another {self.open_s:.0f} s: {self.why}")

    def worked(self, took_s: float) -> None:
        """Note an answer."""
        calls = self.calls
        calls.last_s, calls.slowest_s = took_s, max(calls.slowest_s, took_s)
        self._bad = 0
        if took_s <= self.latency_s:
            self._sluggish = self._opened = 0
            return
        self._sluggish += 1
        if self._sluggish >= self.slow:
            self._open(f"{self._sluggish} answers in a row took longer than {self.latency_s:g} s")

    def broke(self, words: str) -> None:
        """Note that no answer came."""
        self.calls.failed += 1
        self._bad += 1
        if self._bad >= self.errors:
            self._open(f"{self._bad} calls in a row failed, the last: {words}")

    def _open(self, why: str) -> None:
        self.why = why
        self._open_until_s = self.monotonic_s() + doubled_s(self.rest_s, self._opened, self.most_s)
        self._opened += 1


def guarded(breaker: Breaker, call: Callable[[], T]) -> T:
    """Make one call through the breaker. A refusal is an answer."""
    breaker.check()
    began_s = breaker.monotonic_s()
    try:
        result = call()
    except ActionRefused:
        breaker.calls.refused += 1
        breaker.worked(breaker.monotonic_s() - began_s)
        raise
    except ClusterUnavailable as error:
        breaker.broke(str(error))
        raise
    breaker.worked(breaker.monotonic_s() - began_s)
    return result
