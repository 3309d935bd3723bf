"""What lucidd's state tells of jobs that ended and jobs that run, as the report of waste takes it: the store, and the
summaries of samplers. Slurm is not asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from lucid.adapters.gpu.use_files import UseFolder
from lucid.adapters.slurm.records.request import NOT_TO_SHARE
from lucid.adapters.store.sqlite import SqliteStore
from lucid.core.as_json import from_json
from lucid.core.job import Job, JobProfile, Running
from lucid.efficiency.judge import JobAccount, JobUse, judged
from lucid.places import Told
from lucid.profiler.use import GpuUse

if TYPE_CHECKING:
    from lucid.config import Settings

__all__ = ["job_accounts", "job_uses"]

_DAY_S = 86400.0


def job_accounts(
    store: SqliteStore,
    uses: UseFolder,
    settings: Settings | Told,
    now_s: float,
    days: float | None = None,
    running: Iterable[tuple[Running, float]] | None = None,
) -> list[JobAccount]:
    """The account of every job that ended in the last ``days`` (``efficiency.days`` if not given) before ``now_s``
    (Unix seconds) or that runs, over its whole run, by end.
    ``running``: the jobs that run, with the time, where they are known already.

    Raises:
        StoreError: the store cannot be read.
    """
    rules = settings.efficiency
    since_s = now_s - (rules.days if days is None else days) * _DAY_S
    return judged(job_uses(store, uses.uses(), settings, since_s, running), rules)


def job_uses(
    store: SqliteStore,
    uses: Mapping[str, tuple[GpuUse, ...]],
    settings: Settings | Told,
    since_s: float,
    running: Iterable[tuple[Running, float]] | None = None,
) -> list[JobUse]:
    """The jobs that ended since then, and those that run, by end.

    Raises:
        StoreError: the store cannot be read.
    """
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
    """Jobs that run, as of lucidd's last picture, each with the time of lucidd's last look: nothing has changed
    since the picture."""
    picture, status = store.view("snapshot"), store.view("status")
    try:
        now_s = max(float(picture["now_s"]), float((status or {}).get("at_s", 0.0)))
        return [
            (from_json(Running, entry), now_s) for part in picture["partitions"].values() for entry in part["running"]
        ]
    except (KeyError, TypeError, ValueError, AttributeError):
        return []  # none yet, or another version of Lucid drew it
