"""``Source``: what the pages read of lucidd's store, kept up to date and indexed; spans of the last day.

The store is opened read-only; Slurm is not asked. A view is read again when lucidd has written another. Reading one
of 12,000 jobs takes a second, so the next is not read before ten times as long has passed. lucidd may be older or
younger than the pages, or just begun, so each class has a default for every field: a member of the view that is
absent, or of another type, has it. Rows of the spans of jobs are read once each: the first reading takes in a day,
every later one what has come since."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from lucid.config.load import Settings, profiles_folder
from lucid.core.codec import fitting
from lucid.core.decision import DecisionRow, row_of
from lucid.core.job import Pending, Running
from lucid.core.node import Node
from lucid.core.placement import Placement, parse_placement
from lucid.core.times import DAY_S
from lucid.daemon.reporting.last_plan import StoredPlan, stored_plan, stored_view
from lucid.daemon.reporting.starts import START_TIMES, STARTS, as_foreseen, start_times_of, starts_from_view
from lucid.daemon.reporting.waste_inputs import job_accounts
from lucid.errors import LucidError, StoreError
from lucid.explain.queue_rows import reservations
from lucid.node.reports import UseFolder
from lucid.orchestrator.forecast.ranges import StartTimes
from lucid.places import Mode
from lucid.profiler.waste import JobAccount
from lucid.store.sqlite import SqliteStore
from lucid.web.starts import Forecasts

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
    """The counts of lucidd that the pages show."""

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
    """The drift of a model. ``error_ratio``: error over that of history means; ``None`` where too few jobs have
    ended."""

    error_ratio: float | None = None
    jobs: int = 0
    psi: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Judged:
    """The last result of one kind of model's upkeep. ``drift``: ``None`` where there was no evidence yet. The fields
    after ``reasons`` are set where a version was trained."""

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


def judged_of(data: Any) -> tuple[Judged, ...]:
    """The results in the view ``upkeep``, whatever it holds."""
    return tuple(_read(Judged, one) for one in data) if isinstance(data, list) else ()


def _read(kind: type[_T], data: Any) -> _T:
    return kind(**fitting(kind, data)) if isinstance(data, Mapping) else kind()


Entry = Pending | Running


@dataclass(frozen=True)
class View:
    """One view of lucidd's store, with indexes. ``version`` rises with every view."""

    version: int
    seen: StoredPlan
    status: Status
    times: StartTimes = field(default_factory=StartTimes)
    """lucidd's forecasts of starts, and what came true."""

    @cached_property
    def positions(self) -> dict[str, int]:
        """The places of waiting jobs in their partition's order."""
        return {job_id: at for part in self.seen.plan.partitions.values() for job_id, at in part.positions.items()}

    @property
    def now_s(self) -> float:
        """When lucidd polled."""
        return self.seen.snapshot.now_s

    @cached_property
    def waiting(self) -> dict[str, tuple[str, Pending]]:
        """Partition and job of waiting jobs, in the order of the partitions' plans."""
        found: dict[str, tuple[str, Pending]] = {}
        for name, part in self.seen.snapshot.partitions.items():
            for entry in sorted(part.pending, key=lambda e: self.positions.get(e.job.id, 0)):
                found[entry.job.id] = name, entry
        return found

    @cached_property
    def running(self) -> dict[str, tuple[str, Running]]:
        """Partition and job of running jobs."""
        return {e.job.id: (n, e) for n, part in self.seen.snapshot.partitions.items() for e in part.running}

    @cached_property
    def nodes(self) -> dict[str, tuple[str, Node]]:
        """Partition and node, in the partitions' order."""
        return {node.name: (n, node) for n, part in self.seen.snapshot.partitions.items() for node in part.nodes}

    @cached_property
    def on_node(self) -> dict[str, list[Running]]:
        """The jobs on each node, oldest first."""
        found: dict[str, list[Running]] = {name: [] for name in self.nodes}
        for _, entry in self.running.values():
            for part in entry.placement:
                found.setdefault(part.node, []).append(entry)
        return found

    def alias(self, user: str) -> str:
        """The number of a user whose name is not shown, as ``public.json`` has it."""
        return self._aliases.get(user, "a user")

    @cached_property
    def _aliases(self) -> dict[str, str]:
        found: dict[str, str] = {"": ""}
        for part in self.seen.snapshot.partitions.values():
            for job in (*(e.job for e in part.pending), *(e.job for e in part.running)):
                found.setdefault(job.user, f"user {len(found)}")
        return found

    @cached_property
    def kept(self) -> dict[str, list[dict[str, Any]]]:
        """By partition, the jobs for which nodes are kept, how many and until about when, as decisions on others
        say."""
        return {
            name: [{"job": job.id, "nodes": reason.nodes, "until_s": reason.until_s} for reason, job in kept]
            for name, kept in reservations(self.seen).items()
        }

    @cached_property
    def gpu_states(self) -> dict[str, dict[str, int]]:
        """By partition, how many GPUs are held by one job, by two or more, by nobody (and how many of these are on
        nodes that sleep or boot), and how many nobody may have."""
        found = {}
        for name, part in self.seen.snapshot.partitions.items():
            once, twice, out = dict.fromkeys((n.name for n in part.nodes), 0), dict[str, int](), 0
            asleep = 0
            for entry in part.running:
                for placed in entry.placement:
                    before = once.get(placed.node, 0)
                    twice[placed.node] = twice.get(placed.node, 0) | (before & placed.mask)
                    once[placed.node] = before | placed.mask
            shared = sum(mask.bit_count() for mask in twice.values())
            taken = sum(mask.bit_count() for mask in once.values())
            for node in part.nodes:
                left = max(node.gpus - once[node.name].bit_count(), 0)
                if not node.available:
                    out += left
                    continue
                bad = (~node.usable & (1 << node.gpus) - 1 & ~once[node.name]).bit_count()
                out, left = out + bad, left - bad
                if node.boot_s:
                    asleep += left
            free = max(part.gpus - taken - out, 0)
            found[name] = {"alone": taken - shared, "shared": shared, "free": free, "asleep": asleep, "out": out}
        return found

    def warm(self) -> None:
        """Make the indexes, so that no page has to."""
        _ = self.waiting, self.running, self.nodes, self.on_node, self._aliases, self.kept, self.gpu_states

    def decision(self, partition: str, job_id: str) -> DecisionRow | None:
        """The plan's decision on a job that waits in this partition."""
        seen = self.seen
        part = seen.plan.partitions.get(partition)
        made = None if part is None else part.decisions.get(job_id)
        if made is None:
            return seen.row(job_id)
        return row_of(seen.plan.now_s, job_id, partition, made, seen.modes.get(partition, Mode.PACK))

    def entry(self, job_id: str) -> tuple[str, Entry] | None:
        """The partition and the job that waits or runs; ``None`` where there is none."""
        return self.waiting.get(job_id) or self.running.get(job_id)


_KEPT_S = 1.25 * DAY_S
_ROWS = 20_000
_MOVES = ("start", "requeue", "part", "release", "resize", "regroup")


@dataclass(frozen=True, slots=True)
class Span:
    """One stretch of a job on its GPUs; ``end_s`` is ``None`` while it lasts, as far as is known."""

    job_id: str
    partition: str
    placement: Placement
    start_s: float
    beside: str | None = None
    end_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Gone:
    """An ended job: when it ended, its user and its name."""

    end_s: float
    user: str
    name: str


class History:
    """The spans of the last day. ``update`` reads; the rest may be asked from any thread."""

    def __init__(self) -> None:
        self._spans: dict[str, list[Span]] = {}
        self._gone: dict[str, _Gone] = {}
        self._next_id = -1
        self._ended_s = 0.0
        self._lock = threading.Lock()

    def update(self, store: SqliteStore, now_s: float) -> None:
        """Read what has come since the last reading."""
        with store.reading() as db:
            if self._next_id < 0:
                (first,) = db.execute("SELECT min(id) FROM decisions WHERE at_s >= ?", (now_s - DAY_S,)).fetchone()
                self._next_id = 0 if first is None else int(first)
                self._ended_s = now_s - DAY_S
            marks = ", ".join("?" * len(_MOVES))
            rows = db.execute(
                "SELECT id, at_s, job_id, partition, verb, placement, beside FROM decisions "
                f"WHERE id >= ? AND mode = 'pack' AND verb IN ({marks}) ORDER BY id LIMIT ?",
                (self._next_id, *_MOVES, _ROWS),
            ).fetchall()
            ended = db.execute(
                "SELECT job_id, end_s, job FROM ended WHERE end_s > ? ORDER BY end_s LIMIT ?", (self._ended_s, _ROWS)
            ).fetchall()
        with self._lock:
            for number, at_s, job_id, partition, verb, placement, beside in rows:
                self._next_id = number + 1
                self._moved(job_id, float(at_s), partition, verb, placement, beside)
            for job_id, end_s, job in ended:
                self._ended_s = max(self._ended_s, float(end_s))
                told = json.loads(job)
                self._gone[job_id] = _Gone(float(end_s), str(told.get("user", "")), str(told.get("name", "")))
                self._close(job_id, float(end_s))
            self._forget(now_s - _KEPT_S)

    def _moved(self, job_id: str, at_s: float, partition: str, verb: str, placement: str, beside: str | None) -> None:
        self._close(job_id, at_s)
        if verb in ("start", "resize", "regroup") and placement:
            gone = self._gone.get(job_id)
            end_s = gone.end_s if gone is not None and gone.end_s >= at_s else None
            span = Span(job_id, partition, parse_placement(placement), at_s, beside, end_s)
            self._spans.setdefault(job_id, []).append(span)

    def _close(self, job_id: str, at_s: float) -> None:
        spans = self._spans.get(job_id)
        if spans and spans[-1].end_s is None:
            spans[-1] = replace(spans[-1], end_s=max(at_s, spans[-1].start_s))

    def _forget(self, before_s: float) -> None:
        old = [
            job_id
            for job_id, spans in self._spans.items()
            if spans[-1].end_s is not None and spans[-1].end_s < before_s
        ]
        for job_id in old:
            del self._spans[job_id]
        for job_id in [job_id for job_id, gone in self._gone.items() if gone.end_s < before_s]:
            del self._gone[job_id]

    def spans(self, since_s: float) -> Iterator[Span]:
        """The spans that lasted beyond ``since_s``."""
        with self._lock:
            found = [span for spans in self._spans.values() for span in spans]
        return (span for span in found if span.end_s is None or span.end_s > since_s)

    def user_of(self, job_id: str) -> tuple[str, str] | None:
        """User and name of a job that ended in the last day."""
        gone = self._gone.get(job_id)
        return None if gone is None else (gone.user, gone.name)


_LOG = logging.getLogger("lucid.web")
_POLL_EVERY_S = 1.0
_SHARE = 10.0
_ACCOUNTS_S, _ACCOUNTS_SHARE = 60.0, 30.0
"""The time between two accounts of all jobs: at least so many seconds, and so many times as long as one takes."""
DEMO = "demo"
"""Name of the view in which the demonstration records how fast its clock runs."""


class Source:
    """lucidd's store as the pages see it. ``view`` is replaced, never changed."""

    def __init__(self, settings: Settings, config: Path | None, clock_s: Callable[[], float] = time.time) -> None:
        """``config``: lucidd's configuration, by which a command reads the same store; ``None`` where none does."""
        self.settings = settings
        self.config = config
        self.path = Path(settings.daemon.state_dir) / "lucid.db"
        self.view: View | None = None
        self.trouble = ""
        """Why there is no view, or no newer one."""
        self.status = Status()
        """The status that lucidd wrote last: newer than the one in the view, which is written only when something has
        changed."""
        self.history = History()
        self.forecasts = Forecasts()
        self.uses = UseFolder(profiles_folder(settings))
        self.accounts: list[JobAccount] = []
        """The accounts of every job of the last week, and of those that run: what each held and wasted."""
        self.account_of: dict[str, JobAccount] = {}
        self.promised: dict[tuple[str, str], tuple[float, float] | None] = {}
        """The promised speeds of pairs, host's and guest's, by guest and host."""
        self._clock_s = clock_s
        self._store: SqliteStore | None = None
        self._lock = threading.Lock()
        self._identity: tuple[int, int] | None = None
        self._head = ""
        self._foreseen: Any = None
        self._seen_version = -1
        self._version = 0
        self._next_s = 0.0
        self._accounts_due_s = 0.0
        self._demo: dict[str, float] | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    # -- the clock of what is shown ------------------------------------------------------------------------------

    def now_s(self) -> float:
        """The Unix time; for the demonstration the time there, which runs faster."""
        demo = self._demo
        if demo is None:
            return self._clock_s()
        return demo["at_s"] + demo["speed"] * (self._clock_s() - demo["real_s"])

    @property
    def demo_speed(self) -> float | None:
        """How many times as fast the demonstration's clock runs; ``None`` over a real cluster."""
        return None if self._demo is None else self._demo["speed"]

    # -- looking -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Read now, and go on in a thread."""
        self.poll()
        self.account()
        self._thread = threading.Thread(target=self._run, name="lucid-web source", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and close the store."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(5.0)
        with self._lock:
            self._close()

    def _run(self) -> None:
        while not self._stop.wait(_POLL_EVERY_S):
            self.poll()
            self.account()

    def poll(self) -> None:
        """Take in what is new. Trouble is shown on the pages, and tried again."""
        try:
            self._poll()
        except LucidError as error:
            self._tell(str(error))
        except Exception as error:  # of another version, or damaged: the pages say so, and go on with what they have
            self._tell(f"{self.path}: cannot be shown ({error!r})")

    @property
    def seen(self) -> StoredPlan | None:
        """lucidd's last snapshot and plan; ``None`` where there is none."""
        return None if self.view is None else self.view.seen

    def account(self) -> None:
        """Work out who wasted how much, if that is due."""
        began_s = time.monotonic()
        if began_s < self._accounts_due_s:
            return
        try:
            with self.store() as store:
                view = self.view
                running = () if view is None else [(e, view.now_s) for _, e in view.running.values()]
                self.accounts = job_accounts(store, self.uses, self.settings, self.now_s(), running=running)
            self.account_of = {one.job.job_id: one for one in self.accounts}
        except LucidError as error:
            self._tell(str(error))
        except Exception as error:  # the thread must look on
            self._tell(f"{self.path}: usage cannot be shown ({error!r})")
        took_s = time.monotonic() - began_s
        self._accounts_due_s = began_s + max(_ACCOUNTS_S / (self.demo_speed or 1.0), _ACCOUNTS_SHARE * took_s, 5.0)

    def _tell(self, words: str) -> None:
        if words != self.trouble:
            _LOG.warning("store not read", extra={"facts": {"why": words}})
        self.trouble = words

    def _poll(self) -> None:
        with self.store() as store:
            with store.reading() as db:
                (version,) = db.execute("PRAGMA data_version").fetchone()
            if version == self._seen_version and not self.trouble:
                return
            status = _read(Status, store.view("status"))
            self._demo = store.view(DEMO)
            with store.reading() as db:
                row = db.execute(
                    "SELECT substr(CAST(data AS BLOB), 1, 64), length(data) FROM views WHERE name = 'snapshot'"
                ).fetchone()
            self.status = status
            self.history.update(store, self.now_s())
            head = str(row)
            if head == self._head and self.view is not None:
                foreseen = self._foresee(store, self.view)
                if foreseen is not self.view:
                    foreseen.warm()
                    self._version, self.view = foreseen.version, foreseen
                self._seen_version, self.trouble = version, ""
                return
            began_s = time.monotonic()
            if began_s < self._next_s:
                return
            seen, times = stored_plan(store, stored_view(store)), start_times_of(store.view(START_TIMES))
            view = View(self._version + 1, seen, status, times)
            view = self._foresee(store, view)
        view.warm()
        self._version, self.view = view.version, view
        self._head, self._seen_version, self.trouble = head, version, ""
        took_s = time.monotonic() - began_s
        self._next_s = began_s + took_s + _SHARE * took_s

    def _foresee(self, store: SqliteStore, view: View) -> View:
        """Take in lucidd's forecast of starts, which comes some seconds after the view; returns the view with its
        dates."""
        data = store.view(STARTS)
        if data != self._foreseen or view is not self.view:
            self._foreseen, seen = data, view.seen
            self.forecasts.update(starts_from_view(data, seen.snapshot, seen.plan), view.now_s)
        plan = as_foreseen(view.seen.plan, self.forecasts.ahead)
        if plan is view.seen.plan:
            return view
        return replace(view, version=self._version + 1, seen=replace(view.seen, plan=plan))

    @contextmanager
    def store(self) -> Iterator[SqliteStore]:
        """A context with the store, for one thread at a time; opened again where another file lies in its place.

        Raises: StoreError: it cannot be read."""
        with self._lock:
            try:
                found = self.path.stat()
                identity = (found.st_dev, found.st_ino)
            except OSError:
                identity = None
            if self._store is None or identity != self._identity:
                self._close()
                self._store = SqliteStore(self.path, read_only=True, shared=self.settings.daemon.shared_state)
                self._identity = identity
            try:
                yield self._store
            except StoreError:
                self._close()
                raise

    def _close(self) -> None:
        if self._store is not None:
            with suppress(Exception):
                self._store.close()
        self._store = None
        self._seen_version = -1
