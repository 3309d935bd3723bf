"""Inputs of the account of wasted GPU-hours and of metrics: the store's jobs, and samplers' summaries.

Slurm is not asked. ``MetricsSource`` opens lucidd's store for reading."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from lucid.config.load import Settings, profiles_folder
from lucid.core.codec import from_json
from lucid.core.job import Job, JobProfile, Running
from lucid.core.times import DAY_S
from lucid.daemon.reporting.last_plan import StoredPlan, stored_plan, stored_view
from lucid.errors import LucidError
from lucid.node.reports import UseFolder
from lucid.profiler.use import GpuUse
from lucid.profiler.waste import DAYS, JobAccount, JobUse, judged
from lucid.slurm.records.request import NOT_TO_SHARE
from lucid.store.sqlite import SqliteStore


def job_accounts(
    store: SqliteStore,
    uses: UseFolder,
    settings: Settings,
    now_s: float,
    days: float = DAYS,
    running: Iterable[tuple[Running, float]] | None = None,
) -> list[JobAccount]:
    """The account of every job that ended in the last ``days`` before ``now_s`` (Unix seconds) or that runs, over its
    whole run, by end. ``running``: the running jobs with the time, where they are known already.

    Raises: StoreError: the store cannot be read."""
    uses_of = job_uses(store, uses.uses(), settings, now_s - days * DAY_S, running)
    return judged(uses_of, settings.efficiency)


def job_uses(
    store: SqliteStore,
    uses: Mapping[str, tuple[GpuUse, ...]],
    settings: Settings,
    since_s: float,
    running: Iterable[tuple[Running, float]] | None = None,
) -> list[JobUse]:
    """The jobs that ended since then, and those that run, by end.

    Raises: StoreError: the store cannot be read."""
    gpu_mem_mib = float(settings.daemon.gpu_mem_mib)
    profiles = store.profiles()

    def made(job: Job, begin_s: float, end_s: float, profile: JobProfile | None, **rest: Any) -> JobUse:
        row = profiles.get(job.id)
        used = uses.get(job.id, ())
        return JobUse(
            job.id,
            job.user,
            job.account,
            job.vc,
            job.name,
            job.gpus,
            begin_s,
            end_s,
            time_limit_s=job.time_limit_s,
            wants_alone=job.whole_because in NOT_TO_SHARE,
            nodes=job.min_nodes,
            gpu_mem_mib=gpu_mem_mib,
            profile=profile or (None if row is None else row.profile),
            # a summary outlives a run that was started over; what was read before this run is of another
            use=tuple(use for use in used if use.end_s > begin_s),
            asked_host_mib=float(job.mem_mib),
            **rest,
        )

    ended = [
        made(one.job, one.end_s - one.ran_s, one.end_s, one.profile, state=one.state)
        for one in store.ended(since_s)
        if one.job.gpus and one.ran_s > 0
    ]
    gone = {one.job_id for one in ended}
    now = [
        made(entry.job, entry.start_s, now_s, entry.profile, running=True, state="RUNNING")
        for entry, now_s in (_running(store) if running is None else running)
        if entry.job.gpus and entry.job.id not in gone and entry.start_s <= now_s  # else its node boots
    ]
    return [*ended, *now]


def _running(store: SqliteStore) -> Iterable[tuple[Running, float]]:
    """Running jobs as of lucidd's last stored snapshot, each with the time of lucidd's last poll: nothing has changed
    since."""
    view, status = store.view("snapshot"), store.view("status")
    try:
        now_s = max(float(view["now_s"]), float((status or {}).get("at_s", 0.0)))
        return [
            (from_json(Running, entry), now_s) for part in view["partitions"].values() for entry in part["running"]
        ]
    except (KeyError, TypeError, ValueError, AttributeError):
        return []  # none yet, or another version of Lucid drew it


_ACCOUNTS_S = 60.0
"""How long accounts are kept: those of a week change slowly, and take longest to work out."""


class Known(Protocol):
    """A process that keeps lucidd's last plan and the accounts of all jobs up to date."""

    @property
    def seen(self) -> StoredPlan | None:
        """lucidd's last snapshot and plan."""
        ...

    @property
    def accounts(self) -> list[JobAccount]:
        """The accounts, as of ``job_accounts``."""
        ...


class MetricsSource:
    """The source of one lucidd's metrics. It may be asked from several threads; nothing is written anywhere."""

    def __init__(
        self,
        settings: Settings,
        open_store: Callable[[], SqliteStore] | None = None,
        now_s: Callable[[], float] = time.time,
        uses: UseFolder | None = None,
        known: Known | None = None,
    ) -> None:
        """``open_store``: in place of the store that the settings name; ``now_s``: Unix time; ``known``: what a
        process keeps in memory already."""
        self.settings = settings
        self.now_s = now_s
        path, shared = Path(settings.daemon.state_dir) / "lucid.db", settings.daemon.shared_state
        self.store = open_store or (lambda: SqliteStore(path, read_only=True, shared=shared))
        """Opens the store for one call, since lucidd may have begun a new file since the last; raises ``StoreError``
        where there is none."""
        self._uses = uses or UseFolder(profiles_folder(settings))
        self._known = known
        self._lock = threading.Lock()
        self._accounts: tuple[float, list[JobAccount]] | None = None

    def seen(self, store: SqliteStore) -> StoredPlan | None:
        """lucidd's last snapshot and plan; ``None`` where it cannot be read: there is none yet, or it is of another
        version."""
        if self._known is not None:
            return self._known.seen
        try:
            return stored_plan(store, stored_view(store))
        except (LucidError, KeyError, TypeError, ValueError, AttributeError):
            return None

    def accounts(self, store: SqliteStore) -> list[JobAccount]:
        """The accounts of every job of the last week, at most a minute old.

        Raises: StoreError: the store cannot be read."""
        if self._known is not None:
            return self._known.accounts
        with self._lock:
            now_s = self.now_s()
            if self._accounts is None or not 0 <= now_s - self._accounts[0] < _ACCOUNTS_S:
                self._accounts = now_s, job_accounts(store, self._uses, self.settings, now_s)
            return self._accounts[1]
