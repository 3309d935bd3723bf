"""What lucidd says of itself, as the pages read it: lucidd may be older or younger than they are, or just begun.

Each noun has a default for every field. A member of the store's view that is absent, or of another type, has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from lucid.adapters.checked import fitting

__all__ = ["Calls", "Counts", "Drift", "Judged", "Serves", "Status", "Times", "judged_of", "status_of"]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Calls:
    """Requests to Slurm since lucidd began, and how long their answers took, seconds."""

    reads: int = 0
    writes: int = 0
    refused: int = 0
    failed: int = 0
    last_s: float = 0.0
    slowest_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Serves:
    """What answers for one kind of model, and why; ``trouble``: the version in service cannot be used."""

    version: str = ""
    why: str = ""
    trouble: bool = False


@dataclass(frozen=True, slots=True)
class Times:
    """A histogram by ``counters.BUCKETS_S``."""

    counts: tuple[int, ...] = ()
    sum_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Counts:
    """Of what lucidd has counted, what the pages show."""

    cycle_s: Times = field(default_factory=Times)
    plan_s: Times = field(default_factory=Times)
    refused: Mapping[str, int] = field(default_factory=dict)
    restarts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Status:
    """The view ``status``. ``private_data``: the words of Slurm's PrivateData; ``None`` where lucidd has recorded
    none. ``aside``: jobs that wait, but not for Lucid, and for what."""

    at_s: float | None = None
    client: str = ""
    calls: Calls | None = None
    breaker_open_s: float = 0.0
    breaker_why: str = ""
    models: Mapping[str, Serves] = field(default_factory=dict)
    cycles: int | None = None
    paused: bool = False
    modes: Mapping[str, str] = field(default_factory=dict)
    last_error: str = ""
    failed_turns: int = 0
    private_data: tuple[str, ...] | None = None
    counts: Counts = field(default_factory=Counts)
    aside: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Drift:
    """``error_ratio``: error over that of history means; ``None`` where too few jobs have ended."""

    error_ratio: float | None = None
    jobs: int = 0
    psi: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Judged:
    """What the last look at one kind of model came to. ``drift``: ``None`` where there was no evidence yet. What
    follows ``reasons`` is told where a version was trained."""

    kind: str = ""
    trouble: str | None = None
    new: int | None = None
    drift: Drift | None = None
    action: str = ""
    reasons: tuple[str, ...] = ()
    version: str | None = None
    loss: float | None = None
    loss_in_service: float | None = None
    promoted: bool | None = None
    why: str | None = None


def status_of(data: Any) -> Status:
    """Of the view ``status``, whatever it holds."""
    return _read(Status, data)


def judged_of(data: Any) -> tuple[Judged, ...]:
    """Of the view ``upkeep``, whatever it holds."""
    return tuple(_read(Judged, one) for one in data) if isinstance(data, list) else ()


def _read(kind: type[_T], data: Any) -> _T:
    return kind(**fitting(kind, data)) if isinstance(data, Mapping) else kind()
