"""The nodes that a replay runs on: from a file of VCs, from a count, or sized to the trace."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lucid.core.node import Node
from lucid.errors import ConfigError, TraceError
from lucid.simulator.traces.record import Trace

_SERVED = 0.95
"""Where the number of nodes is unknown, a VC's GPUs would serve its jobs without a queue for this share of the time:
bursts queue, ordinary days do not."""
_PROFILING_SHARE = 0.02
"""Share of the nodes set aside for profiling by default (the published set-up: 2 of 96)."""


@dataclass(frozen=True, slots=True)
class NodeShape:
    """The shape of every simulated node. ``cpus`` and ``mem_mib`` of 0: not limited."""

    gpus: int = 8
    gpu_mem_mib: int = 24576
    cpus: int = 0
    mem_mib: int = 0


def read_vcs(path: Path) -> dict[str, int]:
    """Nodes by VC, in file order, from a CSV with two columns: the VC's name, and ``num``.

    Raises:
        TraceError: naming file, line, column and value."""
    found: dict[str, int] = {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            next(reader, None)
            for row in reader:
                if not row:
                    continue
                where = f"{path}: line {reader.line_num}"
                if len(row) < 2:
                    raise TraceError(f"{where}: {','.join(row)!r} has no second column; write 'name,nodes'")
                name, text = row[0].strip(), row[1].strip()
                if not text.isdigit() or int(text) == 0:
                    raise TraceError(f"{where}: column num: {text!r} is not a number of nodes of at least 1")
                if not name or name in found:
                    raise TraceError(f"{where}: column 1: VC name {name!r} is empty or is in the file twice")
                found[name] = int(text)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{path}: cannot be read: {error}; give --vcs a CSV of 'name,nodes'") from None
    if not found:
        raise TraceError(f"{path}: names no VC; write a header line, then 'name,nodes' on each")
    return found


def sized_vcs(trace: Trace, gpus_per_node: int, nodes: int | None = None) -> dict[str, int]:
    """Nodes by VC for a trace that came without: enough for the largest job, and for all jobs to run at once
    on submission during 95 % of the time in which jobs arrive; or, where ``nodes`` is given, that many shared
    out by GPU-hours.

    Raises:
        ConfigError: ``nodes`` are too few to hold each VC's largest job."""
    work: dict[str, float] = defaultdict(float)
    least: dict[str, int] = defaultdict(lambda: 1)
    for item in trace.jobs:
        vc = item.job.vc
        work[vc] += item.duration_s * item.job.gpus
        least[vc] = max(least[vc], math.ceil(item.job.gpus / gpus_per_node))
    if nodes is None:
        demand = _demand_quantiles(trace, _SERVED)
        return {vc: max(least[vc], math.ceil(demand[vc] / gpus_per_node)) for vc in sorted(work)}
    if sum(least[vc] for vc in work) > nodes:
        raise ConfigError(
            f"{nodes} nodes of {gpus_per_node} GPUs cannot hold the largest job of each of the {len(work)} VCs "
            f"(that takes {sum(least[vc] for vc in work)}); give --nodes more, or a --vcs file"
        )
    shares = {vc: least[vc] for vc in sorted(work)}
    for _ in range(nodes - sum(shares.values())):  # one by one to the VC that is shortest of nodes
        neediest = max(shares, key=lambda vc: (work[vc] / shares[vc], vc))
        shares[neediest] += 1
    return shares


def offered_load(trace: Trace, gpus: int) -> float | None:
    """GPU-hours that the jobs ask for, over those of ``gpus`` GPUs from the first submission to the last; ``None``
    where all are submitted at once."""
    span_s = trace.jobs[-1].job.submit_s - trace.jobs[0].job.submit_s
    asked_s = sum(item.duration_s * item.job.gpus for item in trace.jobs)
    return asked_s / (span_s * gpus) if span_s > 0 else None


def sized_to_load(
    trace: Trace, gpus_per_node: int, load: float, profiling_nodes: int | None = None
) -> dict[str, int]:
    """Nodes by VC at which the offered load is ``load``, as near as whole nodes come to it: submissions and run times
    stay as they are in the trace. At least as many as the largest job of each VC takes while ``profiling_nodes``
    (2 % unless given) profile, so that the load may be lower on a small cluster.

    Raises:
        ConfigError: all jobs are submitted at once."""
    of_one_node = offered_load(trace, gpus_per_node)
    if of_one_node is None:
        raise ConfigError("--load: all jobs of the trace are submitted at once; give --nodes in its place")
    nodes = max(1, round(of_one_node / load))
    largest: dict[str, int] = defaultdict(lambda: 1)
    for item in trace.jobs:
        largest[item.job.vc] = max(largest[item.job.vc], math.ceil(item.job.gpus / gpus_per_node))
    least = sum(largest.values())
    return sized_vcs(trace, gpus_per_node, max(nodes, least + (profiling_nodes or _profiling(nodes))))


def build_layout(vcs: Mapping[str, int], shape: NodeShape) -> dict[str, list[Node]]:
    """Nodes ``<vc>-000`` and so on for each VC."""
    return {
        vc: [Node(f"{vc}-{i:03d}", shape.gpus, shape.gpu_mem_mib, shape.cpus, shape.mem_mib) for i in range(count)]
        for vc, count in vcs.items()
    }


def lend_profiling_nodes(
    layout: Mapping[str, Sequence[Node]], trace: Trace, count: int | None
) -> tuple[dict[str, list[Node]], list[Node]]:
    """Set ``count`` nodes aside for profiling (2 % of them unless given, at least 1), one from each of the
    largest VCs in turn. A VC lends only what leaves it room for its own largest job.

    Raises:
        ConfigError: the VCs cannot spare as many as were asked for."""
    left = {vc: list(nodes) for vc, nodes in layout.items()}
    asked = count is not None
    total = sum(len(nodes) for nodes in left.values())
    wanted = count if count is not None else _profiling(total)
    largest: dict[str, int] = defaultdict(int)
    for item in trace.jobs:
        largest[item.job.vc] = max(largest[item.job.vc], item.job.gpus)
    lent: list[Node] = []
    turn = sorted(left, key=lambda vc: -len(left[vc]))
    while len(lent) < wanted:
        able = [vc for vc in turn if len(left[vc]) > 1 and sum(n.gpus for n in left[vc][:-1]) >= largest[vc]]
        if not able:
            break
        for vc in able[: wanted - len(lent)]:
            lent.append(left[vc].pop())
    if asked and len(lent) < wanted:
        raise ConfigError(
            f"only {len(lent)} of {total} nodes can be spared for profiling without leaving a VC too small for its "
            f"own jobs, {wanted} were asked for; give --profiling-nodes {len(lent)}"
        )
    return left, lent


def _profiling(nodes: int) -> int:
    return max(1, round(_PROFILING_SHARE * nodes))


def _demand_quantiles(trace: Trace, share: float) -> dict[str, int]:
    """By VC: the number of GPUs that jobs started on submission would hold at most, for ``share`` of the time
    from the first submission of the trace to the last."""
    steps: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for item in trace.jobs:
        job = item.job
        steps[job.vc] += [(job.submit_s, job.gpus), (job.submit_s + item.duration_s, -job.gpus)]
    end_s = max((item.job.submit_s for item in trace.jobs), default=0.0)
    found: dict[str, int] = {}
    for vc, changes in steps.items():
        held_s: dict[int, float] = defaultdict(float)
        held, since_s = 0, 0.0
        for at_s, change in sorted(changes):
            until_s = min(at_s, end_s)
            held_s[held] += max(until_s - since_s, 0.0)
            held, since_s = held + change, max(since_s, until_s)
        left_s = share * sum(held_s.values())
        level = 0
        for level in sorted(held_s):
            left_s -= held_s[level]
            if left_s <= 0:
                break
        found[vc] = level
    return found
