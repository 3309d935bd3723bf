"""Doctor's checks of Slurm's configuration: modes, unserved features, power, preemption, lending. Pure.

doctor finds it on a running site, and ``lucidctl setup`` refuses what is ``bad`` for the partitions that it is to
pack. Order mode leaves all of it to Slurm. The whole list, with what was tried: docs/slurm-versions.md."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from lucid.config.live import Publish
from lucid.config.load import Settings
from lucid.errors import Finding, bad, warn
from lucid.orchestrator.order.queue_order import BOUND
from lucid.places import Mode
from lucid.setup.neighbours import MONITORING
from lucid.setup.render import SLOTS
from lucid.slurm.records.configuration import GroupLimit, Limits, Partition
from lucid.slurm.records.job import SlurmNode
from lucid.slurm.records.preemption import Preemption
from lucid.slurm.records.request import JobDefaults
from lucid.slurm.view.observation import pool_of
from lucid.slurm.view.power_saving import ASLEEP, FAILED, Power, PowerRules
from lucid.slurm.view.snapshot import gpu_mem_mib

_WEIGHTS = ("Age", "Assoc", "FairShare", "Fairshare", "JobSize", "Partition", "QOS")
_SHORT_JOB_AGE_S = 120


def check_config(settings: Settings, modes: Mapping[str, Mode], config: Mapping[str, str]) -> Iterator[Finding]:
    """Findings on the keys that Lucid's modes rest on; *modes* by partition, as they are now."""
    used = set(modes.values())
    yield from _priorities(used, config)
    yield from _jobs(settings, config)
    if settings.daemon.catch_up_days:
        yield from _accounting(config)
    if Mode.PACK in used:
        yield from _gpus(config)
        yield from _memory(config)
        yield from _scripts(settings, config)
        yield from _control_groups(config)


def _control_groups(config: Mapping[str, str]) -> Iterator[Finding]:
    """Findings on the names of control groups. cgroup/v1 names a job's by its number, whatever this setting says."""
    if config.get("CgroupJobIdPaths") == "no" and config.get("CgroupPlugin") in ("cgroup/v2", "autodetect"):
        yield Finding(
            "ok",
            "Slurm names control groups by SLUID: the sampler asks the slurmstepd in each for its job; one that "
            "cannot see slurmstepd (hidepid, a container) may take a process for nobody's",
            "CgroupJobIdPaths=yes in cgroup.conf (from 26.05.2) puts the job's number there again",
        )


def _words(config: Mapping[str, str], key: str) -> list[str]:
    return [word.strip() for word in config.get(key, "").split(",") if word.strip()]


def _number(config: Mapping[str, str], key: str) -> int | None:
    """The whole number at the start of a value (``300 sec``), or ``None``."""
    found = re.match(r"\d+", config.get(key, ""))
    return int(found[0]) if found else None


def _accounting(config: Mapping[str, str]) -> Iterator[Finding]:
    if "slurmdbd" not in config.get("AccountingStorageType", ""):
        yield warn(
            "no accounting by slurmdbd: jobs that end while lucidd is down are missing from its history",
            "slurmdbd, or daemon.catch_up_days = 0",
        )
    elif "gres/gpu" not in config.get("AccountingStorageTRES", ""):
        yield warn(
            "AccountingStorageTRES lacks gres/gpu: jobs that end while lucidd is down are missing from its history",
            "AccountingStorageTRES=gres/gpu,gres/shard",
        )


def _priorities(used: set[Mode], config: Mapping[str, str]) -> Iterator[Finding]:
    if used <= {Mode.OBSERVE}:
        return
    if "multifactor" not in config.get("PriorityType", ""):
        found = bad if Mode.ORDER in used else warn
        yield found(
            f"PriorityType={config.get('PriorityType')}: no site factors", "PriorityType=priority/multifactor"
        )
        return
    if Mode.ORDER not in used:
        return
    if config.get("PrioritySiteFactorPlugin"):
        yield bad(
            f"PrioritySiteFactorPlugin={config['PrioritySiteFactorPlugin']} writes over the site "
            "factors of order mode",
            "do without one of the two: pack mode writes no site factors",
        )
    weights = sum(_number(config, f"PriorityWeight{name}") or 0 for name in _WEIGHTS)
    if weights < BOUND:
        yield warn(
            f"a site factor of up to {BOUND} outweighs age, fair-share and QOS together ({weights})",
            "larger PriorityWeight…",
        )


def _jobs(settings: Settings, config: Mapping[str, str]) -> Iterator[Finding]:
    age_s, poll_s = _number(config, "MinJobAge"), settings.slurm.poll_idle_s
    if age_s and age_s <= 2 * poll_s:
        yield bad(
            f"MinJobAge={age_s} s: Slurm forgets a job that ended before Lucid looks ({poll_s:g} s), so "
            "nothing is learned from it",
            "MinJobAge=300",
        )
    elif age_s and age_s < _SHORT_JOB_AGE_S:
        yield warn(
            f"MinJobAge={age_s} s: what ends while lucidd restarts is missing from its history", "MinJobAge=300"
        )
    for key, what in (("RequeueExit", "starts over"), ("RequeueExitHold", "is held, and stays so,")):
        if config.get(key):
            yield warn(
                f"{key}={config[key]}: a job that ends so {what} without Lucid", f"know of it, or do without {key}"
            )
    if "jobs" in _words(config, "PrivateData") and settings.daemon.publish is Publish.JOBS:
        yield warn(
            "PrivateData has jobs, and lucidd shows everybody size and decision of every job, without names",
            'daemon.publish = "nothing", if that is more than your site shows',
        )
    if "rl_enable" in config.get("SlurmctldParameters", ""):
        yield warn(
            "SlurmctldParameters has rl_enable: a burst of starts may be put off by the rate limit",
            "rl_bucket_size of at least slurm.writes_per_cycle",
        )


def _gpus(config: Mapping[str, str]) -> Iterator[Finding]:
    if config.get("SelectType") != "select/cons_tres":
        yield bad(
            f"SelectType={config.get('SelectType') or '(not set)'}: GPUs cannot be asked for one by one",
            "SelectType=select/cons_tres, and restart slurmctld",
        )
    kinds = _words(config, "GresTypes")
    lacking = {"gpu", "shard"} - set(kinds)
    if lacking:
        yield bad(f"GresTypes lacks {', '.join(sorted(lacking))}", "GresTypes=gpu,shard")
    if {"mps", "shard"} <= set(kinds):
        yield bad(
            "GresTypes has mps and shard: Slurm lets a job of each on one GPU (seen on 22.05)",
            "GresTypes=gpu,shard: MPS is started for pairs without gres/mps (docs/nodes.md)",
        )
    accounted = config.get("AccountingStorageTRES", "")
    if accounted and "gres/shard" not in accounted:
        yield warn(
            "AccountingStorageTRES lacks gres/shard: accounting does not show who had slots",
            f"AccountingStorageTRES=gres/gpu,gres/shard; {MONITORING}",
        )
    if config.get("JobRequeue", "1").startswith("0"):
        yield warn("JobRequeue=0: no job may be requeued, so none is profiled", "JobRequeue=1")


def _memory(config: Mapping[str, str]) -> Iterator[Finding]:
    """Findings on memory. Its partitions' own defaults are checked with the partitions."""
    kinds = [word.upper() for word in _words(config, "SelectTypeParameters")]
    if not kinds:
        yield warn(
            "SelectTypeParameters is not set: what is shared out follows the release's default",
            "SelectTypeParameters=CR_Core_Memory",
        )
        return
    if any(kind.startswith("CR_SOCKET") for kind in kinds):
        yield bad(
            f"SelectTypeParameters={','.join(kinds)}: a job takes whole sockets, and leaves no CPUs on "
            "its GPUs' node to a partner",
            "SelectTypeParameters=CR_Core_Memory",
        )
    if not any("MEMORY" in kind for kind in kinds):
        yield warn(
            f"SelectTypeParameters={','.join(kinds)}: memory is not shared out, so two jobs of a pair "
            "may fill a node's",
            "SelectTypeParameters=CR_Core_Memory",
        )


def _scripts(settings: Settings, config: Mapping[str, str]) -> Iterator[Finding]:
    if "lua" not in _words(config, "JobSubmitPlugins"):
        yield bad(
            "job_submit.lua is not loaded, so no job is ever held for Lucid",
            "JobSubmitPlugins=lua, and job_submit.lua: lucidctl slurm install",
        )
    if settings.daemon.mps and "extra_constraints" in config.get("SchedulerParameters", ""):
        yield bad(
            "SchedulerParameters has extra_constraints: Slurm takes what lucidd writes into a "
            "job's Extra for a constraint on nodes",
            "daemon.mps = false (pairs then share by time-slicing), or do without extra_constraints",
        )
    if settings.daemon.mps and not config.get("Prolog"):
        yield warn(
            "no Prolog: nothing starts MPS, so pairs share by time-slicing",
            "Prolog=…/prolog.d/* and mps in node.conf, or daemon.mps = false",
        )
    for key in ("Prolog", "Epilog"):
        if theirs := [word for word in _words(config, key) if not re.search("/lucid[a-z-]*/", word)]:
            yield warn(
                f"{key}={','.join(theirs)} is told only the last GPU of a job, and takes a pair's GPUs for one job's",
                "lucidctl setup --mode pack lets it run through Lucid's site_scripts (docs/files.md)",
            )
    if not config.get("TaskProlog"):
        yield warn(
            "no TaskProlog: an inner srun fails in a job that shares and has --gpus…",
            "TaskProlog=…/slurm/task_prolog",
        )
    if "RunInJob" in _words(config, "PrologFlags"):
        yield warn(
            "PrologFlags has RunInJob: the MPS daemon of a pair is part of the job that started first, "
            "and may end with it",
            "PrologFlags without RunInJob",
        )


_ORDER = "or order mode there"
_FEDERATED = 1 << 26
"""Job numbers of a federation have its cluster's number in the bits from here on."""
_GPU_WEIGHT = re.compile(r"gres/gpu(:[^=,]+)?=", re.IGNORECASE)


def check_served(
    modes: Mapping[str, Mode],
    shown: Mapping[str, Mapping[str, str]],
    config: Mapping[str, str],
    limits: Limits,
    nodes: Sequence[SlurmNode],
    rooms: Sequence[str] = (),
    most_number: int = 0,
) -> Iterator[Finding]:
    """Findings on the partitions in pack mode.

    Args:
        modes: by partition.
        shown: partitions as ``scontrol show partition`` words them; those that are not there are not checked.
        config: the configuration in force.
        limits: on GPUs.
        nodes: the cluster's.
        rooms: partitions to which Lucid moves jobs of those that it packs.
        most_number: the highest number of a job."""
    packed = [name for name, mode in modes.items() if mode is Mode.PACK]
    if not packed:
        return
    yield from _cluster(config, most_number)
    yield from _limits_served(config, limits)
    for name in [*packed, *(room for room in rooms if room and room not in packed)]:
        cpus = [node.cpus for node in nodes if name in node.partitions and node.gpu_types]
        yield from _partition(name, shown.get(name, {}), max(cpus, default=0))


def taken_whole(modes: Mapping[str, Mode], shown: Mapping[str, Mapping[str, str]]) -> Iterator[Finding]:
    """Findings on partitions in pack mode whose nodes are not given out by CPUs and GPUs. (doctor reads this from
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


def _limits_served(config: Mapping[str, str], limits: Limits) -> Iterator[Finding]:
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


def as_lucidd_sees(
    nodes: Sequence[SlurmNode], config: Mapping[str, str], partitions: Sequence[Partition], now_s: float
) -> Sequence[SlurmNode]:
    """The nodes as lucidd sees them: those that Slurm wakes are available."""
    power = Power()
    power.rules = PowerRules.from_config(config, any(p.suspends for p in partitions))
    return power.with_states(nodes, now_s)


def check_power(
    settings: Settings,
    modes: Mapping[str, Mode],
    nodes: Sequence[SlurmNode],
    config: Mapping[str, str],
    partitions: Sequence[Partition],
) -> Iterator[Finding]:
    """Findings on power saving. *nodes*: as lucidd sees them."""
    rules = PowerRules.from_config(config, any(p.suspends for p in partitions))
    room = settings.daemon.profiling_partition
    mine = [node for node in nodes if not node.partitions.isdisjoint({*modes, room})]
    asleep = [node.name for node in mine if ASLEEP in node.states]
    if rules.wakes:
        yield Finding("ok", f"{power_note(config, True)}; {len(asleep)} of {len(mine)} nodes sleep now")
    elif asleep:
        yield warn(
            f"{', '.join(asleep[:5])}: asleep, and {rules.why_not}",
            "SuspendProgram, ResumeProgram and SuspendTime in slurm.conf, or scontrol update … state=resume",
        )
    failed = [node.name for node in mine if node.reason.startswith(FAILED) and "DOWN" in node.states]
    if failed:
        yield warn(
            f"{', '.join(failed[:5])}: did not come up within ResumeTimeout ({rules.resume_s:g} s): "
            "nothing starts there",
            "what ResumeProgram does with it, a longer ResumeTimeout, then scontrol update nodename=… state=resume",
        )
    profiling = [node for node in mine if room in node.partitions and node.available]
    wakes = settings.policy.profiling.wake_nodes
    if Mode.PACK in modes.values() and profiling and not wakes and all(ASLEEP in node.states for node in profiling):
        yield warn(
            f"all nodes of {room} sleep: new jobs are not profiled until one is awake",
            "SuspendExcParts or SuspendExcNodes in slurm.conf, or policy.profiling.wake_nodes = true",
        )


def power_note(config: Mapping[str, str], in_partition: bool = False) -> str:
    """What Lucid does where nodes sleep; empty where Slurm puts none to sleep."""
    rules = PowerRules.from_config(config, in_partition)
    if not rules.wakes:
        return ""
    return (
        "power saving is on: Lucid takes nodes that are awake first, and lets Slurm wake the node that a job needs; "
        f"until it has seen boots it takes ResumeTimeout ({rules.resume_s:g} s) for one; profiling wakes none unless "
        "policy.profiling.wake_nodes says so"
    )


def check_preemption(
    modes: Mapping[str, Mode], nodes: Sequence[SlurmNode], preemption: Preemption | None
) -> Iterator[Finding]:
    """Findings on preemption; *preemption* is ``None`` where it is unknown."""
    packed = [name for name, mode in modes.items() if mode is Mode.PACK]
    if not packed or preemption is None or not preemption.by:
        return
    if preemption.by == "qos":
        yield Finding("ok", "PreemptType=preempt/qos: jobs claim GPUs of jobs that their QOS may preempt")
        suspends = sorted(name for name, qos in preemption.qos.items() if (qos.mode or preemption.mode) == "SUSPEND")
        if suspends:
            yield bad(
                f"jobs of QOS {', '.join(suspends)} are suspended, and keep their GPUs' memory: Lucid claims nothing "
                "from them, and Slurm puts others on GPUs that Lucid did not pair",
                "PreemptMode=REQUEUE in slurm.conf, or of these QOS",
            )
        return
    for name in packed:
        here = [node.partitions for node in nodes if node.gpu_types and name in node.partitions]
        for other in sorted(frozenset[str]().union(*here) - {name}):
            yield from _between(name, other, preemption)


def without_layers(
    names: Sequence[str], nodes: Sequence[SlurmNode], preemption: Preemption
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Nodes that stand in several of these partitions of which one does not give way to those before it, with the
    partitions: Lucid plans such a node for one of them only."""
    for node in nodes:
        here = tuple(name for name in names if name in node.partitions)
        if node.gpu_types and set(here) > set(preemption.layers(here)):
            yield node.name, here


def _between(vc: str, other: str, preemption: Preemption) -> Iterator[Finding]:
    """Findings on a packed partition, and one that has some of its nodes."""
    tiers = preemption.tiers
    if vc not in tiers or other not in tiers or tiers[vc] == tiers[other]:
        return
    upper, lower = (vc, other) if tiers[vc] > tiers[other] else (other, vc)
    mode = preemption.modes.get(lower, preemption.mode)
    if mode == "SUSPEND":
        yield bad(
            f"jobs of {lower} are suspended for jobs of {upper} (PreemptMode), and keep their GPUs' memory: Lucid "
            "claims nothing from them, and Slurm puts others on GPUs that Lucid did not pair",
            f"PreemptMode=REQUEUE in the line of {lower}",
        )
    elif mode == "OFF" and lower == other:
        yield warn(
            f"jobs of {lower} are not preempted (PreemptMode=OFF): they keep GPUs of {vc} as long as they like",
            f"PreemptMode=REQUEUE in the line of {lower}, or its nodes out of {vc}",
        )
    elif mode != "OFF" and lower == other:
        then = "are cancelled" if mode == "CANCEL" else "are requeued"
        yield Finding("ok", f"jobs of {vc} claim GPUs of {lower} where none are free: those that lose least {then}")
    elif mode != "OFF":
        yield Finding("ok", f"jobs of {lower} give way to those of {upper} by PreemptMode={mode}")


_LINES = "the lines of: lucidctl slurm lending"


def check_lending(
    settings: Settings,
    modes: Mapping[str, Mode],
    partitions: Sequence[Partition],
    nodes: Sequence[SlurmNode],
    limits: Mapping[str, GroupLimit] | None,
    config: Mapping[str, str],
    defaults: Mapping[str, JobDefaults],
) -> Iterator[Finding]:
    """Findings on VCs that lend; none where ``policy.lending`` is off.

    Args:
        settings: lucidd's.
        modes: by partition, as they are now.
        partitions: Slurm's.
        nodes: Slurm's.
        limits: GrpTRES of QOS and accounts, as ``group_limits_from`` has them; ``None`` where they are not known.
        config: slurmctld's configuration in force.
        defaults: JobDefaults by partition."""
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
    yield from _limits_of_lending(settings, known, room, nodes, limits, config)


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


def _limits_of_lending(
    settings: Settings,
    known: Mapping[str, Partition],
    room: Partition | None,
    nodes: Sequence[SlurmNode],
    limits: Mapping[str, GroupLimit] | None,
    config: Mapping[str, str],
) -> Iterator[Finding]:
    """Findings on Slurm's own limits: those that keep a VC whose partition has more nodes to its quota, and that of
    borrowing."""
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
