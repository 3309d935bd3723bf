"""Muri (SIGCOMM '22): its authors' traces by the rules of their simulator, on 8 nodes of 8 GPUs.

Traces 1 and 3, and 3 with all jobs submitted at once, are in the shared data. Traces 2 and 4 and those of one to four
kinds of jobs take part where ``LUCID_MURI_TRACES`` names the folder ``trace-data`` of the authors' simulator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

from benchmarks.figure import Absent
from benchmarks.packs import shared
from benchmarks.papers.lucid_schedules import with_rules
from benchmarks.papers.replays import columns, folder_of, hours, on_nodes, p99_jct_h, published_json, replayed
from benchmarks.papers.row import Row
from benchmarks.timeaware import synthetic
from lucid.simulator.cluster.state import Semantics
from lucid.simulator.scenario import Scenario, simulate

__all__ = ["ablations", "kinds", "lucid_beside_fifo", "ratios", "traces"]

_POLICIES: Final[Mapping[str, tuple[str, float]]] = {
    "srtf": ("SRTF", 1e-6),
    "srsf": ("SRSF", 1e-6),
    "tiresias": ("Tiresias_L", 1e-6),
    "muri-s-no-unpack": ("Muri_S", 0.03),
    "muri-l": ("Muri_L", 0.03),
}
"""Ours: the column published, and how far ours may be off. Baselines must be equal; Muri's matchings break ties."""
_BASELINES: Final = ("srtf", "srsf", "tiresias")
"""Equal in each column. Of Muri the 99th percentile, which is the JCT of one job, is not judged."""
_MISSING: Final = {"antman": "AntMan", "themis": "Themis"}
"""Baselines of the paper that are not built here: its authors call their AntMan unfinished."""
_COLUMNS: Final = {"avg JCT, h": "JCT", "p99 JCT, h": "99JCT", "makespan, h": "Makespan"}
_SHIPPED: Final = ("trace3", "trace3_pr", "trace1")
_RATIOS: Final = (
    ("srtf", "muri-s-no-unpack"),
    ("srsf", "muri-s-no-unpack"),
    ("tiresias", "muri-l"),
    ("antman", "muri-l"),
    ("themis", "muri-l"),
)


def traces() -> Iterator[Row]:
    """Each trace under each policy; of AntMan and Themis what was published."""
    for trace in _at_hand():
        for policy, (column, within) in _POLICIES.items():
            ours, published = _ours(trace, policy), _published(trace, column)
            decides = () if policy in _BASELINES else ("avg JCT, h", "makespan, h")
            yield Row(f"{trace}, {policy}", ours, published, within=within, decides=decides)
        for column, name in _MISSING.items():
            yield Row(f"{trace}, {name}", {}, _published(trace, column), note="not built")


def ratios() -> Iterator[Row]:
    """How many times as long jobs take under each baseline as under Muri. AntMan and Themis: their published figures
    over those of our Muri."""
    for trace in _at_hand():
        for baseline, muri in _RATIOS:
            theirs = _published(trace, _POLICIES[baseline][0] if baseline in _POLICIES else baseline)
            mine = _published(trace, _POLICIES[muri][0])
            ours = _ours(trace, muri)
            over = _ours(trace, baseline) if baseline in _POLICIES else theirs
            names = {column: column.removesuffix(", h") for column in _COLUMNS}
            yield Row(
                f"{trace}, {_MISSING.get(baseline, baseline)} over {muri}",
                {name: over[column] / ours[column] for column, name in names.items()},
                {name: theirs[column] / mine[column] for column, name in names.items()},
                within=0.05,
                decides=("avg JCT", "makespan"),
            )


def kinds() -> Iterator[Row]:
    """Average JCT of jobs that are bound by one, two, three and four kinds of resources (figure 13)."""
    found = published_json("muri")["figures_11_13"]
    for number in (1, 2, 3, 4):
        try:
            path = shared("muri/trace3.csv") if number == 4 else _path(f"job_type_{number}")
        except Absent as error:
            path = None
            note = str(error)
        for policy, column, within in (
            ("srtf", "SRTF", 1e-6),
            ("tiresias", "Tiresias", 1e-6),
            # the authors' own figure of all four kinds is without unpacking, the others are with it
            ("muri-s" if number < 4 else "muri-s-no-unpack", "Muri_S", 0.03),
            ("muri-l", "Muri_L", 0.03),
        ):
            published = hours({"avg JCT, h": found[f"Fig13_{column}"][number - 1]})
            what = f"{number} kind{'s' if number > 1 else ''}, {policy}"
            if path is None:
                yield Row(what, {}, published, note=note)
            else:
                yield Row(what, _replayed(path, policy), published, within=within)


def ablations() -> Iterator[Row]:
    """Without the matching, with the worst order (figure 11), with groups of at most 2, 3, 4 (figure 12)."""
    found = published_json("muri")["figures_11_13"]
    numbers = {"trace1": 0, "trace2": 1, "trace3": 2, "trace4": 3}
    for trace, number in numbers.items():
        if trace not in _at_hand():
            continue
        for policy, name in (
            ("muri-l", "Fig11_Muri_L"),
            ("muri-l-worst-order", "Fig11_Muri_L_w_worstordering"),
            ("muri-l-no-matching", "Fig11_Muri_L_wo_blossom"),
        ):
            figures = {"avg JCT, h": found[f"{name}_JCT"][number], "makespan, h": found[f"{name}_Makespan"][number]}
            yield Row(f"{trace}, {policy}", _ours(trace, policy), hours(figures), within=0.03)
    for trace, number in numbers.items():
        at_once = f"{trace}_pr"
        if at_once not in _at_hand():
            continue
        for policy, size in (("muri-l-2", 2), ("muri-l-3", 3), ("muri-l-no-unpack", 4)):
            name = f"Fig12_Muri_L_{size}"
            figures = {"avg JCT, h": found[f"{name}_JCT"][number], "makespan, h": found[f"{name}_Makespan"][number]}
            yield Row(f"{at_once}, groups of at most {size}", _ours(at_once, policy), hours(figures), within=0.03)


def lucid_beside_fifo() -> Iterator[Row]:
    """Lucid on eight nodes, beside fifo, and what a node set aside for profiling does there."""
    trace3 = on_nodes(shared("muri/trace3.csv"), 8, 8, Semantics.HONEST)
    on, off = {"profiling": {"enabled": True}}, {"profiling": {"enabled": False}}
    for what, scenario, policy in (
        ("trace3, fifo", trace3, "fifo"),
        ("trace3, backfill", trace3, "backfill"),
        ("trace3, lucid with a profiling node, as it was before 0054", with_rules(trace3, **on), "lucid"),
        ("trace3, lucid", trace3, "lucid"),
        ("trace3, lucid told true durations", replace(trace3, predictor="oracle"), "lucid"),
    ):
        yield Row(what, replayed(scenario, policy))
    for seed in (1, 2, 3):
        scenario = _on_eight(seed)
        for what, made, policy in (
            ("fifo", scenario, "fifo"),
            ("backfill", scenario, "backfill"),
            ("lucid with a profiling node", with_rules(scenario, **on), "lucid"),
            ("lucid without one", with_rules(scenario, **off), "lucid"),
        ):
            yield Row(f"VC of month {seed} on eight nodes or fewer, {what}", replayed(made, policy))


def _on_eight(seed: int) -> Scenario:
    """The largest VC of a synthetic month that has at most eight nodes."""
    month = synthetic("month-small", seed)
    vcs = month.vcs or {}
    name = max((vc for vc, nodes in vcs.items() if nodes <= 8), key=lambda vc: vcs[vc])
    jobs = tuple(item for item in month.trace.jobs if item.job.vc == name)
    return replace(month, trace=replace(month.trace, jobs=jobs), vcs={name: vcs[name]})


def _at_hand() -> tuple[str, ...]:
    if folder_of("LUCID_MURI_TRACES", "the traces of Muri's authors") is None:
        return _SHIPPED
    return (*_SHIPPED, "trace1_pr", "trace4", "trace4_pr")


def _path(trace: str) -> Path:
    if trace in _SHIPPED:
        return shared(f"muri/{trace}.csv")
    folder = folder_of("LUCID_MURI_TRACES", "the traces of Muri's authors")
    if folder is None:
        raise Absent(f"{trace}.csv is in the folder trace-data of Muri's authors; LUCID_MURI_TRACES should name it")
    path = folder / f"{trace}.csv"
    if not path.is_file():
        raise Absent(f"{path} is not there; LUCID_MURI_TRACES should name the folder trace-data of Muri's authors")
    return path


def _ours(trace: str, policy: str) -> dict[str, float]:
    return _replayed(_path(trace), policy)


@cache
def _replayed(path: Path, policy: str) -> dict[str, float]:
    run = simulate(on_nodes(path, 8, 8, Semantics.MURI), policy)
    found = columns(run) | {"p99 JCT, h": p99_jct_h(run)}
    return {column: found[column] for column in (*_COLUMNS, "queueing, h", "p99.9 queueing, h")}


def _published(trace: str, column: str) -> dict[str, float]:
    found = published_json("muri")["results"]
    return hours({name: found[kind][column][trace] for name, kind in _COLUMNS.items()})
