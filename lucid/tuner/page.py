"""Writes ``proposal.html``: one self-contained page with the proposal, its evidence and the charts behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lucid.html.charts import Chart, Plain, columns, points
from lucid.html.page import write_page as write_html
from lucid.tuner.evidence import Evidence
from lucid.tuner.proposal import Proposal, toml_diff
from lucid.tuner.search import Trial


@dataclass(frozen=True, slots=True)
class _Drawing:
    """One chart, the texts over and under it, and its values."""

    chart: Chart
    heading: str
    note: str = ""
    table: Plain | None = None


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.2f} h"


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
    """Write the page.

    Raises:
        OSError: it cannot be written."""
    figures = [_search(trials)]
    if proposal.evidence is not None:
        figures.append(_days(proposal.evidence))
    context = {
        "proposal": proposal,
        "diff": toml_diff(proposal),
        "verdict": verdict(proposal),
        "changes": None if proposal.evidence is None else _changes(proposal.evidence),
        "losers": None if proposal.evidence is None else _losers(proposal.evidence),
        "figures": figures,
        "settings": _settings(trials),
    }
    write_html(path, "lucid.tuner", "page.html.j2", context)


def _changes(evidence: Evidence) -> Plain:
    rows = [
        [c.name, _hours(c.before_s), _hours(c.after_s), f"{c.relative:+.1%}", f"{c.low:+.1%} to {c.high:+.1%}"]
        for c in evidence.changes
    ]
    return Plain(
        f"{evidence.jobs:,} jobs on {evidence.days} days, which the search had not seen",
        ["figure", "now", "proposed", "change", "95 % of resampled days"],
        rows,
    )


def _losers(evidence: Evidence) -> Plain:
    rows = []
    for u in evidence.losers:
        later = _hours(u.jobs * (u.after_s - u.before_s))
        rows.append([u.user or "(unnamed)", f"{u.jobs:,}", _hours(u.before_s), _hours(u.after_s), later])
    head = ["user", "jobs", "average JCT now", "proposed", "all jobs, later by"]
    return Plain("Of each user's jobs together, most first", head, rows)


def _search(trials: Sequence[Trial]) -> _Drawing:
    scores = [t.score_s / 3600 for t in trials]
    best = [min(scores[: i + 1]) for i in range(len(scores))]
    chart = points(
        "The search: score of each trial",
        "Score in hours of each setting tried, and of the best so far as a line; the lower, the better.",
        [(i, score, f"trial {i}: {score:.2f} h; best so far {best[i]:.2f} h") for i, score in enumerate(scores)],
        "trial",
        "score, hours",
        most=2 * scores[0],
        best=list(enumerate(best)),
        now=scores[0],
        keys=(("tried", "point"), ("best so far", "best"), ("present settings", "now")),
    )
    note = "Score: average JCT, and a tenth of large jobs' queueing, on the earlier data."
    return _Drawing(chart, "The search", note)


def _days(evidence: Evidence) -> _Drawing:
    days = [(d, before, after, 100 * (after / before - 1) if before else 0.0) for d, before, after in evidence.by_day]
    chart = columns(
        "The later data day by day",
        "Change of the average JCT of each day's jobs in percent; below zero the proposal was better that day.",
        [(str(d), c, f"day {d}: {_hours(now)} instead of {_hours(was)}, {c:+.1f} %") for d, was, now, c in days],
        "average JCT, change in %",
        "day of submission",
    )
    rows = [[str(d), _hours(before), _hours(after), f"{change:+.1f} %"] for d, before, after, change in days]
    table = Plain("Average JCT by day of submission", ["day", "now", "proposed", "change"], rows)
    return _Drawing(chart, "Day by day", "Below zero, the proposal was better that day.", table)


def _settings(trials: Sequence[Trial]) -> list[_Drawing]:
    """Score over the values of each setting that was varied."""
    made, first = [], trials[0].score_s / 3600
    for key in trials[0].values:
        values = [t.values[key] for t in trials]
        named = any(isinstance(v, str | bool) for v in values)
        names = list(dict.fromkeys(str(v) for v in values)) if named else []
        at = [
            (float(names.index(str(v)) if named else v), t.score_s / 3600, f"{v}: {t.score_s / 3600:.2f} h")
            for v, t in zip(values, trials, strict=True)
        ]
        short = key.removeprefix("policy.")
        chart = points(
            f"Score by {short}", f"Score in hours of each trial over its value of {key}.", at, "", "hours",
            names=names, most=2 * first, now=first, height=170,
        )  # fmt: skip
        made.append(_Drawing(chart, short))
    return made
