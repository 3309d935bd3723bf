"""What a daemon missed while it was down: jobs that ended meanwhile are learned from as if it had seen them end."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Final

from lucid.adapters.bounded import finite, moment
from lucid.adapters.slurm.actions.gpu_placeholders import NAME as PLACEHOLDER
from lucid.adapters.slurm.clients.accounting import Accounted, Accounting
from lucid.adapters.slurm.records.field_parsers import parse_mark
from lucid.adapters.slurm.snapshot.observation import home_of, submitted_s
from lucid.adapters.store.port import JobNote, Store
from lucid.config import DaemonSettings
from lucid.core.job import Ended, Job
from lucid.core.ports import Clock
from lucid.errors import ClusterError

__all__ = ["CatchUp", "ended_from"]

_LOG = logging.getLogger("lucidd")
_SEEN = "good_cycle"
_LEAST_GAP_S: Final = 60.0
"""After a shorter absence slurmctld still knows every job that ended."""
_MARGIN_S: Final = 60.0
_MOST_JOBS: Final = 20_000
_TRIES: Final = 3
_AGAIN_S: Final = 600.0


class CatchUp:
    """Asks accounting once for the time since the last good cycle of any daemon, at most ``daemon.catch_up_days``;
    where that does not answer, twice more. The newest 20,000 jobs are taken in."""

    def __init__(self, store: Store, accounting: Accounting, clock: Clock, settings: DaemonSettings) -> None:
        self._store = store
        self._accounting = accounting
        self._clock = clock
        self._settings = settings
        self._since_s = 0.0
        self._tries = 0
        self._due_s = 0.0

    def begin(self) -> None:
        """The lease was taken: somebody else, or nobody, has looked after the jobs until now."""
        now_s = self._clock.now_s()
        most_s = self._settings.catch_up_days * 86400.0
        self._since_s = max(moment(finite(self._store.view(_SEEN))) - _MARGIN_S, now_s - most_s)
        gap = most_s > 0 and now_s - self._since_s > _LEAST_GAP_S + _MARGIN_S
        self._tries, self._due_s = _TRIES if gap else 0, now_s

    def seen(self, now_s: float) -> None:
        """A cycle went well."""
        self._store.put_view(_SEEN, now_s)

    def run(self, known: Collection[str], notes: Mapping[str, JobNote], token: int) -> list[Ended]:
        """What is new to the store, by end; nothing where it is not time. ``known``: jobs that slurmctld still
        shows, which are seen to end as usual.

        Raises:
            StoreError: it cannot be stored.
        """
        now_s = self._clock.now_s()
        if not self._tries or now_s < self._due_s:
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
        made = [ended_from(job, notes.get(job.id), daemon) for job in found if job.id not in known]
        new = [item for item in made if item is not None and item.job.id not in have][-_MOST_JOBS:]
        self._store.put_ended(new, token)
        _LOG.info("caught up", extra={"facts": {"jobs": len(new), "since_s": round(self._since_s)}})
        return new


def ended_from(job: Accounted, note: JobNote | None, settings: DaemonSettings) -> Ended | None:
    """As the daemon would have seen it end; ``None`` for a job without GPUs, or in no partition that Lucid manages.

    Its VC is the one noted or tagged, where it is: it may have ended while it was profiled.
    """
    mark = parse_mark(job.tag) or {}
    home = home_of(job.partition, job.tag, note, settings.partitions, settings.rooms)
    if not job.gpus or home not in settings.partitions or job.name.startswith(PLACEHOLDER):
        return None
    made = Job(
        id=job.id,
        vc=home,
        gpus=job.gpus,
        submit_s=submitted_s(job.submit_s, note),
        rank=job.number,
        user=job.user,
        account=job.account,
        name=job.name,
        cpus=job.cpus,
        mem_mib=job.mem_mib,
        time_limit_s=job.time_limit_s,
        amp=True if mark.get("amp") == "1" else None,
    )
    return Ended(made, job.end_s, max(job.end_s - job.start_s, 0.0), job.state)
