"""``Viewer``: makes the partitions of a snapshot from Slurm's records and Lucid's notes.

Waiting jobs are, in a partition in ``pack`` mode, those that job_submit.lua tagged and holds; in the other modes
every GPU job that waits and that nobody holds but Lucid, which is about to release it. A job that was released and
has not yet started counts as running where it was released to; one that is COMPLETING still holds what it had. Jobs
that Lucid never touched show as running, and nobody joins them.

Where a poll gives what the previous one gave, the same objects are handed out: planners keep what they derived from
an object as long as it stays the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from operator import attrgetter, is_
from typing import Any, TypeVar, cast

from lucid.config.live import DaemonSettings
from lucid.core.job import Job, JobProfile, Pending, Running, Stage
from lucid.core.node import Node, Window
from lucid.core.placement import NodeGpus, Placement, parse_placement
from lucid.core.snapshot import WAITING_ORDER, Partition
from lucid.places import Mode
from lucid.slurm.act.preempt import Claimed, as_seen_by
from lucid.slurm.elastic.jobs import ElasticJobs, Worked
from lucid.slurm.elastic.turn_jobs import TurnJobs
from lucid.slurm.own.reasons import Outlook, outlook
from lucid.slurm.own.state import ASSIGNED, Ownership
from lucid.slurm.records.job import SlurmJob, SlurmNode
from lucid.slurm.records.request import NO_DEFAULTS
from lucid.slurm.view.jobs import InVc, JobViews
from lucid.slurm.view.nodes import without_clashes
from lucid.slurm.view.observation import Observation, users_nodes
from lucid.slurm.view.power_saving import begins_s
from lucid.store.port import JobNote
from lucid.store.sqlite import SqliteStore

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
_NOTHING_NOTED = JobNote("")
_STARTED = attrgetter("start_s", "job.rank")


class Viewer:
    """Makes partitions. ``profile_of`` gives a job's profile, its own or an earlier one's."""

    def __init__(
        self,
        settings: DaemonSettings,
        ownership: Ownership,
        profile_of: KnownProfile,
        profiled: Profiled,
        resizes: InVc,
        interleaves: InVc,
        store: SqliteStore,
        worked: Worked,
    ) -> None:
        """``resizes``, ``interleaves``: whether the policy of a VC resizes jobs, or forms groups. ``store``: where
        reports of jobs are kept for later jobs. ``worked``: how long GPUs of a job worked, by samplers."""
        self.elastic = ElasticJobs(settings.elastic, resizes, worked)
        """Which jobs may be resized."""
        self.turns = TurnJobs(self.elastic.reports, interleaves, store)
        """Which jobs may take turns."""
        self.jobs = JobViews(ownership, self.elastic, interleaves)
        """The jobs of both kinds of entries."""
        self._settings = settings
        self._ownership = ownership
        self._profiled = profiled
        self._profile_of = profile_of
        self._places: dict[str, Placement] = {}
        """Where each job was last seen to run: Slurm forgets it while the job completes."""
        self._shown: dict[str, Partition] = {}
        self._entries: dict[str, tuple[tuple[Any, ...], Any]] = {}
        """The entry of each job that was last shown, with what it was made from."""

    def partitions(self, facts: Observation) -> dict[str, Partition]:
        """One partition for each VC with GPU nodes, one for the pool of those that lend, and the profiling one; the
        same objects as last time where nothing changed."""
        self.jobs.new_poll(facts)
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
                self.jobs.asked.fitting(nodes, pending.get(name, ())),
            )
        self._shown = shown = handed_on(self._shown, made)
        if len(self._entries) > 2 * len(facts.jobs):
            known = {job.id for job in facts.jobs}
            self.jobs.forget_all_but(known)
            self._entries = {job_id: kept for job_id, kept in self._entries.items() if job_id in known}
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
            job = self.jobs.job(record, note, facts)
            where = facts.pool.name if facts.pool is not None and home in facts.pool.quotas else home
            new = profiles and facts.modes[home] is Mode.PACK and profile is None and not record.restarts
            new = new and record.simple and not (known.to_home or job.stays)
            new = new and not users_nodes(record, note)  # no profiling node is one of them
            new = new and self.jobs.asked.met_in(job.constraint, profiling)
            new = new and record.request.max_nodes <= record.min_nodes  # as many as there are in its own partition
            if new and self._profiled(job):
                where = profiling
            progress = self.elastic.elasticity_of(record, note, home, facts.now_s).progress
            stages = self.turns.stage_times_of(record, job.vc, facts.now_s, job.whole_because, profile)
            made_from = (record, note, job, profile, words, retry_s, progress, stages)
            waits = partial(
                Pending,
                job,
                known.wait_since_s or record.submit_s,
                profile,
                known.ran_s,
                record.restarts,
                known.alone,
                barred=words,
                retry_s=retry_s,
                home_only=known.to_home or bool(job.stays),
                progress=progress,
                stages=stages,
            )
            found.setdefault(where, []).append(self._kept(waits, made_from))
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
        job = self.jobs.job(record, note, facts)
        asks = self.elastic.elasticity_of(record, note, job.vc, facts.now_s)
        profile = self._profile_of(record)
        packs = facts.modes.get(self._ownership.home(record, note)) is Mode.PACK
        measures = packs and record.partition == self._settings.profiling_partition and self._ownership.ours(record)
        # another may join it, as far as its request and its GPUs go
        joins = (not packs or record.request.shards) and not facts.outs_under(placement)
        stages = self.turns.stage_times_of(record, job.vc, facts.now_s, job.whole_because, profile)
        in_turns = self.turns.in_turns(record, job.vc, facts.now_s)
        made_from = (record, note, job, start_s, placement, measures, joins, profile, asks, stages, in_turns)
        known = note or _NOTHING_NOTED
        settled = record.state == "RUNNING" and not (record.completing or record.unread)
        runs = partial(
            Running,
            job,
            start_s,
            placement,
            Stage.PROFILE if settled and measures and not known.kept else Stage.MAIN,
            profile,
            known.ran_s,
            record.restarts,
            None,
            not (settled and joins and not known.alone),
            asks.progress,
            restart_s=asks.restart_s,
            stages=stages,
            in_turns=in_turns,
        )
        return self._kept(runs, made_from)

    def _kept(self, make: partial[_T], made_from: tuple[Any, ...]) -> _T:
        """The entry that was last shown, where it was made from the same objects or is equal; else the new one.
        ``made_from``: all that ``make`` goes by, the job's record first."""
        record, key = made_from[0], (make.func, *made_from)
        before, shown = self._entries.get(record.id, ((), None))
        if len(before) == len(key) and all(map(is_, before, key)):
            return cast("_T", shown)
        made = make()
        if shown == made:
            made = cast("_T", shown)
        self._entries[record.id] = key, made
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
