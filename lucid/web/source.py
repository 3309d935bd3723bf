"""Where the pages come from: lucidd's store, opened read-only, looked at by a thread of its own. Slurm is not asked.

A picture is read again when lucidd has drawn another. Reading one of 12,000 jobs takes a second, so the next is not
read before ten times as long has passed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lucid.adapters.gpu.use_files import UseFolder
from lucid.adapters.store.sqlite import SqliteStore
from lucid.config import Settings, profiles_folder
from lucid.efficiency.judge import JobAccount
from lucid.errors import LucidError, StoreError
from lucid.live.plans.stored_plan import StoredPlan, stored_picture, stored_plan
from lucid.live.plans.stored_starts import START_TIMES, STARTS, start_times_of, told_starts
from lucid.live.reporting.waste_inputs import job_accounts
from lucid.web.forecasts import Forecasts
from lucid.web.history import History
from lucid.web.picture import Picture
from lucid.web.status import Status, status_of

__all__ = ["DEMO", "Source"]

_LOG = logging.getLogger("lucid.web")
_LOOK_EVERY_S = 1.0
_SHARE = 10.0
_ACCOUNTS_S, _ACCOUNTS_SHARE = 60.0, 30.0
"""Between two accounts of all jobs: seconds, and so many times as long as one takes."""
DEMO = "demo"
"""Name of the view in which the demonstration says how fast its clock runs."""


class Source:
    """Lucidd's store as the pages see it. ``picture`` is replaced, never changed."""

    def __init__(self, settings: Settings, config: Path | None, clock_s: Callable[[], float] = time.time) -> None:
        """``config``: lucidd's configuration, by which a command reads the same store; ``None`` where none does."""
        self.settings = settings
        self.config = config
        self.path = Path(settings.daemon.state_dir) / "lucid.db"
        self.picture: Picture | None = None
        self.trouble = ""
        """Why there is no picture, or no newer one."""
        self.status = Status()
        """As lucidd wrote it last: newer than the picture's, which is drawn only when something has changed."""
        self.history = History()
        self.forecasts = Forecasts()
        self.uses = UseFolder(profiles_folder(settings))
        self.accounts: list[JobAccount] = []
        """Of every job of the last efficiency.days, and of those that run: what it held and what it wasted."""
        self.account_of: dict[str, JobAccount] = {}
        self.promised: dict[tuple[str, str], tuple[float, float] | None] = {}
        """Of pairs, guest and host: the speeds of host and guest that were expected."""
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
        """Unix time; of the demonstration the time there, which runs faster."""
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
        """Look now, and go on in a thread."""
        self.look()
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
        while not self._stop.wait(_LOOK_EVERY_S):
            self.look()
            self.account()

    def look(self) -> None:
        """Take in what is new. Trouble is told on the pages, and tried again."""
        try:
            self._look()
        except LucidError as error:
            self._tell(str(error))
        except Exception as error:  # of another version, or damaged: the pages say so, and go on with what they have
            self._tell(f"{self.path}: cannot be shown ({error!r})")

    @property
    def seen(self) -> StoredPlan | None:
        """What lucidd saw and decided last; ``None`` where there is no picture."""
        return None if self.picture is None else self.picture.seen

    def account(self) -> None:
        """Work out who wasted how much, if that is due."""
        began_s = time.monotonic()
        if began_s < self._accounts_due_s:
            return
        try:
            with self.store() as store:
                picture = self.picture
                running = () if picture is None else [(e, picture.now_s) for _, e in picture.running.values()]
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

    def _look(self) -> None:
        with self.store() as store:
            with store.reading() as db:
                (version,) = db.execute("PRAGMA data_version").fetchone()
            if version == self._seen_version and not self.trouble:
                return
            status = status_of(store.view("status"))
            self._demo = store.view(DEMO)
            with store.reading() as db:
                row = db.execute(
                    "SELECT substr(CAST(data AS BLOB), 1, 64), length(data) FROM views WHERE name = 'snapshot'"
                ).fetchone()
            self.status = status
            self.history.take(store, self.now_s())
            head = str(row)
            if head == self._head and self.picture is not None:
                self._foresee(store, self.picture)
                self._seen_version, self.trouble = version, ""
                return
            began_s = time.monotonic()
            if began_s < self._next_s:
                return
            seen, times = stored_plan(store, stored_picture(store)), start_times_of(store.view(START_TIMES))
            picture = Picture(self._version + 1, seen, status, times)
            self._foresee(store, picture)
        picture.warm()
        self._version, self.picture = picture.version, picture
        self._head, self._seen_version, self.trouble = head, version, ""
        took_s = time.monotonic() - began_s
        self._next_s = began_s + took_s + _SHARE * took_s

    def _foresee(self, store: SqliteStore, picture: Picture) -> None:
        """lucidd foresees starts some seconds after it has drawn the picture."""
        data = store.view(STARTS)
        if data != self._foreseen or picture is not self.picture:
            self._foreseen, seen = data, picture.seen
            self.forecasts.take(told_starts(data, seen.snapshot, seen.plan), picture.now_s)

    @contextmanager
    def store(self) -> Iterator[SqliteStore]:
        """The store, for one thread at a time; opened again where another file lies in its place.

        Raises:
            StoreError: it cannot be read.
        """
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
