"""Writes gres.conf, and the lines of slurm.conf and of the plugin's settings that go with it.

Each GPU gets a GRES type of its own, its address (``g0``, ``g1``, ...), and slots (shards) of the same type:
only so can a job be sent to a chosen GPU, and only so does Slurm itself bound the jobs of a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lucid.errors import ConfigError
from lucid.slurmconf.nodes import NodeSpec, PartitionSpec, device_number, hosts_in

__all__ = ["MOST_SLOTS", "SLOTS", "Rendered", "addresses", "gpu_lines", "plugin_conf", "render"]

SLOTS = 2
"""Jobs that may share one GPU, unless told: Lucid pairs. Groups that take turns (Muri) need more."""
MOST_SLOTS = 8

STALE_S = 60
"""Age of the heartbeat, s, from which the plugin leaves jobs alone."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """Texts of files: the whole of ``gres_conf`` and ``plugin_conf``, and the part ``slurm_conf`` to include."""

    gres_conf: str
    slurm_conf: str
    plugin_conf: str


def render(
    nodes: Sequence[NodeSpec],
    partitions: Sequence[PartitionSpec] = (),
    *,
    heartbeat: str = "/run/lucid/heartbeat",
    files: str = "/etc/slurm/lucid",
    node_extra: dict[str, str] | None = None,
    slots: int = SLOTS,
) -> Rendered:
    """Configuration for these nodes and partitions.

    Args:
        nodes: Groups of like nodes; no host may stand in two of them.
        partitions: Partition lines to write; none leaves the partitions to the site's own slurm.conf.
        heartbeat: Where the daemon writes its heartbeat, on slurmctld's host.
        files: The folder that holds Lucid's prolog, epilog and task prolog on every node.
        node_extra: More for each NodeName line, by host list (``{"n[1-4]": "Port=[17001-17004]"}``).
        slots: Jobs that may share one GPU.

    Raises:
        ConfigError: a host stands in two groups, or a partition names a host that no group has.
    """
    known: set[str] = set()
    for node in nodes:
        for host in hosts_in(node.hosts):
            if host in known:
                raise ConfigError(f"host {host} is given twice; each host belongs in one --nodes")
            known.add(host)
    for partition in partitions:
        for host in hosts_in(partition.hosts):
            if host not in known:
                raise ConfigError(f"partition {partition.name} names host {host}, which no --nodes describes")
    if len([partition for partition in partitions if partition.default]) > 1:
        raise ConfigError("more than one partition is the default; give --default once")
    return Rendered(
        _gres_conf(nodes, slots),
        _slurm_conf(nodes, partitions, files, node_extra or {}, slots),
        plugin_conf([node.gpu_type for node in nodes if node.gpu_type], heartbeat),
    )


def gpu_lines(hosts: str, devices: Sequence[str], slots: int = SLOTS) -> list[str]:
    """Lines of gres.conf: an address and slots for each GPU. A device is its File, and what else its line says."""
    files = [device.split()[0] for device in devices]
    types = [f"g{device_number(file)}" for file in files]
    return [
        *(f"NodeName={hosts} Name=gpu Type={kind} File={line}" for kind, line in zip(types, devices, strict=True)),
        *(
            f"NodeName={hosts} Name=shard Type={kind} Count={slots} File={file}"
            for kind, file in zip(types, files, strict=True)
        ),
    ]


def addresses(numbers: Iterable[int], slots: int = SLOTS) -> str:
    """What ``Gres=`` of a NodeName line says for the GPUs whose device files have these numbers."""
    types = [f"g{number}" for number in numbers]
    return ",".join([*(f"gpu:{kind}:1" for kind in types), *(f"shard:{kind}:{slots}" for kind in types)])


def plugin_conf(types: Iterable[str], heartbeat: str, *, filtered: bool = True) -> str:
    """lucid.plugin.conf: *types* are the GPU models that users may ask for. *filtered*: Lucid's cli_filter.lua runs
    in srun on the nodes, too."""
    lines = [
        "# Written by `lucidctl slurm render`; read by job_submit.lua and cli_filter.lua.",
        f"heartbeat {heartbeat}",
        f"stale {STALE_S}",
        "route no",
        "shards lucid",
        *(["steps mapped"] if filtered else []),
        *(f"type {name}" for name in sorted(set(types))),
    ]
    return "\n".join(lines) + "\n"


def _gres_conf(nodes: Sequence[NodeSpec], slots: int) -> str:
    lines = [
        "# Written by `lucidctl slurm render`. The same file belongs on every node and on slurmctld's host.",
        "# One type a GPU is its address; found types (AutoDetect) would hide the addresses.",
        "AutoDetect=off",
    ]
    for node in nodes:
        lines += gpu_lines(node.hosts, [node.device.replace("{}", str(number)) for number in range(node.gpus)], slots)
    return "\n".join(lines) + "\n"


def _slurm_conf(
    nodes: Sequence[NodeSpec], partitions: Sequence[PartitionSpec], files: str, extra: dict[str, str], slots: int
) -> str:
    lines = [
        "# Written by `lucidctl slurm render`. Include it from slurm.conf in place of the site's own lines for",
        "# these nodes; parameters that slurm.conf sets already must stand in one of the two files only.",
        "GresTypes=gpu,shard",
        "SelectType=select/cons_tres",
        "PriorityType=priority/multifactor",
        "AccountingStorageTRES=gres/gpu,gres/shard",
        "JobSubmitPlugins=lua",
        "CliFilterPlugins=lua",
        f"Prolog={files}/prolog.d/*",
        f"Epilog={files}/epilog.d/*",
        f"TaskProlog={files}/task_prolog",
    ]
    for node in nodes:
        parts = [f"NodeName={node.hosts}"]
        parts += [f"CPUs={node.cpus}"] if node.cpus else []
        parts += [f"RealMemory={node.mem_mib}"] if node.mem_mib else []
        features = [*([node.gpu_type] if node.gpu_type else []), *node.features]
        parts += [f"Feature={','.join(features)}"] if features else []
        parts += [f"Gres={addresses(range(node.gpus), slots)}"]
        parts += [extra[node.hosts]] if node.hosts in extra else []
        lines.append(" ".join(parts))
    for partition in partitions:
        parts = [f"PartitionName={partition.name}", f"Nodes={partition.hosts}"]
        parts += ["Default=YES"] if partition.default else []
        parts += [f"{key}={value}" for key, value in partition.options.items()]
        lines.append(" ".join(parts))
    return "\n".join(lines) + "\n"
