"""Child processes of lucidd that run ``lucidctl``; and jobs that ended while lucidd was down.

``CatchUp`` reads those jobs from accounting, and lucidd learns from them as if it had seen them end."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final

from lucid.config.live import DaemonSettings
from lucid.core.job import Ended
from lucid.core.ports import Clock
from lucid.errors import ClusterError
from lucid.slurm.accounting import Accounted, SacctClient
from lucid.slurm.act.placeholders import NAME as PLACEHOLDER
from lucid.slurm.records.fields import parse_mark
from lucid.slurm.view.observation import home_of, submitted_s
from lucid.store.port import JobNote
from lucid.store.sqlite import SqliteStore
from lucid.text import finite, moment

_LOWEST_PRIORITY = 19
_POLL_EVERY_S = 1.0


class Children:
    """Processes that run ``lucidctl`` beside this one, each at the lowest priority. They end with this process,
    however it ends. `end` stops them first: a process that ends waits for its threads, and these for the children."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._ended = False

    def run(self, words: Sequence[str], timeout: timedelta) -> subprocess.CompletedProcess[str]:
        """Run ``lucidctl`` with these words to its end.

        Raises:
            TimeoutError: it took longer, or `end` was called; the child was stopped."""
        code = (
            f"from lucid.daemon.learning.child import end_with; end_with({os.getpid()}); "
            "from lucid.cli.main import main; main()"
        )
        command = [sys.executable, "-c", code, *words]
        with self._begin(command) as child:
            try:
                out, err = child.communicate(timeout=timeout.total_seconds())
            except subprocess.TimeoutExpired:
                raise TimeoutError(f"ran longer than {timeout.total_seconds():.0f} s and was stopped") from None
            finally:
                child.kill()
                with self._lock:
                    self._running.discard(child)
        if self._ended:
            raise TimeoutError("was stopped, because lucidd ends")
        return subprocess.CompletedProcess(command, child.returncode, out, err)

    def end(self) -> None:
        """Stop the children that run, and begin none from now on."""
        with self._lock:
            self._ended = True
            for child in self._running:
                child.kill()

    def _begin(self, command: Sequence[str]) -> subprocess.Popen[str]:
        with self._lock:
            if self._ended:
                raise TimeoutError("was not begun, because lucidd ends")
            child = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="replace",
                preexec_fn=lambda: os.nice(_LOWEST_PRIORITY),
            )
            self._running.add(child)
        return child


def end_with(parent: int) -> None:
    """Watch the process ``parent`` from now on, and end this process when the parent is gone: no process reads its
    result then."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_POLL_EVERY_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


_LOG = logging.getLogger("lucidd")
_SEEN = "good_cycle"
_LEAST_GAP_S: Final = 60.0
"""The longest absence after which slurmctld still knows every job that ended."""
_MARGIN_S: Final = 60.0
_MOST_JOBS: Final = 20_000
_TRIES: Final = 3
_AGAIN_S: Final = 600.0


class CatchUp:
    """Asks accounting once for the time since the last good cycle of any daemon, at most ``daemon.catch_up_days``; if
    it does not answer, twice more. The newest 20,000 jobs are taken in."""

    def __init__(self, store: SqliteStore, accounting: SacctClient, clock: Clock, settings: DaemonSettings) -> None:
        self._store = store
        self._accounting = accounting
        self._clock = clock
        self._settings = settings
        self._since_s = 0.0
        self._tries = 0
        self._due_s = 0.0

    def begin(self) -> None:
        """Note that the lease was taken: until now another daemon, or none, has watched the jobs."""
        now_s = self._clock.now_s()
        most_s = self._settings.catch_up_days * 86400.0
        self._since_s = max(moment(finite(self._store.view(_SEEN))) - _MARGIN_S, now_s - most_s)
        gap = most_s > 0 and now_s - self._since_s > _LEAST_GAP_S + _MARGIN_S
        self._tries, self._due_s = _TRIES if gap else 0, now_s

    def seen(self, now_s: float) -> None:
        """Note that a cycle went well."""
        self._store.put_view(_SEEN, now_s)

    def run(self, known: Collection[str], notes: Mapping[str, JobNote], token: int) -> list[Ended]:
        """Ended jobs that are new to the store, by end; empty where it is not time. ``known``: jobs that slurmctld
        still shows, which are seen to end as usual.

        Raises: StoreError: they cannot be stored."""
        now_s = self._clock.now_s()
        if not self._tries or self._due_s - _AGAIN_S <= now_s < self._due_s:
            return []
        daemon = self._settings
        rooms = [*daemon.partitions, *daemon.rooms]
        self._tries -= 1
        self._due_s = now_s + _AGAIN_S
        try:
            found = self._accounting.ended(now_s - self._since_s, rooms)
        except ClusterError as error:
            words = "again in ten minutes" if self._tries else "the history keeps a gap"
            _LOG.warning("accounting does not answer", extra={"facts": {"why": str(error), "then": words}})
            return []
        self._tries = 0
        have = {item.job.id for item in self._store.ended(self._since_s)}
        unseen = [one for one in found if one.ended.job.id not in known]
        made = [ended_from(one, notes.get(one.ended.job.id), daemon) for one in unseen]
        new = [item for item in made if item is not None and item.job.id not in have][-_MOST_JOBS:]
        self._store.put_ended(new, token)
        _LOG.info("caught up", extra={"facts": {"jobs": len(new), "since_s": round(self._since_s)}})
        return new


def ended_from(one: Accounted, note: JobNote | None, settings: DaemonSettings) -> Ended | None:
    """The job as the daemon would have seen it end; ``None`` for a job without GPUs, or in no partition that Lucid
    manages.

    Its VC is the noted or tagged one, where there is one: it may have ended while it was profiled."""
    job, mark = one.ended.job, parse_mark(one.tag) or {}
    home = home_of(job.vc, one.tag, note, settings.partitions, settings.rooms)
    if not job.gpus or home not in settings.partitions or job.name.startswith(PLACEHOLDER):
        return None
    amp = True if mark.get("amp") == "1" else None
    return replace(one.ended, job=replace(job, vc=home, submit_s=submitted_s(job.submit_s, note), amp=amp))
