"""A small slurmctld in memory with its own clock: enough of it to run the live adapter without daemons.

It starts what is released and fits, keeps GPU and shard use of a device apart, requeues through COMPLETING,
sets StartTime ahead after a requeue, and refuses what the real one refuses.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import structs

from lucid.core.job import JobProfile
from lucid.core.placement import NodeGpus, Placement
from lucid.errors import ActionRefused, ClusterUnavailable
from lucid.profiler.use import GpuUse
from lucid.slurm.client import Changes, HeldGpu, declined
from lucid.slurm.records.configuration import NO_NETWORK, Network, Partition, Reservation
from lucid.slurm.records.fields import gpu_count
from lucid.slurm.records.job import SlurmJob, SlurmNode
from lucid.slurm.records.preemption import NO_PREEMPTION, Preemption
from lucid.slurm.records.request import GPU_FIELDS, PER_GPU, WRITTEN, JobDefaults, Request
from lucid.slurm.view.profiles import ProfileReading

AHEAD_S = 120.0


def fake_node(name: str, partition: str, gpus: int = 4, **rest: Any) -> SlurmNode:
    types = tuple(f"g{i}" for i in range(gpus))
    made = SlurmNode(
        name, types, frozenset(types), 16, 32000, frozenset(), frozenset({partition}), frozenset({"IDLE"})
    )
    return replace(made, **rest)


def _after(jobs: Sequence[str]) -> str:
    return ",".join(f"afterany:{other}" for other in jobs)


def unsealed(extra: str) -> str:
    """What `FakeSlurm.seal` sealed in an Extra."""
    return b64decode(extra.partition("lucid-seal=MUNGE:")[2].rstrip(":")).decode()


@dataclass
class FakeSlurm:
    """See ``CommandClient``; times in seconds from 0."""

    machines: list[SlurmNode]
    now: float = 0.0
    completing_s: float = 0.0
    records: dict[str, SlurmJob] = field(default_factory=dict)
    run_s: dict[str, float] = field(default_factory=dict)
    gone_s: dict[str, float] = field(default_factory=dict)
    starts: list[tuple[float, str, Placement]] = field(default_factory=list)
    writes: list[tuple[str, str]] = field(default_factory=list)
    reads: int = 0
    fails_at_write: Callable[[int], Exception | None] = lambda n: None
    down: bool | BaseException = False
    """Does it answer nothing about jobs? Or what asking for them raises."""
    name: str = "fake"

    defaults: dict[str, JobDefaults] = field(default_factory=dict)
    reserved: list[Reservation] = field(default_factory=list)
    shares: dict[tuple[str, str], float] = field(default_factory=dict)
    qos: dict[str, int] = field(default_factory=dict)
    """Priorities of QOS."""
    private: str = "none"
    """PrivateData."""
    no_munge: str = ""
    """Why nothing can be sealed; empty: it can."""
    switches: Network = NO_NETWORK
    preempts: Preemption = NO_PREEMPTION
    slurm_version: tuple[int, int] = (24, 11)
    heeds_factors: bool = True
    """Does its priority plugin know site factors?"""
    factors: dict[str, int] = field(default_factory=dict)
    limits: Callable[[SlurmJob], str] = lambda job: ""
    """The reason for which slurmctld does not start a released job that would fit; empty: none."""
    boot_s: float = 60.0
    boot_fails: set[str] = field(default_factory=set)
    """Nodes that do not come up."""
    woken: list[tuple[float, str]] = field(default_factory=list)
    booted: list[tuple[str, list[str]]] = field(default_factory=list)
    """Nodes that came up, and the jobs that were there for them."""
    held: int = 0
    """How many jobs were submitted to hold a single GPU."""
    refuses_held: str = ""
    """Slurm's words to a job that is to hold a single GPU."""
    _up_s: dict[str, float] = field(default_factory=dict)
    _preempted_s: dict[str, float] = field(default_factory=dict)
    """When it last preempted others, by the job for which it did."""

    def config(self) -> dict[str, str]:
        self._answer()
        programs = dict.fromkeys(("ResumeProgram", "SuspendProgram"), "/etc/resume")
        times = {"SuspendTime": "600 sec", "ResumeTimeout": "300 sec", "SuspendTimeout": "30 sec"}
        return {"PrivateData": self.private, **programs, **times}

    def _answer(self) -> None:
        if self.down:
            raise self.down if self.down is not True else ClusterUnavailable("slurmctld does not answer")

    def partitions(self) -> list[Partition]:
        return []

    def preemption(self) -> Preemption:
        return self.preempts

    def qos_priorities(self) -> dict[str, int]:
        return dict(self.qos)

    def fair_shares(self) -> dict[tuple[str, str], float]:
        return dict(self.shares)

    def now_s(self) -> float:
        return self.now

    # -- users ----------------------------------------------------------------------------------------------

    def submit(
        self, job_id: str, /, partition: str, gpus: int = 1, run_s: float = 1e9, mark: str = "", **rest: Any
    ) -> str:
        """A held, tagged job unless told; tagged as job_submit.lua does it."""
        mark = mark or f"lucid:vc={partition}" + ";elastic=1" * ("lucid:elastic=" in rest.get("comment", ""))
        made = SlurmJob(
            id=job_id, number=len(self.records) + 1, state="PENDING", flags=frozenset(), partition=partition,
            user="ada", account="", name=job_id, admin_comment=mark, reason="JobHeldUser",
            held=True, gpus=gpus, min_nodes=1, cpus=1, mem_mib=500, submit_s=self.now, eligible_s=self.now,
            start_s=0.0, end_s=0.0, time_limit_s=None, restarts=0, requeue=True, batch=True,
            request=Request(tres_per_node=f"gres/gpu:{gpus}"), features="", simple=True, dependent=False,
            placement=(), priority=1000,
        )  # fmt: skip
        self.records[job_id] = replace(made, **rest)
        self.run_s[job_id] = run_s
        self._schedule()
        return job_id

    def advance(self, seconds: float) -> None:
        """Let time pass, event by event."""
        until = self.now + seconds
        while True:
            ends = [(r.start_s + self.run_s[r.id], r.id)
                    for r in self.records.values() if r.state == "RUNNING" and not r.configuring]  # fmt: skip
            ends += [(at, name) for name, at in self._up_s.items()]
            ends += [(at, i) for i, at in self.gone_s.items()]
            ends += [(r.eligible_s, r.id) for r in self.records.values() if r.pending and r.eligible_s > self.now]
            due = min((e for e in ends if e[0] <= until), default=None)
            if due is None:
                break
            self.now = max(due[0], self.now)
            self._turn()
        self.now = until
        self._turn()

    def _turn(self) -> None:
        for name in [name for name, at in self._up_s.items() if at <= self.now]:
            self._booted(name)
        for record in list(self.records.values()):
            if self.gone_s.get(record.id, 1e18) <= self.now:
                del self.gone_s[record.id]
                self._set(record.id, flags=frozenset(), placement=())
            elif (
                record.state == "RUNNING"
                and not record.configuring
                and record.start_s + self.run_s[record.id] <= self.now
            ):
                self._set(record.id, state="COMPLETED", end_s=self.now, placement=())
        self._schedule(backfill=True)

    def sleep(self, *names: str) -> None:
        """These nodes are ``idle~``."""
        for name in names:
            self.node(name, states=frozenset({"IDLE", "POWERED_DOWN"}))

    def node(self, name: str, **changes: Any) -> None:
        self.machines = [replace(node, **changes) if node.name == name else node for node in self.machines]

    def _wake(self, job_id: str, place: Placement) -> None:
        states = {node.name: node.states for node in self.machines}
        for part in place:
            if "POWERED_DOWN" in states[part.node]:
                self.woken.append((self.now, part.node))
                self._up_s[part.node] = self.now + self.boot_s
                self.node(part.node, states=frozenset({"MIXED", "POWERING_UP", "NOT_RESPONDING"}))
        if any(part.node in self._up_s for part in place):
            self._set(job_id, flags=frozenset({"CONFIGURING", "POWER_UP_NODE"}))

    def _booted(self, name: str) -> None:
        del self._up_s[name]
        fails = name in self.boot_fails
        self.node(name, states=frozenset({"DOWN", "POWERED_DOWN", "NOT_RESPONDING"} if fails else {"IDLE"}))
        here = [r for r in self.records.values() if r.state == "RUNNING" and name in dict(r.placement)]
        if not fails:
            self.booted.append((name, [record.id for record in here]))
        for record in here:
            if fails:
                self._set(
                    record.id, state="PENDING", flags=frozenset(), placement=(), restarts=record.restarts + 1,
                    submit_s=self.now, eligible_s=self.now + AHEAD_S, reason="BeginTime",
                )  # fmt: skip
            elif not any(part.node in self._up_s for part in record.placement):
                self._set(record.id, flags=frozenset(), start_s=self.now)

    def _set(self, job_id: str, **changes: Any) -> None:
        self.records[job_id] = replace(self.records[job_id], **changes)

    # -- slurmctld -------------------------------------------------------------------------------------------

    def _use(self, node: str, gpu: int) -> tuple[int, int]:
        """(jobs that hold the GPU whole, slots in use)."""
        places = [(r, part) for r in self.records.values() for part in r.placement if part.node == node]
        there = [bool(record.request.shards) for record, part in places if part.mask >> gpu & 1]
        return there.count(False), there.count(True)

    def _find(self, record: SlurmJob) -> Placement | None:
        wanted = record.request.req_nodes.split(",") if record.request.req_nodes else []
        types = re.findall(r"shard:(\w+)", record.request.tres_per_node)
        parts, left = list[NodeGpus](), record.gpus
        for node in self.machines:
            if record.partition not in node.partitions or (wanted and node.name not in wanted) or not _usable(node):
                continue
            if types:
                gpus = [node.gpu_types.index(t) for t in types]
                most = max(node.slots, default=2)
                if all(whole == 0 and slots < most for whole, slots in (self._use(node.name, g) for g in gpus)):
                    return (NodeGpus(node.name, sum(1 << g for g in gpus)),)
                continue
            spread = record.min_nodes > 1 and gpu_count(record.request.tres_per_node)
            free = [g for g in range(len(node.gpu_types)) if self._use(node.name, g) == (0, 0)]
            if record.request.addressed:
                free = [g for g in free if f":{node.gpu_types[g]}:1" in record.request.tres_per_node]
            free = free[: spread or left]
            if free and (len(free) == left or spread or record.gpus > len(node.gpu_types)):
                parts.append(NodeGpus(node.name, sum(1 << g for g in free)))
                left -= len(free)
                if not left:
                    return tuple(parts)
        return None

    def _schedule(self, backfill: bool = False) -> None:
        """``backfill``: also shorten a job to its ``--time-min``, or as far as it has to be, so that it starts."""
        for record in sorted(self.records.values(), key=lambda r: (r.priority < 1 << 31, r.number)):
            waits = [other for other in record.dependency.split(",") if other.startswith("afterany:")]
            if record.priority > 1 << 31 and all(self.records[one.removeprefix("afterany:")].ended for one in waits):
                self._set(record.id, dependency="")
                record = self.records[record.id]
            held = record.held or record.dependent or record.dependency
            if record.pending and not held and record.eligible_s <= self.now:
                place, limit = self._find(record), self.limits(record)
                if place is None and record.request.addressed and not limit:
                    place = self._preempt(record)
                if backfill and record.time_min_s and self._closed(record, place):
                    kept = [r.start_s for r in self.reserved if any(p.node in r.nodes for p in place or ())]
                    room_s = min(kept) - self.now
                    if record.time_min_s <= room_s:
                        self._set(record.id, time_limit_s=room_s // 60 * 60)
                        record = self.records[record.id]
                reason = limit or self._closed(record, place) or ("" if place is not None else "Resources")
                if reason:
                    self._set(record.id, reason=reason)
                elif place is not None:
                    self._set(record.id, state="RUNNING", start_s=self.now, placement=place, reason="None")
                    self.starts.append((self.now, record.id, place))
                    self._wake(record.id, place)

    def _closed(self, record: SlurmJob, place: Placement | None) -> str:
        """Would it last into a reservation of its nodes? The time limit is what counts, and for ever is a year."""
        ends_s = self.now + (365 * 86400.0 if record.time_limit_s is None else record.time_limit_s)
        for one in self.reserved:
            theirs = any(part.node in one.nodes for part in place or ())
            if theirs and not one.cores and one.start_s < ends_s and self.now < one.end_s:
                return "ReqNodeNotAvail, Reserved for maintenance"
        return ""

    def _preempt(self, record: SlurmJob) -> Placement | None:
        """The GPUs that it names, once those who hold them have gone: they are told to where all of them may be. As
        the real one, it takes no heed of slots as soon as it thinks one job away: with GPUs in slots the first of the
        node that may be preempted goes, and no other for this job in the next 40 s."""
        node = next((n for n in self.machines if n.name == record.request.req_nodes), self.machines[0])
        mask = sum(1 << i for i, kind in enumerate(node.gpu_types) if f":{kind}:1" in record.request.tres_per_node)
        there = [r for r in self.records.values() if any(p.node == node.name for p in r.placement)]
        here = [r for r in there if any(p.node == node.name and p.mask & mask for p in r.placement)]
        if any(self.preempts.yields(r, (record.partition,)) is None for r in here if not r.completing):
            return None
        goes = here
        if any(r.request.shards for r in here):
            may = [r for r in there if not r.completing and self.preempts.yields(r, (record.partition,))]
            goes = may[:1]
        if self.now - self._preempted_s.get(record.id, -1e9) < self.preempts.again_s:
            goes = []
        for other in goes:
            if not other.completing:
                self._preempted_s[record.id] = self.now
                flags, self.gone_s[other.id] = frozenset({"COMPLETING"}), self.now + self.completing_s
                self._set(
                    other.id, state="PENDING", restarts=other.restarts + 1, flags=flags, eligible_s=self.now + AHEAD_S
                )
        if self.completing_s or goes is not here:
            return None
        for other in here:
            del self.gone_s[other.id]
            self._set(other.id, flags=frozenset(), placement=())
        return (NodeGpus(node.name, mask),)

    # -- CommandClient -----------------------------------------------------------------------------------------

    def network(self) -> Network:
        return self.switches

    def job_defaults(self) -> dict[str, JobDefaults]:
        return dict(self.defaults)

    def reservations(self) -> list[Reservation]:
        return [one for one in self.reserved if one.end_s > self.now]

    def version(self) -> tuple[int, int]:
        return self.slurm_version

    def jobs(self) -> Sequence[SlurmJob]:
        self.reads += 1
        self._answer()
        # Slurm forgets the GPUs of a job that completes
        return [replace(r, placement=()) if r.completing else r for r in self.records.values()]

    def nodes(self) -> Sequence[SlurmNode]:
        self.reads += 1
        return list(self.machines)

    def who(self) -> tuple[int, str]:
        return 990, "lucid"

    def hold_gpu(self, held: HeldGpu) -> str:
        """It holds its GPU as soon as nobody else does."""
        self.held += 1
        if self.refuses_held:
            raise ActionRefused(self.refuses_held)
        job_id = str(9000 + len(self.records))
        waits = tuple(other for other in held.after if not self.records[other].ended)
        self.submit(
            job_id, held.partition, user="lucid", uid=990, name=held.name, comment=held.words, held=False,
            time_limit_s=held.limit_min * 60.0, dependency=_after(waits), priority=(1 << 32) - 3,
            request=Request(tres_per_node=held.gres, req_nodes=held.node), run_s=held.limit_min * 60.0,
        )  # fmt: skip
        self.records[job_id] = replace(self.records[job_id], admin_comment="", requeue=False)
        return job_id

    def renew_held_gpu(self, job_id: str, limit_min: int | None, after: Sequence[str]) -> None:
        if limit_min is not None:
            self._set(job_id, time_limit_s=limit_min * 60.0)
            self.run_s[job_id] = limit_min * 60.0
        if after:
            self._set(job_id, dependency=_after(after))

    def node_states(self) -> str:
        return " ".join(f"{node.name} {sorted(node.states)}" for node in self.machines)

    def _write(self, job_id: str, what: str) -> SlurmJob:
        error = self.fails_at_write(len(self.writes))
        if error is not None:
            raise error
        self.writes.append((job_id, what))
        if job_id not in self.records:
            raise ActionRefused("Invalid job id specified")
        return self.records[job_id]

    def update(self, job_id: str, changes: Changes) -> None:
        record = self._write(job_id, "update")
        if changes.site_factor is not None:
            if self.heeds_factors:
                before = self.factors.get(job_id, 0)
                self.factors[job_id] = changes.site_factor
                self._set(job_id, priority=record.priority + changes.site_factor - before)
            return
        if not record.pending:
            raise declined("Job is no longer pending execution")
        if changes.first is not None:
            self.update(job_id, changes.first)
            record = self.records[job_id]
        given = {key: getattr(changes, key) for key in WRITTEN if getattr(changes, key) is not None}
        if any(given.get(key) == "" for key in PER_GPU) and not structs.replace(record.request, **given).emptied:
            raise ActionRefused("Invalid generic resource (gres) specification")
        request = structs.replace(record.request, **given)
        if request.shards and (request.cpus_per_tres or request.mem_per_tres):
            raise ActionRefused("Invalid generic resource (gres) specification")
        timed = changes.start_now or changes.start_at_s is not None
        if given.keys() & {*GPU_FIELDS} and not timed and not given.keys() & {*PER_GPU}:
            # job_submit.lua takes it for a change of its user's
            self._set(job_id, comment=f"{record.comment} lucid:resized".strip())
        if changes.num_cpus is not None:
            request = structs.replace(request, num_cpus=changes.num_cpus)
            self._set(job_id, cpus=changes.num_cpus)
        elif request.cpus_per_tres and given.keys() & {*GPU_FIELDS} and request.num_cpus:
            # Slurm reckons anew, for one node, and without the tasks
            cpus = gpu_count(request.cpus_per_tres) * gpu_count(request.tres_per_node)
            request = structs.replace(request, num_cpus=cpus)
        if changes.mem_node_mib is not None:
            request = structs.replace(request, exact_mem=True)
            self._set(job_id, mem_mib=changes.mem_node_mib)
        nodes = changes.num_nodes or record.min_nodes
        if changes.num_nodes is not None:
            request = structs.replace(request, max_nodes=changes.max_nodes or changes.num_nodes)
        self._set(job_id, min_nodes=nodes)
        times = {"tres_per_node": nodes if changes.num_nodes is not None else 1}
        asked = sum(gpu_count(getattr(request, key)) * times.get(key, 1) for key in GPU_FIELDS)
        if changes.extra is not None:
            self._set(job_id, extra=changes.extra)
        self._set(job_id, request=request, gpus=asked or record.gpus, partition=changes.partition or record.partition)
        if timed:
            self._set(job_id, eligible_s=self.now if changes.start_now else changes.start_at_s)
            self._schedule()

    def seal(self, text: str) -> str:
        """As munge would: the words can be read again, by who knows how (`unsealed`)."""
        if self.no_munge:
            raise ActionRefused(self.no_munge)
        return f"MUNGE:{b64encode(text.encode()).decode()}:"

    def number(self, job_id: str) -> int:
        return self.records[job_id].number

    def set_begin(self, job_ids: Sequence[str], begin_s: float) -> None:
        """As scontrol with a list: what it declines for one does not keep it from the others."""
        refused = list[ActionRefused]()
        for job_id in job_ids:
            try:
                self.update(job_id, Changes(start_at_s=begin_s))
            except ActionRefused as error:
                refused.append(error)
        if refused:
            raise refused[0]

    def hold(self, job_id: str, begin_s: float = 0.0) -> None:
        if not self._write(job_id, "hold").pending:
            raise declined("Job is no longer pending execution")
        self._set(job_id, held=True, reason="JobHeldUser", eligible_s=begin_s or self.now)

    def release(self, job_id: str) -> None:
        if not self._write(job_id, "release").pending:
            raise declined("Job is pending execution")
        self._set(job_id, held=False, reason="None")
        self._schedule()

    def cancel(self, job_id: str) -> None:
        record = self._write(job_id, "cancel")
        if not record.ended:
            self._set(job_id, state="CANCELLED", placement=(), end_s=self.now)
            self._schedule()

    def requeue_hold(self, job_id: str) -> None:
        record = self._write(job_id, "requeuehold")
        if record.ended:
            return  # "Incomplete"
        if record.state != "RUNNING" or not record.requeue:
            raise ActionRefused("Requested operation is presently disabled")
        self._set(
            job_id, state="PENDING", held=True, restarts=record.restarts + 1, submit_s=self.now,
            eligible_s=self.now + AHEAD_S, flags=frozenset({"COMPLETING"}),
        )  # fmt: skip
        self.gone_s[job_id] = self.now + self.completing_s
        if not self.completing_s:
            self._turn()


def _usable(node: SlurmNode) -> bool:
    return replace(node, excused=frozenset({"POWERED_DOWN", "POWERING_UP", "NOT_RESPONDING"})).available


@dataclass
class FakeSampler:
    """Emulates the sampler: a job that has run for ``after_s`` alone has a profile."""

    slurm: FakeSlurm
    profiles: dict[str, JobProfile]
    after_s: float = 80.0
    measured: dict[str, list[GpuUse]] = field(default_factory=dict)
    """By job."""
    _told: set[tuple[str, int]] = field(default_factory=set)

    def forget(self, job: str) -> None:
        """Its files are pruned."""
        self.profiles.pop(job, None)
        self._told = {told for told in self._told if told[0] != job}

    def uses(self, job: str) -> list[GpuUse]:
        return self.measured.get(job, [])

    def new(self) -> list[ProfileReading]:
        found = []
        for record in self.slurm.records.values():
            key = (record.id, record.restarts)
            if record.state != "RUNNING" or key in self._told or record.id not in self.profiles:
                continue
            if self.slurm.now - record.start_s >= self.after_s:
                self._told.add(key)
                found.append(ProfileReading(record.id, self.profiles[record.id], f"{key}"))
        return found
