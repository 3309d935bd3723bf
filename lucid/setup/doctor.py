"""Doctor's checks of a site as Slurm answers: partitions, nodes, clock, rights, and jobs that are held."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lucid.config.live import PoolSettings
from lucid.config.load import Settings, profiles_folder
from lucid.errors import ClusterError, Finding, bad, did_you_mean, warn
from lucid.node.reports import HealthFolder, health_folder
from lucid.places import HELD_AT_MOST_S, Mode
from lucid.setup.doctor_slurm import (
    as_lucidd_sees,
    check_config,
    check_lending,
    check_power,
    check_preemption,
    check_served,
)
from lucid.slurm.client import Inspector, served
from lucid.slurm.heartbeat import read_heartbeat
from lucid.slurm.own.waits import parked
from lucid.slurm.records.configuration import GroupLimit, Limits, Partition
from lucid.slurm.records.fields import features_of, parse_mark
from lucid.slurm.records.job import SlurmJob, SlurmNode
from lucid.slurm.records.preemption import NO_PREEMPTION, Preemption
from lucid.slurm.records.request import WHY, JobDefaults

_SKEW_WARN_S, _SKEW_BAD_S = 5.0, 60.0
_SLOTS = tuple({count} for count in range(2, 9))
"""How many slots each GPU of a node may have: two for pairs, four where groups of up to four take turns (Muri)."""
_MANY = 10
"""Jobs from which on one reason why most do not share is told."""
_PRIVILEGED = ("operator", "administrator")


@dataclass(frozen=True, slots=True)
class Site:
    """Slurm's answers; ``None`` where one is missing. ``now_s`` is this machine's clock when ``clock_s`` was asked
    for."""

    version: tuple[int, int]
    config: Mapping[str, str]
    nodes: Sequence[SlurmNode]
    partitions: Sequence[Partition]
    jobs: Sequence[SlurmJob]
    clock_s: float | None
    rights: tuple[str, str] | None
    now_s: float
    accounting: str = ""
    """Slurm's words where slurmdbd is silent."""
    defaults: Mapping[str, JobDefaults] = field(default_factory=dict)
    gpu_limits: Limits = field(default_factory=Limits)
    group_limits: Mapping[str, GroupLimit] | None = field(default_factory=dict)
    """GrpTRES of QOS and accounts."""
    preemption: Preemption | None = None
    """Which jobs may preempt which."""
    unsealed: str = ""
    """Why munge makes no seal for the prologs; empty: it does."""
    partition_settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Settings as Slurm words them, by partition."""
    lucidd: str | None = ""
    """lucidd's user, where that is not the one who asks; ``None``: it is unknown whose rights count."""


def see_site(client: Inspector, now_s: Callable[[], float], lucidd: str | None = "") -> Site:
    """Ask Slurm for all of it, once. ``lucidd``: as in ``Site``.

    Raises: ClusterError: Slurm does not answer, or not as it should, or is too old."""
    version = served(client.version())
    asked_s, clock_s = now_s(), client.clock_s()
    asked_s = (asked_s + now_s()) / 2
    try:
        rights = None if lucidd is None else client.rights(lucidd)
    except ClusterError:
        rights = None  # slurmdbd is down, or there is none: doctor says what it can
    try:
        gpu_limits = client.gpu_limits()
    except ClusterError:
        gpu_limits = Limits()
    try:
        group_limits = client.group_limits()
    except ClusterError:
        group_limits = None
    try:
        preemption = client.preemption()
    except ClusterError:
        preemption = None
    unsealed = ""
    try:
        client.seal("lucid doctor")
    except ClusterError as error:
        unsealed = str(error)
    return Site(
        version,
        client.config(),
        client.nodes(),
        client.partitions(),
        client.jobs(),
        clock_s,
        rights,
        asked_s,
        client.accounting,
        client.job_defaults(),
        gpu_limits,
        group_limits,
        preemption,
        unsealed,
        client.partition_settings(),
        lucidd,
    )


def _job_defaults(modes: Mapping[str, Mode], site: Site) -> Iterator[Finding]:
    """Findings on what partitions give to each GPU, which has to be said with slots, too."""
    packed = sorted(name for name, mode in modes.items() if mode is Mode.PACK)
    for name in packed:
        given = site.defaults.get(name)
        if given is not None and given.cpus is not None:
            yield Finding(
                "ok",
                f"partition {name} gives {given.cpus} CPUs to each GPU (JobDefaults): jobs that share have them too; "
                "jobs of several tasks without --cpus-per-task keep their GPUs to themselves",
            )


def check_site(settings: Settings, modes: Mapping[str, Mode], site: Site) -> Iterator[Finding]:
    """Findings on Slurm as it answers; *modes* by partition, as they are now."""
    version = f"{site.version[0]}.{site.version[1]:02}"
    yield Finding("ok", f"Slurm {version} answers")
    if site.accounting:
        yield warn(
            f"accounting does not answer ({site.accounting}): jobs go on, and Lucid learns later from those that end",
            "start slurmdbd, and the data base behind it",
        )
    yield from _job_defaults(modes, site)
    yield from check_config(settings, modes, site.config)
    yield from check_served(
        modes,
        site.partition_settings,
        site.config,
        site.gpu_limits,
        site.nodes,
        (settings.daemon.profiling_partition,),
        max((job.number for job in site.jobs), default=0),
    )
    if site.unsealed and settings.daemon.mps and Mode.PACK in modes.values():
        yield warn(
            f"{site.unsealed}: no prolog can be told what lucidd decided, so pairs share by time-slicing, unfenced",
            "munged on this host with the nodes' key (docs/files.md), or daemon.mps = false",
        )
    yield from _clock(site)
    yield from _rights(modes, site)
    yield from _partitions(settings, modes, site)
    yield from check_preemption(modes, site.nodes, site.preemption)
    nodes = as_lucidd_sees(site.nodes, site.config, site.partitions, site.now_s)
    yield from _nodes(settings, modes, nodes, site.preemption or NO_PREEMPTION)
    if Mode.PACK in modes.values():
        yield from _gpu_order(settings, site.config, nodes)
    yield from check_power(settings, modes, nodes, site.config, site.partitions)
    yield from check_lending(
        settings, modes, site.partitions, site.nodes, site.group_limits, site.config, site.defaults
    )
    yield from _held(settings, site)
    yield from _passed_over(modes, site)


def _clock(site: Site) -> Iterator[Finding]:
    if site.clock_s is None:
        return
    skew_s = abs(site.clock_s - site.now_s)
    if skew_s > _SKEW_WARN_S:
        found = bad if skew_s > _SKEW_BAD_S else warn
        yield found(
            f"slurmctld's clock and this machine's differ by {skew_s:.0f} s: heartbeats look stale, and waits "
            "and run times are wrong by as much",
            "chrony or ntpd on both",
        )


def _rights(modes: Mapping[str, Mode], site: Site) -> Iterator[Finding]:
    if site.lucidd is None:
        return
    writes = set(modes.values()) - {Mode.OBSERVE}
    config = site.config
    owner, private = config.get("SlurmUser", "").partition("(")[0], "jobs" in config.get("PrivateData", "")
    if site.rights is None:
        if (
            private
            and "slurmdbd" not in config.get("AccountingStorageType", "")
            and site.lucidd not in ("root", owner)
        ):
            yield bad(
                "PrivateData has jobs, and without slurmdbd nobody but root and SlurmUser sees the jobs of others: "
                "lucidd sees none",
                "take jobs out of PrivateData in slurm.conf, or set up slurmdbd and run lucidctl setup again",
            )
        return
    if site.rights[0] == "root":
        return
    user, level = site.rights
    if level in _PRIVILEGED or user == owner:
        yield Finding(
            "ok", f"Slurm user {user} " + (f"has AdminLevel {level}" if level in _PRIVILEGED else "is SlurmUser")
        )
    elif writes:
        yield bad(
            f"Slurm user {user} has AdminLevel {level}, so it cannot change other users' jobs; operator is needed",
            f"sacctmgr modify user {user} set adminlevel=operator (add it first: sacctmgr add user {user} account=…)",
        )
    elif private:
        yield bad(
            f"PrivateData has jobs, and Slurm user {user} has AdminLevel {level}, so it sees only its own jobs",
            f"sacctmgr modify user {user} set adminlevel=operator (lucidctl setup does it)",
        )


def _partitions(settings: Settings, modes: Mapping[str, Mode], site: Site) -> Iterator[Finding]:
    room = settings.daemon.profiling_partition
    pool = settings.daemon.pool if settings.policy.lending.mode != "off" else PoolSettings()
    packs = [name for name, mode in modes.items() if mode is Mode.PACK]
    known = {partition.name: partition for partition in site.partitions}
    for name in [*modes, *filter(None, (room, pool.partition))]:
        found = known.get(name)
        if found is None and name == pool.partition:
            continue  # told with the other limits of lending
        if found is None:
            hint = did_you_mean(name, known)
            yield bad(
                f"partition {name!r} does not exist{hint} (there are: {', '.join(sorted(known))})",
                "correct daemon.profiling_partition" if name == room else "correct daemon.partitions",
            )
            continue
        if found.state != "UP":
            yield warn(
                f"partition {name!r} is {found.state}: nothing starts there", f"scontrol update part={name} state=up"
            )
        if found.root_only:
            yield bad(
                f"partition {name!r} is RootOnly: users' jobs never get there",
                "RootOnly=NO in its line of slurm.conf",
            )
        if name in packs or (name in (room, pool.partition) and packs):
            yield from _packed(name, found, site.config)
    if packs and not room:
        yield warn(
            "no profiling partition: jobs are measured only while they run alone", "daemon.profiling_partition"
        )
    ways = [(name, room) for name in packs] + [(name, pool.partition) for name in packs if name in pool.quotas]
    for name, there in ways:
        if name in known and there in known:
            yield from _way_there(known[name], known[there])
    if room in known and room in modes:
        yield bad(
            f"partition {room!r} is a VC and the profiling partition at once: nothing leaves profiling",
            "a partition of its own for profiling, not named in daemon.partitions",
        )


def _packed(name: str, found: Partition, config: Mapping[str, str]) -> Iterator[Finding]:
    if found.exclusive:
        yield bad(
            f"partition {name!r} has OverSubscribe=EXCLUSIVE: each job has its nodes alone, so none shares",
            f"OverSubscribe=NO in the line of {name}",
        )
    if found.oversubscribe:
        yield warn(
            f"partition {name!r} has OverSubscribe=YES or FORCE: Slurm puts several jobs on the same CPUs, "
            "which Lucid does not reckon with",
            f"OverSubscribe=NO in the line of {name}",
        )
    if "MEMORY" not in config.get("SelectTypeParameters", "").upper():
        return
    site_has = any(config.get(key, "0") not in ("", "0") for key in ("DefMemPerCPU", "DefMemPerNode"))
    if not (found.def_mem_mib or site_has or "DefMemPerGPU" in config.get("JobDefaults", "")):
        yield bad(
            f"partition {name!r} has no default memory: a job that does not say --mem takes all of its node's, and "
            "nobody can join it",
            "DefMemPerCPU=… (or DefMemPerGPU) in slurm.conf, or in the partition's line",
        )


def _way_there(home: Partition, room: Partition) -> Iterator[Finding]:
    """Findings on the way between a VC and a partition to which Lucid moves its jobs, and from which they come
    back."""
    mine, there = dict(home.allowed), dict(room.allowed)
    for key, names in there.items():
        if mine.get(key) != names:
            yield bad(
                f"partition {room.name!r}, to which Lucid moves jobs, allows {key} {names}, and {home.name!r} "
                f"{mine.get(key) or 'does not say so'}: jobs of others are not let in",
                f"the same Allow… and Deny… in the lines of {room.name} and {home.name}",
            )
    longest, most = room.max_time_s, home.max_time_s
    if longest is not None and (most is None or longest < most):
        yield bad(
            f"partition {room.name!r}, to which Lucid moves jobs, has MaxTime {longest / 60:.0f} min, less than "
            f"{home.name!r}: a job with a longer limit waits there for ever (PartitionTimeLimit)",
            f"MaxTime of {room.name} as long as that of {home.name}",
        )


def _gpu_order(settings: Settings, config: Mapping[str, str], nodes: Sequence[SlurmNode]) -> Iterator[Finding]:
    """Findings on whether CUDA counts GPUs as Slurm does, where jobs see all of them."""
    if config.get("ConstrainDevices", "").lower() == "yes":
        return
    told = HealthFolder(health_folder(profiles_folder(settings))).read()
    other = [
        node.name
        for node in nodes
        if node.addressable and node.name in told and {*node.gpu_numbers} <= {*told[node.name].order}
        and told[node.name].order[: len(node.gpu_numbers)] != node.gpu_numbers
    ]  # fmt: skip
    if other:
        yield bad(
            f"CUDA counts the GPUs of {', '.join(other[:5])} in another order than gres.conf, and as far as Slurm "
            "tells jobs see all of them: a job without MPS runs on another GPU than Slurm gave it",
            "ConstrainDevices=yes in cgroup.conf, with TaskPlugin=task/cgroup (docs/gpu-health.md)",
        )


def _nodes(
    settings: Settings, modes: Mapping[str, Mode], nodes: Sequence[SlurmNode], preemption: Preemption
) -> Iterator[Finding]:
    room, pool = settings.daemon.profiling_partition, settings.daemon.pool
    lends = settings.policy.lending.mode != "off"
    wanted = [*modes, *([room] if room and room not in modes else [])]
    for name in wanted:
        policy = settings.daemon.policy_of(name)
        mine = [node for node in nodes if name in node.partitions]
        if mine and not any(node.gpu_types for node in mine):
            yield warn(f"partition {name!r} has no node with GPUs", "nothing will ever be decided there")
        if modes.get(name) is Mode.PACK:
            dull = [node.name for node in mine if node.gpu_types and not node.addressable]
            if dull:
                yield bad(
                    f"GPUs of {', '.join(dull[:5])} have no address: nothing shares in {name!r}",
                    "gres.conf and slurm.conf as: lucidctl slurm render",
                )
            odd = [node.name for node in mine if node.addressable and node.slots and node.slots not in _SLOTS]
            if odd:
                yield bad(
                    f"GPUs of {', '.join(odd[:5])} do not have 2 to 8 slots each, all as many: Slurm would keep "
                    "jobs apart that are to share",
                    "Name=shard … Count=2 in gres.conf, and shard:gN:2 in slurm.conf; more for groups under Muri",
                )
            pairs = [node.name for node in mine if node.addressable and node.slots == {2}]
            if pairs and policy in ("muri-s", "muri-l"):
                yield warn(
                    f"GPUs of {', '.join(pairs[:5])} have 2 slots each: under {policy} no "
                    "more than two jobs share one",
                    "Name=shard … Count=4 in gres.conf, and shard:gN:4 in slurm.conf, for groups of up to four",
                )
        out = [f"{node.name} ({node.reason or '+'.join(sorted(node.states))})" for node in mine if not node.available]
        if out:
            yield warn(f"{name}: {len(out)} nodes are not available: {', '.join(out[:5])}", "scontrol show node NAME")
    for node in nodes:
        here = [name for name in wanted if name in node.partitions]
        layered = set(preemption.layers(here)) >= set(here)
        if len(here) > 1 and not layered and not (lends and set(here) <= pool.quotas.keys()):
            yield warn(
                f"node {node.name} stands in {' and '.join(here)}; for Lucid it is in {here[0]}",
                "put each node into one partition of daemon.partitions",
            )
        others = sorted(node.partitions - set(here) - {pool.partition if lends else ""})
        others = [other for other in others if not any(preemption.over(name, other) for name in here)]
        if here and others and modes.get(here[0]) is Mode.PACK:
            yield warn(
                f"node {node.name} stands in {', '.join(others)} too: jobs from there come onto GPUs that Lucid "
                "gives away",
                "name that partition in daemon.partitions, or take its nodes out of it",
            )


def _passed_over(modes: Mapping[str, Mode], site: Site) -> Iterator[Finding]:
    """Jobs that are in no queue of Lucid, and jobs that never share, by what they say."""
    packed = {name for name, mode in modes.items() if mode is Mode.PACK}
    mine = [job for job in site.jobs if job.asks and not job.ended and packed & {*job.partition.split(",")}]
    past = [job for job in mine if job.pending and not (job.tag or job.restarts)]
    if past:
        others = sum(bool(job.admin_comment) for job in past)
        yield warn(
            f"{len(past)} waiting jobs have no tag ({others} an AdminComment of others): Slurm starts them past "
            f"Lucid's queue ({', '.join(job.id for job in past[:5])}{', …' if past[5:] else ''})",
            "jobs that came while no lucidd decided are few, and end; else Lucid's plugin has to be called, as the "
            "last that writes AdminComment at submission (docs/submission.md)",
        )
    tagged, whole = [job for job in mine if job.tag], dict[str, list[str]]()
    for job in tagged:
        there = [node.features for node in site.nodes if node.gpu_types and job.partition in node.partitions]
        lacking = {name for name in features_of(job.features) if any(name not in have for have in there)}
        why = WHY.get((job.tag or {}).get("why", ""), "")
        if why := why or (f"not every node has the feature {min(lacking)}" if lacking else ""):
            whole.setdefault(why, []).append(job.id)
    for why, ids in whole.items():
        if len(ids) >= max(_MANY, len(tagged) / 2):
            yield warn(
                f"{len(ids)} of {len(tagged)} jobs never share: {why} ({', '.join(ids[:3])}, …)",
                "if a plugin or a script of the site's adds that to every job, leave it out there, or give all nodes "
                "of the VC that feature (docs/submission.md)",
            )


def _held(settings: Settings, site: Site) -> Iterator[Finding]:
    daemon = settings.daemon
    marked = [job for job in site.jobs if job.pending and parse_mark(job.admin_comment) is not None]
    held = [job for job in marked if job.held or parked(job, None, site.now_s)]
    beat = read_heartbeat(Path(daemon.heartbeat))
    if held and (beat is None or site.now_s - beat.at_s > HELD_AT_MOST_S):
        yield bad(
            f"{len(held)} jobs are held for a daemon that does not decide",
            "start lucidd, or release them: lucidctl uninstall (or slurm/lucid-release --all)",
        )
    unknown = {job.partition for job in held} - {*daemon.partitions, *daemon.rooms}
    if unknown:
        yield warn(
            f"held jobs stand in {', '.join(sorted(unknown))}, which is not in daemon.partitions",
            "lucidd releases them; name the partition to keep them",
        )
