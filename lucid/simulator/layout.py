"""Which nodes a replay runs on: from a file of VCs, from a count, or sized to the trace."""

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

__all__ = ["NodeShape", "build_layout", "lend_profiling_nodes", "read_vcs", "sized_vcs"]

_DEFAULT_LOAD = 0.8
"""Where nothing says how many nodes there were, each VC gets as many as its jobs keep busy to this share."""
_PROFILING_SHARE = 0.02
"""Share of the nodes set aside for profiling unless told otherwise (the published set-up: 2 of 96)."""


@dataclass(frozen=True, slots=True)
class NodeShape:
    """What every simulated node has. ``cpus`` and ``mem_mib`` of 0: not limited."""

    gpus: int = 8
    gpu_mem_mib: int = 24576
    cpus: int = 0
    mem_mib: int = 0


def read_vcs(path: Path) -> dict[str, int]:
    """Nodes by VC, in file order, from a CSV with two columns: the VC's name, and ``num``.

    Raises:
        TraceError: naming file, line, column and value.
    """
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
                    raise TraceError(f"{where}: column 1: VC name {name!r} is empty or stands here twice")
                found[name] = int(text)
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: cannot be read: {error}; give --vcs a CSV of 'name,nodes'") from None
    if not found:
        raise TraceError(f"{path}: names no VC; write a header line, then 'name,nodes' on each")
    return found


def sized_vcs(trace: Trace, gpus_per_node: int, nodes: int | None = None) -> dict[str, int]:
    """Nodes by VC for a trace that came without: enough for the largest job, and for its GPU-hours at 80 %
    load over the span of arrivals; or, where ``nodes`` is given, that many shared out by GPU-hours.

    Raises:
        ConfigError: ``nodes`` are too few to hold each VC's largest job.
    """
    span_s = max((item.job.submit_s for item in trace.jobs), default=0.0) or 1.0
    work: dict[str, float] = defaultdict(float)
    least: dict[str, int] = defaultdict(lambda: 1)
    for item in trace.jobs:
        vc = item.job.vc
        work[vc] += item.duration_s * item.job.gpus
        least[vc] = max(least[vc], math.ceil(item.job.gpus / gpus_per_node))
    per_node_s = span_s * gpus_per_node
    if nodes is None:
        return {vc: max(least[vc], math.ceil(work[vc] / per_node_s / _DEFAULT_LOAD)) for vc in sorted(work)}
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
        ConfigError: the VCs cannot spare as many as were asked for.
    """
    left = {vc: list(nodes) for vc, nodes in layout.items()}
    asked = count is not None
    total = sum(len(nodes) for nodes in left.values())
    wanted = count if count is not None else max(1, round(_PROFILING_SHARE * total))
    largest: dict[str, int] = defaultdict(int)
    for item in trace.jobs:
        largest[item.job.vc] = max(largest[item.job.vc], item.job.gpus)
    lent: list[Node] = []
    turn = sorted(left, key=lambda vc: -len(left[vc]))
    while len(lent) < wanted:
        able = [vc for vc in turn if _can_lend(left[vc], largest[vc])]
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


def _can_lend(nodes: Sequence[Node], largest_gpus: int) -> bool:
    return len(nodes) > 1 and sum(node.gpus for node in nodes[:-1]) >= largest_gpus
