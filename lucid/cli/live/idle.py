"""``lucidctl idle``: jobs whose GPUs do nothing, what was done about them, and what would have been done."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lucid.adapters.gpu.use_files import UseFolder
from lucid.adapters.store.sqlite import SqliteStore
from lucid.cli.console import Table, say, stdout_console
from lucid.cli.live.status import live_settings, live_store
from lucid.config import IdleSettings, Settings, profiles_folder
from lucid.efficiency.judge import JobUse
from lucid.efficiency.ladder import Met, Step, idle_since, measured, meets
from lucid.errors import ConfigError, did_you_mean
from lucid.explain.quantities import duration, when
from lucid.live.idle_jobs import VIEW
from lucid.live.reporting.waste_inputs import job_uses

__all__ = ["dry_run", "tell_dry_run", "tell_idle"]

_DAY_S = 86400.0
_JOBS_SHOWN = 20
_WORDS = {Step.TELL: "told", Step.TELL_AGAIN: "told again", Step.CANCEL: "cancelled"}


def tell_idle(config: Path, user: str | None, as_json: bool) -> None:
    """Of the jobs that run."""
    settings = live_settings(config)
    store = live_store(settings)
    taken = store.view(VIEW) or {}
    rows = []
    for job in _uses(store, settings, days=0.0, user=user):
        since_s = idle_since(job) if job.running else None
        if since_s is not None:
            steps = [(Step(step), at_s) for step, at_s in taken.get(job.job_id, (0.0, []))[1]]
            rows.append((job, since_s, steps))
    rows.sort(key=lambda row: row[1])
    if as_json:
        jobs = [_job_row(job, since_s, job.end_s, steps, 0.0) for job, since_s, steps in rows]
        cancel = list(settings.idle.cancel)
        data = {"days": None, "tells": bool(settings.idle.tell), "cancel": cancel, "total": None, "users": []}
        say(json.dumps({**data, "jobs": jobs}, indent=1))
        return
    if not rows:
        say("No running job is idle: of each, a GPU works, or too little was measured to say.")
    else:
        table = _table("job", "user", "VC", ">GPUs", "idle since", ">for", "steps")
        for job, since_s, steps in rows:
            said = ", ".join(f"{_WORDS[step]} {when(at_s)}" for step, at_s in steps) or "none"
            cells = (job.job_id, job.user, job.vc, str(job.gpus), when(since_s), duration(job.end_s - since_s), said)
            table.add_row(*cells)
        stdout_console().print(table)
    if not settings.idle.tell:
        say("Nobody is told: idle.tell is empty. lucidctl idle --dry-run says whom it would have met.")


def tell_dry_run(config: Path, days: float, cancel_in: Sequence[str], user: str | None, as_json: bool) -> None:
    """Over the past."""
    settings = live_settings(config)
    rules = settings.idle.model_copy(update={"cancel": (*settings.idle.cancel, *cancel_in)})
    jobs = _uses(live_store(settings), settings, days, user)
    known = {*settings.daemon.partitions, *(job.vc for job in jobs)}
    for vc in cancel_in:
        if vc not in known:
            there = ", ".join(sorted(known))
            raise ConfigError(f"--cancel-in {vc}: there is no such VC{did_you_mean(vc, known)} (there are: {there})")
    found = [met for job in jobs for met in meets(job, rules)]
    data = dry_run(jobs, found, days, rules)
    if as_json:
        say(json.dumps(data, indent=1))
        return
    total = data["total"]
    say(
        f"{total['jobs']} jobs of the last {days:g} days; {total['jobs_judged']} were measured for an hour or more. "
        f"Messages about {total['jobs_told']} jobs would have gone to {total['users_told']} users, second ones about "
        f"{total['jobs_told_again']}; {total['jobs_cancelled']} jobs would have been cancelled."
    )
    say(
        f"They held {total['idle_gpu_h']:,.1f} GPU-hours without doing anything, {total['after_told_gpu_h']:,.1f} of "
        f"them after the first message. By cancelling, {total['back_gpu_h']:,.1f} GPU-hours would have come back."
    )
    if not rules.cancel:
        say("No VC cancels. --cancel-in VC says what that would bring.")
    if found:
        table = _table("user", ">jobs told", ">told again", ">cancelled", ">idle GPU-h", ">after told", ">back")
        for row in data["users"]:
            table.add_row(
                row["name"],
                *(str(row[key]) for key in ("jobs_told", "jobs_told_again", "jobs_cancelled")),
                f"{row['idle_gpu_h']:,.1f}",
                f"{row['after_told_gpu_h']:,.1f}",
                f"{row['back_gpu_h']:,.1f}",
            )
        stdout_console().print(table)
        table = _table("job", "user", ">GPUs", "idle from", "to", "steps")
        for met in sorted(found, key=lambda one: one.begin_s - one.end_s)[:_JOBS_SHOWN]:
            said = ", ".join(f"{_WORDS[step]} {when(at_s)}" for step, at_s in met.steps)
            job = met.job
            table.add_row(job.job_id, job.user, str(job.gpus), when(met.begin_s), when(met.end_s), said)
        stdout_console().print(table)
        if len(found) > _JOBS_SHOWN:
            say(f"and {len(found) - _JOBS_SHOWN} shorter ones: --json")


def _table(*columns: str) -> Table:
    """A column whose name begins with ``>`` is of numbers."""
    table = Table()
    for name in columns:
        table.add_column(name.removeprefix(">"), justify="right" if name.startswith(">") else "left")
    return table


def _uses(store: SqliteStore, settings: Settings, days: float, user: str | None) -> list[JobUse]:
    now_s = float((store.view("status") or {}).get("at_s", time.time()))
    uses = UseFolder(profiles_folder(settings)).uses()
    found = job_uses(store, uses, settings, now_s - days * _DAY_S)
    return [job for job in found if user is None or job.user == user]


def dry_run(jobs: Sequence[JobUse], found: Sequence[Met], days: float, rules: IdleSettings) -> dict[str, Any]:
    """JSON form: whom the steps would have met, in all, by user and by job."""
    by_user: defaultdict[str, list[Met]] = defaultdict(list)
    for met in found:
        by_user[met.job.user].append(met)
    users = [{"name": name, **_sums(mets)} for name, mets in by_user.items()]
    users.sort(key=lambda row: (-float(row["idle_gpu_h"]), row["name"]))
    judged = sum(map(measured, jobs))
    return {
        "days": days,
        "tells": bool(rules.tell),
        "cancel": list(rules.cancel),
        "total": {"jobs": len(jobs), "jobs_judged": judged, "users_told": len(users), **_sums(found)},
        "users": users,
        "jobs": [_job_row(met.job, met.begin_s, met.end_s, met.steps, met.back_gpu_h) for met in found],
    }


def _job_row(
    job: JobUse, begin_s: float, end_s: float, steps: Iterable[tuple[Step, float]], back_gpu_h: float
) -> dict[str, Any]:
    return {
        "job": job.job_id,
        "user": job.user,
        "vc": job.vc,
        "gpus": job.gpus,
        "idle_from_s": begin_s,
        "idle_to_s": end_s,
        "steps": [{"step": str(step), "at_s": at_s} for step, at_s in steps],
        "back_gpu_h": round(back_gpu_h, 3),
    }


def _sums(found: Sequence[Met]) -> dict[str, Any]:
    def jobs(step: Step) -> int:
        return len({met.job.job_id for met in found if any(one is step for one, _ in met.steps)})

    return {
        "jobs_told": jobs(Step.TELL),
        "jobs_told_again": jobs(Step.TELL_AGAIN),
        "jobs_cancelled": jobs(Step.CANCEL),
        "idle_gpu_h": round(sum(met.job.gpus * (met.end_s - met.begin_s) for met in found) / 3600.0, 3),
        "after_told_gpu_h": round(sum(met.job.gpus * (met.end_s - met.steps[0][1]) for met in found) / 3600.0, 3),
        "back_gpu_h": round(sum(met.back_gpu_h for met in found), 3),
    }
