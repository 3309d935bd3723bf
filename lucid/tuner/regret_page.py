"""The week report as one self-contained page, and in a few sentences: what the site gains, then who loses."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lucid.pages.page as pages
from lucid.pages.picture import Plain, sideways
from lucid.pages.units import show_change, show_duration
from lucid.simulator.gains import LOSES_FROM, LOSES_LEAST_S, held_text
from lucid.tuner.drawing import Drawing, hours
from lucid.tuner.regret import PLAIN, Figures, Group, Regret

__all__ = ["regret_sentence", "threshold", "write_regret_page"]

_MOST_BARS = 20
_LEAST_S = 18.0
"""Less is 0.00 h."""


def threshold() -> str:
    """Who counts as one who loses, in words."""
    return f"more than {LOSES_FROM - 1:.0%} of the mean JCT and at least {LOSES_LEAST_S / 3600:g} h a job"


def regret_sentence(found: Regret) -> str:
    """The outcome in a few sentences: first the site, then those who lose."""
    by, total = found.everybody.by, found.everybody.jobs
    gained_s = -found.everybody.lost_s
    said = (
        f"{total:,} jobs: Lucid's order would have {'saved' if gained_s >= 0 else 'cost'} the site "
        f"{abs(gained_s) / 3600:,.0f} h of job completion time. The average JCT would have been "
        f"{hours(by['lucid'].avg_jct_s)} instead of {hours(by[PLAIN].avg_jct_s)} in plain order "
        f"({found.everybody.change:+.1%}), the average wait {hours(by['lucid'].avg_wait_s)} instead of "
        f"{hours(by[PLAIN].avg_wait_s)}. {_who_loses(found)}"
    )
    held = "" if found.held is None else held_text(found.held, "Lucid", "plain order")
    if held:
        said += f" {held}"
    if found.realism is not None:
        said += (
            f" Plain order replayed is {found.realism:+.1%} off the average JCT that really was: differences smaller "
            "than that say nothing of this cluster."
        )
    return said


def _who_loses(found: Regret) -> str:
    losers, users = found.losers, len(found.users)
    if not losers:
        return f"None of {users} users loses {threshold()}."
    worst = losers[0]
    return (
        f"{len(losers)} of {users} users {'loses' if len(losers) == 1 else 'lose'} {threshold()}; most of all "
        f"{worst.name or '(unnamed)'}, {hours(worst.lost_s / worst.jobs)} a job ({worst.change:+.0%})."
    )


def write_regret_page(path: Path, found: Regret, notes: Sequence[str]) -> None:
    """Write the page.

    Raises:
        OSError: it cannot be written.
    """
    losers = found.losers
    others = sorted((g for g in found.users if not g.loses), key=lambda g: (g.lost_s, g.name))
    context = {
        "found": found,
        "period": _period(found),
        "gains": found.everybody.lost_s < 0,
        "cards": _cards(found),
        "sentence": regret_sentence(found),
        "threshold": threshold(),
        "losers": _groups("The users who lose, the most hours first", "user", found, losers) if losers else None,
        "vcs": _groups("All jobs, and those of each VC", "VC", found, [found.everybody, *found.vcs]),
        "others": _groups("All other users, those who gain most first", "user", found, others),
        "worst": _worst(found),
        "restarts": _restarts(found),
        "figures": [_by_vc(found), _by_user(found)],
        "notes": notes,
    }
    pages.write_page(path, "lucid.tuner", "regret.html.j2", context)


def _period(found: Regret) -> str:
    if found.epoch_s is None:
        return f"days {found.from_s / 86400:.1f} to {found.until_s / 86400:.1f} of the log"
    first, last = (time.strftime("%F %R", time.gmtime(found.epoch_s + s)) for s in (found.from_s, found.until_s))
    return f"{first} to {last}"


def _cards(found: Regret) -> list[dict[str, str]]:
    """The site's figures under Lucid against plain order."""
    plain, lucid = found.everybody.by[PLAIN], found.everybody.by["lucid"]
    named = (
        ("average JCT", lucid.avg_jct_s, plain.avg_jct_s),
        ("average wait", lucid.avg_wait_s, plain.avg_wait_s),
        ("median JCT", lucid.median_jct_s, plain.median_jct_s),
        ("p99 JCT", lucid.p99_jct_s, plain.p99_jct_s),
    )
    return [
        {
            "title": title,
            "value": show_duration(value),
            "change": show_change(value, before) or "against",
            "before": show_duration(before),
            "verdict": "better" if value < before else "worse" if value > before else "equal",
        }
        for title, value, before in named
    ]


def _groups(caption: str, first: str, found: Regret, groups: Sequence[Group]) -> Plain:
    """A row a group. The change of its mean JCT stands first, then the orders."""
    head = [first, "jobs", "all jobs, later by", "a job", "of its JCT"]
    head += [f"{order}: JCT (waits)" for order in found.orders]
    head.append("jobs that wait over 1 min longer")
    rows = []
    for g in groups:
        lost = (_signed(g.lost_s), _signed(g.lost_s / g.jobs), f"{g.change:+.1%}")
        row = [g.name or "(unnamed)", f"{g.jobs:,}", *lost]
        row += [_times(g.by[order]) for order in found.orders]
        rows.append([*row, f"{g.longer:,}"])
    return Plain(caption, head, rows)


def _times(figures: Figures) -> str:
    return f"{hours(figures.avg_jct_s)} ({hours(figures.avg_wait_s)})"


def _signed(seconds: float) -> str:
    return f"{seconds / 3600:+,.2f} h" if abs(seconds) >= _LEAST_S else "0 h"


def _worst(found: Regret) -> Plain | None:
    if not found.worst:
        return None
    rows = []
    for loss in found.worst:
        waits = (hours(loss.wait_s["lucid"]), hours(loss.wait_s[PLAIN]))
        rows.append([loss.job, loss.user, loss.vc, str(loss.gpus), hours(loss.lost_s), *waits])
    head = ["job", "user", "VC", "GPUs", "JCT later by", "waits under Lucid", "in plain order"]
    return Plain("The jobs that would have come out later, most first", head, rows)


def _restarts(found: Regret) -> Plain | None:
    if not found.restarts:
        return None
    rows = [
        [rule, *map(hours, (f.avg_jct_s, f.median_jct_s, f.p99_jct_s, f.avg_wait_s))]
        for rule, f in found.restarts.items()
    ]
    head = ["restarts", "average JCT", "median JCT", "p99 JCT", "average wait"]
    return Plain("Under Lucid as lucidd works, by who may be started over", head, rows)


_KEYS = (("less", "won"), ("more", "lost"))


def _by_vc(found: Regret) -> Drawing:
    groups = [found.everybody, *sorted(found.vcs, key=lambda g: g.change)][:_MOST_BARS]
    picture = sideways(
        "Change of the average JCT in each VC",
        "Mean JCT under Lucid against plain order in percent; bars to the left are gains.",
        [(g.name, 100 * g.change, _told(g)) for g in groups],
        "average JCT under Lucid against plain order, %",
        keys=_KEYS,
    )
    return Drawing(picture, "By VC", "Point at a bar to read it; the table above has all figures.")


def _by_user(found: Regret) -> Drawing:
    half = _MOST_BARS // 2
    moved = [g for g in found.users if abs(g.lost_s) >= _LEAST_S]
    shown = moved if len(moved) <= _MOST_BARS else [*moved[:half], *moved[-half:]]
    picture = sideways(
        "Hours of JCT by user",
        "JCT of all jobs of a user, hours more (to the right) or less (to the left) under Lucid than in plain order.",
        [(g.name, g.lost_s / 3600, _told(g)) for g in shown],
        "hours of JCT more or less under Lucid, all jobs",
        keys=_KEYS,
    )
    whole = len(shown) == len(moved)
    part = (
        "Users whose JCT does not change are left out."
        if whole
        else f"The {half} who lose most or gain least, and the {half} who gain most."
    )
    return Drawing(picture, "By user", part)


def _told(g: Group) -> str:
    by: dict[str, Any] = dict(g.by)
    return (
        f"{g.name or '(unnamed)'}: {g.jobs:,} jobs, {hours(by['lucid'].avg_jct_s)} instead of "
        f"{hours(by[PLAIN].avg_jct_s)} on average ({g.change:+.1%})"
    )
