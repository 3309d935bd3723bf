"""Doctor's checks of Slurm's configuration: modes, unserved features, power, preemption, lending. Pure.

doctor finds it on a running site, and ``lucidctl setup`` refuses what is ``bad`` for the partitions that it is to
pack. Order mode leaves all of it to Slurm. The whole list, with what was tried: docs/slurm-versions.md."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lucid.config.live import Publish
from lucid.errors import Finding, bad, warn
from lucid.orchestrator.order.queue_order import BOUND
from lucid.places import Mode
from lucid.setup.neighbours import MONITORING
from lucid.setup.render import SLOTS
from lucid.setup.site import Check, Look, Table, run
from lucid.slurm.records.configuration import Partition
from lucid.slurm.records.job import SlurmNode
from lucid.slurm.records.preemption import NO_PREEMPTION, Preemption
from lucid.slurm.view.observation import pool_of
from lucid.slurm.view.power_saving import ASLEEP, FAILED, PowerRules
from lucid.slurm.view.snapshot import gpu_mem_mib

_Asked = Check[Look]
_WEIGHTS = ("Age", "Assoc", "FairShare", "Fairshare", "JobSize", "Partition", "QOS")
_SHORT_JOB_AGE_S = 120
_NO_DBD = "jobs that end while lucidd is down are missing from its history"


def _weights(s: Look) -> int:
    return sum(s.number(f"PriorityWeight{name}") for name in _WEIGHTS)


def _kinds(s: Look) -> list[str]:
    """What is shared out."""
    return [word.upper() for word in s.words("SelectTypeParameters")]


def _own(key: str) -> Check[Look]:
    """The check of a Prolog or Epilog of the site's own."""
    return _Asked(
        "warn",
        lambda s: ",".join(word for word in s.words(key) if not re.search("/lucid[a-z-]*/", word)),
        f"{key}={{}} is told only the last GPU of a job, and takes a pair's GPUs for one job's",
        "lucidctl setup --mode pack lets it run through Lucid's site_scripts (docs/files.md)",
    )


def _site_factors(level: str) -> Check[Look]:
    return _Asked(
        level,
        lambda s: "multifactor" not in s["PriorityType"] and (s.site.config.get("PriorityType"),),
        "PriorityType={}: no site factors",
        "PriorityType=priority/multifactor",
    )


_ORDERED: Table[Look] = (
    _site_factors("bad"),
    _Asked("bad", lambda s: "multifactor" in s["PriorityType"] and s["PrioritySiteFactorPlugin"],
        "PrioritySiteFactorPlugin={} writes over the site factors of order mode",
        "do without one of the two: pack mode writes no site factors"),
    _Asked("warn", lambda s: "multifactor" in s["PriorityType"] and _weights(s) < BOUND and (BOUND, _weights(s)),
        "a site factor of up to {} outweighs age, fair-share and QOS together ({})", "larger PriorityWeight…"),
)  # fmt: skip
_ANY: Table[Look] = (
    _Asked("bad", lambda s: 0 < s.number("MinJobAge") <= 2 * s.settings.slurm.poll_idle_s and s.number("MinJobAge"),
        "MinJobAge={} s: Slurm forgets a job that ended before Lucid looks ({s.settings.slurm.poll_idle_s:g} s), so "
        "nothing is learned from it", "MinJobAge=300"),
    _Asked("warn",
        lambda s: 2 * s.settings.slurm.poll_idle_s < (age_s := s.number("MinJobAge")) < _SHORT_JOB_AGE_S and age_s,
        "MinJobAge={} s: what ends while lucidd restarts is missing from its history", "MinJobAge=300"),
    _Asked("warn", lambda s: s["RequeueExit"], "RequeueExit={}: a job that ends so starts over without Lucid",
        "know of it, or do without RequeueExit"),
    _Asked("warn", lambda s: s["RequeueExitHold"],
        "RequeueExitHold={}: a job that ends so is held, and stays so, without Lucid",
        "know of it, or do without RequeueExitHold"),
    _Asked("warn", lambda s: "jobs" in s.words("PrivateData") and s.daemon.publish is Publish.JOBS,
        "PrivateData has jobs, and lucidd shows everybody size and decision of every job, without names",
        'daemon.publish = "nothing", if that is more than your site shows'),
    _Asked("warn", lambda s: "rl_enable" in s["SlurmctldParameters"],
        "SlurmctldParameters has rl_enable: a burst of starts may be put off by the rate limit",
        "rl_bucket_size of at least slurm.writes_per_cycle"),
    _Asked("warn", lambda s: s.daemon.catch_up_days and "slurmdbd" not in s["AccountingStorageType"],
        f"no accounting by slurmdbd: {_NO_DBD}", "slurmdbd, or daemon.catch_up_days = 0"),
    _Asked("warn", lambda s: s.daemon.catch_up_days and "slurmdbd" in s["AccountingStorageType"]
        and "gres/gpu" not in s["AccountingStorageTRES"],
        f"AccountingStorageTRES lacks gres/gpu: {_NO_DBD}", "AccountingStorageTRES=gres/gpu,gres/shard"),
)  # fmt: skip
_PACKED: Table[Look] = (
    _Asked("bad", lambda s: s["SelectType"] != "select/cons_tres" and (s["SelectType"] or "(not set)"),
        "SelectType={}: GPUs cannot be asked for one by one", "SelectType=select/cons_tres, and restart slurmctld"),
    _Asked("bad", lambda s: ", ".join(sorted({"gpu", "shard"} - {*s.words("GresTypes")})),
        "GresTypes lacks {}", "GresTypes=gpu,shard"),
    _Asked("bad", lambda s: {"mps", "shard"} <= {*s.words("GresTypes")},
        "GresTypes has mps and shard: Slurm lets a job of each on one GPU (seen on 22.05)",
        "GresTypes=gpu,shard: MPS is started for pairs without gres/mps (docs/nodes.md)"),
    _Asked("warn", lambda s: s["AccountingStorageTRES"] and "gres/shard" not in s["AccountingStorageTRES"],
        "AccountingStorageTRES lacks gres/shard: accounting does not show who had slots",
        f"AccountingStorageTRES=gres/gpu,gres/shard; {MONITORING}"),
    _Asked("warn", lambda s: s["JobRequeue"].startswith("0"),
        "JobRequeue=0: no job may be requeued, so none is profiled", "JobRequeue=1"),
    _Asked("warn", lambda s: not _kinds(s),
        "SelectTypeParameters is not set: what is shared out follows the release's default",
        "SelectTypeParameters=CR_Core_Memory"),
    _Asked("bad", lambda s: any(kind.startswith("CR_SOCKET") for kind in _kinds(s)) and ",".join(_kinds(s)),
        "SelectTypeParameters={}: a job takes whole sockets, and leaves no CPUs on its GPUs' node to a partner",
        "SelectTypeParameters=CR_Core_Memory"),
    _Asked("warn", lambda s: not any("MEMORY" in kind for kind in _kinds(s)) and ",".join(_kinds(s)),
        "SelectTypeParameters={}: memory is not shared out, so two jobs of a pair may fill a node's",
        "SelectTypeParameters=CR_Core_Memory"),
    _Asked("bad", lambda s: "lua" not in s.words("JobSubmitPlugins"),
        "job_submit.lua is not loaded, so no job is ever held for Lucid",
        "JobSubmitPlugins=lua, and job_submit.lua: lucidctl slurm install"),
    _Asked("bad", lambda s: s.daemon.mps and "extra_constraints" in s["SchedulerParameters"],
        "SchedulerParameters has extra_constraints: Slurm takes what lucidd writes into a job's Extra for a "
        "constraint on nodes",
        "daemon.mps = false (pairs then share by time-slicing), or do without extra_constraints"),
    _Asked("warn", lambda s: s.daemon.mps and not s["Prolog"],
        "no Prolog: nothing starts MPS, so pairs share by time-slicing",
        "Prolog=…/prolog.d/* and mps in node.conf, or daemon.mps = false"),
    _own("Prolog"),
    _own("Epilog"),
    _Asked("warn", lambda s: not s["TaskProlog"],
        "no TaskProlog: an inner srun fails in a job that shares and has --gpus…",
        "TaskProlog=…/slurm/task_prolog"),
    _Asked("warn", lambda s: "RunInJob" in s.words("PrologFlags"),
        "PrologFlags has RunInJob: the MPS daemon of a pair is part of the job that started first, and may end with "
        "it", "PrologFlags without RunInJob"),
    # cgroup/v1 names a job's control group by its number, whatever the setting says
    _Asked("ok", lambda s: s["CgroupJobIdPaths"] == "no" and s["CgroupPlugin"] in ("cgroup/v2", "autodetect"),
        "Slurm names control groups by SLUID: the sampler asks the slurmstepd in each for its job; one that cannot "
        "see slurmstepd (hidepid, a container) may take a process for nobody's",
        "CgroupJobIdPaths=yes in cgroup.conf (from 26.05.2) puts the job's number there again"),
)  # fmt: skip


def check_config(s: Look) -> Iterator[Finding]:
    """Findings on the settings that Lucid's modes rest on."""
    if Mode.ORDER in s.used:
        yield from run(_ORDERED, s)
    elif s.packed:
        yield from _site_factors("warn")(s)
    yield from run(_ANY, s)
    if s.packed:
        yield from run(_PACKED, s)


_ORDER = "or order mode there"
_FEDERATED = 1 << 26
"""Job numbers of a federation have its cluster's number in the bits from here on."""
_GPU_WEIGHT = re.compile(r"gres/gpu(:[^=,]+)?=", re.IGNORECASE)


@dataclass(frozen=True)
class _Served:
    """A partition that Lucid packs, or whose jobs it moves to or from such a one. ``cpus``: the most that a node with
    GPUs has. ``served["Key"]`` is one of its settings as Slurm words them, empty where there is none."""

    name: str
    shown: Mapping[str, str]
    cpus: int

    def __getitem__(self, key: str) -> str:
        return self.shown.get(key, "")

    @staticmethod
    def of(s: Look, *rooms: str) -> list[_Served]:
        """The packed partitions, and the *rooms*."""
        return [
            _Served(name, s.site.partition_settings.get(name, {}), max(cpus, default=0))
            for name in dict.fromkeys([*s.packed, *filter(None, rooms)])
            for cpus in [[node.cpus for node in s.site.nodes if name in node.partitions and node.gpu_types]]
        ]


_OfOne = Check[_Served]


def _given_out(p: _Served) -> str:
    """How its nodes are given out, where Lucid does not know it."""
    topo = "TOPO" if p["ExclusiveTopo"] == "YES" else p["Exclusive"]
    kind = "USER" if p["ExclusiveUser"] == "YES" else topo
    if kind in ("", "NO", "NODE", "NONE"):
        return ""
    return "each node is one user's at a time" if kind == "USER" else f"nodes are given out by {kind}"


def _few_cpus(key: str) -> Check[_Served]:
    return _OfOne(
        "bad",
        lambda p: p[key].isdecimal() and int(p[key]) < p.cpus and p[key],
        f"partition {{s.name!r}} has {key}={{}}, and its nodes up to {{s.cpus}} CPUs: Lucid starts jobs in vain on "
        "CPUs that Slurm does not give them",
        f"no {key} in the line of {{s.name}} (give other partitions one, to keep CPUs for GPUs), {_ORDER}",
    )


def _bills_models(p: _Served) -> bool:
    return any(found[1] for found in _GPU_WEIGHT.finditer(p["TRESBillingWeights"]))


_PARTITION: Table[_Served] = (
    _OfOne("bad", _given_out,
        "partition {s.name!r}: {}, which Lucid does not know: a job waits for nodes of others while other nodes are "
        "free", f"Exclusive=NO (ExclusiveUser=NO) in the line of {{s.name}}, {_ORDER}"),
    _few_cpus("MaxCPUsPerNode"),
    _few_cpus("MaxCPUsPerSocket"),
    _OfOne("bad", _bills_models,
        "partition {s.name!r} bills GPUs by their model (TRESBillingWeights={s[TRESBillingWeights]}): a GPU's type "
        "is its address on packed nodes, so none is billed",
        f"GRES/gpu=… and GRES/shard=… without a model in the line of {{s.name}}, {_ORDER}"),
    _OfOne("bad", lambda p: not _bills_models(p) and _GPU_WEIGHT.search(p["TRESBillingWeights"])
        and "gres/shard" not in p["TRESBillingWeights"].lower(),
        "partition {s.name!r} bills a job in slots nothing for its GPUs "
        "(TRESBillingWeights={s[TRESBillingWeights]}): fair-share and limits on billing do not see it",
        "GRES/shard with the weight of GRES/gpu in the line of {s.name}: lucidctl setup writes it", setup_mends=True),
    _OfOne("warn", lambda p: p["LLN"] == "YES",
        "partition {s.name!r} has LLN=YES: Lucid packs jobs onto the fullest nodes, not the emptiest",
        "LLN=NO in the line of {s.name}; order mode keeps it"),
    _OfOne("warn", lambda p: p["ReqResv"] == "YES",
        "partition {s.name!r} has ReqResv=YES: all its jobs have a reservation, and Lucid leaves those to Slurm",
        "nothing is ever decided in {s.name}: leave it out of daemon.partitions"),
)  # fmt: skip
_TAKEN_WHOLE: Table[_Served] = (
    _OfOne("bad", lambda p: p["OverSubscribe"] == "EXCLUSIVE",
        "partition {s.name!r} has OverSubscribe=EXCLUSIVE: each job has its nodes alone, so none shares",
        f"OverSubscribe=NO in the line of {{s.name}}, {_ORDER}"),
    _OfOne("bad", lambda p: p["OverSubscribe"].startswith("FORCE") and p["OverSubscribe"] != "FORCE:1",
        "partition {s.name!r} has OverSubscribe={s[OverSubscribe]}: Slurm puts several jobs on the same CPUs, which "
        "Lucid does not reckon with", f"OverSubscribe=NO in the line of {{s.name}}, {_ORDER}"),
)  # fmt: skip


def _other_labels(s: Look) -> bool:
    rules = s["MCSParameters"].replace("|", ",").split(",")
    kept_off = "noselect" not in rules and not {"select", "enforced"}.isdisjoint(rules)
    return kept_off and s["MCSPlugin"] not in ("", "mcs/none")


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


_CLUSTER: Table[Look] = (
    _Asked("bad", lambda s: s["SchedulerType"] == "sched/builtin",
        "SchedulerType=sched/builtin: a job of which Slurm alone decides stops every start by Lucid behind it, as "
        "long as there is no room for that job", "SchedulerType=sched/backfill, or order mode"),
    _Asked("bad", _other_labels,
        "MCSPlugin={s[MCSPlugin]}, MCSParameters={s[MCSParameters]}: Slurm keeps jobs with other labels off a job's "
        "nodes, which Lucid does not know, so it starts jobs there in vain",
        "MCSParameters with noselect, or order mode"),
    _Asked("bad", lambda s: (most := max((job.number for job in s.site.jobs), default=0)) >= _FEDERATED and most,
        "job {} is one of a federation: its clusters agree which of them starts a job, and Lucid changes jobs on one "
        "of them alone", "scontrol show federation; take the cluster out of it, or order mode"),
    _Asked("warn", lambda s: "tmpfs" in (spaces := s["JobContainerType"] + s["NamespaceType"]) and spaces,
        "{}: where a job has a /dev/shm of its own, the two jobs of a pair may not reach their MPS daemon",
        "Dirs=/tmp in job_container.conf (namespace.yaml), or daemon.mps = false"),
    _Asked("warn", lambda s: s["BurstBufferType"],
        "BurstBufferType={}: GPUs are kept for a job while its burst buffer is filled, and after slurm.start_grace_s "
        "Lucid releases it as its user wrote it",
        "lucid:off in the comment of jobs with burst buffers, or slurm.start_grace_s longer than a stage-in"),
    _Asked("warn", lambda s: ", ".join(w for w in s["AccountingStorageTRES"].split(",") if w.startswith("gres/gpu:")),
        "AccountingStorageTRES has {}: a GPU's type is its address on packed nodes, so nothing is accounted by model "
        "there", "by partition, or by AllocNodes of sacct"),
    _Asked("warn", lambda s: re.match(r"0*[1-9]", s["PriorityWeightAssoc"]),
        "PriorityWeightAssoc: priorities of associations do not count where Lucid packs",
        "a QOS with a Priority (PriorityWeightQOS), which does"),
    _Asked("bad", lambda s: s.limited and _some(s.site.gpu_limits.uncounted),
        "{}: a limit on gres/gpu does not count what pack mode puts into slots",
        "the same number of gres/shard in each of them (sacctmgr modify … set GrpTRES=gres/gpu=4,gres/shard=4): "
        "Slurm counts a job against the one or the other. Where sacctmgr knows no gres/shard yet: "
        "GresTypes=gpu,shard, gres/shard in AccountingStorageTRES, scontrol reconfigure"),
    _Asked("bad", lambda s: s.limited and _some(s.site.gpu_limits.by_model),
        "{}: a GPU's type is its address on packed nodes, so a limit by model counts nothing",
        "a limit on gres/gpu and gres/shard, or on the partition that has these GPUs"),
    _Asked("warn", lambda s: s.limited and _some(s.site.gpu_limits.least),
        "{}: a job in slots has shards and no gres/gpu, so Slurm does not start it; Lucid tries, then releases it as "
        "its user wrote it",
        "AllowQos in the partition's line, or a check in job_submit, in place of MinTRES on gres/gpu"),
)  # fmt: skip


def check_served(s: Look) -> Iterator[Finding]:
    """Findings on what pack mode does not serve."""
    if s.packed:
        yield from run(_CLUSTER, s)
        for partition in _Served.of(s, s.room):
            yield from run(_PARTITION, partition)


def taken_whole(s: Look) -> Iterator[Finding]:
    """Findings on partitions in pack mode whose nodes are not given out by CPUs and GPUs. (doctor reads this from
    another answer.)"""
    for partition in _Served.of(s):
        yield from run(_TAKEN_WHOLE, partition)


def check_power(s: Look) -> Iterator[Finding]:
    """Findings on power saving."""
    mine = [node for node in s.nodes if not node.partitions.isdisjoint({*s.modes, s.room})]
    asleep = [node.name for node in mine if ASLEEP in node.states]
    if s.power.wakes:
        yield Finding("ok", f"{power_note(s.site.config, True)}; {len(asleep)} of {len(mine)} nodes sleep now")
    elif asleep:
        yield warn(
            f"{', '.join(asleep[:5])}: asleep, and {s.power.why_not}",
            "SuspendProgram, ResumeProgram and SuspendTime in slurm.conf, or scontrol update … state=resume",
        )
    failed = [node.name for node in mine if node.reason.startswith(FAILED) and "DOWN" in node.states]
    if failed:
        yield warn(
            f"{', '.join(failed[:5])}: did not come up within ResumeTimeout ({s.power.resume_s:g} s): "
            "nothing starts there",
            "what ResumeProgram does with it, a longer ResumeTimeout, then scontrol update nodename=… state=resume",
        )
    profiling = [node for node in mine if s.room in node.partitions and node.available]
    wakes = s.settings.policy.profiling.wake_nodes
    if s.packed and profiling and not wakes and all(ASLEEP in node.states for node in profiling):
        yield warn(
            f"all nodes of {s.room} sleep: new jobs are not profiled until one is awake",
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


def check_preemption(s: Look) -> Iterator[Finding]:
    """Findings on preemption, where it is known."""
    preemption = s.site.preemption or NO_PREEMPTION
    if not s.packed or not preemption.by:
        return
    if preemption.by == "qos":
        yield Finding("ok", "PreemptType=preempt/qos: jobs claim GPUs of jobs that their QOS may preempt")
        suspends = sorted(name for name, qos in preemption.qos.items() if (qos.mode or preemption.mode) == "SUSPEND")
        if suspends:
            yield bad(
                f"jobs of QOS {', '.join(suspends)} are suspended, {_SUSPENDED}",
                "PreemptMode=REQUEUE in slurm.conf, or of these QOS",
            )
        return
    for name in s.packed:
        here = [node.partitions for node in s.site.nodes if node.gpu_types and name in node.partitions]
        for other in sorted(frozenset[str]().union(*here) - {name}):
            yield from _between(name, other, preemption)


_SUSPENDED = (
    "and keep their GPUs' memory: Lucid claims nothing from them, and Slurm puts others on GPUs that Lucid did not "
    "pair"
)


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
    lower, upper = sorted((vc, other), key=lambda name: tiers[name])
    mode = preemption.modes.get(lower, preemption.mode)
    if mode == "SUSPEND":
        yield bad(
            f"jobs of {lower} are suspended for jobs of {upper} (PreemptMode), {_SUSPENDED}",
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


def check_lending(s: Look) -> Iterator[Finding]:
    """Findings on VCs that lend; none where ``policy.lending`` is off."""
    rules = s.pool
    if not (s.lends and rules.partition and rules.quotas):
        return
    room, vcs = s.known.get(rules.partition), [name for name in rules.quotas if name in s.known]
    mine = [node for node in s.site.nodes if node.gpu_types and not node.partitions.isdisjoint(vcs)]
    if room is None:
        yield bad(f"partition {rules.partition!r} (daemon.pool.partition) does not exist: no job can borrow", _LINES)
    elif outside := sorted(node.name for node in mine if room.name not in node.partitions):
        yield bad(
            f"partition {room.name!r} lacks {', '.join(outside[:5])}: the VCs of daemon.pool do not lend until "
            "it has all their nodes",
            _LINES,
        )
    total, promised = sum(len(node.gpu_types) for node in mine), sum(rules.quotas.values())
    together = f"daemon.pool.quotas are {promised} GPUs together, and the VCs have {total}"
    if promised > total:
        yield bad(f"{together}: they cannot all be met", "smaller quotas, here and in Slurm")
    elif promised < total:
        yield warn(f"{together}: the rest is only borrowed", "larger quotas, here and in Slurm")
    modes = {name: s.modes[name] for name in vcs if name in s.modes}
    if len({*modes.values()}) > 1:
        told = ", ".join(f"{name} {mode}" for name, mode in modes.items())
        yield warn(
            f"the VCs of daemon.pool are in different modes ({told}): only those of the foremost mode lend",
            "one mode for all: lucidctl mode",
        )
    memory = {gpu_mem_mib(node, s.daemon) for node in mine}
    if len(memory) > 1:
        yield warn(
            f"GPUs of the VCs of daemon.pool have {min(memory)} to {max(memory)} MiB: a job may start on smaller "
            "ones than its VC has",
            "let VCs with equal GPUs lend to each other; leave the others out of daemon.pool.quotas",
        )
    given = s.site.defaults
    own = given.get(rules.partition)
    other = ", ".join(name for name in vcs if own is not None and name in given and given[name] != own)
    if other:
        yield warn(
            f"partition {rules.partition!r} gives other CPUs or memory to each GPU than {other} (JobDefaults): a job "
            "that borrows has those",
            f"the same DefCpuPerGPU and DefMemPerGPU in the lines of {rules.partition} and {other}",
        )
    yield from _limits_of_lending(s, room)


def _limits_of_lending(s: Look, room: Partition | None) -> Iterator[Finding]:
    """Findings on Slurm's own limits: those that keep a VC whose partition has more nodes to its quota, and that of
    borrowing."""
    quotas, limits = s.pool.quotas, s.site.group_limits
    pool = pool_of(s.pool, dict.fromkeys(quotas, Mode.PACK), s.site.nodes)
    bounded = [name for name in quotas if pool is not None and name in pool.bounded and name in s.known]
    if not bounded:
        return
    if not s.limited:
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
    mine = [node for node in s.site.nodes if not node.partitions.isdisjoint(quotas)]
    total = sum(len(node.gpu_types) for node in mine)
    slots = max((max(node.slots, default=0) for node in mine), default=0) or SLOTS
    by_account = {limit.gpus for name, limit in limits.items() if name.startswith("account ")}
    accounts = False
    for vc in bounded:
        quota, qos = quotas[vc], s.known[vc].qos
        found = limits.get(f"QOS {qos}") if qos else None
        wanted = f"GrpTRES=gres/gpu={quota},gres/shard={slots * quota}"
        if found is None or found.gpus is None:
            if quota in by_account:
                accounts = True
                continue
            yield bad(
                f"Slurm keeps {vc!r} to no quota: its partition has no QOS with GrpTRES=gres/gpu={quota}",
                f"sacctmgr add qos {vc}-quota set {wanted}; QOS={vc}-quota in the line of {vc}",
            )
        elif (found.gpus, found.shards) != (quota, slots * quota):
            yield bad(
                f"QOS {qos} of partition {vc!r} has GrpTRES gres/gpu={found.gpus}, gres/shard="
                f"{'none' if found.shards is None else found.shards}, and daemon.pool.quotas.{vc} is {quota}",
                f"sacctmgr modify qos {qos} set {wanted}",
            )
    if room is None:
        return
    own = limits.get(f"QOS {room.qos}") if room.qos else None
    if room.qos and room.qos in {s.known[vc].qos for vc in bounded}:
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
        taken = {f"QOS {s.known[vc].qos}" for vc in bounded} | {f"QOS {room.qos}"}
        others = [n for n, limit in limits.items() if n not in taken and limit.gpus not in (None, *quotas.values())]
        if others:
            yield warn(
                f"the GrpTRES of QOS {room.qos} goes before those of {', '.join(others[:5])}: these do not hold for "
                "jobs that borrow",
                f"take GrpTRES away from QOS {room.qos} where no account keeps a VC to its quota",
            )
