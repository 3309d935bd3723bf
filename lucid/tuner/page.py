"""``proposal.html``: one self-contained page with the proposal, its evidence and the plots behind it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader
from matplotlib.figure import Figure

from lucid.shown import for_html
from lucid.tuner.drawing import Drawing, drawn, hours
from lucid.tuner.proposal import Proposal, toml_diff
from lucid.tuner.search import Trial

__all__ = ["verdict", "write_page"]


def verdict(proposal: Proposal) -> str:
    """The outcome in one sentence."""
    if not proposal.changes:
        return "Nothing that was tried beats the present settings."
    if proposal.evidence is None:
        return "The best settings found were not judged on later data."
    lead = "Worth making" if proposal.worth_it else "Not proposed"
    return (
        f"{lead}: {proposal.evidence.why} ({proposal.evidence.jobs:,} jobs, {proposal.evidence.days} days). "
        f"On the data it was found on the gain was {-proposal.found_gain:.1%}."
    )


def write_page(path: Path, proposal: Proposal, trials: Sequence[Trial]) -> None:
    """Write the page."""
    figures = [_search_figure(trials)]
    if proposal.evidence is not None:
        figures.append(_days_figure(proposal))
    figures += _setting_figures(trials)
    environment = Environment(loader=PackageLoader("lucid.tuner", "."), autoescape=True, finalize=for_html)
    page = environment.get_template("page.html.j2").render(
        proposal=proposal, diff=toml_diff(proposal), verdict=verdict(proposal), figures=figures, hours=hours
    )
    path.write_text(page, encoding="utf-8")


def _search_figure(trials: Sequence[Trial]) -> Drawing:
    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        scores = [t.score_s / 3600 for t in trials]
        best = [min(scores[: i + 1]) for i in range(len(scores))]
        axes.plot(scores, ".", color="#8a94a6", label="tried")
        axes.plot(best, color="#1f5fa8", label="best so far")
        axes.axhline(scores[0], color="#9a6b12", linestyle="--", linewidth=1, label="present settings")
        axes.set_xlabel("trial")
        axes.set_ylabel("score, hours")
        axes.set_ylim(min(scores) * 0.98, min(max(scores), 2 * scores[0]) * 1.02)
        axes.legend(frameon=False)

    return drawn(draw, "The search: score (average JCT, and a tenth of large jobs' queueing) on the earlier data.")


def _days_figure(proposal: Proposal) -> Drawing:
    evidence = proposal.evidence
    assert evidence is not None

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        days = [d for d, _, _ in evidence.by_day]
        change = [100 * (after / before - 1) if before else 0.0 for _, before, after in evidence.by_day]
        axes.bar(days, change, color=["#2a7f4f" if c <= 0 else "#b4442f" for c in change])
        axes.axhline(0, color="#1c2330", linewidth=0.8)
        axes.set_xlabel("day of submission")
        axes.set_ylabel("average JCT, change in %")

    return drawn(draw, "The later data day by day: below zero, the proposal was better that day.")


def _setting_figures(trials: Sequence[Trial]) -> list[Drawing]:
    keys = list(trials[0].values)
    rows = -(-len(keys) // 3)

    def draw(figure: Figure) -> None:
        grid = figure.subplots(rows, 3, squeeze=False)
        for axes in grid.flat[len(keys) :]:
            axes.set_visible(False)
        for axes, key in zip(grid.flat, keys, strict=False):
            values = [t.values[key] for t in trials]
            shown = [str(v) for v in values] if isinstance(values[0], str) else values
            axes.plot(shown, [t.score_s / 3600 for t in trials], ".", color="#1f5fa8", markersize=3)
            axes.set_title(key.removeprefix("policy."), fontsize=8)

    return [drawn(draw, "Score in hours by each setting; a flat cloud means that it hardly matters.", 1.9 * rows)]
