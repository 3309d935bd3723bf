"""The pages of people (GPU-hours used and wasted, by whom, with advice) and of lucidd's health.

The figures are those of ``lucidctl efficiency``, worked out once a minute. Nothing is cancelled here. The health page
has what ``doctor`` finds in lucidd's own files, modes, Slurm's answers, models and forecasts."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path

from lucid.core.codec import to_json
from lucid.core.job import Pending, Running
from lucid.daemon.learning.training import UPKEEP
from lucid.daemon.reporting.counters import BUCKETS_S
from lucid.errors import Finding
from lucid.explain.formatting import duration
from lucid.explain.queue_rows import forecast_outcome
from lucid.explain.waste import account_to_dict, total_to_dict
from lucid.orchestrator.forecast.ranges import SHORT_S
from lucid.profiler.waste import ADVICE, DAYS, TITLES, JobAccount, WasteKind, totals
from lucid.setup.doctor_state import check_state
from lucid.slurm.heartbeat import read_heartbeat
from lucid.web.pages.shown import HealthPage, Latency, NotShown, Now, PeoplePage, PersonPage, Starts, text
from lucid.web.site import Sight, Site, Viewer
from lucid.web.source import Times, judged_of

_JOBS = 200
_MOST_WASTED = 8


def people(site: Site, viewer: Viewer, _path: Mapping[str, str], asked: Mapping[str, str]) -> PeoplePage:
    """The content of the people page. ``text`` in the address: part of a user's or an account's name."""
    wanted = text(asked, "text").lower()
    accounts = [one for one in site.source.accounts if viewer.sees_usage(one.job.user) is Sight.ALL]
    if wanted:
        accounts = [one for one in accounts if wanted in f"{one.job.user}\n{one.job.account}".lower()]
    now = _present(site, viewer)
    return {
        "at_s": site.view.now_s,
        "days": DAYS,
        "text": wanted,
        "own_only": viewer.usage is not Sight.ALL,
        "users": [
            {**total_to_dict(one), "wasted": round(one.all_wasted_gpu_h, 3), **now.get(one.name, _NOTHING)}
            for one in totals(accounts, lambda account: account.job.user)
        ],
        "accounts": [
            {**total_to_dict(one), "wasted": round(one.all_wasted_gpu_h, 3)}
            for one in totals(accounts, lambda account: account.job.account or "(none)")
        ],
        "most": [account_to_dict(one) for one in _most_wasted(accounts)],
        "_kinds": {str(kind): TITLES[kind] for kind in WasteKind},
    }


def _most_wasted(accounts: list[JobAccount]) -> list[JobAccount]:
    found = sorted((one for one in accounts if one.wasted_gpu_h > 0), key=lambda one: -one.wasted_gpu_h)
    return found[:_MOST_WASTED]


_NOTHING: Now = {"running": 0, "running_gpus": 0, "waiting": 0}


def _present(site: Site, viewer: Viewer) -> dict[str, Now]:
    """The GPUs that each user's jobs hold, and how many wait, now."""
    found: dict[str, Now] = {}
    entries: list[Running | Pending] = [entry for _, entry in site.view.running.values()]
    entries += [entry for _, entry in site.view.waiting.values()]
    for entry in entries:
        row = found.setdefault(entry.job.user, _NOTHING.copy())
        if isinstance(entry, Running):
            row["running"] += 1
            row["running_gpus"] += entry.gpus
        else:
            row["waiting"] += 1
    return {user: row for user, row in found.items() if viewer.sees_usage(user) is Sight.ALL}


def person(site: Site, viewer: Viewer, path: Mapping[str, str], _asked: Mapping[str, str]) -> PersonPage:
    """The content of one user's page: waiting jobs, and the account of jobs that run or have ended in the last
    days."""
    user, view = path["user"], site.view
    if viewer.sees_usage(user) is not Sight.ALL:
        raise NotShown(f"nothing is known of {user} here")
    waiting = [
        {"job": e.job.id, "name": e.job.name, "vc": e.job.vc, "gpus": e.job.gpus,
         "waited_s": round(view.now_s - e.since_s, 1)}
        for _, e in view.waiting.values()
        if e.job.user == user
    ]  # fmt: skip
    accounts = [one for one in site.source.accounts if one.job.user == user]
    if not (waiting or accounts):
        raise NotShown(f"nothing is known of {user} here")
    accounts.sort(key=lambda one: (-one.wasted_gpu_h, -one.job.end_s))
    total = next(iter(totals(accounts, lambda _: user)), None)
    return {
        "at_s": view.now_s,
        "user": user,
        "days": DAYS,
        "total": None if total is None else total_to_dict(total),
        "waiting": waiting,
        "jobs": [account_to_dict(one) for one in accounts[:_JOBS]],
        "of_jobs": len(accounts),
        "_wasted": 0.0 if total is None else total.all_wasted_gpu_h,
        "_kinds": [
            (TITLES[kind], gpu_h, ADVICE[kind])
            for kind, gpu_h in ({} if total is None else total.wasted_gpu_h).items()
        ],
    }


_STARTS = 200
_LEVELS = ("bad", "warn", "ok")
_EVERY_S = 15.0


def health(site: Site, viewer: Viewer, _path: Mapping[str, str], _asked: Mapping[str, str]) -> HealthPage:
    """The content of the health page. It does not ask Slurm: doctor's other half, which does, is left to the
    command."""
    status, now_s = site.source.status, site.now_s()
    alive, holder = site.alive()
    beat = read_heartbeat(Path(site.source.settings.daemon.heartbeat))
    with site.source.store() as store:
        judged = judged_of(store.view(UPKEEP))
    findings = sorted(_findings(site), key=lambda found: _LEVELS.index(found.level))
    shown = findings if viewer.admin or viewer.jobs == "all" else [f for f in findings if f.level != "ok"]
    return {
        "at_s": status.at_s,
        "alive": alive,
        "holder": holder,
        "heartbeat_age_s": None if beat is None else round(now_s - beat.at_s, 1),
        "worst": findings[0].level if findings else "ok",
        "findings": [found.to_dict() for found in shown],
        "modes": status.modes,
        "cycles": status.cycles,
        "client": status.client,
        "calls": {} if status.calls is None else to_json(status.calls),
        "breaker_open_s": status.breaker_open_s,
        "breaker_why": status.breaker_why,
        "last_error": status.last_error,
        "failed_turns": status.failed_turns,
        "models": {kind: to_json(found) for kind, found in status.models.items()},
        "drift": [to_json(one) for one in judged],
        "latency": {"cycle": _latency(status.counts.cycle_s), "plan": _latency(status.counts.plan_s)},
        "refused": status.counts.refused,
        "restarts": status.counts.restarts,
        "starts": _starts(site),
    }


def _findings(site: Site) -> list[Finding]:
    known = site.findings.get("found")
    if known is None or site.now_s() - known[0] > _EVERY_S * (site.source.demo_speed or 1.0):
        known = site.now_s(), list(check_state(site.source.settings, site.now_s()))
        site.findings["found"] = known
    found: list[Finding] = known[1]
    return found


def _latency(times: Times) -> Latency | None:
    total = sum(times.counts)
    if not total or len(times.counts) != len(BUCKETS_S) + 1:
        return None
    passed = list(accumulate(times.counts))
    bounds_s = (*BUCKETS_S, BUCKETS_S[-1])
    half_s, most_s = (bounds_s[bisect_left(passed, share * total)] for share in (0.5, 0.99))
    return {"count": total, "mean_s": times.sum_s / total, "half_below_s": half_s, "most_below_s": most_s}


def _starts(site: Site) -> Starts:
    times = site.view.times
    share, count = times.coverage()
    known = {one.job_id: one for one in times.known}
    rows = [forecast_outcome(known, job_id) for job_id in list(known)[-_STARTS:]]
    long = [row for row in rows if row is not None and row["real_s"] is not None and row["real_s"] > SHORT_S]
    errors = sorted(abs(row["real_s"] - row["likely_s"]) for row in long)
    return {
        "inside": round(share, 4),
        "of": count,
        "median_error_s": errors[len(errors) // 2] if errors else None,
        "_error": duration(errors[len(errors) // 2]) if errors else "",
        "_misses": times.misses,
        "rows": long,
    }
