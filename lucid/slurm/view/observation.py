"""``Observation``: one poll of Slurm with the store's notes, and what both say of a job; pools of VCs that lend.
Pure.

Slurm keeps a VC to its GPUs in one of two ways: its partition has nodes of its own, or a QOS with GrpTRES. A job that
is to run beyond either is moved to the pool's partition, which has all nodes of the VCs and not the QOS. Its user's
QOS and account stay, with their limits. What a VC has borrowed is not stored: it follows from what its jobs hold."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

from msgspec import structs

from lucid.config.live import PoolSettings
from lucid.core.decision import Start
from lucid.core.gpu import GpuOut
from lucid.core.node import Window
from lucid.core.placement import Placement
from lucid.places import Mode
from lucid.slurm.records.fields import MARK, hosts, parse_mark
from lucid.slurm.records.job import SlurmJob, SlurmNode
from lucid.slurm.records.preemption import NO_PREEMPTION, Preemption
from lucid.slurm.records.request import PER_GPU, JobDefaults, Request, from_mark
from lucid.store.port import JobNote

_RANK = (Mode.OBSERVE, Mode.ORDER, Mode.PACK)


@dataclass(frozen=True, slots=True)
class Pool:
    """The VCs that lend to each other. ``quotas``: GPUs of each VC that is in it now. ``own``: names of the nodes in
    each VC's own partition. ``open``: whether the pool's partition has all these nodes; if not, no job is moved
    there. ``bounded``: VCs whose own partition has more GPUs than their quota, so that a QOS may stop a job there."""

    name: str
    quotas: Mapping[str, int]
    own: Mapping[str, frozenset[str]]
    open: bool
    bounded: frozenset[str]

    def start_in(self, home: str, start: Start, stays: bool = False) -> str:
        """The partition in which a job of VC ``home`` starts: its own, where that has the nodes and Slurm counts the
        start within the VC's quota, or the job ``stays``; else the pool's. A guest takes none of the quota in Lucid's
        count, but does in Slurm's."""
        mine = self.own.get(home, frozenset())
        if stays or not self.open:
            return home
        if any(part.node not in mine for part in start.placement):
            return self.name
        return home if home not in self.bounded or start.within_quota else self.name


def pool_of(settings: PoolSettings, modes: Mapping[str, Mode], nodes: Sequence[SlurmNode]) -> Pool | None:
    """The pool on these nodes; ``None`` where there is none, or where the VCs have nodes of their own and no
    partition over all of them: each then keeps to itself, as without lending.

    VCs in another mode than the others are left out: in a VC that only observes, nothing is done."""
    mode = mode_of_pool(settings, modes)
    vcs = [name for name in settings.quotas if mode is not None and modes.get(name) is mode]
    if not vcs:
        return None
    gpu_nodes = [node for node in nodes if node.gpu_types]
    own = {name: frozenset(node.name for node in gpu_nodes if name in node.partitions) for name in vcs}
    everywhere = frozenset(node.name for node in gpu_nodes if settings.partition in node.partitions)
    is_open = all(mine <= everywhere for mine in own.values())
    if not is_open and not any(one & other for one, other in combinations(own.values(), 2)):
        return None
    gpus = {node.name: len(node.gpu_types) for node in gpu_nodes}
    quotas = {name: settings.quotas[name] for name in vcs}
    bounded = frozenset(name for name in vcs if sum(gpus[node] for node in own[name]) > quotas[name])
    return Pool(settings.partition, quotas, own, is_open, bounded)


def mode_of_pool(settings: PoolSettings, modes: Mapping[str, Mode]) -> Mode | None:
    """The mode of the pool: of its VCs' modes the one that does most; ``None`` where Lucid manages none of them."""
    return max((modes[name] for name in settings.quotas if name in modes), key=_RANK.index, default=None)


def modes_with_pool(settings: PoolSettings, modes: Mapping[str, Mode]) -> dict[str, Mode]:
    """The modes by partition, the pool's among them."""
    mode = mode_of_pool(settings, modes)
    return dict(modes) if mode is None or not settings.partition else {**modes, settings.partition: mode}


@dataclass(frozen=True, slots=True)
class Observation:
    """Everything that a snapshot is made of."""

    jobs: Sequence[SlurmJob]
    nodes: Sequence[SlurmNode]
    notes: Mapping[str, JobNote]
    modes: Mapping[str, Mode]
    now_s: float
    defaults: Mapping[str, JobDefaults] | None = field(default_factory=dict)
    """JobDefaults by partition; ``None`` where they are unknown."""
    pool: Pool | None = None
    """The VCs that lend to each other, where there are any."""
    tiers: Mapping[str, int] = field(default_factory=dict)
    """Priorities of QOS, where Slurm gives them a weight."""
    switch_wait_s: float = 300.0
    """How long a job waits at most for the switches that it asks for, s."""
    windows: Mapping[str, tuple[Window, ...]] = field(default_factory=dict)
    """The windows in which nodes are closed to jobs, by node."""
    preemption: Preemption = NO_PREEMPTION
    """Which jobs may preempt which, as Slurm reports it."""
    gpus_out: Mapping[str, tuple[GpuOut, ...]] = field(default_factory=dict)
    """GPUs that get no new start, by node."""
    unpaired: frozenset[str] = frozenset()
    """Nodes on which no more pairs are made."""

    def outs_under(self, placement: Placement) -> list[GpuOut]:
        """The GPUs of this placement that get no new start."""
        if not self.gpus_out:
            return []
        return [o for part in placement for o in self.gpus_out.get(part.node, ()) if part.mask >> o.bit & 1]

    def nodes_of(self, home: str) -> list[SlurmNode]:
        """The nodes that jobs of this VC may get: those of its partition, or of all VCs of its pool."""
        vcs = self.pool.quotas if self.pool is not None and home in self.pool.quotas else (home,)
        return [node for node in self.nodes if not node.partitions.isdisjoint(vcs)]

    def open_to(self, node: str, job: SlurmJob) -> bool:
        """Whether the job may be on this node until its time limit ends, if it starts now."""
        ends_s = math.inf if job.time_limit_s is None else self.now_s + job.time_limit_s
        return all(ends_s <= window.ends_by_s for window in self.windows.get(node, ()))


def home_of(
    partition: str, admin_comment: str, note: JobNote | None, vcs: Collection[str], rooms: Collection[str] = ()
) -> str:
    """The VC of a job that stands, or ended, in ``partition``. That is the partition itself, which its user may have
    changed (of several the first that is a VC); or for a job in one of ``rooms``, into which only lucidd moves jobs,
    the noted VC, or the one that the tag names if it is of ``vcs``."""
    if "," in partition:
        partition = next((name for name in partition.split(",") if name in vcs), partition)
    if partition not in rooms:
        return partition
    if note is not None and note.home:
        return note.home
    tagged = (parse_mark(admin_comment) or {}).get("vc", "")
    return tagged if tagged in vcs else partition


def submitted_s(submit_s: float, note: JobNote | None) -> float:
    """When the job's user submitted it: as noted, for at a requeue Slurm sets ``submit_s`` anew."""
    return (note.submit_s if note is not None else 0.0) or submit_s


def of_another(record: SlurmJob, note: JobNote) -> bool:
    """Whether the note is of an earlier job with this number. A killed slurmctld gives out the numbers again of jobs
    that it has forgotten. Only a requeue changes the time of a job's submission."""
    elses = bool(note.user and record.user and note.user != record.user)
    return elses or bool(note.submit_s and not record.restarts and record.submit_s != note.submit_s)


def tagged(record: SlurmJob, note: JobNote | None) -> str:
    """The noted tag of a job that has lost its own: a site's prolog may write AdminComment, too. Empty where the job
    was never Lucid's: user and time of submission have to be the noted ones."""
    if note is None or not note.user or record.user not in (note.user, "") or of_another(record, note):
        return ""
    if int(record.submit_s) < int(note.submit_s) or (not record.restarts and record.submit_s != note.submit_s):
        return ""
    # what an earlier version of Lucid noted has no tag, but the request of a job that Lucid once started
    return note.tag or (f"{MARK}vc={note.home};held=1" if note.as_written else "")


def with_tag(record: SlurmJob, tag: str) -> SlurmJob:
    """The record as it would be, had the job kept its tag."""
    gpus = record.gpus
    if not gpus and record.request.emptied:
        gpus = from_mark(parse_mark(tag) or {}).gpus(record.min_nodes, record.request.tasks)
    return replace(record, admin_comment=tag, gpus=gpus)


def gpus_taken(record: SlurmJob, home: str, facts: Observation) -> int:
    """GPUs that no other job can have while this one runs: for an exclusive job all GPUs of its nodes, which are
    assumed to be as large as the largest node of ``home``."""
    if not record.request.whole_nodes:
        return record.gpus
    largest = max((len(n.gpu_types) for n in facts.nodes if home in n.partitions), default=0)
    return max(record.gpus, largest * record.min_nodes)


def users_nodes(record: SlurmJob, note: JobNote | None) -> str:
    """The node list that the user asked for, at submission or since, not the one that Lucid set. Lucid notes a list
    before it sets it. For a job that started before and has no note, job_submit.lua's tag says it (``nodes=1``); a
    tag of an earlier version says it for jobs that may share."""
    now, mark = record.request.req_nodes, record.tag or {}
    if note is not None and note.as_written:
        noted = note.as_written.get("req_nodes", "")
        ours = not note.listed or any(set(hosts(now)) == set(hosts(one)) for one in note.listed.split())
        return noted if ours else now
    if not now:
        return ""
    theirs = "nodes" in mark or mark.get("why") == "nodes"
    started = record.restarts or not record.pending or record.request.shards or record.request.emptied
    if mark and not theirs and started:
        return ""
    return "" if "held" in mark and "park" not in mark and mark.get("share") != "0" else now


def lists_of(record: SlurmJob, note: JobNote, req_nodes: str | None) -> str:
    """The node lists to note before a job gets this one (``None``: it keeps its own): the new one, and beside it the
    one that it has from Lucid now, for lucidd may die before Slurm is asked."""
    if req_nodes is None or not note.listed:
        return note.listed if req_nodes is None else req_nodes
    now = record.request.req_nodes
    kept = [one for one in note.listed.split() if now and set(hosts(one)) == set(hosts(now))]
    return " ".join(dict.fromkeys([*kept[:1], req_nodes]))


def as_written(record: SlurmJob) -> Request:
    """The request to give back to a job without a note: the one in job_submit.lua's tag, else as many whole GPUs as
    it holds shards of. CPUs and memory by GPU are its user's only where the tag has them: Slurm writes JobDefaults
    into a job as soon as it judges it."""
    request = structs.replace(record.request, req_nodes=users_nodes(record, None))
    mark = record.tag or {}
    tagged = from_mark(mark)
    if not (request.shards or request.emptied or request.addressed):
        ours = "held" in mark and "skip" not in mark
        return structs.replace(request, **{key: getattr(tagged, key) for key in PER_GPU}) if ours else request
    if tagged != Request() and not tagged.shards:
        return tagged
    return Request(tres_per_node=f"gres/gpu:{max(record.gpus // max(record.min_nodes, 1), 1)}")
