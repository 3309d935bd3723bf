"""Tables of the report page: policies compared, the figures behind charts, and every job with its story.

The page unpacks two kinds of data when somebody opens them: ``facts`` (columns over all jobs, for each policy the
times during which each job held GPUs of a node), and for each policy the stories. They are gzip in base64, so that
10,000 jobs stay below 5 MiB."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lucid.core.decision import DecisionRow
from lucid.core.placement import Placement, parse_placement
from lucid.html.charts import Plain, time_unit
from lucid.html.page import show_change, show_count, show_duration, show_share, unit_of
from lucid.simulator.cluster.jobs import PROFILING
from lucid.simulator.cluster.state import JobOutcome
from lucid.simulator.engine import Run
from lucid.simulator.metrics import Gains
from lucid.simulator.record import DecisionLog
from lucid.simulator.report.charts import Floats, TimeLines


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell: its text, and the value itself."""

    text: str
    value: float | None
    best: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the comparison. ``better``: whether there is a better direction to mark (less, in every case)."""

    group: str
    title: str
    key: str
    show: Callable[[float | None], str] | None = None
    """Shows a value; ``None``: a duration, in a unit common to the column."""
    better: bool = True
    part: str = ""
    """The part of the figures that holds the value."""


_COLUMNS = (
    *(
        Column(group, title, f"{key}_{name}_s")
        for group, name in (("Job completion time (JCT)", "jct"), ("Queueing delay", "queue"))
        for key, title in (("avg", "average"), ("median", "median"), ("p90", "p90"), ("p999", "p99.9"))
    ),
    Column("Large jobs", "average JCT", "avg_jct_large_s"),
    Column("Cluster", "makespan", "makespan_s"),
    Column("Cluster", "GPU use", "gpu_use", show_share, better=False),
    Column("Cluster", "packed jobs", "packed_share", show_share, better=False),
    Column("Cluster", "preemptions", "preemptions", show_count),
)
_BOUND = (
    Column("Starvation bound", "jobs past it", "jobs_past_bound", show_count),
    Column("Starvation bound", "worst by", "worst_past_bound_s"),
)
"""Columns for policies that promised a starvation bound."""
_PARTS = (
    Column("24 h before windows", "GPU-hours unused", "unused_before_gpu_h", show_count, part="windows"),
    Column("24 h before windows", "GPU-hours of lost work", "lost_gpu_h", show_count, part="windows"),
)
"""Columns for replays with windows."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The table of policies, one a row. ``spans``: groups of columns with how many each has."""

    spans: list[tuple[str, int]]
    columns: list[Column]
    rows: list[list[Cell]]


def compare(policies: Sequence[str], metrics: Mapping[str, Mapping[str, Any]]) -> Comparison:
    """The table of all policies; the best of a column is marked unless all are alike."""
    bounded = any("starvation_bound_s" in metrics[policy] for policy in policies)
    known = {part for policy in policies for part in metrics[policy]}
    chosen = [*_COLUMNS, *(_BOUND if bounded else ()), *(column for column in _PARTS if column.part in known)]
    columns = [_cells(column, [_value(column, metrics[policy]) for policy in policies]) for column in chosen]
    groups = [column.group for column in chosen]
    return Comparison(
        [(group, groups.count(group)) for group in dict.fromkeys(groups)],
        chosen,
        [list(row) for row in zip(*columns, strict=True)],
    )


def _value(column: Column, metrics: Mapping[str, Any]) -> float | None:
    found: float | None = (metrics.get(column.part, {}) if column.part else metrics).get(column.key)
    return found


def _cells(column: Column, values: Sequence[float | None]) -> list[Cell]:
    known = [value for value in values if value is not None]
    best = min(known, default=None) if column.better and len(set(known)) > 1 else None
    if column.show is not None:
        return [Cell(column.show(value), value, value is not None and value == best) for value in values]
    unit = unit_of(max(known, default=0.0))
    return [Cell(show_duration(value, unit), value, value is not None and value == best) for value in values]


def completion_table(policies: Sequence[str], jcts: Sequence[Floats]) -> Plain:
    """The share of jobs that is done within each time."""
    rows = []
    for percent in (10, 25, 50, 75, 90, 95, 99, 99.9):
        times = [show_duration(float(np.percentile(jct, percent))) if len(jct) else "–" for jct in jcts]
        rows.append([f"{percent:g} %", *times])
    return Plain("Time within which a share of the jobs is done", ["jobs done", *policies], rows)


_PERIODS = 12


def time_table(
    caption: str,
    policies: Sequence[str],
    lines: TimeLines,
    values: Sequence[Floats],
    show: Callable[[float], str],
    last: Sequence[tuple[str, list[str]]] = (),
) -> Plain:
    """Means over about a dozen periods of equal length, then the rows given."""
    width = max(1, -(-len(lines.at_s) // _PERIODS))
    unit = time_unit(len(lines.at_s) * lines.bucket_s)
    per_bucket = lines.bucket_s / unit.seconds
    rows = []
    for start in range(0, len(lines.at_s), width):
        stop = min(start + width, len(lines.at_s))
        means = [show(float(v[start:stop].mean())) if len(v) > start else "over" for v in values]
        rows.append([f"{start * per_bucket:.1f} to {stop * per_bucket:.1f} {unit.name}", *means])
    return Plain(caption, ["mean over", *policies], [*rows, *([name, *cells] for name, cells in last)])


def groups_table(
    caption: str,
    first: str,
    names: Sequence[str],
    policies: Sequence[str],
    groups: Sequence[Mapping[str, Mapping[str, Any]]],
    most: int,
) -> Plain:
    """Average queueing delay of each group under each policy, with the number of jobs."""
    rows = []
    for name in names[:most]:
        found = [group.get(name, {}) for group in groups]
        jobs = max((figures.get("jobs", 0) for figures in found), default=0)
        delays = [show_duration(figures.get("avg_queue_s")) for figures in found]
        rows.append([name, show_count(jobs), *delays])
    left = len(names) - len(rows)
    return Plain(caption, [first, "jobs", *policies], rows, f"and {show_count(left)} more" if left > 0 else "")


def lending_table(policies: Sequence[str], by_vc: Sequence[Mapping[str, Mapping[str, Any]]]) -> Plain | None:
    """What the VCs of a pool lent and borrowed under each policy; ``None`` without a pool."""
    pooled = [
        (name, g) for name, g in zip(policies, by_vc, strict=True) if any("quota_gpus" in f for f in g.values())
    ]
    if not pooled:
        return None
    asked = any("promise" in found for _, groups in pooled for found in groups.values())
    columns = ["VC", "quota"]
    for name, _ in pooled:
        columns += [f"{name}: average JCT", "GPU-hours lent", "borrowed", "jobs past the bound"]
        columns += ["without lending", "jobs within quota: waited longer, p99.9", "at most"] if asked else []
    rows = []
    for vc, first in pooled[0][1].items():
        row = [vc, show_count(first["quota_gpus"])]
        for _, groups in pooled:
            found = groups[vc]
            past, cost = found.get("jobs_past_bound"), found.get("promise", {})
            row += [
                show_duration(found.get("avg_jct_s")),
                show_count(round(found["lent_gpu_h"])),
                show_count(round(found["borrowed_gpu_h"])),
                "-" if past is None else show_count(past),
            ]
            row += [show_duration(cost.get(key)) for key in ("walls_avg_jct_s", "p999_s", "worst_s")] if asked else []
        rows.append(row)
    return Plain("Lending between VCs", columns, rows, "A VC borrows what it holds beyond its quota.")


def gains_tables(found: Gains, most_rows: int) -> list[tuple[str, list[tuple[str, list[str], bool]], int]]:
    """Tables by VC and by user, those that lose most first: a title, rows (name, cells, whether it loses), and how
    many rows more there are."""
    made = []
    for title, parties in (("VC", found.vcs), ("user", found.users)):
        rows = [
            (
                party.name or "(no name)",
                [
                    show_count(party.jobs),
                    show_duration(party.baseline_s),
                    show_duration(party.jct_s),
                    show_change(party.jct_s, party.baseline_s) or "the same",
                    show_count(party.later),
                ],
                show_change(party.jct_s, party.baseline_s).endswith("more"),
            )
            for party in parties[:most_rows]
        ]
        made.append((title, rows, max(len(parties) - most_rows, 0)))
    return made


MOST_JOBS = 10_000
"""Most jobs in one page: the first to be submitted, so that the timeline is whole up to the last of them."""
MOST_BYTES = 4_000_000
"""Most bytes packed here. Policies whose stories would not fit go without; ``lucidctl explain`` has them."""

TellStory = Callable[[Run, JobOutcome], str]
"""The story of a job in words, its lines not wrapped."""

_STARTS = ("start", "resize", "regroup")
_ENDS = ("requeue", "part", "release")
ALONE, PROFILED, SHARED = 0, 1, 2
"""Kinds of stay on a node."""


@dataclass(frozen=True, slots=True)
class JobPack:
    """The packed jobs: ``facts``, and ``stories`` by policy. ``listed`` of ``jobs`` are in it. ``without``: policies
    whose stories did not fit. ``decided``: whether there are decisions, which say where a job was when."""

    facts: str
    stories: Mapping[str, str]
    listed: int
    jobs: int
    without: Sequence[str]
    decided: bool


def pack_jobs(
    runs: Sequence[Run],
    styles: Sequence[int],
    logs: Mapping[str, DecisionLog],
    tell: TellStory | None = None,
    first: str = "",
) -> JobPack:
    """The packed jobs of all runs. ``logs``: decisions by policy; without them a job stays where it ended. ``tell``:
    makes a story where there are decisions. ``first``: the policy whose stories are packed first."""
    order = sorted(runs[0].outcomes, key=lambda o: (o.job.submit_s, o.job.id))[:MOST_JOBS]
    index = {o.job.id: i for i, o in enumerate(order)}
    names, nodes = dict[str, int](), dict[str, int]()
    policies = [
        _policy(run, style, index, logs.get(run.policy), nodes) for run, style in zip(runs, styles, strict=True)
    ]
    facts = {
        "id": [o.job.id for o in order],
        "name": [_number_of(o.job.name, names) for o in order],
        "user": [_number_of(o.job.user, names) for o in order],
        "vc": [_number_of(o.job.vc, names) for o in order],
        "gpus": [o.job.gpus for o in order],
        "submit": [round(o.job.submit_s) for o in order],
        "words": list(names),
        "nodes": list(nodes),
        "whole": len(order) == len(runs[0].outcomes),
        "policies": policies,
    }
    packed = _packed(facts)
    left, stories, without = MOST_BYTES - len(packed), {}, []
    for run in sorted(runs, key=lambda run: run.policy != first):
        if tell is None or run.policy not in logs:
            continue
        found = {o.job.id: o for o in run.outcomes}
        text = _packed([tell(run, found[o.job.id]) if o.job.id in found else "" for o in order])
        if len(text) > left:
            without.append(run.policy)
            continue
        left -= len(text)
        stories[run.policy] = text
    return JobPack(packed, stories, len(order), len(runs[0].outcomes), without, bool(logs))


def _number_of(word: str, known: dict[str, int]) -> int:
    """The number of a word, each of which is stored once."""
    return known.setdefault(word, len(known))


def _packed(data: Any) -> str:
    text = json.dumps(data, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


def _policy(
    run: Run, style: int, index: Mapping[str, int], log: DecisionLog | None, nodes: dict[str, int]
) -> dict[str, Any]:
    wait, jct, kind = [-1] * len(index), [-1] * len(index), [0] * len(index)
    stays: list[tuple[int, int, int, int, int, int]] = []
    for o in run.outcomes:
        i = index.get(o.job.id)
        if i is None:
            continue
        if o.end_s >= 0:
            wait[i], jct[i] = round(o.queue_s), round(o.jct_s)
        kind[i] = (1 if o.profiled_s > 0 else 0) + (2 if o.packed else 0) + (4 if o.preemptions else 0)
        for start_s, end_s, placement, what in _stays(o, [] if log is None else log.decisions_of(o.job.id)):
            for node, mask in placement:
                stays.append((i, _number_of(node, nodes), mask, round(start_s), round(end_s - start_s), what))
    columns = [list(column) for column in zip(*stays, strict=True)] or [[] for _ in range(6)]
    return {"name": run.policy, "style": style, "wait": wait, "jct": jct, "kind": kind, "stays": columns}


def _stays(o: JobOutcome, rows: Sequence[DecisionRow]) -> list[tuple[float, float, Placement, int]]:
    """When the job held which GPUs: from each start to the decision that ended it, or to the job's end."""
    if not any(row.verb in _STARTS for row in rows):
        if o.start_s < 0 or o.end_s < 0:
            return []
        return [(o.start_s, o.end_s, o.placement, SHARED if o.packed else ALONE)]
    found = []
    since: DecisionRow | None = None
    for row in rows:
        if row.verb not in _STARTS and row.verb not in _ENDS:
            continue
        if since is not None:
            found.append((since.at_s, row.at_s, parse_placement(since.placement), _kind(since)))
        since = row if row.verb in _STARTS else None
    if since is not None and o.end_s >= 0:
        found.append((since.at_s, o.end_s, parse_placement(since.placement), _kind(since)))
    return found


def _kind(row: DecisionRow) -> int:
    return PROFILED if row.partition == PROFILING else SHARED if row.beside else ALONE
