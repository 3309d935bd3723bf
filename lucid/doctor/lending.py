"""What may be wrong with how Slurm keeps VCs to their quotas, and with the partition in which jobs borrow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from lucid.adapters.slurm.records.configuration import GroupLimit, Partition
from lucid.adapters.slurm.records.jobs_and_nodes import SlurmNode
from lucid.adapters.slurm.records.request import JobDefaults
from lucid.adapters.slurm.snapshot.builder import gpu_mem_mib
from lucid.adapters.slurm.snapshot.lending_pool import pool_of
from lucid.config import Mode, Settings
from lucid.live.reporting.doctor_finding import Finding, bad, warn
from lucid.slurmconf.render import SLOTS

__all__ = ["look_over_lending"]

_LINES = "the lines of: lucidctl slurm lending"


def look_over_lending(
    settings: Settings,
    modes: Mapping[str, Mode],
    partitions: Sequence[Partition],
    nodes: Sequence[SlurmNode],
    limits: Mapping[str, GroupLimit] | None,
    config: Mapping[str, str],
    defaults: Mapping[str, JobDefaults],
) -> Iterator[Finding]:
    """Of VCs that lend; nothing where ``policy.lending`` is off.

    Args:
        settings: lucidd's.
        modes: by partition, as they are now.
        partitions: Slurm's.
        nodes: Slurm's.
        limits: GrpTRES of QOS and accounts, as ``group_limits_from`` has them; ``None`` where they are not known.
        config: slurmctld's configuration in force.
        defaults: JobDefaults by partition.
    """
    rules = settings.daemon.pool
    if settings.policy.lending.mode == "off" or not (rules.partition and rules.quotas):
        return
    known = {partition.name: partition for partition in partitions}
    room = known.get(rules.partition)
    vcs = [name for name in rules.quotas if name in known]
    mine = [node for node in nodes if node.gpu_types and not node.partitions.isdisjoint(vcs)]
    if room is None:
        yield bad(f"partition {rules.partition!r} (daemon.pool.partition) does not exist: no job can borrow", _LINES)
    else:
        outside = sorted(node.name for node in mine if room.name not in node.partitions)
        if outside:
            yield bad(
                f"partition {room.name!r} lacks {', '.join(outside[:5])}: the VCs of daemon.pool do not lend until "
                "it has all their nodes",
                _LINES,
            )
    total, promised = sum(len(node.gpu_types) for node in mine), sum(rules.quotas.values())
    if promised > total:
        yield bad(
            f"daemon.pool.quotas are {promised} GPUs together, and the VCs have {total}: they cannot all be met",
            "smaller quotas, here and in Slurm",
        )
    elif promised < total:
        yield warn(
            f"daemon.pool.quotas are {promised} GPUs together, and the VCs have {total}: the rest is only borrowed",
            "larger quotas, here and in Slurm",
        )
    yield from _alike(settings, modes, vcs, mine)
    yield from _given(defaults, vcs, rules.partition)
    yield from _limits(settings, known, room, nodes, limits, config)


def _alike(
    settings: Settings, modes: Mapping[str, Mode], vcs: Sequence[str], nodes: Sequence[SlurmNode]
) -> Iterator[Finding]:
    if len({modes[name] for name in vcs if name in modes}) > 1:
        told = ", ".join(f"{name} {modes[name]}" for name in vcs if name in modes)
        yield warn(
            f"the VCs of daemon.pool are in different modes ({told}): only those of the foremost mode lend",
            "one mode for all: lucidctl mode",
        )
    memory = {gpu_mem_mib(node, settings.daemon) for node in nodes}
    if len(memory) > 1:
        yield warn(
            f"GPUs of the VCs of daemon.pool have {min(memory)} to {max(memory)} MiB: a job may start on smaller "
            "ones than its VC has",
            "let VCs with equal GPUs lend to each other; leave the others out of daemon.pool.quotas",
        )


def _given(defaults: Mapping[str, JobDefaults], vcs: Sequence[str], room: str) -> Iterator[Finding]:
    if room not in defaults:
        return
    other = [name for name in vcs if name in defaults and defaults[name] != defaults[room]]
    if other:
        yield warn(
            f"partition {room!r} gives other CPUs or memory to each GPU than {', '.join(other)} (JobDefaults): a job "
            "that borrows has those",
            f"the same DefCpuPerGPU and DefMemPerGPU in the lines of {room} and {', '.join(other)}",
        )


def _limits(
    settings: Settings,
    known: Mapping[str, Partition],
    room: Partition | None,
    nodes: Sequence[SlurmNode],
    limits: Mapping[str, GroupLimit] | None,
    config: Mapping[str, str],
) -> Iterator[Finding]:
    """Slurm's own limits: those that keep a VC whose partition has more nodes to its quota, and that of borrowing."""
    quotas = settings.daemon.pool.quotas
    pool = pool_of(settings.daemon.pool, dict.fromkeys(quotas, Mode.PACK), nodes)
    bounded = [name for name in quotas if pool is not None and name in pool.bounded and name in known]
    if not bounded:
        return
    enforced = {word.strip() for word in config.get("AccountingStorageEnforce", "").lower().split(",")}
    if not enforced & {"limits", "all", "safe"}:
        yield bad(
            f"AccountingStorageEnforce has no limits: nothing keeps {', '.join(bounded)} to their quotas while "
            "no lucidd decides",
            "AccountingStorageEnforce=associations,limits,qos in slurm.conf",
        )
    if limits is None:
        yield warn(
            "it cannot be told which GrpTRES QOS and accounts have: quotas were not compared with Slurm's limits",
            "run lucidctl doctor once where sacctmgr is",
        )
        return
    mine = [node for node in nodes if not node.partitions.isdisjoint(quotas)]
    total = sum(len(node.gpu_types) for node in mine)
    slots = max((max(node.slots, default=0) for node in mine), default=0) or SLOTS
    by_account = {limit.gpus for name, limit in limits.items() if name.startswith("account ")}
    accounts = False
    for vc in bounded:
        quota, qos = quotas[vc], known[vc].qos
        found = limits.get(f"QOS {qos}") if qos else None
        if found is None or found.gpus is None:
            if quota in by_account:
                accounts = True
                continue
            yield bad(
                f"Slurm keeps {vc!r} to no quota: its partition has no QOS with GrpTRES=gres/gpu={quota}",
                f"sacctmgr add qos {vc}-quota set GrpTRES=gres/gpu={quota},gres/shard={slots * quota}; "
                f"QOS={vc}-quota in the line of {vc}",
            )
        elif (found.gpus, found.shards) != (quota, slots * quota):
            yield bad(
                f"QOS {qos} of partition {vc!r} has GrpTRES gres/gpu={found.gpus}, gres/shard="
                f"{'none' if found.shards is None else found.shards}, and daemon.pool.quotas.{vc} is {quota}",
                f"sacctmgr modify qos {qos} set GrpTRES=gres/gpu={quota},gres/shard={slots * quota}",
            )
    if room is None:
        return
    own = limits.get(f"QOS {room.qos}") if room.qos else None
    if room.qos and room.qos in {known[vc].qos for vc in bounded}:
        yield bad(
            f"partition {room.name!r} has the QOS of a VC ({room.qos}): what borrows counts against that VC's quota",
            f"no QOS, or one of its own, in the line of {room.name}",
        )
    elif accounts and (own is None or own.gpus is None or own.shards is None):
        yield bad(
            f"accounts keep VCs to their quotas, and partition {room.name!r} has no QOS with GrpTRES: a job that is "
            "to borrow waits (AssocGrpGRES)",
            f"sacctmgr add qos lucid-borrow set GrpTRES=gres/gpu={total},gres/shard={slots * total}; "
            f"QOS=lucid-borrow in the line of {room.name}",
        )
    elif own is not None and own.gpus is not None:
        taken = {f"QOS {known[vc].qos}" for vc in bounded} | {f"QOS {room.qos}"}
        others = [n for n, limit in limits.items() if n not in taken and limit.gpus not in (None, *quotas.values())]
        if others:
            yield warn(
                f"the GrpTRES of QOS {room.qos} goes before those of {', '.join(others[:5])}: these do not hold for "
                "jobs that borrow",
                f"take GrpTRES away from QOS {room.qos} where no account keeps a VC to its quota",
            )
