"""What a campaign knows when it judges: what was asked for, what ran, what Slurm said, what was broken."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lucid.core.placement import hosts_in
from lucid.errors import LucidError

ENDS = frozenset(
    {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE"}
    | {"PREEMPTED"}
)
"""States that no job leaves by itself."""


@dataclass(frozen=True)
class Order:
    """One sbatch, as its user means it. Times are seconds from the start of the stream."""

    token: str
    """Told from all others by this word: the names of its files bear it."""
    at_s: float
    user: str
    options: tuple[str, ...]
    body: str
    """What the job does between its two lines."""
    tasks: tuple[int, ...] = ()
    """Of an array."""
    ends: frozenset[str] = frozenset({"COMPLETED"})
    """How it may end by what its user asked for."""
    restarts: bool = False
    """Its user allowed that it is started over."""
    gives_way: bool = False
    """Jobs of the VCs may preempt it, and nobody else may."""
    cancel_after_s: float | None = None
    release_after_s: float | None = None
    """Submitted on hold; its user lets it go after so long."""
    after: str = ""
    """The token of the order that it waits for."""
    nodes: int = 1
    gpus: int = 0
    """On each node; with ``partition`` what it needs to start. 0 where nobody but Slurm can tell."""
    partition: str = ""
    may_be_refused: bool = False

    @property
    def keys(self) -> list[str]:
        """One for each run that should be: the names of the files that count them."""
        return [f"{self.token}_{task}" for task in self.tasks] or [self.token]


@dataclass(frozen=True)
class Run:
    """One run of a job, by its own lines. Times are seconds since the epoch."""

    began_s: float
    job: str
    restart: int
    nodes: str
    """As Slurm writes them: n1, or n[1-2]."""
    beside: bool
    """Another run of the same job held the lock when this one began."""
    ended_s: float | None = None
    code: int = 0

    def on(self, nodes: Iterable[str]) -> bool:
        """Was one of these among its nodes?"""
        try:
            return not set(nodes).isdisjoint(hosts_in(self.nodes))
        except LucidError:
            return False


@dataclass(frozen=True)
class Record:
    """The last that Slurm said of a job."""

    job: str
    state: str
    restarts: int = 0
    reason: str = ""
    seen_s: float = 0.0
    node: str = ""

    @property
    def over(self) -> bool:
        """Has it ended?"""
        return self.state in ENDS


@dataclass
class Task:
    """One job, or one task of an array: what was asked, what is known."""

    order: Order
    key: str
    accepted_s: float
    """When sbatch said so."""
    job: str
    """The number that sbatch gave."""
    cancelled_s: float | None = None
    """When its user's scancel was taken."""
    runs: Sequence[Run] = ()
    record: Record | None = None
    known: bool = True
    """Slurm, or its accounting, knows it at the end."""
    said: str = ""
    """The end of what it wrote to its output."""


@dataclass
class Broken:
    """One fault as it was."""

    name: str
    began_s: float
    ended_s: float | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    def over(self, at_s: float, margin_s: float = 0.0) -> bool:
        """Was it in force then, or as little as that before or after?"""
        return self.began_s - margin_s <= at_s <= (self.ended_s or at_s) + margin_s


def runs_from(text: str) -> list[Run]:
    """The lines of one job's file, each run's two put together.

    A run without its second line was cut off. A second line without its first counts as a run of its own, so that
    no line is passed over.
    """
    runs: list[Run] = []
    for line in text.splitlines():
        match line.split():
            case ["BEGIN", at, job, restart, nodes, beside]:
                runs.append(Run(float(at), job, int(restart), nodes, beside == "beside"))
            case ["END", at, job, restart, code]:
                began = job, int(restart), None
                same = [n for n, run in enumerate(runs) if (run.job, run.restart, run.ended_s) == began]
                run = runs.pop(same[-1]) if same else Run(float(at), job, int(restart), "", False)
                runs.append(Run(run.began_s, run.job, run.restart, run.nodes, run.beside, float(at), int(code)))
            case _:
                continue  # a line of which the job had written only a part when it was cut off
    return sorted(runs, key=lambda run: run.began_s)
