"""Puts the report page together (charts, tables, sentences, jobs) and writes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lucid.html.page import show_count, show_duration, show_share, write_page
from lucid.simulator.engine import Run
from lucid.simulator.metrics import LARGE_GPUS, SIZES, Gains, gains_headline, loss_text
from lucid.simulator.record import DecisionLog
from lucid.simulator.report import charts, summary, tables
from lucid.simulator.report.charts import TimeLines, completion_grid, jct_of, time_lines
from lucid.simulator.report.tables import TellStory, pack_jobs

_MOST_BARS, _LEAST_GROUPS = 96, 6
"""Most bars of one chart, and the least number of VCs in it. VCs with the most jobs come first; the table beside the
chart has more."""
_MOST_ROWS = 200


def write_report(
    path: Path,
    trace_name: str,
    runs: Sequence[Run],
    metrics: Mapping[str, dict[str, Any]],
    notes: Sequence[str] = (),
    told: Sequence[Gains] = (),
    logs: Mapping[str, DecisionLog] | None = None,
    tell: TellStory | None = None,
    answer: str = "",
) -> None:
    """Write one HTML page that needs nothing beside itself, the same bytes for the same runs.

    ``metrics``: ``run_metrics`` of each run, by policy. ``notes`` stand near the top; where one says that the trace
    is synthetic, so does the page's title. The others are compared with ``baseline_of`` the runs. ``told``: who gains
    and who loses; the page shows lucid, or the last policy where lucid was not replayed. ``logs``: the decisions by
    policy, for the timeline of nodes; ``tell`` makes the story of a job of them. ``answer``: stands first in place of
    the best policy's figures, over those of lucid.

    Raises: ValueError: there are no runs. OSError: the file cannot be written."""
    if not runs:
        raise ValueError("a report needs at least one run")
    names = [run.policy for run in runs]
    first, styles = "lucid" if "lucid" in names else names[-1], summary.styles(names)
    keys, figures = list(zip(names, styles, strict=True)), [metrics[name] for name in names]
    sections = _charts(runs, keys, figures)
    context = {
        "trace_name": trace_name,
        "synthetic": summary.synthetic(notes),
        "notes": notes,
        "facts": summary.facts(runs),
        "warnings": summary.never_ran(dict(zip(names, figures, strict=True))),
        "headline": answer or summary.headline(runs, figures),
        "changes": summary.changes(runs, figures, "lucid" if answer else ""),
        "ran": [
            {
                "policy": run.policy,
                "style": style,
                "cells": [
                    summary.ABOUT.get(run.policy, ""),
                    summary.estimates(run.policy, run.predictor),
                    *summary.habits(run, found),
                ],
            }
            for run, (_, style), found in zip(runs, keys, figures, strict=True)
        ],
        "keys": keys,
        "comparison": tables.compare(names, metrics),
        "large_gpus": LARGE_GPUS,
        "large_jobs": show_count(max(found.get("large_jobs", 0) for found in figures)),
        "readouts": {key: chart.readout for key, chart in sections["lines"].items() if chart is not None},
        "gains": _gains(told),
        "pack": pack_jobs(runs, styles, logs or {}, tell, first) if runs[0].outcomes else None,
        "looked_at": first,
        **sections,
    }
    write_page(path, "lucid.simulator.report", "report.html.j2", context, _SCRIPTS)


_SCRIPTS = ("simulator/report/jobs.js", "simulator/report/timeline.js")


def _gains(told: Sequence[Gains]) -> dict[str, Any] | None:
    if not told:
        return None
    found = next((one for one in told if one.policy == "lucid"), told[-1])
    return {
        "policy": found.policy,
        "baseline": found.baseline,
        "headline": gains_headline(found),
        "tables": tables.gains_tables(found, _MOST_ROWS),
        "losing": [
            {"job": one.job, "user": one.user, "vc": one.vc, "gpus": show_count(one.gpus),
             "later": show_duration(one.lost_s), "why": loss_text(one, show_duration)}
            for one in found.losing
        ],
    }  # fmt: skip


def _charts(runs: Sequence[Run], keys: charts.Keys, figures: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Every chart and the table with the same values."""
    names = [name for name, _ in keys]
    jcts = [jct_of(run) for run in runs]
    lines = time_lines(runs)
    last_s = max((o.job.submit_s for run in runs for o in run.outcomes), default=0.0)
    occupancy = [
        charts.occupancy_chart(lines, last_s, i, run.policy, style, run.total_gpus)
        for i, (run, (_, style)) in enumerate(zip(runs, keys, strict=True))
    ]
    by_vc = [found.get("by_vc", {}) for found in figures]
    by_size = [{_size_name(k): v for k, v in found.get("by_size", {}).items()} for found in figures]
    vcs, most = _by_jobs(by_vc), max(_LEAST_GROUPS, _MOST_BARS // len(runs))
    sizes = [_size_name(label) for label, _ in SIZES]
    shares = [busy / max(run.total_gpus, 1) for run, busy in zip(runs, lines.busy, strict=True)]
    return {
        "lines": {
            "jct": charts.completion_chart(completion_grid(jcts), jcts, keys),
            "queue": charts.queue_chart(lines, last_s, keys),
            **{f"gpus{i}": chart for i, chart in enumerate(occupancy)},
        },
        "panels": [(f"gpus{i}", *key) for i, key in enumerate(keys)],
        "sampled": _sampled(lines),
        "bars": {
            "vc": charts.bar_chart("Queueing delay in each VC", vcs[:most], keys, by_vc),
            "size": charts.bar_chart("Queueing delay by size of job", sizes, keys, by_size),
        },
        "more_vcs": max(0, len(vcs) - most),
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
            "vc": tables.groups_table("Average queueing delay in each VC", "VC", vcs, names, by_vc, _MOST_ROWS),
            "lending": tables.lending_table(names, by_vc),
            "size": tables.groups_table(
                "Average queueing delay by size of job", "size", sizes, names, by_size, _MOST_ROWS
            ),
        },
    }


def _sampled(lines: TimeLines) -> str:
    """How the points of the charts over time are made, in words."""
    each = show_duration(lines.step_s)
    if lines.bucket_s == lines.step_s:
        return f"One sample every {each}."
    return f"Each point is the mean over {show_duration(lines.bucket_s)}, sampled every {each}."


def _size_name(label: str) -> str:
    return f"{label} GPU" if label == "1" else f"{label} GPUs"


def _by_jobs(by_vc: Sequence[Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """All VCs, those with the most jobs first."""
    jobs: dict[str, int] = {}
    for groups in by_vc:
        for name, found in groups.items():
            jobs[name] = max(jobs.get(name, 0), found.get("jobs", 0))
    return sorted(jobs, key=lambda name: (-jobs[name], name))
