"""From Slurm's records and what Lucid remembers to the snapshot's nouns. Looks, and changes nothing.

Who counts as waiting: in a partition in ``pack`` mode the jobs that job_submit.lua tagged and holds; in the
other modes every GPU job that waits and that nobody holds. A job that was told to start and has not yet started
counts as running where it was told to; one that is COMPLETING still holds what it had. Jobs that Lucid never
touched show as running, and nobody joins them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from lucid.adapters.slurm_records import Request, SlurmJob, SlurmNode
from lucid.adapters.slurm_text import parse_mark
from lucid.adapters.store import JobNote
from lucid.config import DaemonSettings, Mode
from lucid.core.job import Job, JobProfile, Pending, Running, Stage
from lucid.core.node import Node
from lucid.core.placement import NodeGpus, Placement, mask_of
from lucid.core.snapshot import Partition

__all__ = ["Facts", "KnownProfile", "Profiled", "Viewer", "as_written", "home_of", "parse_placement", "users_nodes"]

KnownProfile = Callable[[SlurmJob], JobProfile | None]
Profiled = Callable[[Job], bool]
"""Does a new job go through profiling first? The policy's rule."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything a view is made of."""

    jobs: Sequence[SlurmJob]
    nodes: Sequence[SlurmNode]
    notes: Mapping[str, JobNote]
    modes: Mapping[str, Mode]
    now_s: float


def parse_placement(text: str) -> Placement:
    """The inverse of ``show_placement``."""
    parts = []
    for item in text.split():
        name, _, gpus = item.rpartition(":")
        ranges = [part.split("-") for part in gpus.split(",")]
        parts.append(NodeGpus(name, mask_of(i for r in ranges for i in range(int(r[0]), int(r[-1]) + 1))))
    return tuple(parts)


def home_of(partition: str, admin_comment: str, note: JobNote | None, vcs: Collection[str]) -> str:
    """The VC of a job that stands, or ended, in ``partition``: as noted, as tagged with one of ``vcs``, else that
    partition."""
    if note is not None and note.home:
        return note.home
    tagged = (parse_mark(admin_comment) or {}).get("vc", "")
    return tagged if tagged in vcs else partition


class Viewer:
    """Makes partitions. ``profile_of`` answers what is known of a job's profile, its own or an earlier one's."""

    def __init__(self, settings: DaemonSettings, profile_of: KnownProfile, profiled: Profiled) -> None:
        self._settings = settings
        self._profiled = profiled
        self._profile_of = profile_of
        self._places: dict[str, Placement] = {}
        """Where each job was last seen to run: Slurm forgets it while the job completes."""
        self._shown: dict[str, Partition] = {}
        self._common: dict[str, frozenset[str] | None] = {}

    # -- who is whose ----------------------------------------------------------------------------------------

    def home(self, job: SlurmJob, note: JobNote | None) -> str:
        """The job's VC (`home_of`)."""
        return home_of(job.partition, job.admin_comment, note, self._settings.partitions)

    def ours(self, job: SlurmJob) -> bool:
        """Does it bear our mark, on a job that Lucid may decide?"""
        mark = parse_mark(job.admin_comment)
        return mark is not None and mark.get("skip") is None

    def decides(self, job: SlurmJob, note: JobNote | None, modes: Mapping[str, Mode]) -> bool:
        """Is this a waiting job that Lucid holds, in a partition that it packs?"""
        if not (job.pending and job.gpus and job.held and self.ours(job) and not job.dependent):
            return False
        if modes.get(self.home(job, note)) is not Mode.PACK:
            return False
        # held or requeued by somebody else after Lucid had let it go: theirs to release
        return not (note is not None and note.released)

    def under_way(self, job: SlurmJob, note: JobNote | None) -> bool:
        """Was it told to start, and has not yet?"""
        return job.pending and not job.held and note is not None and bool(note.where)

    # -- the view --------------------------------------------------------------------------------------------

    def partitions(self, facts: Facts) -> dict[str, Partition]:
        """One partition for each VC with GPU nodes, and the profiling one; the same object as last time where
        nothing changed."""
        self._common = {}
        names = [*self._settings.partitions]
        profiling = self._settings.profiling_partition
        if profiling and profiling not in names:
            names.append(profiling)
        owner: dict[str, str] = {}
        for node in facts.nodes:
            if node.gpu_types:
                first = next((name for name in names if name in node.partitions), None)
                if first is not None:
                    owner[node.name] = first
        running = self._running(facts, owner)
        pending = self._pending(facts)
        shown: dict[str, Partition] = {}
        for name in names:
            made = Partition(
                name,
                tuple(self._node(node, facts) for node in facts.nodes if owner.get(node.name) == name),
                tuple(sorted(pending.get(name, ()), key=lambda e: (e.since_s, e.job.submit_s, e.job.rank))),
                tuple(sorted(running.get(name, ()), key=lambda e: (e.start_s, e.job.rank))),
                name == profiling,
                name == profiling or facts.modes.get(name) is Mode.PACK,
            )
            before = self._shown.get(name)
            same = before is not None and (
                (before.nodes, before.pending, before.running, before.acting)
                == (made.nodes, made.pending, made.running, made.acting)
            )
            shown[name] = before if same and before is not None else made
        self._shown = shown
        return shown

    def _node(self, node: SlurmNode, facts: Facts) -> Node:
        """What jobs without a GPU use of it is not there for others. 0 would mean 'no limit', so 1 is the least."""
        cpus = mem = 0
        for job in facts.jobs:
            if job.running and not job.gpus:
                for name, c, m in job.hosts_used:
                    if name == node.name:
                        cpus, mem = cpus + c, mem + m
        return Node(
            node.name,
            len(node.gpu_types),
            self.gpu_mem_mib(node),
            max(node.cpus - cpus, 1),
            max(node.mem_mib - mem, 1),
            node.available,
        )

    def gpu_mem_mib(self, node: SlurmNode) -> int:
        """Memory of one of its GPUs, by its features as configured."""
        by_feature = self._settings.gpu_mem_mib_by_feature
        return min(
            (mib for feature, mib in by_feature.items() if feature in node.features),
            default=self._settings.gpu_mem_mib,
        )

    def job(self, record: SlurmJob, note: JobNote | None, facts: Facts) -> Job:
        """The user's request in our words."""
        mark = parse_mark(record.admin_comment) or {}
        home = self.home(record, note)
        return Job(
            id=record.id,
            vc=home,
            gpus=record.gpus,
            submit_s=(note.submit_s if note is not None else 0.0) or record.submit_s,
            rank=record.number,
            user=record.user,
            account=record.account,
            name=record.name,
            cpus=record.cpus,
            mem_mib=record.mem_mib,
            time_limit_s=record.time_limit_s,
            requeueable=record.requeue and record.batch,
            restart_asked=mark.get("restart") == "1",
            amp=True if mark.get("amp") == "1" else None,
            long_cold_start=mark.get("cold") == "1",
            shareable=self.may_share(record, note, home, facts),
        )

    def may_share(self, record: SlurmJob, note: JobNote | None, home: str, facts: Facts) -> bool:
        """May its request become shards? Not where its user or job_submit.lua said no, where it is not a batch
        job on one node, or where it asks for something that the nodes of its VC do not all have."""
        mark = parse_mark(record.admin_comment) or {}
        if mark.get("share") == "0" or not (record.batch and record.simple and record.min_nodes == 1):
            return False
        if users_nodes(record, note):
            return False
        common = self._features_of(home, facts)
        if common is None or any(c in record.features for c in "|[]()*!"):
            return False
        return {item.strip() for item in record.features.split("&") if item.strip()} <= common

    def _features_of(self, home: str, facts: Facts) -> frozenset[str] | None:
        """Features that all GPU nodes of a VC have; ``None`` where not all of its GPUs can be asked for by name."""
        if home not in self._common:
            nodes = [node for node in facts.nodes if home in node.partitions and node.gpu_types]
            able = bool(nodes) and all(node.addressable for node in nodes)
            self._common[home] = frozenset.intersection(*(n.features for n in nodes)) if able else None
        return self._common[home]

    def _pending(self, facts: Facts) -> dict[str, list[Pending]]:
        found: dict[str, list[Pending]] = {}
        profiling = self._settings.profiling_partition
        for record in facts.jobs:
            if not (record.pending and record.gpus):
                continue
            note = facts.notes.get(record.id)
            home = self.home(record, note)
            if home not in facts.modes:
                continue
            if facts.modes[home] is Mode.PACK:
                if not self.decides(record, note, facts.modes):
                    continue
            elif record.held or record.dependent:
                continue
            profile = self._profile_of(record)
            note = note or JobNote(record.id)
            job = self.job(record, note, facts)
            new = profile is None and not note.to_home and not record.restarts and record.simple
            packs = facts.modes[home] is Mode.PACK
            where = profiling if profiling and packs and new and self._profiled(job) else home
            found.setdefault(where, []).append(
                Pending(
                    job,
                    note.wait_since_s or record.submit_s,
                    profile,
                    note.ran_s,
                    record.restarts,
                    note.alone,
                )
            )
        return found

    def _running(self, facts: Facts, owner: Mapping[str, str]) -> dict[str, list[Running]]:
        entries: list[Running] = []
        alive: set[str] = set()
        for record in facts.jobs:
            if not record.gpus and not record.placement:
                continue
            note = facts.notes.get(record.id)
            if record.running:
                placement = record.placement or self._places.get(record.id, ())
                start_s = record.start_s
            elif self.under_way(record, note):
                assert note is not None
                placement, start_s = parse_placement(note.where), note.asked_s
            else:
                continue
            alive.add(record.id)
            if placement:
                self._places[record.id] = placement
                entries.append(self._entry(record, note, placement, start_s, facts))
        for gone in [job_id for job_id in self._places if job_id not in alive]:
            del self._places[gone]
        found: dict[str, list[Running]] = {}
        for entry in _paired(entries):
            parts: dict[str, list[NodeGpus]] = {}
            for part in entry.placement:
                if part.node in owner:
                    parts.setdefault(owner[part.node], []).append(part)
            for name, here in parts.items():
                found.setdefault(name, []).append(
                    entry if len(here) == len(entry.placement) else replace(entry, placement=tuple(here))
                )
        return found

    def _entry(
        self, record: SlurmJob, note: JobNote | None, placement: Placement, start_s: float, facts: Facts
    ) -> Running:
        known = note or JobNote(record.id)
        packs = facts.modes.get(self.home(record, note)) is Mode.PACK
        settled = record.state == "RUNNING" and not record.completing
        in_profiling = (
            settled
            and packs
            and record.partition == self._settings.profiling_partition
            and self.ours(record)
            and not known.kept
        )
        joinable = settled and (not packs or record.request.shards) and not known.alone
        return Running(
            self.job(record, note, facts),
            start_s,
            placement,
            Stage.PROFILE if in_profiling else Stage.MAIN,
            self._profile_of(record),
            known.ran_s,
            record.restarts,
            None,
            not joinable,
        )


def _paired(entries: Iterable[Running]) -> list[Running]:
    """Jobs on exactly the same GPUs know of each other."""
    found = list(entries)
    first: dict[Placement, int] = {}
    for i, entry in enumerate(found):
        place = tuple(sorted(entry.placement))
        if place in first:
            other = first.pop(place)
            found[i] = replace(entry, partner=found[other].job.id)
            found[other] = replace(found[other], partner=entry.job.id)
        else:
            first[place] = i
    return found


def users_nodes(record: SlurmJob, note: JobNote | None) -> str:
    """The node list that the user asked for, not the one that Lucid set: job_submit.lua lets no job share whose user
    chose nodes, so where nothing is noted a list on a job that may share is Lucid's own."""
    if note is not None and note.as_written:
        return note.as_written.get("req_nodes", "")
    mark = parse_mark(record.admin_comment)
    if mark is not None and "held" in mark and mark.get("share") != "0":
        return ""
    return record.request.req_nodes


def as_written(record: SlurmJob) -> Request:
    """What to give back to a job of which nothing is noted: what job_submit.lua put into the tag, else as many
    whole GPUs as it holds shards of."""
    request = replace(record.request, req_nodes=users_nodes(record, None))
    if not request.shards:
        return request
    mark = parse_mark(record.admin_comment) or {}
    tagged = Request(*(mark.get(key, "") for key in ("node", "job", "socket", "task")))
    if tagged != Request() and not tagged.shards:
        return tagged
    return Request(tres_per_node=f"gres/gpu:{max(record.gpus // max(record.min_nodes, 1), 1)}")
