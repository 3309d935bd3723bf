"""The regret report as one self-contained page, and in one sentence."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jinja2 import Environment, PackageLoader
from matplotlib.figure import Figure

from lucid.shown import for_html, on_picture
from lucid.tuner.drawing import HEIGHT_IN, Drawing, drawn, hours
from lucid.tuner.regret import PLAIN, REALLY, Group, Regret

__all__ = ["regret_sentence", "write_regret_page"]

_COLOURS = {REALLY: "#1c2330", PLAIN: "#9a6b12", "fifo": "#b4442f", "lucid": "#1f5fa8"}
_OTHER = "#8a94a6"
_MOST_BARS = 20


def regret_sentence(found: Regret) -> str:
    """The outcome in two sentences."""
    by, total = found.everybody.by, found.everybody.jobs
    change = by["lucid"].avg_jct_s / by[PLAIN].avg_jct_s - 1.0
    losing = sum(g.lost_s > 0 for g in found.users)
    said = (
        f"{total:,} jobs: Lucid's order would have made the average JCT {hours(by['lucid'].avg_jct_s)} instead of "
        f"{hours(by[PLAIN].avg_jct_s)} in plain order ({change:+.1%}), the average wait "
        f"{hours(by['lucid'].avg_wait_s)} instead of {hours(by[PLAIN].avg_wait_s)}. "
        f"{found.everybody.longer:,} jobs would have waited over a minute longer, and the jobs of {losing} of "
        f"{len(found.users)} users taken longer in sum."
    )
    if found.realism is not None:
        said += (
            f" Plain order replayed is {found.realism:+.1%} off the average JCT that really was: differences smaller "
            "than that say nothing of this cluster."
        )
    return said


def write_regret_page(path: Path, found: Regret, notes: Sequence[str]) -> None:
    """Write the page.

    Raises:
        OSError: it cannot be written.
    """
    figures = [_by_vc(found), _by_user(found)]
    environment = Environment(loader=PackageLoader("lucid.tuner", "."), autoescape=True, finalize=for_html)
    page = environment.get_template("regret.html.j2").render(
        found=found,
        plain=PLAIN,
        period=_period(found),
        sentence=regret_sentence(found),
        figures=figures,
        notes=notes,
        hours=hours,
    )
    path.write_text(page, encoding="utf-8")


def _period(found: Regret) -> str:
    if found.epoch_s is None:
        return f"days {found.from_s / 86400:.1f} to {found.until_s / 86400:.1f} of the log"
    first, last = (time.strftime("%F %R", time.gmtime(found.epoch_s + s)) for s in (found.from_s, found.until_s))
    return f"{first} to {last}"


def _by_vc(found: Regret) -> Drawing:
    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        groups: list[Group] = [found.everybody, *found.vcs][:_MOST_BARS]
        at = np.arange(len(groups))
        width = 0.8 / len(found.orders)
        for i, order in enumerate(found.orders):
            heights = [g.by[order].avg_jct_s / 3600 for g in groups]
            axes.bar(at + (i - (len(found.orders) - 1) / 2) * width, heights, width, label=order,
                     color=_COLOURS.get(order, _OTHER))  # fmt: skip
        axes.set_xticks(at, [on_picture(g.name) or "(unnamed)" for g in groups], rotation=30, ha="right")
        axes.set_ylabel("average JCT, hours")
        axes.legend(frameon=False, ncols=len(found.orders))

    return drawn(draw, "Average JCT by VC: what really was, and what each order would have made of it.")


def _by_user(found: Regret) -> Drawing:
    half = _MOST_BARS // 2
    shown = found.users if len(found.users) <= _MOST_BARS else (*found.users[:half], *found.users[-half:])

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        lost_h = [g.lost_s / 3600 for g in shown]
        at = np.arange(len(shown))
        axes.barh(at, lost_h, color=["#b4442f" if s > 0 else "#2a7f4f" for s in lost_h])
        axes.axvline(0, color="#1c2330", linewidth=0.8)
        axes.set_yticks(at, [on_picture(g.name) or "(unnamed)" for g in shown])
        axes.invert_yaxis()
        axes.set_xlabel("hours of JCT more (red) or less (green) under Lucid than in plain order, all jobs")

    height_in = max(HEIGHT_IN, 0.22 * len(shown) + 0.8)
    whole = len(shown) == len(found.users)
    part = "" if whole else f": the {half} who lose most or gain least, and the {half} who gain most"
    return drawn(draw, f"Who loses and who gains{part}.", height_in)
