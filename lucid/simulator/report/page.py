"""Puts the page together and writes it."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from lucid.simulator.engine import Run
from lucid.simulator.metrics import LARGE_GPUS, SIZES
from lucid.simulator.report import charts, policies, tables
from lucid.simulator.report.series import completion_grid, jct_of, time_lines
from lucid.simulator.report.units import DAY, show_change, show_count, show_duration, show_share

__all__ = ["write_report"]

_MOST_BARS = 16
"""VCs that get bars, those with the most jobs first; the table beside the chart has more."""
_MOST_ROWS = 200


def write_report(
    path: Path,
    trace_name: str,
    runs: Sequence[Run],
    metrics: Mapping[str, dict[str, Any]],
    notes: Sequence[str] = (),
) -> None:
    """Write one HTML page that needs nothing beside itself, the same bytes for the same runs.

    ``metrics``: what ``run_metrics`` says of each run, by policy. ``notes`` stand near the top; where one says
    that the trace is synthetic, so does the page's title. The first run is what the others are measured against.

    Raises:
        ValueError: there are no runs.
        OSError: the file cannot be written.
    """
    if not runs:
        raise ValueError("a report needs at least one run")
    page = _environment().get_template("report.html.j2").render(**_context(trace_name, runs, metrics, notes))
    path.write_text(page, encoding="utf-8", errors="replace", newline="\n")


def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("lucid.simulator.report", "."),
        autoescape=True,  # whatever the file is called: names of traces and VCs are anybody's text
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


@dataclass(frozen=True, slots=True)
class _Asset:
    """Text of ours that goes into the page as it stands, and the hash under which the page admits it."""

    text: Markup
    digest: str


def _asset(name: str) -> _Asset:
    text = files("lucid.simulator.report").joinpath(name).read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return _Asset(Markup(text), f"sha256-{digest}")


def _context(
    trace_name: str, runs: Sequence[Run], metrics: Mapping[str, dict[str, Any]], notes: Sequence[str]
) -> dict[str, Any]:
    names = [run.policy for run in runs]
    styles = policies.styles(names)
    figures = [metrics[name] for name in names]
    sections = _charts(runs, names, styles, figures)
    readouts = {key: chart.readout for key, chart in sections["lines"].items() if chart is not None}
    return {
        "trace_name": trace_name,
        "synthetic": _synthetic(notes),
        "notes": notes,
        "facts": _facts(runs),
        "warnings": _warnings(names, figures),
        "headline": _headline(names, figures) + _caveat(runs, figures),
        "changes": _changes(names, figures),
        "ran": [
            {
                "policy": run.policy,
                "style": style,
                "cells": [
                    policies.about(run.policy),
                    policies.estimates(run.policy, run.predictor),
                    *policies.habits(run, found),
                ],
            }
            for run, style, found in zip(runs, styles, figures, strict=True)
        ],
        "keys": list(zip(names, styles, strict=True)),
        "comparison": tables.compare(names, metrics),
        "large_gpus": LARGE_GPUS,
        "large_jobs": show_count(max(found.get("large_jobs", 0) for found in figures)),
        "readouts": readouts,
        "style": _asset("report.css"),
        "script": _asset("report.js"),
        **sections,
    }


def _charts(
    runs: Sequence[Run], names: Sequence[str], styles: Sequence[int], figures: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Every chart and the table that stands in for it."""
    jcts = [jct_of(run) for run in runs]
    lines = time_lines(runs)
    last_s = max((o.job.submit_s for run in runs for o in run.outcomes), default=0.0)
    occupancy = [
        charts.occupancy_chart(lines, last_s, i, run.policy, style, run.total_gpus)
        for i, (run, style) in enumerate(zip(runs, styles, strict=True))
    ]
    by_vc = [found.get("by_vc", {}) for found in figures]
    by_size = [{_size_name(k): v for k, v in found.get("by_size", {}).items()} for found in figures]
    vcs = _by_jobs(by_vc)
    sizes = [_size_name(label) for label, _ in SIZES]
    shares = [busy / max(run.total_gpus, 1) for run, busy in zip(runs, lines.busy, strict=True)]
    return {
        "lines": {
            "jct": charts.completion_chart(completion_grid(jcts), jcts, names, styles),
            "queue": charts.queue_chart(lines, last_s, names, styles),
            **{f"gpus{i}": chart for i, chart in enumerate(occupancy)},
        },
        "panels": [(f"gpus{i}", name, style) for i, (name, style) in enumerate(zip(names, styles, strict=True))],
        "bucket": show_duration(lines.bucket_s),
        "bars": {
            "vc": charts.bar_chart("Queueing delay by VC", vcs[:_MOST_BARS], names, styles, by_vc),
            "size": charts.bar_chart("Queueing delay by size of job", sizes, names, styles, by_size),
        },
        "more_vcs": max(0, len(vcs) - _MOST_BARS),
        "tables": {
            "jct": tables.completion_table(names, jcts),
            "queue": tables.time_table(
                "Jobs waiting",
                names,
                lines,
                lines.pending,
                lambda jobs: f"{jobs:,.1f}",
                [("peak", [show_count(peak) for peak in lines.peak_pending])],
            ),
            "gpus": tables.time_table(
                "Share of GPUs that are busy",
                names,
                lines,
                shares,
                show_share,
                [("shared, until the last end", [show_share(found.get("shared_gpu_use")) for found in figures])],
            ),
            "vc": tables.groups_table("Average queueing delay by VC", "VC", vcs, names, by_vc, _MOST_ROWS),
            "size": tables.groups_table(
                "Average queueing delay by size of job", "size", sizes, names, by_size, _MOST_ROWS
            ),
        },
    }


def _size_name(label: str) -> str:
    return f"{label} GPU" if label == "1" else f"{label} GPUs"


def _by_jobs(by_vc: Sequence[Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """All VCs, those with the most jobs first."""
    jobs: dict[str, int] = {}
    for groups in by_vc:
        for name, found in groups.items():
            jobs[name] = max(jobs.get(name, 0), found.get("jobs", 0))
    return sorted(jobs, key=lambda name: (-jobs[name], name))


def _synthetic(notes: Sequence[str]) -> bool:
    return any(re.search(r"(?<!not )(?<!not a )\bsynthetic\b", note, re.IGNORECASE) for note in notes)


def _facts(runs: Sequence[Run]) -> list[str]:
    """What was replayed, in a few words each."""
    jobs = [outcome.job for outcome in runs[0].outcomes]
    gpus = " or ".join(show_count(count) for count in sorted({run.total_gpus for run in runs}))
    vcs = len({job.vc for job in jobs})
    span_s = max((job.submit_s for job in jobs), default=0.0) - min((job.submit_s for job in jobs), default=0.0)
    return [
        _many(len(jobs), "job"),
        f"arriving over {show_duration(span_s, DAY)}",
        f"{gpus} GPUs",
        _many(vcs, "VC"),
        _many(len(runs), "policy", "policies"),
    ]


def _many(count: int, one: str, more: str = "") -> str:
    return f"{show_count(count)} {one if count == 1 else more or one + 's'}"


def _warnings(names: Sequence[str], figures: Sequence[dict[str, Any]]) -> list[str]:
    return [
        f"{name}: {_many(found['impossible_jobs'], 'job')} could never run on these nodes and "
        f"{'is' if found['impossible_jobs'] == 1 else 'are'} left out of every figure."
        for name, found in zip(names, figures, strict=True)
        if found.get("impossible_jobs")
    ]


def _headline(names: Sequence[str], figures: Sequence[dict[str, Any]]) -> str:
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


def _caveat(runs: Sequence[Run], figures: Sequence[dict[str, Any]]) -> str:
    """What the reader must know of the best policy."""
    known = [(found["avg_jct_s"], i) for i, found in enumerate(figures) if "avg_jct_s" in found]
    if not known or not policies.knows_truth(runs[min(known)[1]]):
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


def _changes(names: Sequence[str], figures: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
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
