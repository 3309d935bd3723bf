"""Carries out a resize: the job is requeued, held, and released onto its new GPUs once it has stopped.

Slurm sends SIGTERM to the batch script and its steps, and SIGKILL after KillWait. The job's new place is stored
before the job is stopped. If lucidd crashes, the next lucidd continues from that note."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from lucid.core.placement import Placement, parse_placement, placement_gpus, show_placement
from lucid.errors import ActionRefused, Refusal
from lucid.slurm.act.changes import start_changes
from lucid.slurm.act.prolog_extra import batch_item
from lucid.slurm.act.write import JobWriter
from lucid.slurm.elastic.opt_in import elastic_request
from lucid.slurm.own.reasons import of_one_job
from lucid.slurm.own.state import ASSIGNED
from lucid.slurm.records.job import SlurmJob
from lucid.slurm.records.request import NO_DEFAULTS
from lucid.slurm.view.observation import Observation, lists_of
from lucid.store.port import JobNote

LEAST_S = 2.0
"""The least time between the requeue and the start. A job of two nodes that started again within a second failed in 4
of 10 cases ('Job credential revoked'), after 2 s in none (24.11.5)."""
_TAKEN_S = 10.0
"""By then Slurm has taken a requeue, if it takes it at all."""
_BOUND_S = 3600.0
"""How long a job does not grow again past a size that a limit on several jobs together did not give. Each try stops
the job, so it is not tried at every end of another job."""


def leaving(job: SlurmJob, note: JobNote | None) -> Placement:
    """GPUs that a job which is being resized still holds."""
    if note is None or not note.going_to or not (job.running or job.completing):
        return ()
    return parse_placement(note.leaves)


def overlaps(a: Placement, b: Placement) -> bool:
    """Whether two placements have a node in common, since Slurm itself chooses the GPUs of a job on whole GPUs."""
    return not {part.node for part in a}.isdisjoint(part.node for part in b)


def uneven(placement: Placement) -> bool:
    """Whether the placement has different numbers of GPUs on its nodes."""
    return len({part.mask.bit_count() for part in placement}) > 1


class Resizes:
    """Requeues a job for a resize (``begin``), and starts it again when it has stopped (``go_on``)."""

    def __init__(self, writer: JobWriter) -> None:
        self._writer = writer

    def begin(
        self, record: SlurmJob, note: JobNote, placement: Placement, batch: tuple[int, int] | None = None
    ) -> None:
        """Ask Slurm to stop a running job, and note where it goes on. ``batch``: chosen for it there, as in
        ``Resize``.

        Raises: ActionRefused: the job does not run, or Slurm declined; then nothing is noted."""
        writer, now_s = self._writer, self._writer.clock.now_s()
        if record.state != "RUNNING" or record.completing:
            raise ActionRefused(f"job {record.id} is not running", Refusal.JOB_MOVED_ON)
        writer.listed(record.id)
        place, held = show_placement(placement), show_placement(record.placement)
        writer.put(
            replace(
                note,
                going_to=place,
                leaves=held,
                stopped_s=now_s,
                restarts=record.restarts,
                requeued=record.restarts + 1,
                ran_s=note.ran_s + max(now_s - record.start_s, 0.0),
                where="",
                released=False,
                shards=False,
            )
        )
        try:
            writer.do(record.id, "resize", f"{held} to {place}", lambda: writer.client.requeue_hold(record.id))
        except ActionRefused:
            writer.put(note)
            raise
        writer.batches[record.id] = "" if batch is None else batch_item(placement_gpus(placement), batch)

    def go_on(self, record: SlurmJob, note: JobNote, facts: Observation, packs: bool) -> str:
        """The next step of a job that is being resized, in words; empty where it has only to wait."""
        writer, now_s = self._writer, self._writer.clock.now_s()
        if record.ended or record.completing:
            return ""
        if not record.pending:
            if record.restarts == note.restarts and now_s - note.stopped_s < _TAKEN_S:
                return ""
            self._drop(note, note.wait_since_s)
            why = "Slurm did not take the requeue" if record.restarts == note.restarts else "it was started by others"
            return f"job {record.id}: is not resized: {why}"
        if not packs or not writer.ownership.holds(record, note) or writer.ownership.waits_for(record, note, now_s):
            self._drop(note, now_s)
            return f"job {record.id}: is not resized: it waits for something else now"
        placement = parse_placement(note.going_to)
        home = writer.ownership.home(record, note)
        if not {part.node for part in placement} <= {node.name for node in facts.nodes if home in node.partitions}:
            self._drop(note, now_s)
            return f"job {record.id}: is not resized: its partition {home} does not have the nodes that it was to get"
        others = (leaving(other, writer.notes.get(other.id)) for other in facts.jobs if other.id != record.id)
        if now_s - note.stopped_s < LEAST_S or any(overlaps(placement, held) for held in others):
            return ""
        if uneven(placement) and any(overlaps(placement, place) for place in self._first(record, facts)):
            return ""
        return self._start(record, note, placement, facts)

    def _first(self, record: SlurmJob, facts: Observation) -> Iterator[Placement]:
        """The placements of jobs that have to start before one with different numbers of GPUs on its nodes: Slurm
        deals those out by itself, and as planned only once nothing else is to come."""
        for other in facts.jobs:
            note = self._writer.notes.get(other.id)
            if other.id == record.id or other.ended or note is None:
                continue
            place = parse_placement(note.going_to)
            if place and (not uneven(place) or other.number < record.number):
                yield place
            elif self._writer.ownership.state(other, note, facts.now_s) in ASSIGNED:
                yield parse_placement(note.where)

    def _start(self, record: SlurmJob, note: JobNote, placement: Placement, facts: Observation) -> str:
        writer, place = self._writer, note.going_to
        home = writer.ownership.home(record, note)
        defaults = (facts.defaults or {}).get(home, NO_DEFAULTS)
        batch = writer.batches.pop(record.id, "")
        changes = start_changes(record, note, placement, False, home, facts.nodes, batch, defaults)
        writer.put(
            replace(
                note, going_to="", leaves="", where=place, asked_s=writer.clock.now_s(), released=False,
                restarts=record.restarts, listed=lists_of(record, note, changes.req_nodes),
            )
        )  # fmt: skip
        try:
            writer.do(
                record.id,
                "go on",
                f"{place}, resized",
                lambda: writer.client.update(record.id, changes),
                lambda: writer.client.release(record.id),
            )
        except ActionRefused as error:
            return writer.start_refused(record, error)
        writer.put(replace(writer.notes[record.id], released=True))
        return f"job {record.id}: goes on on {place}"

    def went_on(self, record: SlurmJob, note: JobNote) -> None:
        """Note that a resized job runs again: how long that took is the known cost of a restart."""
        took_s = max(record.start_s - note.stopped_s, 0.0)
        self._writer.put(replace(note, stopped_s=0.0, restart_s=took_s))

    def smaller(self, record: SlurmJob, note: JobNote, now_s: float) -> str:
        """Halve the most GPUs of an elastic job that a limit keeps from starting at this size, but not below what its
        user wrote as the least. Returns that in words; empty where it may not be smaller."""
        limits, tried = elastic_request(record.comment).limits, placement_gpus(parse_placement(note.where))
        if limits is None or "gpus" not in note.as_written or tried <= limits.min_gpus:
            return ""
        most, until_s = max(tried // 2, limits.min_gpus), 0.0 if of_one_job(record.reason) else now_s + _BOUND_S
        note = self._writer.notes[record.id]
        self._writer.put(replace(note, most_gpus=most, most_why=record.reason, most_until_s=until_s))
        return f"job {record.id}: Slurm does not start it on {tried} GPUs ({record.reason}); it gets at most {most}"

    def _drop(self, note: JobNote, since_s: float) -> None:
        """End the resize of a job that is an ordinary one again: it runs, or waits since ``since_s``."""
        self._writer.put(replace(note, going_to="", leaves="", stopped_s=0.0, wait_since_s=since_s))
