"""Who used and who wasted how many GPU-hours, and what to do about it. Nothing is cancelled here.

The figures are those of ``lucidctl efficiency``, worked out once a minute.
"""

from __future__ import annotations

from collections.abc import Mapping

from lucid.core.job import Pending, Running
from lucid.efficiency.judge import JobAccount
from lucid.efficiency.kinds import ADVICE, TITLES, WasteKind
from lucid.efficiency.totals import totals
from lucid.explain.waste import account_to_dict, total_to_dict
from lucid.web.pages.asked import NotShown, text
from lucid.web.pages.shown import Now, PeoplePage, PersonPage
from lucid.web.site import Site
from lucid.web.viewer import Sight, Viewer

__all__ = ["people", "person"]

_JOBS = 200
_MOST_WASTED = 8


def people(site: Site, viewer: Viewer, _path: Mapping[str, str], asked: Mapping[str, str]) -> PeoplePage:
    """``text`` in the address: part of a user's or an account's name."""
    wanted = text(asked, "text").lower()
    accounts = [one for one in site.source.accounts if viewer.sees_usage(one.job.user) is Sight.ALL]
    if wanted:
        accounts = [one for one in accounts if wanted in f"{one.job.user}\n{one.job.account}".lower()]
    now = _present(site, viewer)
    return {
        "at_s": site.picture.now_s,
        "days": site.source.settings.efficiency.days,
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
    """What each user's jobs hold and how many wait, now."""
    found: dict[str, Now] = {}
    entries: list[Running | Pending] = [entry for _, entry in site.picture.running.values()]
    entries += [entry for _, entry in site.picture.waiting.values()]
    for entry in entries:
        row = found.setdefault(entry.job.user, _NOTHING.copy())
        if isinstance(entry, Running):
            row["running"] += 1
            row["running_gpus"] += entry.gpus
        else:
            row["waiting"] += 1
    return {user: row for user, row in found.items() if viewer.sees_usage(user) is Sight.ALL}


def person(site: Site, viewer: Viewer, path: Mapping[str, str], _asked: Mapping[str, str]) -> PersonPage:
    """One user's jobs: those that wait, and the account of those that run or have ended in the last days."""
    user, picture = path["user"], site.picture
    if viewer.sees_usage(user) is not Sight.ALL:
        raise NotShown(f"nothing is known of {user} here")
    waiting = [
        {"job": e.job.id, "name": e.job.name, "vc": e.job.vc, "gpus": e.job.gpus,
         "waited_s": round(picture.now_s - e.since_s, 1)}
        for _, e in picture.waiting.values()
        if e.job.user == user
    ]  # fmt: skip
    accounts = [one for one in site.source.accounts if one.job.user == user]
    if not (waiting or accounts):
        raise NotShown(f"nothing is known of {user} here")
    accounts.sort(key=lambda one: (-one.wasted_gpu_h, -one.job.end_s))
    total = next(iter(totals(accounts, lambda _: user)), None)
    return {
        "at_s": picture.now_s,
        "user": user,
        "days": site.source.settings.efficiency.days,
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
