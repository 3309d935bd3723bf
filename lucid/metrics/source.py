"""Where the metrics come from: lucidd's store, opened for reading, and the summaries of samplers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from lucid.adapters.gpu.use_files import UseFolder
from lucid.adapters.store.sqlite import SqliteStore
from lucid.config import Settings, profiles_folder
from lucid.efficiency.judge import JobAccount
from lucid.errors import LucidError
from lucid.live.plans.stored_plan import StoredPlan, stored_picture, stored_plan
from lucid.live.reporting.waste_inputs import job_accounts

__all__ = ["Known", "MetricsSource"]

_ACCOUNTS_S = 60.0
"""The accounts of a week change slowly, and take longest to work out."""


class Known(Protocol):
    """A process that keeps lucidd's last plan and the accounts of all jobs up to date."""

    @property
    def seen(self) -> StoredPlan | None:
        """What lucidd saw and decided last."""
        ...

    @property
    def accounts(self) -> list[JobAccount]:
        """As ``job_accounts``."""
        ...


class MetricsSource:
    """One lucidd's state. It may be asked from several threads; nothing is written anywhere."""

    def __init__(
        self,
        settings: Settings,
        open_store: Callable[[], SqliteStore] | None = None,
        now_s: Callable[[], float] = time.time,
        uses: UseFolder | None = None,
        known: Known | None = None,
    ) -> None:
        """``open_store``: in place of the store that the settings name; ``now_s``: Unix time; ``known``: what
        somebody keeps in memory already."""
        self.settings = settings
        self.now_s = now_s
        self._open = open_store or (lambda: _open_store(settings))
        self._uses = uses or UseFolder(profiles_folder(settings))
        self._known = known
        self._lock = threading.Lock()
        self._accounts: tuple[float, list[JobAccount]] | None = None

    def store(self) -> SqliteStore:
        """The store, opened for this look: lucidd may have begun a new file since the last.

        Raises:
            StoreError: there is none, or it cannot be opened.
        """
        return self._open()

    def seen(self, store: SqliteStore) -> StoredPlan | None:
        """What lucidd saw and decided last; ``None`` where it cannot be read: there is none yet, or it is of another
        version."""
        if self._known is not None:
            return self._known.seen
        try:
            return stored_plan(store, stored_picture(store))
        except (LucidError, KeyError, TypeError, ValueError, AttributeError):
            return None

    def accounts(self, store: SqliteStore) -> list[JobAccount]:
        """Of every job of the last ``efficiency.days``, at most a minute old.

        Raises:
            StoreError: the store cannot be read.
        """
        if self._known is not None:
            return self._known.accounts
        with self._lock:
            now_s = self.now_s()
            if self._accounts is None or not 0 <= now_s - self._accounts[0] < _ACCOUNTS_S:
                self._accounts = now_s, job_accounts(store, self._uses, self.settings, now_s)
            return self._accounts[1]


def _open_store(settings: Settings) -> SqliteStore:
    daemon = settings.daemon
    return SqliteStore(Path(daemon.state_dir) / "lucid.db", read_only=True, shared=daemon.shared_state)
