"""The chart of which jobs ran on which GPUs over the last hours: geometry in seconds and lanes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

from lucid.core.node import Node
from lucid.core.placement import NodeGpus, stretches
from lucid.explain.formatting import duration, when
from lucid.web.site import Sight, Site, Viewer
from lucid.web.source import Span

_LANE, _GAP = 5, 7
"""Pixels of a GPU, and of the gap between two nodes."""
_MOST = 6_000
"""Most bars of one chart."""


class Gantt(TypedDict):
    """The chart. ``width`` in seconds, ``height`` in pixels; each bar has x, y, width and height in these units, its
    kind, and its words."""

    since_s: float
    until_s: float
    width: int
    height: int
    now: int
    bands: list[dict[str, Any]]
    windows: list[dict[str, Any]]
    bars: list[dict[str, Any]]


def gantt(site: Site, viewer: Viewer, nodes: Sequence[Node], hours: int) -> Gantt:
    """The chart of the last ``hours`` on these nodes."""
    now_s = max(site.view.now_s, site.now_s())
    since_s = now_s - 3600.0 * hours
    until_s = _ahead_s(nodes, now_s, 3600.0 * hours)
    tops: dict[str, int] = {}
    bands = []
    top = 0
    for node in nodes:
        tops[node.name] = top
        bands.append(
            {
                "name": node.name,
                "y": top,
                "height": _LANE * node.gpus,
                "out": not node.available and node.shut is None,
            }
        )
        top += _LANE * node.gpus + _GAP
    bars: list[dict[str, Any]] = []
    running = site.view.running
    profiling = {name for name, part in site.view.seen.snapshot.partitions.items() if part.profiling}
    spans = [s for s in site.source.history.spans(since_s) if s.end_s is not None or s.job_id in running]
    told = {span.job_id for span in spans if span.end_s is None}
    spans += [  # they began before the history, or Slurm started them before lucidd saw them wait
        Span(job_id, name, entry.placement, entry.start_s)
        for job_id, (name, entry) in running.items()
        if job_id not in told
    ]
    for span in spans:
        here = [part for part in span.placement if part.node in tops]
        if here and len(bars) < _MOST:
            bars += _bars(site, viewer, span, here, tops, since_s, now_s, span.partition in profiling)
    bars.sort(key=lambda bar: bar["late"])
    return {
        "since_s": since_s,
        "until_s": until_s,
        "width": round(until_s - since_s),
        "height": max(top - _GAP, 1),
        "now": round(now_s - since_s),
        "bands": bands,
        "bars": bars,
        "windows": [box for node in nodes for box in _windows(node, tops[node.name], since_s, until_s)],
    }


def _ahead_s(nodes: Sequence[Node], now_s: float, most_s: float) -> float:
    """The end of the chart: that of a window that begins within as long as the chart goes back, no further."""
    ends = [
        min(window.end_s, now_s + most_s)
        for node in nodes
        for window in node.windows
        if window.from_s < now_s + most_s
    ]
    return max(ends, default=now_s)


def _windows(node: Node, top: int, since_s: float, until_s: float) -> list[dict[str, Any]]:
    found = []
    for window in node.windows:
        first_s, last_s = max(window.from_s, since_s), min(window.end_s, until_s)
        if first_s < last_s:
            ends = "" if window.until_s is None else f" to {when(window.until_s)}"
            words = f"{node.name}: {window.why or 'closed'} from {when(window.from_s)}{ends}"
            box = {"x": round(first_s - since_s), "y": top, "width": round(last_s - first_s)}
            found.append({**box, "height": _LANE * node.gpus, "words": words})
    return found


def _bars(
    site: Site,
    viewer: Viewer,
    span: Span,
    here: Sequence[NodeGpus],
    tops: dict[str, int],
    since_s: float,
    until_s: float,
    profiling: bool,
) -> list[dict[str, Any]]:
    end_s = until_s if span.end_s is None else span.end_s
    job_id, words = _said(site, viewer, span, end_s)
    kind = "taken" if not job_id else "profile" if profiling else "guest" if span.beside else "host"
    x = round(max(span.start_s - since_s, 0.0))
    width = max(round(end_s - since_s) - x, 1)
    found = []
    for part in here:
        for first, last in stretches(part.gpus):
            y, height = float(tops[part.node] + _LANE * first), float(_LANE * (last - first + 1))
            if span.beside:  # the lower half: below it stands the job that was there before
                y, height = y + height / 2, height / 2
            found.append(
                {"x": x, "y": y, "width": width, "height": height, "kind": kind, "job": job_id, "words": words,
                 "late": bool(span.beside)}
            )  # fmt: skip
    return found


def _said(site: Site, viewer: Viewer, span: Span, end_s: float) -> tuple[str, str]:
    entry = site.view.running.get(span.job_id)
    known = site.source.history.user_of(span.job_id)
    user, name = (entry[1].job.user, entry[1].job.name) if entry is not None else known or ("", "")
    sight = viewer.sees(user)
    lasted = duration(max(end_s - span.start_s, 0.0))
    if sight is Sight.OWN:
        return "", f"another job, {lasted}"
    if sight is Sight.NAMELESS:
        user, name = site.view.alias(user), ""
    beside = f"shares GPUs with job {span.beside}" if span.beside else ""
    ending = "so far" if span.end_s is None else ""
    words = ", ".join(
        word for word in (f"job {span.job_id}", user, name, f"{lasted} {ending}".strip(), beside) if word
    )
    return span.job_id, words
