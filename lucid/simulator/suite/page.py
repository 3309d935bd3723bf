"""The page of the suite, and its figures as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lucid.config import Settings
from lucid.models.history import HistoryPredictor
from lucid.orchestrator.policies.requirements import requirements_of
from lucid.orchestrator.policy import make_policy
from lucid.pages.page import write_page
from lucid.pages.units import show_count, show_duration, show_many
from lucid.simulator.suite.cells import Cell
from lucid.simulator.suite.traces import Entry

__all__ = ["suite_data", "write_suite"]

_SIMPLIFIED = {
    "backfill": "without Slurm's partition, QOS and nice factors; without the pauses of its backfill thread",
    "tiresias": "two queues; no profile of a model's shape decides whether a job must stay consolidated",
    "muri-s": "jobs of a group have stage times from the trace; no execution is interleaved",
    "muri-l": "jobs of a group have stage times from the trace; no execution is interleaved",
    "pollux": "one objective: the published one of utilisation, for a cluster that grows, is left out",
    "optimus": "no parameter servers: one worker for each GPU",
    "optimus-fitted": "no parameter servers: one worker for each GPU; unknown jobs are tried out",
    "elastic": "epoch times by number of GPUs only, wherever these are",
    "lucid": "interference from measured pairs where there are any, else from the contention model",
}
"""What ours leaves out of what was published, by policy."""


def suite_data(entries: Sequence[Entry], cells: Sequence[Cell]) -> dict[str, Any]:
    """For ``--json``: each trace with its cells."""
    by_trace = {entry.name: {c.policy: c for c in cells if c.trace == entry.name} for entry in entries}
    return {
        "suite": [
            {
                "trace": entry.name,
                "about": entry.about,
                "source": entry.source or None,
                "simplified": list(entry.simplified),
                "results": {
                    policy: {
                        "figures": dict(cell.figures) or None,
                        "published_avg_jct_s": entry.published.get(policy),
                        "difference": _difference(entry, cell),
                        "not_applicable": cell.reason or None,
                    }
                    for policy, cell in by_trace[entry.name].items()
                },
            }
            for entry in entries
        ],
        "simplified": [{"policy": p, "what": _SIMPLIFIED[p]} for p in _policies(cells) if p in _SIMPLIFIED],
    }


def _policies(cells: Sequence[Cell]) -> list[str]:
    return list(dict.fromkeys(cell.policy for cell in cells))


def _difference(entry: Entry, cell: Cell) -> float | None:
    published, ours = entry.published.get(cell.policy), cell.figures.get("avg_jct_s")
    return None if published is None or ours is None else ours / published - 1


def write_suite(path: Path, entries: Sequence[Entry], cells: Sequence[Cell]) -> None:
    """Write one HTML page that needs nothing beside itself.

    Raises:
        OSError: the file cannot be written.
    """
    found = {(cell.trace, cell.policy): cell for cell in cells}
    policies = _policies(cells)
    compared = [abs(d) for e in entries for p in policies if (d := _difference(e, found[e.name, p])) is not None]
    ran = sum(bool(cell.figures) for cell in cells)
    headline = f"{show_many(ran, 'replay')}: {show_many(len(policies), 'policy', 'policies')} on"
    headline += f" {show_many(len(entries), 'trace')}."
    if compared:
        close = sum(item <= _CLOSE for item in compared)
        headline += (
            f" {show_count(close)} of {show_many(len(compared), 'published figure')} came out within {_CLOSE:.0%}."
            f" The largest difference is {max(compared):.1%}."
        )
    context = {
        "headline": headline,
        "traces": [
            {
                "name": entry.name,
                "about": entry.about,
                "source": entry.source,
                "simplified": entry.simplified,
                "best": min(
                    (c.figures["avg_jct_s"] for c in cells if c.trace == entry.name and c.figures), default=0
                ),
            }
            for entry in entries
        ],
        "rows": [
            {
                "policy": policy,
                "assumes": requirements_of(make_policy(policy, Settings().policy, HistoryPredictor())).text(),
                "simplified": _SIMPLIFIED.get(policy, "nothing known"),
                "cells": [_shown(entry, found[entry.name, policy]) for entry in entries],
            }
            for policy in policies
        ],
        "close": f"{_CLOSE:.0%}",
    }
    write_page(path, "lucid.simulator.suite", "suite.html.j2", context)


_CLOSE = 0.05


def _shown(entry: Entry, cell: Cell) -> dict[str, Any]:
    """One cell in words."""
    if not cell.figures:
        return {"ours": "", "value": None, "reason": cell.reason, "published": "", "difference": "", "far": False}
    difference, published = _difference(entry, cell), entry.published.get(cell.policy)
    return {
        "ours": show_duration(cell.figures["avg_jct_s"]),
        "value": cell.figures["avg_jct_s"],
        "reason": "",
        "published": "" if published is None else show_duration(published),
        "difference": "" if difference is None else f"{difference:+.1%}",
        "far": difference is not None and abs(difference) > _CLOSE,
    }
