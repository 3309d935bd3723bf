"""What of Slurm pack mode does not serve, or would make worse than plain Slurm without a word. Pure.

doctor finds it on a running site, and ``lucidctl setup`` refuses what is ``bad`` for the partitions that it is to
pack. Order mode leaves all of it to Slurm. The whole list, with what was tried: docs/slurm-features.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from lucid.adapters.slurm.records.configuration import Limits
from lucid.adapters.slurm.records.jobs_and_nodes import SlurmNode
from lucid.config import Mode
from lucid.live.reporting.doctor_finding import Finding, bad, warn

__all__ = ["Limits", "look_over_served", "taken_whole"]

_ORDER = "or order mode there"
_FEDERATED = 1 << 26
"""Numbers of jobs of a federation have its cluster's in the bits from here on."""
_GPU_WEIGHT = re.compile(r"gres/gpu(:[^=,]+)?=", re.IGNORECASE)


def look_over_served(
    modes: Mapping[str, Mode],
    shown: Mapping[str, Mapping[str, str]],
    config: Mapping[str, str],
    limits: Limits,
    nodes: Sequence[SlurmNode],
    rooms: Sequence[str] = (),
    most_number: int = 0,
) -> Iterator[Finding]:
    """Of the partitions in pack mode.

    Args:
        modes: by partition.
        shown: partitions as ``scontrol show partition`` words them; those that are not there are not looked at.
        config: the configuration in force.
        limits: on GPUs.
        nodes: the cluster's.
        rooms: partitions to which Lucid moves jobs of those that it packs.
        most_number: the highest number of a job.
    """
    packed = [name for name, mode in modes.items() if mode is Mode.PACK]
    if not packed:
        return
    yield from _cluster(config, most_number)
    yield from _limits(config, limits)
    for name in [*packed, *(room for room in rooms if room and room not in packed)]:
        cpus = [node.cpus for node in nodes if name in node.partitions and node.gpu_types]
        yield from _partition(name, shown.get(name, {}), max(cpus, default=0))


def taken_whole(modes: Mapping[str, Mode], shown: Mapping[str, Mapping[str, str]]) -> Iterator[Finding]:
    """Partitions in pack mode whose nodes are given out otherwise than by CPUs and GPUs. (doctor reads this from
    another answer.)"""
    for name, mode in modes.items():
        shares = shown.get(name, {}).get("OverSubscribe", "NO")
        if mode is Mode.PACK and shares == "EXCLUSIVE":
            yield bad(
                f"partition {name!r} has OverSubscribe=EXCLUSIVE: each job has its nodes alone, so none shares",
                f"OverSubscribe=NO in the line of {name}, {_ORDER}",
            )
        elif mode is Mode.PACK and shares.startswith("FORCE") and shares != "FORCE:1":
            yield bad(
                f"partition {name!r} has OverSubscribe={shares}: Slurm puts several jobs on the same CPUs, which "
                "Lucid does not reckon with",
                f"OverSubscribe=NO in the line of {name}, {_ORDER}",
            )


def _cluster(config: Mapping[str, str], most_number: int) -> Iterator[Finding]:
    if config.get("SchedulerType") == "sched/builtin":
        yield bad(
            "SchedulerType=sched/builtin: a job that Slurm alone decides about, and for which there is no room, "
            "stops every start by Lucid behind it",
            "SchedulerType=sched/backfill, or order mode",
        )
    plugin, rules = config.get("MCSPlugin", ""), config.get("MCSParameters", "").replace("|", ",").split(",")
    if plugin not in ("", "mcs/none") and "noselect" not in rules and {"select", "enforced"} & set(rules):
        yield bad(
            f"MCSPlugin={plugin}, MCSParameters={config['MCSParameters']}: Slurm keeps jobs with other labels off a "
            "job's nodes, which Lucid does not know, so it starts jobs there in vain",
            "MCSParameters with noselect, or order mode",
        )
    if most_number >= _FEDERATED:
        yield bad(
            f"job {most_number} is one of a federation: its clusters agree which of them starts a job, and Lucid "
            "changes jobs on one of them alone",
            "scontrol show federation; take the cluster out of it, or order mode",
        )
    spaces = config.get("JobContainerType", "") + config.get("NamespaceType", "")
    if "tmpfs" in spaces:
        yield warn(
            f"{spaces}: where a job has a /dev/shm of its own, the two jobs of a pair may not reach their MPS daemon",
            "Dirs=/tmp in job_container.conf (namespace.yaml), or daemon.mps = false",
        )
    if config.get("BurstBufferType"):
        yield warn(
            f"BurstBufferType={config['BurstBufferType']}: GPUs are kept for a job while its burst buffer is filled, "
            "and after slurm.start_grace_s Lucid releases it as its user wrote it",
            "lucid:off in the comment of jobs with burst buffers, or slurm.start_grace_s longer than a stage-in",
        )
    typed = [item for item in config.get("AccountingStorageTRES", "").split(",") if item.startswith("gres/gpu:")]
    if typed:
        yield warn(
            f"AccountingStorageTRES has {', '.join(typed)}: a GPU's type is its address on packed nodes, so nothing "
            "is accounted by model there",
            "by partition, or by AllocNodes of sacct",
        )
    if re.match(r"0*[1-9]", config.get("PriorityWeightAssoc", "")):
        yield warn(
            "PriorityWeightAssoc: priorities of associations do not count where Lucid packs",
            "a QOS with a Priority (PriorityWeightQOS), which does",
        )


def _limits(config: Mapping[str, str], limits: Limits) -> Iterator[Finding]:
    enforced = {word.strip().lower() for word in config.get("AccountingStorageEnforce", "").split(",")}
    if not enforced & {"limits", "safe", "all"}:
        return
    if limits.uncounted:
        yield bad(
            f"{_some(limits.uncounted)}: a limit on gres/gpu does not count what pack mode puts into slots",
            "the same number of gres/shard in each of them (sacctmgr modify … set GrpTRES=gres/gpu=4,gres/shard=4): "
            "Slurm counts a job against the one or the other. Where sacctmgr knows no gres/shard yet: "
            "GresTypes=gpu,shard, gres/shard in AccountingStorageTRES, scontrol reconfigure",
        )
    if limits.by_model:
        yield bad(
            f"{_some(limits.by_model)}: a GPU's type is its address on packed nodes, so a limit by model counts "
            "nothing",
            "a limit on gres/gpu and gres/shard, or on the partition that has these GPUs",
        )
    if limits.least:
        yield warn(
            f"{_some(limits.least)}: a job in slots has shards and no gres/gpu, so Slurm does not start it; Lucid "
            "tries, then releases it as its user wrote it",
            "AllowQos in the partition's line, or a check in job_submit, in place of MinTRES on gres/gpu",
        )


def _partition(name: str, shown: Mapping[str, str], cpus: int) -> Iterator[Finding]:
    users = shown.get("ExclusiveUser") == "YES"
    alone = "USER" if users else "TOPO" if shown.get("ExclusiveTopo") == "YES" else shown.get("Exclusive", "NO")
    if alone not in ("NO", "NODE", "NONE"):
        what = "each node is one user's at a time" if alone == "USER" else f"nodes are given out by {alone}"
        yield bad(
            f"partition {name!r}: {what}, which Lucid does not know: a job waits for nodes of others while "
            "other nodes are free",
            f"Exclusive=NO (ExclusiveUser=NO) in the line of {name}, {_ORDER}",
        )
    for key, most in (("MaxCPUsPerNode", cpus), ("MaxCPUsPerSocket", cpus)):
        value = shown.get(key, "UNLIMITED")
        if value.isdecimal() and int(value) < most:
            yield bad(
                f"partition {name!r} has {key}={value}, and its nodes up to {most} CPUs: Lucid starts jobs in "
                "vain on CPUs that Slurm does not give them",
                f"no {key} in the line of {name} (give other partitions one, to keep CPUs for GPUs), {_ORDER}",
            )
    yield from _billing(name, shown.get("TRESBillingWeights", ""))
    if shown.get("LLN") == "YES":
        yield warn(
            f"partition {name!r} has LLN=YES: Lucid packs jobs onto the fullest nodes, not the emptiest",
            f"LLN=NO in the line of {name}; order mode keeps it",
        )
    if shown.get("ReqResv") == "YES":
        yield warn(
            f"partition {name!r} has ReqResv=YES: all its jobs have a reservation, and Lucid leaves those to Slurm",
            f"nothing is ever decided in {name}: leave it out of daemon.partitions",
        )


def _billing(name: str, weights: str) -> Iterator[Finding]:
    models = [found[1] for found in _GPU_WEIGHT.finditer(weights) if found[1]]
    if models:
        yield bad(
            f"partition {name!r} bills GPUs by their model (TRESBillingWeights={weights}): a GPU's type is its "
            "address on packed nodes, so none is billed",
            f"GRES/gpu=… and GRES/shard=… without a model in the line of {name}, {_ORDER}",
        )
    elif _GPU_WEIGHT.search(weights) and "gres/shard" not in weights.lower():
        yield bad(
            f"partition {name!r} bills a job in slots nothing for its GPUs (TRESBillingWeights={weights}): "
            "fair-share and limits on billing do not see it",
            f"GRES/shard with the weight of GRES/gpu in the line of {name}: lucidctl setup writes it",
            setup_mends=True,
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
