"""Who uses how much: GPU-hours asked for and used, by user and by account. Nothing is cancelled here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lucid.core.job import Ended
from lucid.web.pages.asked import NotShown, number, text
from lucid.web.site import Site
from lucid.web.viewer import Sight, Viewer

__all__ = ["people", "person"]

_DAYS = (1, 7, 30)
_JOBS = 200
_MOST = 20_000
"""Ended jobs that are looked through."""


def _usage(entry_gpus: int, ran_s: float) -> float:
    return entry_gpus * ran_s / 3600.0


def _ended(site: Site, days: int) -> list[Ended]:
    with site.source.store() as store:
        return store.ended(site.picture.now_s - 86400.0 * days, limit=_MOST)


def _blank(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "accounts": [],
        "running": 0,
        "running_gpus": 0,
        "waiting": 0,
        "waiting_gpus": 0,
        "ended": 0,
        "failed": 0,
        "used_gpu_h": 0.0,
        "asked_gpu_h": 0.0,
    }


def people(site: Site, viewer: Viewer, _path: Mapping[str, str], asked: Mapping[str, str]) -> dict[str, Any]:
    """``days`` in the address: how far back; ``text``: part of a user's or an account's name."""
    days, wanted = number(asked, "days", 7, 1, 90), text(asked, "text").lower()
    rows: dict[str, dict[str, Any]] = {}
    accounts: dict[str, dict[str, Any]] = {}

    def of(user: str, account: str) -> list[dict[str, Any]]:
        row = rows.setdefault(user, _blank(user))
        if account and account not in row["accounts"]:
            row["accounts"].append(account)
        return [row, accounts.setdefault(account or "(no account)", _blank(account or "(no account)"))]

    def may(user: str) -> bool:
        return viewer.sees_usage(user) is Sight.ALL

    since_s = site.picture.now_s - 86400.0 * days
    for item in _ended(site, days):
        if may(item.job.user):
            for row in of(item.job.user, item.job.account):
                row["ended"] += 1
                row["failed"] += item.state not in ("COMPLETED", "")
                row["used_gpu_h"] += _usage(item.job.gpus, min(item.ran_s, max(item.end_s - since_s, 0.0)))
                row["asked_gpu_h"] += _usage(item.job.gpus, item.job.time_limit_s or item.ran_s)
    for _, entry in site.picture.running.values():
        if may(entry.job.user):
            ran_s = entry.elapsed_s(site.picture.now_s)
            for row in of(entry.job.user, entry.job.account):
                row["running"] += 1
                row["running_gpus"] += entry.gpus
                row["used_gpu_h"] += _usage(entry.gpus, min(ran_s, 86400.0 * days))
                row["asked_gpu_h"] += _usage(entry.gpus, entry.job.time_limit_s or ran_s)
    for _, waits in site.picture.waiting.values():
        if may(waits.job.user):
            for row in of(waits.job.user, waits.job.account):
                row["waiting"] += 1
                row["waiting_gpus"] += waits.job.gpus
    found = [row for row in rows.values() if _matches(row, wanted)]
    return {
        "at_s": site.picture.now_s,
        "days": days,
        "text": wanted,
        "own_only": viewer.usage is not Sight.ALL,
        "people": sorted(found, key=lambda row: (-row["used_gpu_h"], row["name"])),
        "accounts": sorted(accounts.values(), key=lambda row: (-row["used_gpu_h"], row["name"])),
        "_days": _DAYS,
    }


def _matches(row: Mapping[str, Any], wanted: str) -> bool:
    return not wanted or wanted in row["name"].lower() or any(wanted in name.lower() for name in row["accounts"])


def person(site: Site, viewer: Viewer, path: Mapping[str, str], asked: Mapping[str, str]) -> dict[str, Any]:
    """One user's jobs: those that run, wait, and have ended in the last ``days``."""
    user, days = path["user"], number(asked, "days", 7, 1, 90)
    if viewer.sees_usage(user) is not Sight.ALL:
        raise NotShown(f"nothing is known of {user} here")
    picture = site.picture
    running = [
        {
            "job": e.job.id, "name": e.job.name, "vc": e.job.vc, "gpus": e.gpus,
            "ran_s": round(e.elapsed_s(picture.now_s), 1),
            "gpu_util": None if e.profile is None else e.profile.gpu_util, "partner": e.partner,
        }
        for _, e in picture.running.values()
        if e.job.user == user
    ]  # fmt: skip
    waiting = [
        {"job": e.job.id, "name": e.job.name, "vc": e.job.vc, "gpus": e.job.gpus,
         "waited_s": round(picture.now_s - e.since_s, 1)}
        for _, e in picture.waiting.values()
        if e.job.user == user
    ]  # fmt: skip
    ended = [
        {"job": i.job.id, "name": i.job.name, "vc": i.job.vc, "gpus": i.job.gpus, "state": i.state,
         "ran_s": round(i.ran_s, 1), "end_s": i.end_s, "gpu_h": round(_usage(i.job.gpus, i.ran_s), 2),
         "gpu_util": None if i.profile is None else i.profile.gpu_util, "time_limit_s": i.job.time_limit_s}
        for i in _ended(site, days)
        if i.job.user == user
    ]  # fmt: skip
    if not (running or waiting or ended):
        raise NotShown(f"nothing is known of {user} here")
    return {
        "at_s": picture.now_s,
        "user": user,
        "days": days,
        "running": running,
        "waiting": waiting,
        "ended": ended[::-1][:_JOBS],
        "of_ended": len(ended),
        "_days": _DAYS,
    }
