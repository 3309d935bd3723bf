"""Doctor's checks of a site as Slurm answers: partitions, nodes, clock, rights, and jobs that are held."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from lucid.config.load import Settings, profiles_folder
from lucid.errors import Finding, bad, did_you_mean, warn
from lucid.node.reports import HealthFolder, health_folder
from lucid.places import HELD_AT_MOST_S, Mode
from lucid.setup.doctor_slurm import check_config, check_lending, check_power, check_preemption, check_served
from lucid.setup.site import Check, Look, Site, Table, run
from lucid.slurm.heartbeat import read_heartbeat
from lucid.slurm.own.waits import parked
from lucid.slurm.records.configuration import Partition
from lucid.slurm.records.fields import features_of, parse_mark
from lucid.slurm.records.preemption import NO_PREEMPTION
from lucid.slurm.records.request import WHY

_SKEW_WARN_S, _SKEW_BAD_S = 5.0, 60.0
_SLOTS = tuple({count} for count in range(2, 9))
"""How many slots each GPU of a node may have: two for pairs, four where groups of up to four take turns (Muri)."""
_MANY = 10
"""Jobs from which on one reason why most do not share is told."""
_PRIVILEGED = ("operator", "administrator")


def check_site(settings: Settings, modes: Mapping[str, Mode], site: Site) -> Iterator[Finding]:
    """Findings on Slurm as it answers; *modes* by partition, as they are now."""
    return run(_TABLE, Look(settings, modes, site))


def _job_defaults(s: Look) -> Iterator[Finding]:
    """Findings on what partitions give to each GPU, which has to be said with slots, too."""
    for name in sorted(s.packed):
        given = s.site.defaults.get(name)
        if given is not None and given.cpus is not None:
            yield Finding(
                "ok",
                f"partition {name} gives {given.cpus} CPUs to each GPU (JobDefaults): jobs that share have them too; "
                "jobs of several tasks without --cpus-per-task keep their GPUs to themselves",
            )


def _clock(s: Look) -> Iterator[Finding]:
    skew_s = 0.0 if s.site.clock_s is None else abs(s.site.clock_s - s.site.now_s)
    if skew_s > _SKEW_WARN_S:
        yield (bad if skew_s > _SKEW_BAD_S else warn)(
            f"slurmctld's clock and this machine's differ by {skew_s:.0f} s: heartbeats look stale, and waits "
            "and run times are wrong by as much",
            "chrony or ntpd on both",
        )


def _rights(s: Look) -> Iterator[Finding]:
    site = s.site
    if site.lucidd is None:
        return
    owner, private = s["SlurmUser"].partition("(")[0], "jobs" in s["PrivateData"]
    if site.rights is None:
        if private and "slurmdbd" not in s["AccountingStorageType"] and site.lucidd not in ("root", owner):
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
    elif s.used - {Mode.OBSERVE}:
        yield bad(
            f"Slurm user {user} has AdminLevel {level}, so it cannot change other users' jobs; operator is needed",
            f"sacctmgr modify user {user} set adminlevel=operator (add it first: sacctmgr add user {user} account=…)",
        )
    elif private:
        yield bad(
            f"PrivateData has jobs, and Slurm user {user} has AdminLevel {level}, so it sees only its own jobs",
            f"sacctmgr modify user {user} set adminlevel=operator (lucidctl setup does it)",
        )


def _partitions(s: Look) -> Iterator[Finding]:
    pool = s.pool.partition if s.lends else ""
    for name in [*s.modes, *filter(None, (s.room, pool))]:
        found = s.known.get(name)
        if found is None and name == pool:
            continue  # told with the other limits of lending
        if found is None:
            yield bad(
                f"partition {name!r} does not exist{did_you_mean(name, s.known)} (there are: "
                f"{', '.join(sorted(s.known))})",
                "correct daemon.profiling_partition" if name == s.room else "correct daemon.partitions",
            )
            continue
        yield from run(_PARTITION, found)
        if name in s.packed or (name in (s.room, pool) and s.packed):
            yield from run(_PACKED, found)
            if _no_default_memory(s, found):
                yield bad(
                    f"partition {name!r} has no default memory: a job that does not say --mem takes all of its "
                    "node's, and nobody can join it",
                    "DefMemPerCPU=… (or DefMemPerGPU) in slurm.conf, or in the partition's line",
                )
    if s.packed and not s.room:
        yield warn(
            "no profiling partition: jobs are measured only while they run alone", "daemon.profiling_partition"
        )
    for name, there in [(name, s.room) for name in s.packed] + [(n, pool) for n in s.packed if n in s.pool.quotas]:
        if name in s.known and there in s.known:
            yield from _way_there(s.known[name], s.known[there])
    if s.room in s.known and s.room in s.modes:
        yield bad(
            f"partition {s.room!r} is a VC and the profiling partition at once: nothing leaves profiling",
            "a partition of its own for profiling, not named in daemon.partitions",
        )


_PARTITION: Table[Partition] = (
    Check[Partition]("warn", lambda p: p.state != "UP",
        "partition {s.name!r} is {s.state}: nothing starts there", "scontrol update part={s.name} state=up"),
    Check[Partition]("bad", lambda p: p.root_only,
        "partition {s.name!r} is RootOnly: users' jobs never get there", "RootOnly=NO in its line of slurm.conf"),
)  # fmt: skip
_PACKED: Table[Partition] = (
    Check[Partition]("bad", lambda p: p.exclusive,
        "partition {s.name!r} has OverSubscribe=EXCLUSIVE: each job has its nodes alone, so none shares",
        "OverSubscribe=NO in the line of {s.name}"),
    Check[Partition]("warn", lambda p: p.oversubscribe,
        "partition {s.name!r} has OverSubscribe=YES or FORCE: Slurm puts several jobs on the same CPUs, which Lucid "
        "does not reckon with", "OverSubscribe=NO in the line of {s.name}"),
)  # fmt: skip


def _no_default_memory(s: Look, partition: Partition) -> bool:
    """Whether memory is shared out, and a job that does not say how much takes all."""
    site_has = any(s[key] not in ("", "0") for key in ("DefMemPerCPU", "DefMemPerNode"))
    has = partition.def_mem_mib or site_has or "DefMemPerGPU" in s["JobDefaults"]
    return "MEMORY" in s["SelectTypeParameters"].upper() and not has


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


def _gpu_order(s: Look) -> Iterator[Finding]:
    """Findings on whether CUDA counts GPUs as Slurm does, where jobs see all of them."""
    if not s.packed or s["ConstrainDevices"].lower() == "yes":
        return
    told = HealthFolder(health_folder(profiles_folder(s.settings))).read()
    other = [
        node.name
        for node in s.nodes
        if node.addressable and node.name in told and {*node.gpu_numbers} <= {*told[node.name].order}
        and told[node.name].order[: len(node.gpu_numbers)] != node.gpu_numbers
    ]  # fmt: skip
    if other:
        yield bad(
            f"CUDA counts the GPUs of {', '.join(other[:5])} in another order than gres.conf, and as far as Slurm "
            "tells jobs see all of them: a job without MPS runs on another GPU than Slurm gave it",
            "ConstrainDevices=yes in cgroup.conf, with TaskPlugin=task/cgroup (docs/gpu-health.md)",
        )


def _nodes(s: Look) -> Iterator[Finding]:
    preemption, pool = s.site.preemption or NO_PREEMPTION, s.pool
    wanted = list(dict.fromkeys([*s.modes, *filter(None, [s.room])]))
    for name in wanted:
        policy = s.daemon.policy_of(name)
        mine = [node for node in s.nodes if name in node.partitions]
        if mine and not any(node.gpu_types for node in mine):
            yield warn(f"partition {name!r} has no node with GPUs", "nothing will ever be decided there")
        if s.modes.get(name) is Mode.PACK:
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
    for node in s.nodes:
        here = [name for name in wanted if name in node.partitions]
        layered = set(preemption.layers(here)) >= set(here)
        if len(here) > 1 and not layered and not (s.lends and set(here) <= pool.quotas.keys()):
            yield warn(
                f"node {node.name} stands in {' and '.join(here)}; for Lucid it is in {here[0]}",
                "put each node into one partition of daemon.partitions",
            )
        others = sorted(node.partitions - set(here) - {pool.partition if s.lends else ""})
        others = [other for other in others if not any(preemption.over(name, other) for name in here)]
        if here and others and s.modes.get(here[0]) is Mode.PACK:
            yield warn(
                f"node {node.name} stands in {', '.join(others)} too: jobs from there come onto GPUs that Lucid "
                "gives away",
                "name that partition in daemon.partitions, or take its nodes out of it",
            )


def _passed_over(s: Look) -> Iterator[Finding]:
    """Jobs that are in no queue of Lucid, and jobs that never share, by what they say."""
    mine = [
        job
        for job in s.site.jobs
        if job.asks and not job.ended and not {*s.packed}.isdisjoint(job.partition.split(","))
    ]
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
        there = [node.features for node in s.site.nodes if node.gpu_types and job.partition in node.partitions]
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


def _held(s: Look) -> Iterator[Finding]:
    marked = [job for job in s.site.jobs if job.pending and parse_mark(job.admin_comment) is not None]
    held = [job for job in marked if job.held or parked(job, None, s.site.now_s)]
    beat = read_heartbeat(Path(s.daemon.heartbeat))
    if held and (beat is None or s.site.now_s - beat.at_s > HELD_AT_MOST_S):
        yield bad(
            f"{len(held)} jobs are held for a daemon that does not decide",
            "start lucidd, or release them: lucidctl uninstall (or slurm/lucid-release --all)",
        )
    unknown = {job.partition for job in held} - {*s.daemon.partitions, *s.daemon.rooms}
    if unknown:
        yield warn(
            f"held jobs stand in {', '.join(sorted(unknown))}, which is not in daemon.partitions",
            "lucidd releases them; name the partition to keep them",
        )


_TABLE: Table[Look] = (
    Check[Look]("ok", lambda s: s.site.version, "Slurm {}.{:02} answers"),
    Check[Look]("warn", lambda s: s.site.accounting,
        "accounting does not answer ({}): jobs go on, and Lucid learns later from those that end",
        "start slurmdbd, and the data base behind it"),
    _job_defaults,
    check_config,
    check_served,
    Check[Look]("warn", lambda s: s.daemon.mps and s.packed and s.site.unsealed,
        "{}: no prolog can be told what lucidd decided, so pairs share by time-slicing, unfenced",
        "munged on this host with the nodes' key (docs/files.md), or daemon.mps = false"),
    _clock,
    _rights,
    _partitions,
    check_preemption,
    _nodes,
    _gpu_order,
    check_power,
    check_lending,
    _held,
    _passed_over,
)  # fmt: skip
"""All that is looked for in Slurm's answers."""
