"""``Viewer``: makes the partitions of a snapshot from Slurm's records and Lucid's notes.

Waiting jobs are, in a partition in ``pack`` mode, those that job_submit.lua tagged and holds; in the other modes
every GPU job that waits and that nobody holds but Lucid, which is about to release it. A job that was released and
has not yet started counts as running where it was released to; one that is COMPLETING still holds what it had. Jobs
that Lucid never touched show as running, and nobody joins them.

Where a poll gives what the previous one gave, the same objects are handed out: planners keep what they derived from
an object as long as it stays the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter, is_
from typing import Any, TypeVar

from lucid.config.live import DaemonSettings
from lucid.core.job import Job, JobProfile, Pending, Progress, Running, Stage
from lucid.core.node import Node, Window
from lucid.core.placement import NodeGpus, Placement, parse_placement
from lucid.core.prediction import StageTimes
from lucid.core.snapshot import WAITING_ORDER, Partition
from lucid.places import Mode
from lucid.slurm.act.preempt import Claimed, as_seen_by
from lucid.slurm.elastic.jobs import NOT_ELASTIC, Elasticity, ElasticJobs, Worked, unmeasured
from lucid.slurm.elastic.turn_jobs import TurnJobs, takes_turns
from lucid.slurm.own.reasons import Outlook, outlook
from lucid.slurm.own.state import ASSIGNED, Ownership
from lucid.slurm.records.fields import features_of
from lucid.slurm.records.job import SlurmJob, SlurmNode
from lucid.slurm.records.preemption import Preemption
from lucid.slurm.records.request import NO_DEFAULTS, JobDefaults, whole_because
from lucid.slurm.view.nodes import NodesAskedFor, without_clashes
from lucid.slurm.view.observation import Observation, Pool, gpus_taken, submitted_s, users_nodes
from lucid.slurm.view.power_saving import begins_s
from lucid.store.port import JobNote, Store

_T = TypeVar("_T")
_NODE, _JOB = attrgetter("name"), attrgetter("job.id")


def handed_on(before: Mapping[str, Partition], made: Mapping[str, Partition]) -> dict[str, Partition]:
    """The partitions of ``made``, with the objects of ``before`` (partitions, nodes, entries) wherever these are
    equal."""
    return {name: _partition(before.get(name), partition) for name, partition in made.items()}


def _partition(before: Partition | None, made: Partition) -> Partition:
    if before is None:
        return made
    nodes = _same(before.nodes, made.nodes, _NODE)
    pending = _same(before.pending, made.pending, _JOB)
    running = _same(before.running, made.running, _JOB)
    fitting = before.fitting if before.fitting == made.fitting else made.fitting
    if (
        nodes is before.nodes
        and pending is before.pending
        and running is before.running
        and fitting is before.fitting
        and made.acting == before.acting
        and made.quotas == before.quotas
        and made.profiling == before.profiling
    ):
        return before
    return replace(made, nodes=nodes, pending=pending, running=running, fitting=fitting)


def _same(before: tuple[_T, ...], made: tuple[_T, ...], name: Callable[[_T], str]) -> tuple[_T, ...]:
    """``made``, with the object of ``before`` under the same name wherever that is equal; the tuple ``before`` itself
    where all are."""
    if len(made) == len(before) and all(map(is_, made, before)):
        return before
    known = {name(item): item for item in before}
    kept = tuple(
        item if (old := known.get(name(item))) is None or old is item or old != item else old for item in made
    )
    return before if len(kept) == len(before) and all(map(is_, kept, before)) else kept


KnownProfile = Callable[[SlurmJob], JobProfile | None]
"""The profile of a job; ``None`` where none is known."""
Profiled = Callable[[Job], bool]
"""The policy's rule whether a new job goes through profiling first."""
InVc = Callable[[str], bool]
"""A property of the policy of a VC, by the VC's name."""
_Entry = TypeVar("_Entry", Pending, Running)
_Entries = dict[str, tuple[tuple[Any, ...], _Entry]]
"""The entries that were last shown, by job, with what each was made from."""
_NOTHING_NOTED = JobNote("")
_STARTED = attrgetter("start_s", "job.rank")


@dataclass(frozen=True, slots=True)
class _Scene:
    """What the jobs of one VC are made from besides their records and notes."""

    defaults: JobDefaults | None
    pool: Pool | None
    features: frozenset[str] | None
    tiers: Mapping[str, int]
    preemption: Preemption
    switch_wait_s: float


@dataclass(frozen=True, slots=True)
class _Made:
    """A job as last shown, and what it was made from. ``plain``: it was made from its record, note and scene alone,
    so neither nodes nor the job's reports can change it."""

    record: SlurmJob
    note: JobNote | None
    scene: _Scene
    plain: bool
    rest: tuple[object, ...]
    job: Job


def nowhere(vc: str) -> bool:  # noqa: ARG001 - an InVc
    """False: no policy has the property."""
    return False


class Viewer:
    """Makes partitions. ``profile_of`` gives a job's profile, its own or an earlier one's."""

    def __init__(
        self,
        settings: DaemonSettings,
        ownership: Ownership,
        profile_of: KnownProfile,
        profiled: Profiled,
        resizes: InVc = nowhere,
        interleaves: InVc = nowhere,
        store: Store | None = None,
        worked: Worked = unmeasured,
    ) -> None:
        """``resizes``, ``interleaves``: whether the policy of a VC resizes jobs, or forms groups. ``store``: where
        reports of jobs are kept for later jobs. ``worked``: how long GPUs of a job worked, by samplers."""
        self.elastic = ElasticJobs(settings.elastic, resizes, worked)
        """Which jobs may be resized."""
        self.turns = TurnJobs(self.elastic.reports, interleaves, store)
        """Which jobs may take turns."""
        self._interleaves = interleaves
        self._settings = settings
        self._ownership = ownership
        self._profiled = profiled
        self._profile_of = profile_of
        self._places: dict[str, Placement] = {}
        """Where each job was last seen to run: Slurm forgets it while the job completes."""
        self._shown: dict[str, Partition] = {}
        self._common: dict[str, frozenset[str] | None] = {}
        self._neighbours: dict[str, frozenset[str]] = {}
        self._asked = NodesAskedFor(None)
        self._scenes: dict[str, _Scene] = {}
        """The scene of each VC at the last poll; the same object is used as long as it is equal."""
        self._scenes_now: dict[str, _Scene] = {}
        """The scenes of VCs that were asked for at this poll."""
        self._made: dict[str, _Made] = {}
        self._waited: _Entries[Pending] = {}
        self._ran: _Entries[Running] = {}

    def partitions(self, facts: Observation) -> dict[str, Partition]:
        """One partition for each VC with GPU nodes, one for the pool of those that lend, and the profiling one; the
        same objects as last time where nothing changed."""
        self._common, self._neighbours, self._asked = {}, {}, NodesAskedFor(facts)
        self._scenes_now = {}
        pool, profiling = facts.pool, self._settings.profiling_partition
        quotas = {} if pool is None else pool.quotas
        names = [name for name in self._settings.partitions if name not in quotas]
        if profiling and profiling not in names:
            names.append(profiling)
        owners: dict[str, tuple[str, ...]] = {}
        for node in facts.nodes:
            if not node.gpu_types:
                continue
            here = tuple(name for name in names if name in node.partitions)
            if pool is not None and quotas.keys() & node.partitions:
                owners[node.name] = (pool.name,)
            elif here:
                owners[node.name] = here if len(here) == 1 else facts.preemption.layers(here)
        if facts.preemption.by:  # who goes before others is planned, and carried out, before them
            names.sort(key=lambda name: -facts.preemption.tiers.get(name, 0))
        if pool is not None:
            names.insert(0, pool.name)
        running = self._running(facts, owners)
        pending = self._pending(facts)
        used = _used_without_gpus(facts.jobs)
        made: dict[str, Partition] = {}
        for name in names:
            pooled = pool is not None and name == pool.name
            vcs = quotas if pooled else (name,)
            mine = sorted((n for n in facts.nodes if name in owners.get(n.name, ())), key=lambda n: n.weight)
            nodes = tuple(self._node(node, used, facts) for node in mine)
            made[name] = Partition(
                name,
                nodes,
                tuple(sorted(pending.get(name, ()), key=WAITING_ORDER)),
                tuple(sorted(running.get(name, ()), key=_STARTED)),
                name == profiling,
                name == profiling or any(facts.modes.get(vc) is Mode.PACK for vc in vcs),
                quotas if pooled else {},
                self._asked.fitting(nodes, pending.get(name, ())),
            )
        self._shown = shown = handed_on(self._shown, made)
        if len(self._made) > 2 * len(facts.jobs):
            known = {job.id for job in facts.jobs}
            self._made = {job_id: kept for job_id, kept in self._made.items() if job_id in known}
            self._waited = {job_id: kept for job_id, kept in self._waited.items() if job_id in known}
            self._ran = {job_id: kept for job_id, kept in self._ran.items() if job_id in known}
        return shown

    def _node(self, node: SlurmNode, used: Mapping[str, tuple[int, int]], facts: Observation) -> Node:
        """The node of a snapshot. It has at least 1 CPU and 1 MiB, for 0 would mean no limit."""
        cpus, mem = used.get(node.name, (0, 0))
        numbers = node.gpu_numbers
        return Node(
            node.name,
            len(node.gpu_types),
            gpu_mem_mib(node, self._settings),
            max(node.cpus, 1),
            max(node.mem_mib, 1),
            node.available,
            node.out,
            cpus,
            mem,
            gpu_type=node.gpu_types[0] if len({*node.gpu_types}) == 1 else "",
            slots=1 if node.name in facts.unpaired else min(node.slots, default=2),
            switches=node.switches,
            windows=_windows(node, facts),
            shut=node.shut,
            boot_s=node.boot_s,
            boots_since_s=node.boots_since_s,
            left_out=facts.gpus_out.get(node.name, ()),
            numbers=() if numbers == tuple(range(len(numbers))) else numbers,
        ).at(facts.now_s)

    def job(self, record: SlurmJob, note: JobNote | None, facts: Observation) -> Job:
        """The user's request as a ``Job``; the same object as long as nothing that it is made from changes."""
        home = self._ownership.home(record, note)
        scene = self._scenes_now.get(home) or self._scene(home, facts)
        before = self._made.get(record.id)
        same = before is not None and before.record is record and before.note is note and before.scene is scene
        if before is not None and same and before.plain:
            return before.job
        stays = self._ownership.stays(record, home)
        asked = self._asked.words_for(record, note, home, bool(stays))
        asks = self.elastic.elasticity_of(record, note, home, facts.now_s)
        rest = (
            facts.nodes if record.request.whole_nodes else None,
            asked,
            self._reaches(record, home, facts),
            asks if asks is NOT_ELASTIC else replace(asks, progress=None, words="", restart_s=None),
        )
        if before is not None and same and before.rest == rest:
            return before.job
        made = self._job(record, note, home, facts, asks, asked, stays)
        if before is not None and before.job == made:  # read anew, and the same
            made = before.job
        elsewhere = record.request.whole_nodes or record.time_min_s or record.features or record.excludes
        plain = asks is NOT_ELASTIC and not (elsewhere or stays or users_nodes(record, note))
        self._made[record.id] = _Made(record, note, scene, plain, rest, made)
        return made

    def _scene(self, home: str, facts: Observation) -> _Scene:
        known, features = facts.defaults, self._features_of(home, facts)
        defaults = None if known is None else known.get(home, NO_DEFAULTS)
        scene = _Scene(defaults, facts.pool, features, facts.tiers, facts.preemption, facts.switch_wait_s)
        before = self._scenes.get(home)
        if before == scene:
            scene = before
        self._scenes[home] = self._scenes_now[home] = scene
        return scene

    def _job(
        self,
        record: SlurmJob,
        note: JobNote | None,
        home: str,
        facts: Observation,
        asks: Elasticity,
        constraint: str,
        stays: str,
    ) -> Job:
        mark = record.tag or {}
        whole = self.whole_because(record, note, home, facts)
        return Job(
            id=record.id,
            vc=home,
            gpus=asks.gpus or gpus_taken(record, home, facts),
            submit_s=submitted_s(record.submit_s, note),
            rank=record.number,
            user=record.user,
            account=record.account,
            name=record.name,
            cpus=asks.cpus or record.cpus,
            mem_mib=asks.mem_mib or record.mem_mib,
            time_limit_s=record.shortened_s if self._reaches(record, home, facts) else record.time_limit_s,
            requeueable=record.requeue and record.batch,
            restart_asked=mark.get("restart") == "1",
            amp=True if mark.get("amp") == "1" else None,
            long_cold_start=mark.get("cold") == "1",
            shareable=not whole,
            whole_because=whole,
            min_nodes=1 if asks.limits is not None else min(asks.nodes or record.min_nodes, max(record.gpus, 1)),
            elastic=asks.limits,
            most_switches=record.most_switches,
            switches_until_s=self._switches_until_s(record, note, facts),
            constraint=constraint,
            tier=facts.tiers.get(record.qos, 0),
            nice=record.nice,
            takes_turns=self._interleaves(home) and takes_turns(record) and not whole and record.min_nodes <= 1,
            qos=record.qos if facts.preemption.by == "qos" else "",
            array=record.id.partition("_")[0] if "_" in record.id else "",
            stays=stays,
            borrows=not (stays and facts.pool is not None and home in facts.pool.bounded),
        )

    @staticmethod
    def _reaches(record: SlurmJob, home: str, facts: Observation) -> bool:
        """Whether Slurm's backfill may shorten this job before a window of its VC's nodes, as far as its user
        allows."""
        if not (record.time_min_s and facts.windows):
            return False
        vcs = facts.pool.quotas if facts.pool is not None and home in facts.pool.quotas else (home,)
        return any(not facts.open_to(n.name, record) for n in facts.nodes if not n.partitions.isdisjoint(vcs))

    @staticmethod
    def _switches_until_s(record: SlurmJob, note: JobNote | None, facts: Observation) -> float | None:
        """Until when a job waits for the switches that it asks for: from when it may start, as long as its user said,
        and no longer than Slurm allows."""
        if not record.most_switches:
            return None
        wait_s = min(record.switch_wait_s or math.inf, facts.switch_wait_s)
        return (note.wait_since_s if note and note.wait_since_s else record.submit_s) + wait_s

    def whole_because(self, record: SlurmJob, note: JobNote | None, home: str, facts: Observation) -> str:
        """Why a job's request cannot become slots, in words; empty where it can. It cannot where its user or
        job_submit.lua said no, where slots would not give it what it asks for, or where it asks for what the nodes of
        its VC do not all have."""
        mark = record.tag or {}
        known = facts.defaults
        defaults = None if known is None else known.get(home, NO_DEFAULTS)
        why = whole_because(record.request, mark, record.min_nodes, record.batch, defaults)
        if why:
            return why
        if users_nodes(record, note):
            return "it names its nodes"
        if facts.preemption.by and not facts.preemption.in_slots(record, self._beside(record.partition, facts)):
            return "it may be preempted, and could not be requeued by Lucid"
        common = self._features_of(home, facts)
        if common is None:
            return f"{home} is not set up for sharing (lucidctl setup --mode pack)"
        if any(c in record.features for c in "|[]()*!"):
            return "its constraint is more than a list of features"
        lacking = features_of(record.features) - common
        return f"not every node of {home} has the feature {min(lacking)}" if lacking else ""

    def _beside(self, partition: str, facts: Observation) -> frozenset[str]:
        """Partitions that have GPU nodes in common with this one."""
        if partition not in self._neighbours:
            here = (n.partitions for n in facts.nodes if n.gpu_types and partition in n.partitions)
            self._neighbours[partition] = frozenset[str]().union(*here) - {partition}
        return self._neighbours[partition]

    def _features_of(self, home: str, facts: Observation) -> frozenset[str] | None:
        """Features that all GPU nodes of a VC have; ``None`` where not all of its GPUs can be asked for by name."""
        if home not in self._common:
            vcs = facts.pool.quotas if facts.pool is not None and home in facts.pool.quotas else (home,)
            nodes = [n for n in facts.nodes if n.gpu_types and not n.partitions.isdisjoint(vcs)]
            able = bool(nodes) and all(node.addressable for node in nodes)
            self._common[home] = frozenset.intersection(*(n.features for n in nodes)) if able else None
        return self._common[home]

    def _pending(self, facts: Observation) -> dict[str, list[Pending]]:
        found: dict[str, list[Pending]] = {}
        profiling = self._settings.profiling_partition
        profiles = profiling and not (facts.defaults or {}).get(profiling, NO_DEFAULTS).shut
        for record in facts.jobs:
            if not (record.pending and record.gpus) or record.unread:
                continue
            note = facts.notes.get(record.id)
            home = self._ownership.home(record, note)
            if home not in facts.modes:
                continue
            if facts.modes[home] is Mode.PACK:
                if not self._ownership.decides(record, note, facts):
                    continue
                words, retry_s = self._ownership.barred(record, facts.now_s) or ("", 0.0)
            elif record.dependent or (record.held and not self._ownership.holds(record, note)):
                continue
            else:
                words = record.reason if outlook(record.reason) is Outlook.BARRED else ""
                retry_s = 0.0
            profile, known = self._profile_of(record), note or _NOTHING_NOTED
            job = self.job(record, note, facts)
            where = home if facts.pool is None or home not in facts.pool.quotas else facts.pool.name
            new = profiles and facts.modes[home] is Mode.PACK and profile is None and not record.restarts
            new = new and record.simple and not (known.to_home or job.stays)
            new = new and not users_nodes(record, note)  # no profiling node is one of them
            new = new and self._asked.met_in(job.constraint, profiling)
            new = new and record.request.max_nodes <= record.min_nodes  # as many as there are in its own partition
            if new and self._profiled(job):
                where = profiling
            progress = self.elastic.elasticity_of(record, note, home, facts.now_s).progress
            stages = self.turns.stage_times_of(record, job.vc, facts.now_s, job.whole_because, profile)
            made_from = (record, note, job, profile, words, retry_s, progress, stages)
            found.setdefault(where, []).append(_kept(self._waited, record.id, _waiting, made_from))
        return found

    def _running(self, facts: Observation, owners: Mapping[str, tuple[str, ...]]) -> dict[str, list[Running]]:
        entries: list[Running] = []
        coming: set[str] = set()
        claimed = Claimed()
        alive: set[str] = set()
        records = {record.id: record for record in facts.jobs} if facts.preemption.by else {}
        nodes = {node.name: node for node in facts.nodes}
        gpus = {name: len(node.gpu_types) for name, node in nodes.items()}
        for record in facts.jobs:
            if not record.gpus and not record.placement:
                continue
            note = facts.notes.get(record.id)
            if note is not None and note.going_to and not record.ended:
                coming.add(record.id)
                placement, start_s = parse_placement(note.going_to), note.stopped_s
            elif record.running:
                placement = record.placement or self._places.get(record.id, ())
                start_s = begins_s(record, nodes, facts.now_s)
            elif note is not None and self._ownership.state(record, note, facts.now_s) in ASSIGNED:
                if not self._ownership.may_start_yet(record, note):
                    continue  # taken back at the end of this turn: nothing is kept for it
                placement, start_s = parse_placement(note.where), note.asked_s
                if note.claims:
                    claimed.add(placement, note.claims)
                elif not note.shards:
                    coming.add(record.id)
            else:
                continue
            alive.add(record.id)
            if placement:
                self._places[record.id] = placement
                if record.request.whole_nodes:
                    placement = _whole(placement, gpus)
                entries.append(self._entry(record, note, placement, start_s, facts))
        for gone in [job_id for job_id in self._places if job_id not in alive]:
            del self._places[gone]
        found: dict[str, list[Running]] = {}
        for entry in _together(without_clashes(claimed.without(entries), coming, gpus)):
            parts: dict[str, list[NodeGpus]] = {}
            for part in entry.placement:
                for name in owners.get(part.node, ()):
                    parts.setdefault(name, []).append(part)
            for name, here in parts.items():
                seen = entry if len(here) == len(entry.placement) else replace(entry, placement=tuple(here))
                if facts.preemption.by:
                    seen = as_seen_by(name, seen, records[entry.job.id], claimed, facts)
                found.setdefault(name, []).append(seen)
        return found

    def _entry(
        self, record: SlurmJob, note: JobNote | None, placement: Placement, start_s: float, facts: Observation
    ) -> Running:
        job = self.job(record, note, facts)
        asks = self.elastic.elasticity_of(record, note, job.vc, facts.now_s)
        profile = self._profile_of(record)
        packs = facts.modes.get(self._ownership.home(record, note)) is Mode.PACK
        stages = self.turns.stage_times_of(record, job.vc, facts.now_s, job.whole_because, profile)
        in_turns = self.turns.in_turns(record, job.vc, facts.now_s)
        out = bool(facts.outs_under(placement))
        made_from = (record, note, job, start_s, placement, packs, out, profile, asks, stages, in_turns)
        return _kept(self._ran, record.id, self._runs, made_from)

    def _runs(
        self,
        record: SlurmJob,
        note: JobNote | None,
        job: Job,
        start_s: float,
        placement: Placement,
        packs: bool,
        out: bool,
        profile: JobProfile | None,
        asks: Elasticity,
        stages: StageTimes | None,
        in_turns: tuple[float, int] | None,
    ) -> Running:
        known = note or _NOTHING_NOTED
        settled = record.state == "RUNNING" and not record.completing
        in_profiling = (
            settled
            and not record.unread
            and packs
            and record.partition == self._settings.profiling_partition
            and self._ownership.ours(record)
            and not known.kept
        )
        joinable = settled and (not packs or record.request.shards) and not (known.alone or record.unread)
        joinable = joinable and not out
        return Running(
            job,
            start_s,
            placement,
            Stage.PROFILE if in_profiling else Stage.MAIN,
            profile,
            known.ran_s,
            record.restarts,
            None,
            not joinable,
            asks.progress,
            restart_s=asks.restart_s,
            stages=stages,
            in_turns=in_turns,
        )


def _waiting(
    record: SlurmJob,
    note: JobNote | None,
    job: Job,
    profile: JobProfile | None,
    barred: str,
    retry_s: float,
    progress: Progress | None,
    stages: StageTimes | None,
) -> Pending:
    known = note or _NOTHING_NOTED
    return Pending(
        job,
        known.wait_since_s or record.submit_s,
        profile,
        known.ran_s,
        record.restarts,
        known.alone,
        barred=barred,
        retry_s=retry_s,
        home_only=known.to_home or bool(job.stays),
        progress=progress,
        stages=stages,
    )


def _kept(known: _Entries[_Entry], job_id: str, make: Callable[..., _Entry], made_from: tuple[Any, ...]) -> _Entry:
    """The entry that was last shown, where it was made from the same objects or is equal; else the new one."""
    before = known.get(job_id)
    if before is not None and all(map(is_, before[0], made_from)):
        return before[1]
    made = make(*made_from)
    if before is not None and before[1] == made:
        made = before[1]
    known[job_id] = made_from, made
    return made


def _windows(node: SlurmNode, facts: Observation) -> tuple[Window, ...]:
    """The windows in which no job may run on the node: while it goes down, and while it is reserved."""
    reserved = facts.windows.get(node.name, ())
    return reserved if node.shut is None else tuple(sorted((node.shut, *reserved), key=lambda w: w.from_s))


def gpu_mem_mib(node: SlurmNode, settings: DaemonSettings) -> int:
    """Memory of one GPU of a node in MiB, by the features of the node as configured."""
    by_feature = settings.gpu_mem_mib_by_feature
    return min((mib for feature, mib in by_feature.items() if feature in node.features), default=settings.gpu_mem_mib)


def _used_without_gpus(jobs: Iterable[SlurmJob]) -> Mapping[str, tuple[int, int]]:
    """CPUs and MiB by node that jobs without GPUs hold."""
    found: dict[str, tuple[int, int]] = {}
    for job in jobs:
        if not job.gpus and job.running:
            for name, cpus, mem in job.hosts_used:
                before = found.get(name, (0, 0))
                found[name] = before[0] + cpus, before[1] + mem
    return found


def _whole(placement: Placement, gpus: Mapping[str, int]) -> Placement:
    """All GPUs of these nodes. ``gpus``: how many each node has."""
    return tuple(NodeGpus(part.node, part.mask | (1 << gpus.get(part.node, 0)) - 1) for part in placement)


def _together(entries: Iterable[Running]) -> list[Running]:
    """The running jobs, each with the others on exactly the same GPUs: two are partners, unless they take turns; more
    are a group, whatever the policy is now. Only the policy that forms groups joins a group."""
    found = list(entries)
    at: dict[Placement, list[int]] = {}
    for i, entry in enumerate(found):
        at.setdefault(tuple(sorted(entry.placement)), []).append(i)
    for here in at.values():
        if len(here) == 1:
            continue
        turns = all(found[i].job.takes_turns for i in here)
        ids = tuple(found[i].job.id for i in here)
        for i in here:
            if len(here) == 2 and not turns:
                found[i] = replace(found[i], partner=next(other for other in ids if other != found[i].job.id))
            else:
                found[i] = replace(found[i], group=ids, alone=found[i].alone or not turns)
    return found
