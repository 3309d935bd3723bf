"""Slurm's topology: the switches, or blocks, above each node, of ``scontrol show topology``. No version tells it as
JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lucid.adapters.bounded import digits
from lucid.adapters.slurm.records.jobs_and_nodes import SlurmNode
from lucid.core.hostlist import hosts_in
from lucid.errors import ConfigError

__all__ = ["NO_NETWORK", "Network", "network_from", "with_network"]

_MAX_WAIT_S = 300.0
"""Slurm's own max_switch_wait."""
_LINE = re.compile(r"(SwitchName|BlockName|AggregatedBlock)=(\S+)(.*)")


@dataclass(frozen=True, slots=True)
class Network:
    """``above``: by node, what stands above it, the lowest first. ``slurms``: does Slurm choose the nodes of a job of
    several? It does where it knows of the network what Lucid cannot read, and among blocks: the segments that a job
    asks for (``--segment``) are not told. ``max_wait_s``: how long a job waits at most for the switches that it asks
    for (max_switch_wait)."""

    above: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    slurms: bool = False
    max_wait_s: float = _MAX_WAIT_S


NO_NETWORK = Network()
"""Of a Slurm without a topology."""


def network_from(text: str, config: Mapping[str, str] | None = None) -> Network:
    """What ``scontrol show topology`` printed; nothing where Slurm has no topology. ``config``: Slurm's, for its
    longest wait for switches."""
    wait = re.search(r"(?:^|,)max_switch_wait=(\d+)", (config or {}).get("SchedulerParameters", ""))
    wait_s = float(digits(wait[1]) or 0) if wait else _MAX_WAIT_S
    plugin = (config or {}).get("TopologyPlugin", "").rpartition("/")[2]
    levels: dict[str, list[tuple[int, str]]] = {}
    blocks = False
    for line in text.splitlines():
        found = _LINE.search(line)
        if found is None:
            continue
        kind, name, rest = found.groups()
        blocks = blocks or kind != "SwitchName"
        words = dict(word.split("=", 1) for word in rest.split() if "=" in word)
        try:
            nodes = hosts_in(words["Nodes"])
        except (KeyError, ConfigError):
            return Network({}, True, wait_s)
        level = digits(words.get("Level", "")) if kind == "SwitchName" else len(nodes)
        for node in nodes:
            levels.setdefault(node, []).append((level or 0, name))
    if not levels:
        return Network({}, plugin not in ("", "default", "flat"), wait_s)
    above = {node: tuple(name for _, name in sorted(found)) for node, found in levels.items()}
    return Network(above, blocks, wait_s)


def with_network(nodes: Iterable[SlurmNode], network: Network) -> Sequence[SlurmNode]:
    """The nodes with what stands above them."""
    return [
        node
        if (node.switches, node.spread_by_slurm) == (network.above.get(node.name, ()), network.slurms)
        else replace(node, switches=network.above.get(node.name, ()), spread_by_slurm=network.slurms)
        for node in nodes
    ]
