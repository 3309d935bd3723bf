"""Logs that others have published: Lucid as it is by default beside plain Slurm with backfilling on the same nodes,
and with estimates that lie.

The logs are not part of this repository. LUCID_PUBLIC names a folder that has them under the names that their
publishers gave them (docs/traces.md, Public logs, says where they are); what is absent is left out.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from benchmarks.figure import Absent, Figure
from benchmarks.helios import CLUSTERS, cluster_of
from lucid.config.load import settings_from
from lucid.simulator.cluster.state import Semantics
from lucid.simulator.engine import Run
from lucid.simulator.layout import sized_to_load
from lucid.simulator.metrics import LARGE_GPUS, run_metrics
from lucid.simulator.scenario import Scenario, simulate
from lucid.simulator.traces.read import read_trace
from lucid.simulator.traces.record import Trace
from lucid.simulator.traces.synth import with_workloads

__all__ = ["LIES", "VARIANTS", "figures", "lies", "lies_table", "pool", "tables", "window"]

_PER_NODE: Final = 8
_TRUTH, _PLAIN = "told the truth", "plain order"
VARIANTS: Final = (
    *("backfill", "qssf", "srtf", "lucid", _TRUTH, _PLAIN),
    *("without profiling", "as live", "workloads synthetic"),
)
"""Columns of the table. All but the first three are lucid."""
LIES: Final[Mapping[str, Callable[[random.Random, float], float]]] = {
    "noise": lambda rng, _: math.exp(rng.gauss(8.0, 2.0)),
    "inverted": lambda _, true_s: 1e7 / max(true_s, 1.0),
    "constant": lambda _, __: 3600.0,
    "true": lambda _, true_s: true_s,
}
"""Estimates in s that are made of true durations in s. The last one does not lie."""
_AVERAGE, _LARGE, _TAIL = "average JCT", f"JCT of jobs > {LARGE_GPUS} GPUs", "p99.9 of waiting"
_KEYS: Final = {_AVERAGE: "avg_jct_s", _LARGE: "avg_jct_large_s", _TAIL: "p999_queue_s"}
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
    found = _at_hand()
    clusters = [name for name in CLUSTERS if (_folder() / name).is_dir()] if _folder() != Path() else []
    if not found and not clusters:
        raise Absent(f"set LUCID_PUBLIC to a folder with one of {_FILES}, or with {' or '.join(CLUSTERS)}")
    for one in found:
        scenario, name = _scenario(one)
        yield from _beside(name, scenario, one.held_out, one.most)
    for name in clusters:
        yield from _beside(f"{name}, its VCs", cluster_of(_folder() / name), held_out=True, most=0.8)


def lies(runs: int) -> Iterator[Figure]:
    """The same figures under plain Slurm, under Lucid, and under Lucid with each of `LIES` as estimates.

    Raises:
        Absent: none of the logs is at hand.
    """
    del runs  # the same every time
    found = _at_hand()
    if not found:
        raise Absent(f"set LUCID_PUBLIC to a folder with one of {_FILES}")
    for one in found:
        scenario, name = _scenario(one)
        plain = run_metrics(simulate(scenario, "backfill"))
        idle = plain["avg_queue_s"] < _IDLE_S
        for variant in ("backfill", "lucid", *LIES):
            asked = {_AVERAGE: 1.02, _LARGE: 1.05} if variant in LIES and variant != "true" else {}
            told = plain if variant == "backfill" else run_metrics(simulate(_told(scenario, variant), "lucid"))
            yield from _rows(name, variant, told, plain, asked, held_out=one.held_out, idle=idle)


def _told(scenario: Scenario, lie: str) -> Scenario:
    """The scenario with these estimates; any other name leaves it as it is."""
    if lie not in LIES:
        return scenario
    rng = random.Random(_SEED)
    said = {one.job.id: LIES[lie](rng, one.duration_s) for one in scenario.trace.jobs}
    return replace(scenario, durations_s={"lucid": said}, estimates_name=lie)


_FILES: Final = ", ".join(dict.fromkeys(one.file for one in _POOLS))


def _folder() -> Path:
    """LUCID_PUBLIC; ``Path()`` where it is not set."""
    return Path(os.environ.get("LUCID_PUBLIC", ""))


def _at_hand() -> list[_Pool]:
    folder = _folder()
    return [one for one in _POOLS if folder != Path() and (folder / one.file).is_file()]


def _scenario(one: _Pool) -> tuple[Scenario, str]:
    """A window on its nodes, and how it is called."""
    trace = window(_whole(_folder() / one.file), one.at - 1, one.of, one.first)
    nodes = one.nodes or pool(trace, one.load)
    return Scenario(trace, {trace.jobs[0].job.vc: nodes}), f"{one.name}, {nodes} nodes"  # such a log has one VC


@cache
def _whole(path: Path) -> Trace:
    return read_trace(path)


def _run(scenario: Scenario, variant: str) -> Run:
    if variant in ("backfill", "qssf", "srtf", "lucid"):
        return simulate(scenario, variant)
    if variant == _TRUTH:
        scenario = _told(scenario, "true")
    elif variant == _PLAIN:
        never = settings_from({"policy": {"fairness": {"estimates": "never"}}}, _PLAIN)
        scenario = replace(scenario, settings=never)
    elif variant == "without profiling":
        off = settings_from({"policy": {"profiling": {"enabled": False}}}, "without profiling")
        scenario = replace(scenario, settings=off)
    elif variant == "as live":
        scenario = replace(scenario, semantics=Semantics.AS_LIVE)
    else:
        scenario = replace(scenario, trace=with_workloads(scenario.trace, _SEED)[0])
    return simulate(scenario, "lucid")


def _beside(name: str, scenario: Scenario, held_out: bool, most: float) -> Iterator[Figure]:
    plain: Mapping[str, Any] = {}
    for variant in VARIANTS:
        found = run_metrics(_run(scenario, variant))
        plain = plain or found
        idle = plain["avg_queue_s"] < _IDLE_S
        bounds = {_AVERAGE: 1.002, _LARGE: 1.005} if idle else {_AVERAGE: most, _LARGE: 1.0, _TAIL: 1.2}
        asked = bounds if variant == "lucid" else {}
        yield from _rows(name, variant, found, plain, asked, held_out=held_out, idle=idle)


def _rows(
    name: str,
    variant: str,
    found: Mapping[str, Any],
    plain: Mapping[str, Any],
    asked: Mapping[str, float],
    *,
    held_out: bool,
    idle: bool,
) -> Iterator[Figure]:
    """A figure of each measure that there is. ``asked``: at most so many times plain Slurm's."""
    for what, key in _KEYS.items():
        if found[key] is None:
            continue
        base = plain[key] / 3600
        yield Figure(
            f"{name}, {variant}, {what}", found[key] / 3600, "h", 1, base, "backfill",
            at_most=asked[what] * base if what in asked else None,
            detail={
                "pool": name, "variant": variant, "measure": what, "jobs": found["jobs"], "held_out": held_out,
                "queues": not idle,
            },
        )  # fmt: skip


def tables(found: Iterable[Figure]) -> str:
    """Average JCT (that of large jobs) and p99.9 of waiting: in hours, and as multiples of plain Slurm's. What misses
    its target is bold."""
    pools = _by_pool(found)
    shares = ", ".join(f"{name} {share:.2f}" for name, share in _shares(pools))
    return (
        "Average JCT (of jobs > 8 GPUs), p99.9 of waiting, in hours. †: held out, nothing may be chosen on it.\n\n"
        f"{_table(pools, VARIANTS)}\n\nThe same as multiples of plain Slurm's; bold: lucid as it is misses the "
        f"target.\n\n{_table(pools, VARIANTS, times=True)}\n\nOf what srtf saves of plain Slurm's average, where "
        f"that is 5 % or more, lucid has: {shares or '-'}."
    )


def lies_table(found: Iterable[Figure]) -> str:
    """What lies cost: plain Slurm's hours, all others as multiples of them. What misses its target is bold."""
    return (
        "Average JCT (of jobs > 8 GPUs), p99.9 of waiting: of plain Slurm in hours, of Lucid as multiples of these.\n"
        "†: held out, nothing may be chosen on it. Bold: misses the target.\n\n"
        f"{_table(_by_pool(found), ('backfill', 'lucid', *LIES), times=True, hours=('backfill',))}"
    )


_Pools = Mapping[str, Mapping[str, Mapping[str, Figure]]]
"""Figures by pool, variant and measure."""


def _by_pool(found: Iterable[Figure]) -> _Pools:
    pools: dict[str, dict[str, dict[str, Figure]]] = {}
    for figure in found:
        detail = figure.detail
        pools.setdefault(detail["pool"], {}).setdefault(detail["variant"], {})[detail["measure"]] = figure
    return pools


def _table(pools: _Pools, variants: Sequence[str], *, times: bool = False, hours: Sequence[str] = ()) -> str:
    """``hours``: the variants that are told in hours although all others are told as multiples (``times``)."""
    lines = [f"| pool | jobs | {' | '.join(variants)} |", f"|{'---|' * (len(variants) + 2)}"]
    for name, of in pools.items():
        first = of["backfill"][_AVERAGE].detail
        marks = ("" if first["queues"] else ", nobody queues") + (" †" if first["held_out"] else "")
        cells = [_cell(of[variant], times and variant not in hours) for variant in variants]
        lines.append(f"| {name}{marks} | {first['jobs']:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _shares(pools: _Pools) -> Iterator[tuple[str, float]]:
    """By pool, where srtf saves 5 % or more."""
    for name, of in pools.items():
        most, ours = (of[variant][_AVERAGE].ratio for variant in ("srtf", "lucid"))
        if most is not None and ours is not None and most <= 0.95:
            yield name, (1.0 - ours) / (1.0 - most)


def _cell(figures: Mapping[str, Figure], times: bool) -> str:
    def shown(what: str) -> str:
        figure = figures.get(what)
        if figure is None or (times and figure.ratio is None):
            return "-"
        text = (
            f"{figure.ratio:.3f}" if times else f"{figure.value:.3g}" if figure.value < 100 else f"{figure.value:.0f}"
        )
        return f"**{text}**" if times and figure.met is False else text

    return f"{shown(_AVERAGE)} ({shown(_LARGE)}), {shown(_TAIL)}"
