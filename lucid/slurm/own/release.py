"""When and why Lucid releases a waiting job to Slurm, and in which order jobs that it cannot plan are released.

Lucid's own reasons lie outside of the job, so the job queues again, at its old place, once they have ended
(``Releases``). Slurm's reasons are in ``own.reasons``.

Jobs without GPUs are never held: Slurm starts them as soon as they fit, and keeps nothing free for a held job. A
stream of them could keep a held job from its CPUs or memory for ever. Once that has lasted a while, Lucid releases
the job as its user wrote it, the job that was held first before the others (``CpuStarvation``); then it has a place
in Slurm's own order.

A job that Lucid holds and cannot order in detail is never released before a held job of the same VC that was held
earlier and asks for no more GPUs (``HoldOrder``). A held job that could not start at present stops no other: one that
Slurm bars (a limit, a licence) or holds itself (BadConstraints), that its user holds or has moved to a partition that
could never hold it, or whose begin time or dependency lies ahead. Jobs that were held later do not count, or nobody's
turn would come."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lucid.core.placement import parse_placement
from lucid.places import Mode
from lucid.slurm.own.reasons import NO_NODE, QUOTA, UNPACKED, may_end
from lucid.slurm.own.state import ASSIGNED, JobState, Ownership
from lucid.slurm.own.waits import joined_late, left_to_slurm
from lucid.slurm.records.job import SlurmJob, SlurmNode
from lucid.slurm.view.observation import Observation, gpus_taken, submitted_s
from lucid.store.port import GivenUp, JobNote


class Releases:
    """Lucid's reasons to release jobs, for one round of repair: nodes and quotas are those of one poll."""

    def __init__(self, ownership: Ownership, facts: Observation) -> None:
        self._ownership, self._facts = ownership, facts
        self._sizes: dict[str, set[tuple[int, int, int]]] = {}
        """GPUs, CPUs and MiB of the nodes of each VC, each distinct size once."""

    def unpacked(self, record: SlurmJob, note: JobNote | None) -> str:
        """The reason where the job's partition is not packed (any more); else empty."""
        home = self._ownership.home(record, note)
        return "" if self._facts.modes.get(home) is Mode.PACK else f"partition {home!r} {UNPACKED}"

    def over_quota(self, record: SlurmJob, note: JobNote | None) -> str:
        """The reason where no quota allows for the job, which would wait for ever: whether it runs is Slurm's to say.
        Else empty."""
        home, pool = self._ownership.home(record, note), self._facts.pool
        quota = None if pool is None else pool.quotas.get(home)
        if quota is None:
            return ""
        gpus = gpus_taken(record, home, self._facts)
        return f"it asks for {gpus} GPUs, and the quota of {home} is {quota} {QUOTA}" if gpus > quota else ""

    def no_node(self, record: SlurmJob, note: JobNote | None) -> str:
        """The reason where the job asks for few enough GPUs for one node, and for more CPUs or memory than any has,
        so that Lucid would look for a node for ever; Slurm may spread it. Else empty."""
        if record.min_nodes > 1 or record.request.whole_nodes or "elastic" in (record.tag or {}):
            return ""
        home, facts = self._ownership.home(record, note), self._facts
        if home not in self._sizes:
            nodes = (node for node in facts.nodes_of(home) if node.gpu_types)
            self._sizes[home] = {(len(node.gpu_types), node.cpus, node.mem_mib) for node in nodes}
        large = [(cpus, mem) for gpus, cpus, mem in self._sizes[home] if gpus >= record.gpus]
        if not large or any(cpus >= record.cpus and mem >= record.mem_mib for cpus, mem in large):
            return ""
        return NO_NODE

    def ended(self, record: SlurmJob, note: JobNote) -> bool:
        """Whether the reason has ended for which Lucid itself released this job, and no other has taken its place."""
        if note.given_up_for in (None, GivenUp.SLURM) or not may_end(note):
            return False
        return not (self.unpacked(record, note) or self.over_quota(record, note) or self.no_node(record, note))


class CpuStarvation:
    """Held jobs that jobs without GPUs keep out, and since when. ``patience_s``: how long that may last. The next job
    of the same VC is released once the one before it has left the queue, or after this time."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._since: dict[str, float] = {}
        self._last: dict[str, tuple[float, str]] = {}
        """By VC, the last job that was released, and when."""

    def observe(self, ownership: Ownership, facts: Observation) -> frozenset[str]:
        """Take in one poll; returns the jobs to release now, at most one of a VC."""
        by_home = self._kept_out(ownership, facts)
        now_s = facts.now_s
        found = {job.id for jobs in by_home.values() for job in jobs}
        self._since = {job_id: min(self._since.get(job_id, now_s), now_s) for job_id in found}
        waiting = {job.id for job in facts.jobs if job.pending}
        due = set()
        for home, jobs in by_home.items():
            at_s, before = self._last.get(home, (0.0, ""))
            if before in waiting and 0 <= now_s - at_s < self._patience_s:
                continue
            for job in sorted(jobs, key=lambda one: (submitted_s(one.submit_s, facts.notes.get(one.id)), one.number)):
                if now_s - self._since[job.id] >= self._patience_s:
                    due.add(job.id)
                    break
        return frozenset(due)

    def went(self, home: str, job_id: str, now_s: float) -> None:
        """Record that a job was released."""
        self._last[home] = (now_s, job_id)

    def _kept_out(self, ownership: Ownership, facts: Observation) -> Mapping[str, list[SlurmJob]]:
        """By VC, the held jobs that would find room without jobs that have no GPUs, and find none with them."""
        if not any(job.running and not job.asks and job.hosts_used for job in facts.jobs):
            return {}
        all_used, by_gpu_jobs = _used(facts, facts.jobs), _used(facts, (job for job in facts.jobs if job.asks))
        found: defaultdict[str, list[SlurmJob]] = defaultdict(list)
        stopped: dict[tuple[object, ...], bool] = {}  # by what is asked for: there are far fewer of these than jobs
        for job in facts.jobs:
            note = facts.notes.get(job.id)
            if (
                not job.gpus
                or not ownership.decides(job, note, facts)
                or ownership.barred(job, facts.now_s) is not None
            ):
                continue
            home = ownership.home(job, note)
            limit_s = job.time_limit_s if facts.windows else None
            asked = (home, job.min_nodes, job.gpus, job.cpus, job.mem_mib, limit_s)
            if asked not in stopped:
                nodes = [node for node in facts.nodes if home in node.partitions and node.available]
                nodes = [node for node in nodes if facts.open_to(node.name, job)]
                stopped[asked] = not _fits(job, nodes, all_used) and _fits(job, nodes, by_gpu_jobs)
            if stopped[asked]:
                found[home].append(job)
        return found


_Use = tuple[int, int, int]
"""GPUs (as a mask), CPUs and MiB of one node that are taken."""


def _used(facts: Observation, jobs: Iterable[SlurmJob]) -> Mapping[str, _Use]:
    """What these jobs hold of each node, or will hold where they were released to start."""
    found: dict[str, _Use] = {}

    def add(name: str, mask: int, cpus: int, mem_mib: int) -> None:
        had = found.get(name, (0, 0, 0))
        found[name] = (had[0] | mask, had[1] + cpus, had[2] + mem_mib)

    for job in jobs:
        note = facts.notes.get(job.id)
        starting = note.where if note is not None and job.pending and not job.held else ""
        for part in job.placement or parse_placement(starting):
            add(part.node, part.mask, 0, 0)
        if job.running:
            for name, cpus, mem_mib in job.hosts_used:
                add(name, 0, cpus, mem_mib)
    return found


def _fits(job: SlurmJob, nodes: Iterable[SlurmNode], used: Mapping[str, _Use]) -> bool:
    """Whether there are enough nodes with room for the job's parts."""
    parts = max(job.min_nodes, 1)
    gpus, cpus, mem_mib = (-(-amount // parts) for amount in (job.gpus, job.cpus, job.mem_mib))
    room = 0
    for node in nodes:
        mask, cpus_used, mem_used = used.get(node.name, (0, 0, 0))
        room += (
            len(node.gpu_types) - mask.bit_count() >= gpus
            and node.cpus - cpus_used >= cpus
            and node.mem_mib - mem_used >= mem_mib
        )
    return room >= parts


@dataclass(frozen=True, slots=True)
class _Ahead:
    """One job that waits in a VC."""

    since_s: float
    number: int
    gpus: int
    job_id: str
    group: int


class HoldOrder:
    """The order of held jobs at one poll; made anew for each."""

    def __init__(self, ownership: Ownership, facts: Observation) -> None:
        self._ownership = ownership
        self._facts = facts
        self._parts: Mapping[int, list[SlurmJob]] = self._groups()
        self._waiting: dict[str, list[_Ahead]] = {}
        self._sizes: dict[str, Counter[int]] = {}
        """Of each VC: how many nodes have so many GPUs."""
        for record in facts.jobs:
            note = facts.notes.get(record.id)
            if self._counts(record, note):
                ahead = self._ahead(record, note)
                for home in self.homes(record, note):
                    self._waiting.setdefault(home, []).append(ahead)
        for found in self._waiting.values():
            found.sort(key=lambda one: (one.since_s, one.number))

    def homes(self, record: SlurmJob, note: JobNote | None) -> list[str]:
        """The packed VCs in which the job waits."""
        named = record.partition.split(",")
        if len(named) == 1:
            named = [self._ownership.home(record, note)]
        return [name for name in named if self._facts.modes.get(name) is Mode.PACK]

    def before(self, record: SlurmJob, note: JobNote | None) -> str:
        """A job that must be released before this one; empty where its turn has come."""
        mine = self._ahead(record, note)
        for home in self.homes(record, note):
            for other in self._waiting.get(home, ()):
                if (other.since_s, other.number) >= (mine.since_s, mine.number):
                    break
                if other.gpus <= mine.gpus and other.group != mine.group:
                    return other.job_id
        return ""

    def _counts(self, record: SlurmJob, note: JobNote | None) -> bool:
        """Whether the job holds others back."""
        ownership, facts = self._ownership, self._facts
        if not record.asks or not ownership.ours(record):
            return False
        state = ownership.state(record, note, facts.now_s)
        if state in ASSIGNED:
            return not record.dependent
        if state is not JobState.QUEUED or ownership.waits_for(record, note, facts.now_s):
            return False
        if record.never_runs or ownership.barred(record, facts.now_s) is not None:
            return False
        if not any(self._could_hold(home, record) for home in self.homes(record, note)):
            return False
        queues = record.id in ownership.not_yet or ownership.decides(record, note, facts)
        return bool(left_to_slurm(record)) or queues

    def _could_hold(self, home: str, record: SlurmJob) -> bool:
        """Has the VC, or the pool that it is in, as many nodes with GPUs enough, up or down?"""
        if home not in self._sizes:
            self._sizes[home] = Counter(len(node.gpu_types) for node in self._facts.nodes_of(home))
        nodes = max(record.min_nodes, 1)
        large = sum(many for gpus, many in self._sizes[home].items() if gpus >= record.gpus // nodes)
        return not self._sizes[home] or large >= nodes

    def _ahead(self, record: SlurmJob, note: JobNote | None) -> _Ahead:
        since_s = submitted_s(record.submit_s, note)
        if note is not None and (left_to_slurm(record) or (joined_late(record) and not note.released)):
            since_s = max(since_s, note.wait_since_s)
        group = record.het or record.number
        parts = self._parts.get(record.het, [record]) if record.het else [record]
        return _Ahead(since_s, record.number, sum(map(self._gpus, parts)), record.id, group)

    def _gpus(self, record: SlurmJob) -> int:
        home = next(iter(self.homes(record, self._facts.notes.get(record.id))), record.partition)
        return gpus_taken(record, home, self._facts)

    def _groups(self) -> Mapping[int, list[SlurmJob]]:
        found: defaultdict[int, list[SlurmJob]] = defaultdict(list)
        for record in self._facts.jobs:
            if record.het and record.pending:
                found[record.het].append(record)
        return found


def not_yet(ownership: Ownership, facts: Observation) -> dict[str, str]:
    """Jobs that Lucid may order and that have to wait behind others first (``joined_late``), each with one that goes
    before it. A job that ran before keeps its place."""
    late = [job for job in facts.jobs if job.pending and job.held and not job.restarts and joined_late(job)]
    if not late:
        return {}
    hold_order = HoldOrder(ownership, facts)
    found = ((job.id, hold_order.before(job, facts.notes.get(job.id))) for job in late)
    return {job_id: before for job_id, before in found if before}
