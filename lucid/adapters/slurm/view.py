"""From Slurm's records and what Lucid remembers to the snapshot's nouns. Looks, and changes nothing.

Who counts as waiting: in a partition in ``pack`` mode the jobs that job_submit.lua tagged and holds; in the
other modes every GPU job that waits and that nobody holds. A job that was told to start and has not yet started
counts as running where it was told to; one that is COMPLETING still holds what it had. Jobs that Lucid never
touched show as running, and nobody joins them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lucid.adapters.slurm.nouns import SlurmJob, SlurmNode
from lucid.adapters.slurm.obstacles import Standing, standing
from lucid.adapters.slurm.request import NO_DEFAULTS, UNREAD, JobDefaults, Request, from_mark, whole_because
from lucid.adapters.slurm.text import gpu_mask, parse_mark, says
from lucid.adapters.slurm.waits import begins_s, left_to_slurm, parked
from lucid.adapters.store.port import JobNote
from lucid.config import DaemonSettings, Mode
from lucid.core.job import Job, JobProfile, Pending, Running, Stage
from lucid.core.node import Node
from lucid.core.placement import NodeGpus, Placement
from lucid.core.snapshot import Partition

__all__ = [
    "Facts",
    "KnownProfile",
    "Profiled",
    "Viewer",
    "as_written",
    "home_of",
    "parse_placement",
    "submitted_s",
    "users_nodes",
]

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
    defaults: Mapping[str, JobDefaults] | None = field(default_factory=dict)
    """JobDefaults by partition; ``None`` where they are not known."""


def parse_placement(text: str) -> Placement:
    """The inverse of ``show_placement``; of anything else nothing."""
    parts = []
    for item in text.split():
        name, colon, gpus = item.rpartition(":")
        mask = gpu_mask(f"gpu:(IDX:{gpus})")
        if not (name and colon and mask):
            return ()
        parts.append(NodeGpus(name, mask))
    return tuple(parts)


def home_of(
    partition: str, admin_comment: str, note: JobNote | None, vcs: Collection[str], profiling: str = ""
) -> str:
    """The VC of a job that stands, or ended, in ``partition``: that partition, which its user may have changed (of
    several the first that is a VC); of a job in the profiling partition the VC that is noted, or tagged as one of
    ``vcs``."""
    if "," in partition:
        partition = next((name for name in partition.split(",") if name in vcs), partition)
    if partition != profiling:
        return partition
    if note is not None and note.home:
        return note.home
    tagged = (parse_mark(admin_comment) or {}).get("vc", "")
    return tagged if tagged in vcs else partition


def submitted_s(submit_s: float, note: JobNote | None) -> float:
    """When a job's user submitted it: as noted, since a requeue makes Slurm set ``submit_s`` anew."""
    return (note.submit_s if note is not None else 0.0) or submit_s


class Viewer:
    """Makes partitions. ``profile_of`` answers what is known of a job's profile, its own or an earlier one's."""

    def __init__(
        self,
        settings: DaemonSettings,
        profile_of: KnownProfile,
        profiled: Profiled,
        barred: Callable[[SlurmJob, float], tuple[str, float] | None] = lambda job, now_s: None,  # noqa: ARG005
    ) -> None:
        """``barred``: what Slurm has against starting a waiting job now, and when it is tried again."""
        self._settings = settings
        self._barred = barred
        self._profiled = profiled
        self._profile_of = profile_of
        self._places: dict[str, Placement] = {}
        """Where each job was last seen to run: Slurm forgets it while the job completes."""
        self.not_yet: frozenset[str] = frozenset()
        """Jobs that are kept out of the queue for now, since they joined it late (``behind``)."""
        self._shown: dict[str, Partition] = {}
        self._common: dict[str, frozenset[str] | None] = {}

    # -- who is whose ----------------------------------------------------------------------------------------

    def home(self, job: SlurmJob, note: JobNote | None) -> str:
        """The job's VC (`home_of`)."""
        settings = self._settings
        return home_of(job.partition, job.admin_comment, note, settings.partitions, settings.profiling_partition)

    def ours(self, job: SlurmJob) -> bool:
        """Does it bear our mark, on a job that Lucid may hold?"""
        mark = parse_mark(job.admin_comment)
        return mark is not None and (mark.get("skip") is None or "held" in mark)

    def holds(self, job: SlurmJob, note: JobNote | None) -> bool:
        """Is this a waiting job that Lucid holds, and nobody else? job_submit.lua writes ``lucid:held`` into the
        comment of a job that its user or an administrator holds (``v=2`` in the tag: it knows how). A job that was
        requeued and held by others after Lucid had let it go is theirs to release."""
        if not (job.pending and job.asks and job.held and self.ours(job)) or says(job.comment, "held"):
            return False
        if note is None or not note.released or (job.launch_failed and not note.given_up):
            return True
        if job.unread:
            return False
        return (parse_mark(job.admin_comment) or {}).get("v") == "2" and job.restarts == note.restarts

    def leaves(self, job: SlurmJob, now_s: float) -> str:
        """Why a job that Lucid holds is Slurm's alone from now on, by what its user changed since; empty if it is
        not. The rules are those that job_submit.lua has for new jobs."""
        if job.unread:
            return UNREAD
        if job.reservation:
            return f"it asks for reservation {job.reservation}"
        if self._settings.optout != "free":
            return ""
        return left_to_slurm(job) or self.waits_for(job, now_s)

    def waits_for(self, job: SlurmJob, now_s: float) -> str:
        """Why a job that Lucid holds is not in the queue yet, by what its user asked for; empty if it is."""
        if job.dependency:
            return "it has a dependency"
        return "it has a begin time" if begins_s(job, now_s) else ""

    def barred(self, job: SlurmJob, now_s: float) -> tuple[str, float] | None:
        """What Slurm has against starting a waiting job now, and when it is tried again."""
        return self._barred(job, now_s)

    def decides(self, job: SlurmJob, note: JobNote | None, facts: Facts) -> bool:
        """Is this a waiting job that Lucid holds and is to decide, in a partition that it packs?"""
        if not self.holds(job, note) or self.leaves(job, facts.now_s):
            return False
        if job.id in self.not_yet or left_to_slurm(job) or self.waits_for(job, facts.now_s):
            return False
        if note is not None and (note.given_up or (note.released and (job.launch_failed or job.never_runs))):
            return False  # counted as a try before it is tried again (mend)
        return facts.modes.get(self.home(job, note)) is Mode.PACK

    def aside(self, job: SlurmJob, note: JobNote | None, facts: Facts) -> str:
        """Why a waiting job of ours is nobody's to decide at present; empty for all others."""
        if not (job.pending and job.asks and self.ours(job)) or self.under_way(job, note):
            return ""
        if job.unread:
            return f"{UNREAD} ({job.unread})"
        if facts.modes.get(self.home(job, note)) is not Mode.PACK:
            return ""
        if job.never_runs:
            return f"Slurm holds it itself ({job.reason}): no node can give what it asks for"
        if self.holds(job, note):
            words = self.waits_for(job, facts.now_s)
            if words:
                return f"{words}: it joins the queue when that has come"
            words = left_to_slurm(job)
            if job.id in self.not_yet:
                return "it joined the queue late: no job held before it may ask for as many GPUs or fewer"
            return words and f"Lucid lets it go once no job held before it asks for as many GPUs or fewer: {words}"
        if parked(job, facts.now_s):
            return "it has a dependency: it joins the queue when Slurm has ended that"
        if job.held:
            return "its user or an administrator holds it (scontrol release ends that)"
        if note is not None and note.given_up and not note.tries:
            return f"released as its user wrote it: {note.given_up}"
        if note is not None and note.given_up:
            return f"released as its user wrote it, since Slurm did not start it as Lucid asked ({note.given_up})"
        return f"Slurm alone decides about it ({job.reason})"

    def under_way(self, job: SlurmJob, note: JobNote | None) -> bool:
        """Was it told to start, and has not yet?"""
        return job.pending and not job.held and note is not None and bool(note.where)

    def may_start_yet(self, job: SlurmJob, note: JobNote) -> bool:
        """Of a job under way: may Slurm start it at any moment? Not where its reason says otherwise, nor after a
        requeue that Lucid did not ask for."""
        return standing(job.reason) is Standing.WAITS and job.restarts == note.restarts

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
            node.out,
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
        whole = self.whole_because(record, note, home, facts)
        return Job(
            id=record.id,
            vc=home,
            gpus=self.gpus_of(record, home, facts),
            submit_s=submitted_s(record.submit_s, note),
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
            shareable=not whole,
            whole_because=whole,
            min_nodes=min(record.min_nodes, max(record.gpus, 1)),
        )

    def gpus_of(self, record: SlurmJob, home: str, facts: Facts) -> int:
        """GPUs that nobody else can have while it runs: of an exclusive job all of its nodes, of the largest kind."""
        if not record.request.whole_nodes:
            return record.gpus
        largest = max((len(n.gpu_types) for n in facts.nodes if home in n.partitions), default=0)
        return max(record.gpus, largest * record.min_nodes)

    def whole_because(self, record: SlurmJob, note: JobNote | None, home: str, facts: Facts) -> str:
        """Why its request cannot become slots, in words; empty where it can. Not where its user or job_submit.lua
        said no, where slots would not give it what it asks for, or where it asks for what the nodes of its VC do not
        all have."""
        mark = parse_mark(record.admin_comment) or {}
        known = facts.defaults
        defaults = None if known is None else known.get(home, NO_DEFAULTS)
        why = whole_because(record.request, mark, record.min_nodes, record.batch, defaults)
        if why:
            return why
        if users_nodes(record, note):
            return "it names its nodes"
        common = self._features_of(home, facts)
        if common is None:
            return f"not every GPU of {home} can be asked for by name"
        if any(c in record.features for c in "|[]()*!"):
            return "its constraint is more than a list of features"
        lacking = {item.strip() for item in record.features.split("&") if item.strip()} - common
        return f"not every node of {home} has the feature {min(lacking)}" if lacking else ""

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
            if not (record.pending and record.gpus) or record.unread:
                continue
            note = facts.notes.get(record.id)
            home = self.home(record, note)
            if home not in facts.modes:
                continue
            if facts.modes[home] is Mode.PACK:
                if not self.decides(record, note, facts):
                    continue
                words, retry_s = self._barred(record, facts.now_s) or ("", 0.0)
            elif record.held or record.dependent:
                continue
            else:
                words = record.reason if standing(record.reason) is Standing.BARRED else ""
                retry_s = 0.0
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
                    barred=words,
                    retry_s=retry_s,
                    home_only=note.to_home,
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
                if not self.may_start_yet(record, note):
                    continue  # taken back at the end of this turn: nothing is kept for it
                placement, start_s = parse_placement(note.where), note.asked_s
            else:
                continue
            alive.add(record.id)
            if placement:
                self._places[record.id] = placement
                if record.request.whole_nodes:
                    placement = _whole(placement, facts.nodes)
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
            and not record.unread
            and packs
            and record.partition == self._settings.profiling_partition
            and self.ours(record)
            and not known.kept
        )
        joinable = settled and (not packs or record.request.shards) and not (known.alone or record.unread)
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


def _whole(placement: Placement, nodes: Sequence[SlurmNode]) -> Placement:
    """All GPUs of these nodes."""
    gpus = {node.name: len(node.gpu_types) for node in nodes}
    return tuple(NodeGpus(part.node, part.mask | (1 << gpus.get(part.node, 0)) - 1) for part in placement)


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
    if not (request.shards or request.emptied):
        return request
    tagged = from_mark(parse_mark(record.admin_comment) or {})
    if tagged != Request() and not tagged.shards:
        return tagged
    return Request(tres_per_node=f"gres/gpu:{max(record.gpus // max(record.min_nodes, 1), 1)}")
