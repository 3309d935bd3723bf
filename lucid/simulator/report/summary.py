"""The top of the page in words: what was replayed, who came off best, and what to know before believing it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from lucid.pages.units import DAY, show_change, show_count, show_duration, show_many
from lucid.simulator.engine import Run
from lucid.simulator.report.policies import knows_truth

__all__ = ["caveat", "changes", "facts", "headline", "synthetic", "warnings"]


def synthetic(notes: Sequence[str]) -> bool:
    """Does a note say that the trace is synthetic?"""
    return any(re.search(r"(?<!not )(?<!not a )\bsynthetic\b", note, re.IGNORECASE) for note in notes)


def facts(runs: Sequence[Run]) -> list[str]:
    """What was replayed, in a few words each."""
    jobs = [outcome.job for outcome in runs[0].outcomes]
    gpus = " or ".join(show_count(count) for count in sorted({run.total_gpus for run in runs}))
    vcs = len({job.vc for job in jobs})
    span_s = max((job.submit_s for job in jobs), default=0.0) - min((job.submit_s for job in jobs), default=0.0)
    return [
        show_many(len(jobs), "job"),
        f"arriving over {show_duration(span_s, DAY)}",
        f"{gpus} GPUs",
        show_many(vcs, "VC"),
        show_many(len(runs), "policy", "policies"),
    ]


def warnings(names: Sequence[str], figures: Sequence[dict[str, Any]]) -> list[str]:
    """Jobs that are in no figure."""
    return [
        f"{name}: {show_many(found['impossible_jobs'], 'job')} could never run on these nodes and "
        f"{'is' if found['impossible_jobs'] == 1 else 'are'} left out of every figure."
        for name, found in zip(names, figures, strict=True)
        if found.get("impossible_jobs")
    ]


def headline(names: Sequence[str], figures: Sequence[dict[str, Any]]) -> str:
    """The comparison in one sentence."""
    known = [(found["avg_jct_s"], name) for name, found in zip(names, figures, strict=True) if "avg_jct_s" in found]
    if not known:
        return "No job ended under any policy."
    best_s, best = min(known, key=lambda item: item[0])
    if len(names) == 1:
        return f"{best} completes a job in {show_duration(best_s)} on average."
    first = figures[0].get("avg_jct_s")
    if best == names[0] or first is None:
        others = [item for item in known if item[1] != best]
        if not others:
            return f"{best} alone ended any job: {show_duration(best_s)} on average."
        next_s, following = min(others, key=lambda item: item[0])
        return (
            f"{best} has the shortest average job completion time: {show_duration(best_s)}; "
            f"{following} follows with {show_duration(next_s)}{_bracket(show_change(next_s, best_s))}."
        )
    change = show_change(best_s, first)
    than = "as" if change == "the same" else "than"
    return (
        f"{best} has the shortest average job completion time: {show_duration(best_s)}, "
        f"{change} {than} {names[0]} ({show_duration(first)})."
    )


def caveat(runs: Sequence[Run], figures: Sequence[dict[str, Any]]) -> str:
    """What the reader must know of the best policy."""
    known = [(found["avg_jct_s"], i) for i, found in enumerate(figures) if "avg_jct_s" in found]
    if not known or not knows_truth(runs[min(known)[1]]):
        return ""
    return " It was given the true run times, which no real scheduler knows."


def _bracket(text: str) -> str:
    return f" ({text})" if text else ""


_HEADLINE_FIGURES = (
    ("average JCT", "avg_jct_s"),
    ("average queueing delay", "avg_queue_s"),
    ("p99.9 queueing delay", "p999_queue_s"),
    ("average JCT of large jobs", "avg_jct_large_s"),
)


def changes(names: Sequence[str], figures: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The policy of the shortest average JCT against the first one, where they differ: for better and for worse."""
    known = [found for found in figures if "avg_jct_s" in found]
    if not known or known[0] is not figures[0]:
        return None
    best = min(known, key=lambda found: found["avg_jct_s"])
    if best is figures[0]:
        return None
    cards = []
    for title, key in _HEADLINE_FIGURES:
        value, reference = best.get(key), figures[0].get(key)
        if value is None or reference is None:
            continue
        cards.append(
            {
                "title": title,
                "value": show_duration(value),
                "reference": show_duration(reference),
                "change": show_change(value, reference),
                "verdict": "better" if value < reference else "worse" if value > reference else "equal",
            }
        )
    return {"policy": names[figures.index(best)], "first": names[0], "cards": cards}
