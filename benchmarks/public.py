"""Logs that others have published: Lucid as it is by default beside plain Slurm with backfilling on the same nodes.

The logs are not part of this repository. LUCID_PUBLIC names a folder that has them under the names that their
publishers gave them (docs/traces.md, Public logs, says where they are); what is absent is left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final

from benchmarks.figure import Absent, Figure
from benchmarks.helios import CLUSTERS, cluster_of
from lucid.config import settings_from
from lucid.simulator.engine import Run
from lucid.simulator.layout import sized_to_load
from lucid.simulator.metrics import LARGE_GPUS, run_metrics
from lucid.simulator.scenario import Scenario, simulate
from lucid.simulator.traces import read_trace
from lucid.simulator.traces.record import Trace
from lucid.simulator.traces.synth import with_workloads

__all__ = ["VARIANTS", "figures", "pool", "tables", "window"]

_PER_NODE: Final = 8
VARIANTS: Final = ("backfill", "qssf", "lucid", "without profiling", "as live", "workloads synthetic")
"""Columns of the table. All but the first two are lucid."""
_AVERAGE, _LARGE, _TAIL = "average JCT", f"JCT of jobs > {LARGE_GPUS} GPUs", "p99.9 of waiting"
_SEED: Final = 1
_IDLE_S: Final = 3600.0
"""Where jobs wait for less on average under plain Slurm, nobody queues."""


@dataclass(frozen=True, slots=True)
class _Pool:
    """Part ``at`` (from 1) of ``of`` of a log in one pool: on so many nodes, or at a load. ``first``: so many jobs
    are left out at its beginning. ``held_out``: settings and rules may not be chosen on it. ``most``: times plain
    Slurm's average JCT that are asked for under load."""

    log: str
    file: str
    at: int
    of: int
    nodes: int = 0
    load: float = 0.0
    first: int = 0
    held_out: bool = False
    most: float = 0.8

    @property
    def name(self) -> str:
        name = self.log if self.of == 1 else f"{self.log} {self.at}"
        return f"{name} without its first {self.first} jobs" if self.first else name


_HELIOS, _PHILLY = "helios_data_training.csv", "philly_data_training.csv"
_POOLS: Final = (
    _Pool("Helios", _HELIOS, 2, 2, load=0.95),
    _Pool("Helios", _HELIOS, 1, 2, load=0.95),
    _Pool("Helios", _HELIOS, 1, 2, nodes=77),
    _Pool("Helios", _HELIOS, 2, 2, nodes=77),
    _Pool("Blue Waters", "blue_waters_data_training.csv", 1, 1, nodes=147, most=0.9),
    _Pool("openb", "openb_pod_list_default.csv", 1, 1, nodes=4, first=200),  # those are services of months
    _Pool("Philly", _PHILLY, 1, 3, load=0.9),
    _Pool("Philly", _PHILLY, 2, 3, load=0.9, held_out=True),
    _Pool("Philly", _PHILLY, 3, 3, load=0.9, held_out=True),
    _Pool("Philly", _PHILLY, 2, 3, load=2.2, held_out=True),  # so high a load, since its jobs end long after the last
    _Pool("Philly", _PHILLY, 3, 3, load=1.8, held_out=True),  # submission: at 1.7 and 1.5 they wait for 45 and 54 min
)


def window(trace: Trace, at: int, of: int, first: int = 0) -> Trace:
    """Part ``at`` (from 0) of ``of`` parts with as many jobs each, without its ``first`` jobs. CPUs and host memory
    do not count."""
    size = len(trace.jobs)
    jobs = trace.jobs[at * size // of + first : (at + 1) * size // of]
    first_s = jobs[0].job.submit_s
    return replace(
        trace,
        jobs=tuple(
            replace(one, job=replace(one.job, submit_s=one.job.submit_s - first_s, rank=rank, cpus=0, mem_mib=0))
            for rank, one in enumerate(jobs)
        ),
    )


def pool(trace: Trace, load: float) -> int:
    """Nodes of one pool at a load, as ``simulate --load`` sizes it."""
    return sum(sized_to_load(trace, _PER_NODE, load).values())


def figures(runs: int) -> Iterator[Figure]:
    """Average JCT, that of large jobs, and p99.9 of waiting under each of `VARIANTS`, beside plain Slurm's.

    Raises:
        Absent: none of the logs is at hand.
    """
    del runs  # the same every time
    folder = os.environ.get("LUCID_PUBLIC", "")
    root = Path(folder)
    at_hand = [one for one in _POOLS if folder and (root / one.file).is_file()]
    clusters = [name for name in CLUSTERS if folder and (root / name).is_dir()]
    if not at_hand and not clusters:
        files = ", ".join(dict.fromkeys(one.file for one in _POOLS))
        raise Absent(f"set LUCID_PUBLIC to a folder with one of {files}, or with {' or '.join(CLUSTERS)}")
    for one in at_hand:
        trace = window(_whole(root / one.file), one.at - 1, one.of, one.first)
        nodes = one.nodes or pool(trace, one.load)
        scenario = Scenario(trace, {trace.jobs[0].job.vc: nodes})  # such a log has one VC
        yield from _beside(f"{one.name}, {nodes} nodes", scenario, one.held_out, one.most)
    for name in clusters:
        yield from _beside(f"{name}, its VCs", cluster_of(root / name), held_out=True, most=0.8)


@cache
def _whole(path: Path) -> Trace:
    return read_trace(path)


def _run(scenario: Scenario, variant: str) -> Run:
    if variant in ("backfill", "qssf", "lucid"):
        return simulate(scenario, variant)
    if variant == "without profiling":
        off = settings_from({"policy": {"profiling": {"enabled": False}}}, "without profiling")
        scenario = replace(scenario, settings=off)
    elif variant == "as live":
        scenario = replace(scenario, as_live=True)
    else:
        scenario = replace(scenario, trace=with_workloads(scenario.trace, _SEED)[0])
    return simulate(scenario, "lucid")


def _beside(name: str, scenario: Scenario, held_out: bool, most: float) -> Iterator[Figure]:
    plain: dict[str, float] = {}
    idle = False
    for variant in VARIANTS:
        found = run_metrics(_run(scenario, variant))
        of = {_AVERAGE: found["avg_jct_s"], _LARGE: found["avg_jct_large_s"], _TAIL: found["p999_queue_s"]}
        hours = {what: seconds / 3600 for what, seconds in of.items() if seconds is not None}
        if not plain:
            plain, idle = hours, found["avg_queue_s"] < _IDLE_S
        bounds = {_AVERAGE: 1.002, _LARGE: 1.005} if idle else {_AVERAGE: most, _LARGE: 1.0, _TAIL: 1.2}
        for what, value in hours.items():
            bound = bounds.get(what) if variant == "lucid" else None
            yield Figure(
                f"{name}, {variant}, {what}", value, "h", 1, plain[what], "backfill",
                at_most=None if bound is None else bound * plain[what],
                detail={
                    "pool": name, "variant": variant, "measure": what, "jobs": found["jobs"], "held_out": held_out,
                    "queues": not idle,
                },
            )  # fmt: skip


def tables(found: Iterable[Figure]) -> str:
    """Average JCT (that of large jobs) and p99.9 of waiting: in hours, and as multiples of plain Slurm's. What misses
    its target is bold."""
    pools: dict[str, dict[str, dict[str, Figure]]] = {}
    for figure in found:
        detail = figure.detail
        pools.setdefault(detail["pool"], {}).setdefault(detail["variant"], {})[detail["measure"]] = figure
    head = f"| pool | jobs | {' | '.join(VARIANTS)} |\n|{'---|' * (len(VARIANTS) + 2)}"
    made = []
    for times in (False, True):
        rows = []
        for name, variants in pools.items():
            first = variants["backfill"][_AVERAGE].detail
            marks = ("" if first["queues"] else ", nobody queues") + (" †" if first["held_out"] else "")
            cells = [_cell(variants[variant], times) for variant in VARIANTS]
            rows.append(f"| {name}{marks} | {first['jobs']:,} | {' | '.join(cells)} |")
        made.append("\n".join([head, *rows]))
    return (
        "Average JCT (of jobs > 8 GPUs), p99.9 of waiting, in hours. †: held out, nothing may be chosen on it.\n\n"
        f"{made[0]}\n\nThe same as multiples of plain Slurm's; bold: lucid as it is misses the target.\n\n{made[1]}"
    )


def _cell(figures: dict[str, Figure], times: bool) -> str:
    def shown(what: str) -> str:
        figure = figures.get(what)
        if figure is None or (times and figure.ratio is None):
            return "-"
        text = (
            f"{figure.ratio:.3f}" if times else f"{figure.value:.3g}" if figure.value < 100 else f"{figure.value:.0f}"
        )
        return f"**{text}**" if times and figure.met is False else text

    return f"{shown(_AVERAGE)} ({shown(_LARGE)}), {shown(_TAIL)}"
