"""Carries out a plan: each decision becomes changes to jobs in Slurm; running jobs are requeued, held."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from msgspec import structs

from lucid.binder.contention import memory_limit_mib
from lucid.config.live import DaemonSettings
from lucid.core.decision import Action, EndProfiling, Keep, Regroup, Requeue, Resize, Start, kind_of
from lucid.core.placement import Placement, parse_placement, placement_gpus, show_placement
from lucid.core.ports import Applied
from lucid.errors import ActionRefused, Refusal
from lucid.places import Mode
from lucid.slurm.act.changes import start_changes
from lucid.slurm.act.preempt import ClaimWatch, common_gpus
from lucid.slurm.act.prolog_extra import Items, free_extra, own_number, sealed
from lucid.slurm.act.write import ONE_JOB, JobWriter
from lucid.slurm.client import Changes
from lucid.slurm.elastic.opt_in import elastic_request, with_size
from lucid.slurm.elastic.resize import Resizes, leaving, overlaps
from lucid.slurm.elastic.turn_jobs import takes_turns
from lucid.slurm.own.state import ASSIGNED
from lucid.slurm.records.fields import hosts
from lucid.slurm.records.job import SlurmJob
from lucid.slurm.records.request import NO_DEFAULTS
from lucid.slurm.view.observation import Observation, as_written, lists_of, users_nodes
from lucid.slurm.view.profiles import KnownProfiles
from lucid.slurm.view.snapshot import gpu_mem_mib
from lucid.store.port import JobNote

_REVOKED_S = 5.0
"""A requeued job that starts on the same node within this time may be killed there: Job credential revoked."""


def _waits(job_id: str, words: str, cause: Refusal = Refusal.NODES_NOT_FREE_YET) -> ActionRefused:
    """The error for a change that has to wait, by default until nodes or GPUs are free."""
    return ActionRefused(f"job {job_id}: {words}", cause)


class Stops:
    """The checks before every stop, and the requeue. ``_revoked``: victims that were requeued, when and where."""

    def __init__(self, writer: JobWriter, slurm_knows_all: Callable[[], bool]) -> None:
        """``slurm_knows_all``: whether slurmctld knows by now which jobs have ended, as far as can be told."""
        self._writer = writer
        self._slurm_knows_all = slurm_knows_all
        self._revoked: dict[str, tuple[float, Placement]] = {}

    def unless_configuring(self, record: SlurmJob) -> None:
        """Raise ``ActionRefused`` if the job's nodes still boot: no node is woken for a job that is then stopped
        before it has begun."""
        if record.configuring:
            raise _waits(record.id, "its node boots, or is set up; it is not stopped before it has begun")

    def unless_unheard(self, record: SlurmJob, more: str = "") -> None:
        """Raise ``ActionRefused`` if the job may have ended without slurmctld knowing: Slurm would run it again."""
        if not self._slurm_knows_all():
            words = f"slurmctld did not answer lately{more}; tried again later"
            raise _waits(record.id, words, Refusal.SLURM_WAS_SILENT)

    def unless_revoked(self, job_id: str, placement: Placement) -> None:
        """Raise ``ActionRefused`` if the job was requeued just now on one of these nodes."""
        stopped_s, ran_on = self._revoked.get(job_id, (0.0, ()))
        nodes = {part.node for part in placement}
        if self._writer.clock.now_s() - stopped_s < _REVOKED_S and any(part.node in nodes for part in ran_on):
            raise _waits(job_id, "was requeued just now; its node would kill it (credential revoked)")

    def put_back(self, record: SlurmJob, note: JobNote, verb: str, now_s: float) -> None:
        """Requeue a job. It runs until Slurm has taken the requeue; what is noted before says where it goes then.
        ``now_s``: the time of the poll that showed it running."""
        self.unless_configuring(record)
        self.unless_unheard(record, ", so it may not know yet that the job has ended")
        self._writer.listed(record.id)
        before = note
        ran_s = note.ran_s + max(now_s - record.start_s, 0.0)
        back = structs.replace(note, where="", released=False, shards=False, wait_since_s=now_s, ran_s=ran_s)
        self._writer.put(structs.replace(back, requeued=record.restarts + 1))
        try:
            self._writer.do(
                record.id, verb, show_placement(record.placement), lambda: self._writer.client.requeue_hold(record.id)
            )
        except ActionRefused:
            self._writer.put(before if verb != "release" else structs.replace(before, to_home=False))
            raise

    def victim(self, record: SlurmJob, note: JobNote, now_s: float) -> None:
        """Requeue a job whose GPUs another one gets."""
        self.put_back(record, note, "requeue", now_s)
        requeued_s = self._writer.clock.now_s()
        self._revoked = {job: one for job, one in self._revoked.items() if requeued_s - one[0] < _REVOKED_S}
        self._revoked[record.id] = requeued_s, record.placement


_LEAST_LEASE_S = 30.0
"""A parked job whose begin time is nearer than this is held before it is changed."""
_LEAVES = (Requeue, EndProfiling, Resize)


class Actions:
    """Carries out the decisions about jobs of the last poll."""

    def __init__(
        self,
        writer: JobWriter,
        daemon: DaemonSettings,
        known: KnownProfiles,
        slurm_knows_all: Callable[[], bool],
        claims: ClaimWatch,
    ) -> None:
        """``slurm_knows_all``: whether slurmctld knows by now which jobs have ended, as far as can be told."""
        self._writer = writer
        self._daemon = daemon
        self._known = known
        self._stops = Stops(writer, slurm_knows_all)
        self._claims = claims
        self._facts = Observation((), (), writer.notes, {}, 0.0)
        self._jobs: Mapping[str, SlurmJob] = {}
        self.resizes = Resizes(writer)
        self._staying: dict[str, Placement] = {}
        """Jobs that this plan was to stop, and that go on, with their GPUs."""
        self._given: list[tuple[str, Placement]] = []
        """The partitions of the jobs started in this turn, and where each was started."""
        self._leaving: dict[str, Placement] = {}
        """Jobs that are being resized, and the GPUs that they still hold."""
        self._starting: dict[str, dict[bool, str]] = {}
        """By node, and by whether on GPUs of known addresses (slots, or whole GPUs that others give up): a job that
        was released to start there and has not started yet. Slurm chooses the GPUs of a job with its own request, so
        the two kinds are not started on one node at the same time."""

    def observe(self, facts: Observation, jobs: Mapping[str, SlurmJob]) -> None:
        """Take in a new poll of Slurm. ``jobs``: those of *facts*, by id."""
        self._facts, self._jobs = facts, jobs
        self._starting = {}
        held = {job.id: leaving(job, facts.notes.get(job.id)) for job in facts.jobs}
        self._leaving = {job_id: place for job_id, place in held.items() if place}
        ownership = self._writer.ownership
        for job in facts.jobs:
            note = facts.notes.get(job.id)
            if note is None or ownership.state(job, note, facts.now_s) not in ASSIGNED:
                continue
            if ownership.may_start_yet(job, note):
                self._note_start(job.id, parse_placement(note.where), note.shards or job.request.addressed)

    def apply(self, actions: Sequence[Action]) -> list[Applied]:
        """Carry the actions out: jobs that leave first, then those that shrink, grow and start. In a partition that
        is not in pack mode nothing is done."""
        refused: dict[int, ActionRefused] = {}
        self._staying, self._given = {}, []
        for i in sorted(range(len(actions)), key=lambda i: self._apply_order(actions[i])):
            try:
                self._carry_out(actions[i])
            except ActionRefused as error:
                refused[i] = error
                record = self._jobs.get(actions[i].job_id)
                if isinstance(actions[i].decision, _LEAVES) and record is not None and record.running:
                    self._staying[record.id] = record.placement
        return [
            Applied(action, str(refused[i]), refused[i].cause) if i in refused else Applied(action)
            for i, action in enumerate(actions)
        ]

    def _apply_order(self, action: Action) -> tuple[int, int]:
        """The sort key of an action: GPUs have to be given up before others get them."""
        if isinstance(action.decision, Resize):
            record = self._jobs.get(action.job_id)
            had = 0 if record is None else placement_gpus(record.placement)
            return 1, placement_gpus(action.decision.placement) - had
        return (2 if isinstance(action.decision, Start) else 0), 0

    def _unless_kept(self, job_id: str, placement: Placement) -> None:
        """Check that no job that was to give these GPUs up still has them because Slurm did not stop it."""
        for other, held in self._staying.items():
            if other != job_id and common_gpus(held, placement):
                raise _waits(job_id, f"job {other}, which was to leave these GPUs, could not be stopped")

    def _unless_given(self, job_id: str, partition: str, placement: Placement) -> None:
        """Check that no job of another partition with the same nodes got one of these GPUs in this turn, for
        partitions are planned one by one."""
        for other, given in self._given:
            if other != partition and common_gpus(placement, given):
                raise _waits(job_id, f"a job of partition {other!r} starts on these GPUs")

    def _unless_dealt(self, job_id: str, placement: Placement, exact: bool) -> None:
        """Check that no job of the other kind is starting on one of these nodes (``_starting``)."""
        for part in placement:
            other = self._starting.get(part.node, {}).get(not exact)
            if other is not None and other != job_id:
                raise _waits(job_id, f"waits until job {other} has started on node {part.node}")

    def _carry_out(self, action: Action) -> None:
        job_id, decision = action.job_id, action.decision
        record = self._jobs.get(job_id)
        if record is None:
            raise ActionRefused(f"job {job_id} is no longer in partition {action.partition!r}", Refusal.JOB_MOVED_ON)
        note = self._writer.notes.get(job_id)
        home = self._writer.ownership.home(record, note)
        mode = self._facts.modes.get(home, Mode.OBSERVE)
        if mode is not Mode.PACK:
            raise ActionRefused(f"job {job_id}: partition {home!r} is in {mode} mode, nothing was done", Refusal.MODE)
        if self._writer.full(ONE_JOB, start=True):
            words = "limit slurm.writes_per_cycle is reached; retried in the next cycle"
            raise _waits(job_id, words, Refusal.WRITES_PER_CYCLE)
        if isinstance(decision, Start):
            self._start(record, note, action, decision)
        elif isinstance(decision, Requeue):
            self._requeue(record, note, decision)
        elif isinstance(decision, Resize):
            self._resize(record, note, decision)
        elif isinstance(decision, Regroup):
            self._regroup(record, decision)
        elif isinstance(decision, EndProfiling):
            self._end_profiling(record, note, action.partition)
        elif isinstance(decision, Keep):
            self._keep(record, note)
        else:
            raise ActionRefused(f"job {job_id}: Slurm has no {kind_of(decision)} for a running job")

    def _note(self, record: SlurmJob, note: JobNote | None) -> JobNote:
        """The note of the job, with its request as it is before Lucid first touches it."""
        elastic = elastic_request(record.comment).limits is not None
        if note is not None and note.as_written:
            if elastic and "gpus" not in note.as_written and not record.request.shards:
                note = structs.replace(note, as_written=with_size(note.as_written, record))
            home, nodes = self._writer.ownership.home(record, note), users_nodes(record, note)
            if home == note.home and nodes == note.as_written.get("req_nodes", ""):
                return note
            return structs.replace(
                note, home=home, as_written={**note.as_written, "partition": home, "req_nodes": nodes}
            )
        written = as_written(record).written()
        written["partition"] = record.partition
        if elastic and not record.request.shards:
            written = with_size(written, record)
        return structs.replace(
            note or JobNote(record.id),
            user=record.user,
            name=record.name,
            home=self._writer.ownership.home(record, note),
            as_written=written,
            submit_s=record.submit_s,
        )

    def _start(self, record: SlurmJob, note: JobNote | None, action: Action, start: Start) -> None:
        job_id = record.id
        if not self._writer.ownership.decides(record, note, self._facts):
            raise ActionRefused(
                f"job {job_id} is {'pending, but Lucid does not hold it' if record.pending else 'running'}",
                Refusal.JOB_MOVED_ON,
            )
        if (bar := self._writer.barred(record, self._facts.now_s)) is not None:
            raise ActionRefused(
                f"job {job_id}: Slurm did not start this job, or one like it ({bar[0]}); tried again later"
            )
        if start.beside is not None:
            self._partner(job_id, start)
        if start.group:
            self._members(job_id, start.group, start.placement)
        note = self._note(record, note)
        shards = start.slots
        if shards:
            self._unless_dealt(job_id, start.placement, True)
        for other, held in self._leaving.items():
            if overlaps(start.placement, held):
                raise _waits(job_id, f"waits until job {other}, which is resized, has left its GPUs")
        self._stops.unless_revoked(job_id, start.placement)
        self._unless_kept(job_id, start.placement)
        self._unless_given(job_id, action.partition, start.placement)
        items = self._items(record, start) if shards and (self._daemon.mps or takes_turns(record)) else None
        number = own_number(record)
        extra, unsealed = sealed(self._writer.client, record, number, items) if items and number else ("", "")
        pool, home, room = self._facts.pool, self._writer.ownership.home(record, note), action.partition
        if pool is not None and room == pool.name:
            room = pool.start_in(home, start, bool(self._writer.ownership.stays(record, home)))
        given = home if shards else room  # in slots it is told to have what its own partition gives
        defaults = (self._facts.defaults or {}).get(given, NO_DEFAULTS)
        changes = start_changes(
            record, note, start.placement, shards, room, self._facts.nodes, extra, defaults, bool(start.preempts)
        )
        asks = record.request.tres_per_node if changes.tres_per_node is None else changes.tres_per_node
        exact = shards or structs.replace(record.request, tres_per_node=asks).addressed
        self._unless_dealt(job_id, start.placement, exact)
        place = show_placement(start.placement)
        now_s = self._writer.clock.now_s()
        asked = record.request.req_nodes if changes.req_nodes is None else changes.req_nodes
        pinned = set(hosts(asked)) == {part.node for part in start.placement}  # elsewhere it needs no victim's GPUs
        goes = [self._jobs[victim] for victim in start.preempts if victim in self._jobs]
        empties = [victim for victim in goes if self._claims.lucid_stops(victim, home, self._facts)] if pinned else []
        let_in = not empties and not (pinned and any(victim.completing for victim in goes))
        claims = " ".join(start.preempts)
        if not record.held:
            self._writer.listed(job_id, Refusal.NODES_NOT_FREE_YET)
        self._writer.put(
            structs.replace(
                note,
                where=place,
                asked_s=now_s,
                shards=shards,
                released=False,
                restarts=record.restarts,
                stopped_s=0.0,
                listed=lists_of(record, note, changes.req_nodes),
                claims=claims if let_in else "",
            )
        )
        words = f"{place}{f' beside {start.beside}' if start.beside else ''}{' in slots' if shards else ''}"
        words += f", preempting {' '.join(start.preempts)}" if start.preempts else ""
        words += f" in turns with {_others(start.group, job_id)}" if start.group else ""
        if items is not None and not free_extra(record.extra):
            words += ", without MPS, because the user has set the job's Extra field"
        elif unsealed:
            words += f", without MPS: {unsealed}"
        self._writer.obstacles.tries(record)
        steps = [lambda: self._tell(record, changes, None if number else items)]
        if let_in and (record.held or record.eligible_s < now_s + _LEAST_LEASE_S):
            steps.append(lambda: self._writer.client.release(job_id))
        if not record.held and (len(steps) > 1 or not let_in):
            steps.insert(0, lambda: self._writer.tell_hold(job_id))  # it could start by itself, half changed
        try:
            self._writer.do(job_id, "start", words, *steps)
        except ActionRefused as error:
            in_room = replace(record, partition=room)
            raise ActionRefused(self._writer.start_refused(in_room, error), error.cause) from None
        if let_in:
            self._writer.put(structs.replace(self._writer.notes[job_id], released=True))
        else:  # told what it gets, it is held until its GPUs are empty
            self._writer.put(structs.replace(self._writer.notes[job_id], claims=claims))
            self._empty(job_id, empties)
        self._given.append((action.partition, start.placement))
        self._note_start(job_id, start.placement, exact)
        if start.preempts:
            self._claims.began(record, start, self._facts)

    def _empty(self, job_id: str, victims: Sequence[SlurmJob]) -> None:
        """Requeue the jobs in slots on the GPUs that this job gets. If one cannot be requeued, the job waits
        again."""
        try:
            for victim in victims:
                note = self._note(victim, self._writer.notes.get(victim.id))
                self._stops.victim(victim, note, self._facts.now_s)
        except ActionRefused:
            self._writer.put(structs.replace(self._writer.notes[job_id], where="", claims=""))
            raise

    def _items(self, record: SlurmJob, start: Start) -> Items | None:
        """The items for the prolog; ``None`` where the node is not known, and the start is refused anyway."""
        (part,) = start.placement
        node = next((node for node in self._facts.nodes if node.name == part.node), None)
        if node is None:
            return None
        fence = memory_limit_mib(self._known.profile_of(record), gpu_mem_mib(node, self._daemon))
        speed = None if start.speeds is None else start.speeds[0]
        places, numbers = tuple(part.gpus), node.gpu_numbers
        devices = tuple(numbers[place] for place in places if place < len(numbers))
        return Items(
            part.node,
            places,
            fence,
            speed,
            takes_turns(record),
            self._daemon.mps,
            () if devices == places else devices,
        )

    def _tell(self, record: SlurmJob, changes: Changes, late: Items | None) -> None:
        """Write a start into Slurm. ``late``: items still to be sealed for a task of an array, which has a number of
        its own only once it was changed."""
        self._writer.client.update(record.id, changes)
        if late is not None and free_extra(record.extra):
            with suppress(ActionRefused):  # it then starts without MPS
                extra, _ = sealed(self._writer.client, record, self._writer.client.number(record.id), late)
                self._writer.client.update(record.id, Changes(extra=extra))

    def _partner(self, job_id: str, start: Start) -> None:
        other = self._jobs.get(start.beside or "")
        if (
            other is None
            or other.state != "RUNNING"
            or other.completing
            or not other.request.shards
            or tuple(sorted(other.placement)) != tuple(sorted(start.placement))
        ):
            raise _waits(job_id, f"{start.beside} does not run on slots of these GPUs", Refusal.PARTNER_GONE)

    def _members(self, job_id: str, group: Sequence[str], placement: Placement) -> None:
        """Check that each member runs on slots of these GPUs, or is about to start there; and that each takes
        turns."""
        for other_id in group:
            other, note = self._jobs.get(other_id), self._writer.notes.get(other_id)
            if other is None or other.completing or other.ended:
                raise _waits(job_id, f"job {other_id}, a member of its group, has left", Refusal.PARTNER_GONE)
            if not takes_turns(other):
                words = f"the user of {other_id} did not opt in to take turns (lucid:turns)"
                raise _waits(job_id, words, Refusal.PARTNER_GONE)
            if other_id == job_id:
                continue
            # one that was told to start, now or before, is where its note says
            told = note is not None and note.shards and note.where and other.pending
            where = parse_placement(note.where) if told and note is not None else other.placement
            if tuple(sorted(where)) == tuple(sorted(placement)) and (told or other.request.shards):
                continue
            if told or not self._writer.ownership.decides(other, note, self._facts):
                words = f"{other_id} of its group does not run on slots of these GPUs"
                raise _waits(job_id, words, Refusal.PARTNER_GONE)

    def _regroup(self, record: SlurmJob, decision: Regroup) -> None:
        """Note that others join a job where it runs. Slurm has nothing to do for that, and nobody is moved."""
        if not record.running or record.completing:
            raise ActionRefused(f"job {record.id} is not running", Refusal.JOB_MOVED_ON)
        if tuple(sorted(record.placement)) != tuple(sorted(decision.placement)):
            raise ActionRefused(f"job {record.id}: no running job is moved to another group's GPUs")
        self._members(record.id, decision.group, decision.placement)
        self._writer.do(record.id, "regroup", f"takes turns with {_others(decision.group, record.id)}")

    def _requeue(self, record: SlurmJob, note: JobNote | None, decision: Requeue) -> None:
        if not record.running or record.completing:
            raise ActionRefused(f"job {record.id} is not running", Refusal.JOB_MOVED_ON)
        note = self._note(record, note)
        note = structs.replace(note, alone=note.alone or decision.part)
        self._stops.put_back(record, note, "part" if decision.part else "requeue", self._facts.now_s)

    def _end_profiling(self, record: SlurmJob, note: JobNote | None, room: str) -> None:
        profiling = self._daemon.profiling_partition
        at_work = record.running and record.partition == profiling
        waits = self._writer.ownership.decides(record, note, self._facts) and not (note is not None and note.to_home)
        if not at_work and not (room == profiling and waits):
            raise ActionRefused(f"job {record.id} is not in profiling", Refusal.JOB_MOVED_ON)
        note = structs.replace(self._note(record, note), to_home=True)
        if record.running:
            self._stops.put_back(record, note, "release", self._facts.now_s)
        else:
            self._writer.put(structs.replace(note, wait_since_s=self._facts.now_s))

    def _resize(self, record: SlurmJob, note: JobNote | None, decision: Resize) -> None:
        self._stops.unless_unheard(record)
        self._stops.unless_configuring(record)
        if elastic_request(record.comment).limits is None:
            raise ActionRefused(
                f"job {record.id}: its user did not opt in to be resized (lucid:elastic=)", Refusal.JOB_MOVED_ON
            )
        self._unless_kept(record.id, decision.placement)
        self.resizes.begin(record, self._note(record, note), decision.placement, decision.batch)
        self._leaving[record.id] = record.placement

    def _keep(self, record: SlurmJob, note: JobNote | None) -> None:
        if not record.running:
            raise ActionRefused(f"job {record.id} is not running", Refusal.JOB_MOVED_ON)
        note = self._note(record, note)
        self._writer.do(record.id, "keep", show_placement(record.placement))
        self._writer.put(structs.replace(note, kept=True))

    def _note_start(self, job_id: str, placement: Placement, exact: bool) -> None:
        for part in placement:
            self._starting.setdefault(part.node, {})[exact] = job_id


def _others(group: Sequence[str], job_id: str) -> str:
    """The other members of a job's group."""
    return " ".join(other for other in group if other != job_id)
