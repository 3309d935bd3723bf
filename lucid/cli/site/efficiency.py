"""``lucidctl efficiency``: which GPU-hours were wasted, by whom, how, and what to do about it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from lucid.cli.console import Table, answer, table
from lucid.cli.jobs.queue import live_settings, live_store
from lucid.config.load import Settings, profiles_folder
from lucid.daemon.reporting.waste_inputs import job_accounts
from lucid.errors import ConfigError
from lucid.explain.formatting import duration, gpus, when
from lucid.explain.waste import account_to_dict, total_to_dict, use_words
from lucid.node.reports import UseFolder
from lucid.profiler.waste import (
    ADVICE,
    DAYS,
    HELD,
    TITLES,
    JobAccount,
    JobUse,
    Total,
    WasteKind,
    idle_since,
    total_of,
    totals,
)
from lucid.store.sqlite import SqliteStore
from lucid.text import shown

_JOBS_SHOWN = 20


def tell_efficiency(
    config: Path,
    user: str | None,
    account: str | None,
    job_id: str | None,
    days: float | None,
    as_json: bool,
) -> None:
    """Carry out ``lucidctl efficiency``."""
    settings = live_settings(config)
    days = DAYS if days is None else days
    # a job that is named is looked for as far back as anything is known
    found = accounts_of(settings, live_store(settings), settings.daemon.keep_days if job_id else days)
    found = [one for one in found if asked_for(one.job, user, account, job_id)]
    if job_id is not None and not found:
        raise ConfigError(
            f"job {job_id} is not known: it has not started yet, asked for no GPU, or is older than daemon.keep_days"
        )
    first = "account" if account is None and user is None else "user"
    words = accounts_words(found, days, first) if job_id is None else map(_job_words, found)
    answer(lambda: efficiency_data(found, days), as_json, words)


def accounts_of(settings: Settings, store: SqliteStore, days: float) -> list[JobAccount]:
    """The accounts of the jobs of the last days."""
    now_s = float((store.view("status") or {}).get("at_s", time.time()))
    return job_accounts(store, UseFolder(profiles_folder(settings)), settings, now_s, days)


def asked_for(job: JobUse, user: str | None, account: str | None, job_id: str | None) -> bool:
    """Whether the options of a command ask for the job; ``None``: for any."""
    return user in (None, job.user) and account in (None, job.account) and job_id in (None, job.job_id)


def _job_words(one: JobAccount) -> str:
    job = one.job
    head = f"job {job.job_id} of {job.user} ({job.name}): {gpus(job.gpus)}, {job.state}"
    return shown("\n".join([head, *use_words(one)]), lines=True)


def efficiency_data(
    accounts: list[JobAccount], days: float, time_limits: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The report as JSON. ``time_limits``: where ``--time-limits`` was given."""
    return {
        "days": days,
        "total": total_to_dict(total_of("", accounts)),
        "users": [total_to_dict(one) for one in totals(accounts, lambda account: account.job.user)],
        "accounts": [total_to_dict(one) for one in totals(accounts, lambda account: account.job.account)],
        "jobs": [account_to_dict(one) for one in accounts],
        "idle": [
            {"job": job.job_id, "user": job.user, "vc": job.vc, "gpus": job.gpus, "since_s": since_s}
            for job, since_s in _idle_jobs(accounts)
        ],
        "time_limits": time_limits,
    }


def _idle_jobs(accounts: Sequence[JobAccount]) -> list[tuple[JobUse, float]]:
    """Jobs that do nothing now, with the time since when; the longest first."""
    found = [(one.job, since_s) for one in accounts if (since_s := idle_since(one.job)) is not None]
    return sorted(found, key=lambda item: (item[1], item[0].job_id))


def _asked(one: Total) -> str:
    """The GPU-hours asked for, as far as there were time limits."""
    if one.no_limit_jobs == one.jobs:
        return "no limit"
    rest = f" ({one.no_limit_jobs} without limit)" if one.no_limit_jobs else ""
    return f"{one.asked_gpu_h:,.1f}{rest}"


def accounts_words(accounts: list[JobAccount], days: float, first: str) -> Iterator[str | Table]:
    """The tables and the kinds of waste. ``first``: ``account`` or ``user``, whose table comes first."""
    whole = total_of("", accounts)
    yield (
        f"{whole.jobs} jobs of the last {days:g} days: {whole.held_gpu_h:,.1f} GPU-hours held, "
        f"{whole.worked_gpu_h:,.1f} worked, {whole.all_wasted_gpu_h:,.1f} wasted; {whole.not_measured_jobs} jobs "
        f"with {whole.not_measured_gpu_h:,.1f} GPU-hours not measured"
    )
    keys = {"account": lambda one: one.job.account or "(none)", "user": lambda one: one.job.user}
    for name in dict.fromkeys((first, "user")):
        yield table((name, *_COLUMNS), map(_cells, totals(accounts, keys[name])))
    for kind in WasteKind:
        some = [(w.gpu_h, account.job, w.words) for account in accounts for w in account.waste if w.kind is kind]
        if some:
            some.sort(key=lambda item: (-item[0], item[1].job_id))
            note = "" if kind in HELD else " (not held, so not in the sum)"
            yield f"{TITLES[kind]}: {sum(item[0] for item in some):,.1f} GPU-hours{note} in {len(some)} jobs"
            yield from _shortened(f"{job.job_id} ({job.user}, {job.name}): {h:,.1f}; {why}" for h, job, why in some)
            yield f"  What to do: {ADVICE[kind]}"
    idle = _idle_jobs(accounts)
    if idle:
        yield f"{len(idle)} running jobs whose GPUs do nothing now:"
    yield from _shortened(
        f"{job.job_id} ({job.user}, {job.vc}): {job.gpus} GPUs since {when(since_s)}, "
        f"for {duration(job.end_s - since_s)}"
        for job, since_s in idle
    )


_COLUMNS = (">jobs", ">asked", ">held", ">worked", ">wasted", ">not measured", ">kWh", ">memory used")


def _cells(one: Total) -> tuple[str, ...]:
    figures = (one.held_gpu_h, one.worked_gpu_h, one.all_wasted_gpu_h, one.not_measured_gpu_h)
    kwh = "" if one.energy_kwh is None else f"{one.energy_kwh:,.1f}"
    memory = f"{one.host_peak_gib / one.host_asked_gib:.0%}" if one.host_asked_gib else ""
    return (one.name, str(one.jobs), _asked(one), *(f"{value:,.1f}" for value in figures), kwh, memory)


def _shortened(jobs: Iterable[str]) -> Iterator[str]:
    """The first of these lines, and how many more there are."""
    lines = list(jobs)
    yield from (shown(f"  {line}") for line in lines[:_JOBS_SHOWN])
    if len(lines) > _JOBS_SHOWN:
        yield f"  and {len(lines) - _JOBS_SHOWN} more: --json lists all"
