"""The members of every page's content, as typed dictionaries; and the parameters in a page's address.

Templates find every member that is named here, and no other. A member whose type allows ``None`` or an empty value
may be absent, and the page stands without it (tests/unit/web/test_web_lacking.py). Members that begin with ``_`` are
for the template alone. ``Any`` is what a command prints with ``--json``. Addresses are read without trust."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from lucid.explain.queue_rows import QueueRowDict
from lucid.web.timeline import Gantt


class CellJob(TypedDict):
    """The job in a cell of a node."""

    job: str
    user: str
    name: str
    vc: str
    gpus: int
    ran_s: float
    gpu_util: float | None
    mem_util: float | None
    gpu_mem_mib: float | None
    partner: str | None
    seen_speed: float | None


class Cell(TypedDict):
    """GPUs of a node side by side in one state: the first, how many, and how many rows they span."""

    gpu: int
    gpus: int
    rows: int
    kind: str
    job: CellJob | None
    _words: str


class NodeCells(TypedDict):
    """One node. ``numbers``: device file numbers of its GPUs, in the order of the cells."""

    name: str
    partition: str
    profiling: bool
    gpus: int
    numbers: list[int]
    available: bool
    out: str
    power: str
    slots: list[list[Cell]]


class Totals(TypedDict):
    """Numbers of nodes, of GPUs by who holds them, and of jobs: of a partition, or of all."""

    nodes: int
    gpus: int
    alone: int
    shared: int
    free: int
    asleep: int
    out: int
    pending: int
    pending_gpus: int
    running: int
    packed: int


class Summary(Totals):
    """The summary of one partition. ``vcs``: of a pool, what each VC may have, holds and has borrowed, in GPUs."""

    name: str
    profiling: bool
    mode: str
    quotas: dict[str, int]
    vcs: Mapping[str, Mapping[str, int]]
    kept: list[dict[str, Any]]


class PairJob(TypedDict):
    """One of two jobs on the same GPUs: its speed as a share of that alone, promised and measured."""

    job: str
    user: str
    name: str
    promised: float | None
    seen: float | None


class Pair(TypedDict):
    """The job that came first, and the one that came to share."""

    jobs: tuple[PairJob, PairJob]
    nodes: list[str]
    gpus: int
    since_s: float


class GpuLeftOut(TypedDict):
    """A GPU that gets no new start, and why."""

    node: str
    gpu: int
    since_s: float
    why: str


class ClusterPage(TypedDict):
    """The page ``/``."""

    at_s: float
    windows: list[dict[str, Any]]
    gpus_out: list[GpuLeftOut]
    totals: Totals
    partitions: list[Summary]
    nodes: list[NodeCells]
    pairs: list[Pair]
    of_nodes: int
    page: int
    pages: int
    vc: str
    node: str
    hours: int
    _hours: tuple[int, ...]
    _map: list[dict[str, Any]]
    _gantt: Gantt


class QueueLine(QueueRowDict):
    """One waiting job."""

    name: str
    estimate_low_s: float | None
    estimate_high_s: float | None
    starts_words: str
    obstacle: str
    words: list[str]
    measured: bool


class QueuePage(TypedDict):
    """The page ``/queue``."""

    at_s: float
    starts_at_s: float | None
    waiting: int
    of: int
    page: int
    pages: int
    sort: str
    down: bool
    user: str
    vc: str
    text: str
    least: int | str
    most: int | str
    vcs: list[str]
    queue: list[QueueLine]
    aside: Mapping[str, str]


class Change(TypedDict):
    """A change of a job."""

    at_s: float
    job: str
    words: str


class ChangesPage(TypedDict):
    """The page ``/queue/changes``."""

    since_s: float
    at_s: float
    of: int
    changes: list[Change]


class Event(TypedDict):
    """One moment of a story."""

    at_s: float
    headline: str
    reasons: list[str]


class Start(TypedDict):
    """The start of a job that waits."""

    partition: str
    position: int | None
    waited_s: float
    estimate_s: float | None
    estimate_by: str
    starts_in_s: tuple[int, int, int] | None
    words: str
    obstacles: list[str]


class Runs(TypedDict):
    """The run of a running job."""

    ran_s: float
    left_s: float | None
    where: str
    stage: str
    restarts: int


class Outcome(TypedDict):
    """The outcome of an ended job. ``earlier_s``: how much earlier than in plain order it started (later where it is
    below 0), as far as that is known, and ``by`` how. For a job that ended badly: ``cause`` (`Cause`), what was
    ``seen``, and ``advice``, for those who see the whole job."""

    state: str
    end_s: float
    ran_s: float
    jct_s: float
    earlier_s: float | None
    by: str
    cause: str | None
    seen: str
    advice: str


class Forecasts(TypedDict):
    """Forecasts of a job's start. ``first``: lucidd's when the wait began, and what came true. ``since``: lucidd's
    since these pages run: when it was made, and the start as then expected, early, likely, late."""

    first: dict[str, Any] | None
    since: list[list[float]]
    _words: str


class WhyNot(TypedDict):
    """The form of what would start the job sooner. ``answer``: as ``lucidctl why-not --json``, less the names hidden
    from this reader; ``None``: not asked."""

    gpus: int | None
    share: bool
    vc: str
    asked: bool
    answer: dict[str, Any] | None


class JobPage(TypedDict):
    """The page ``/job/NUMBER``. ``note``: why there is no story; empty where there is one."""

    job: str
    at_s: float
    state: str
    note: str
    decisions: list[dict[str, Any]]
    actions: list[dict[str, Any]]
    joined_by: list[dict[str, Any]]
    prediction: dict[str, Any] | None
    prediction_words: Sequence[str]
    asks: dict[str, Any] | None
    profile: dict[str, Any] | None
    use: dict[str, Any] | None
    gpus_used: list[dict[str, Any]]
    partner: Pair | None
    start: Start | None
    start_forecasts: Forecasts
    outcome: Outcome | None
    why_not: WhyNot | None
    _events: list[Event]
    _head: str
    _start_notes: list[str]
    _runs: Runs | None
    _vcs: list[str]


class Now(TypedDict):
    """GPUs that a user's jobs hold, and how many wait."""

    running: int
    running_gpus: int
    waiting: int


class PeoplePage(TypedDict):
    """The page ``/people``."""

    at_s: float
    days: float
    text: str
    own_only: bool
    users: list[dict[str, Any]]
    accounts: list[dict[str, Any]]
    most: list[dict[str, Any]]
    _kinds: dict[str, str]


class PersonPage(TypedDict):
    """The page ``/people/NAME``."""

    at_s: float
    user: str
    days: float
    total: dict[str, Any] | None
    waiting: list[dict[str, Any]]
    jobs: list[dict[str, Any]]
    of_jobs: int
    _wasted: float
    _kinds: list[tuple[str, float, str]]


class Latency(TypedDict):
    """A histogram in figures: how many, the mean, and below which bound half and 99 in 100 stay, seconds."""

    count: int
    mean_s: float
    half_below_s: float
    most_below_s: float


class Latencies(TypedDict):
    """The latencies of cycles and plans; ``None`` where nothing was counted yet."""

    cycle: Latency | None
    plan: Latency | None


class Starts(TypedDict):
    """Forecasts of starts against what happened: the share inside their range, of how many."""

    inside: float
    of: int
    median_error_s: float | None
    rows: list[dict[str, Any]]
    _error: str
    _misses: bool


class HealthPage(TypedDict):
    """The page ``/health``."""

    at_s: float | None
    alive: bool
    holder: str
    heartbeat_age_s: float | None
    worst: str
    findings: list[dict[str, Any]]
    modes: Mapping[str, str]
    cycles: int | None
    client: str
    calls: dict[str, Any]
    breaker_open_s: float
    breaker_why: str
    last_error: str
    failed_turns: int
    models: dict[str, Any]
    drift: list[dict[str, Any]]
    latency: Latencies
    refused: Mapping[str, int]
    restarts: Mapping[str, int]
    starts: Starts


class NotShown(Exception):
    """There is nothing at this address, or nothing that this viewer may see: both give the same words."""


def text(asked: Mapping[str, str], key: str, most: int = 200) -> str:
    """The parameter as text, cut to ``most`` characters."""
    return asked.get(key, "").strip()[:most]


def number(asked: Mapping[str, str], key: str, otherwise: int, least: int = 0, most: int = 1_000_000) -> int:
    """The parameter as a whole number between two bounds; ``otherwise`` where there is none."""
    try:
        return min(max(int(asked.get(key, "")), least), most)
    except ValueError:
        return otherwise
