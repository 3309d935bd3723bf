"""Starts that preempt others: what is under way, which jobs Slurm stopped in the end, and GPUs emptied by Lucid.

A job for whose GPUs Lucid stops jobs in slots is held until these have left. Released sooner, it would have Slurm
preempt whichever job comes first on the node."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from msgspec import structs

from lucid.core.decision import Start
from lucid.core.job import Running
from lucid.core.placement import NodeGpus, Placement, parse_placement, show_placement
from lucid.errors import ActionRefused
from lucid.places import Mode
from lucid.slurm.act.write import ONE_JOB, JobWriter
from lucid.slurm.own.state import JobState
from lucid.slurm.own.waits import left_to_slurm, to_come
from lucid.slurm.records.job import SlurmJob
from lucid.slurm.view.observation import Observation
from lucid.store.port import JobNote

_GOES_S = 300.0
"""How long a job may take to leave its GPUs once Slurm has stopped it (epilogs, processes that do not end)."""


class Claimed:
    """GPUs that jobs are about to take from others, as a poll shows them. Each belongs to the job that claims it; a
    job that leaves keeps only the rest until it is gone."""

    def __init__(self) -> None:
        self.ids: set[str] = set()
        self._masks: dict[str, int] = defaultdict(int)

    def add(self, placement: Placement, victims: str) -> None:
        """Add a start under way. ``victims``: the ids of the jobs that are to give way to it."""
        self.ids.update(victims.split())
        for part in placement:
            self._masks[part.node] |= part.mask

    def without(self, entries: Sequence[Running]) -> list[Running]:
        """The running jobs, those that leave on their remaining GPUs, where nobody joins them; jobs with no GPUs left
        are left out."""
        if not self.ids:
            return list(entries)
        found = []
        for entry in entries:
            if entry.job.id in self.ids:
                parts = [NodeGpus(part.node, part.mask & ~self._masks.get(part.node, 0)) for part in entry.placement]
                entry = replace(entry, placement=tuple(part for part in parts if part.mask), alone=True)
            if entry.placement or entry.job.id not in self.ids:
                found.append(entry)
        return found


def as_seen_by(name: str, entry: Running, record: SlurmJob, claimed: Claimed, facts: Observation) -> Running:
    """A running job as jobs of partition ``name`` see it. They join no job of another partition that they may
    preempt, nor one that may preempt them."""
    pool, preemption = facts.pool, facts.preemption
    vcs = (*pool.quotas, name) if pool is not None and name == pool.name else (name,)
    yields = preemption.yields(record, vcs) if record.running else None
    if yields is None:
        return replace(entry, alone=True) if preemption.over(entry.job.vc, name) else entry
    alone = entry.alone or entry.job.vc not in vcs
    return replace(entry, alone=alone, yields=replace(yields, going=record.completing or record.id in claimed.ids))


class ClaimWatch:
    """Follows the starts that preempt others. ``_seen``: by job, the jobs on its nodes that could be preempted for it
    and are chosen for no other, with their numbers of restarts. ``_chosen``: those that Lucid chose. A restarted
    lucidd no longer knows them."""

    def __init__(self, writer: JobWriter) -> None:
        self._writer = writer
        self._seen: dict[str, dict[str, int]] = {}
        self._chosen: dict[str, tuple[str, ...]] = {}

    def began(self, record: SlurmJob, start: Start, facts: Observation) -> None:
        """Note, in the story of each, that Slurm was asked to start a job on others' GPUs."""
        nodes, vc = {part.node for part in start.placement}, self._writer.ownership.home(record, None)
        under_way = {other for other in self._seen if (known := self._writer.notes.get(other)) and known.claims}
        self._seen = {other: seen for other, seen in self._seen.items() if other in under_way}
        self._chosen = {other: chosen for other, chosen in self._chosen.items() if other in under_way}
        for other, seen in self._seen.items():
            for victim in set(start.preempts).difference(self._chosen[other]):
                seen.pop(victim, None)
        theirs = {victim for chosen in self._chosen.values() for victim in chosen}.difference(start.preempts)
        self._chosen[record.id] = start.preempts
        self._seen[record.id] = {
            job.id: job.restarts
            for job in facts.jobs
            if job.running and facts.preemption.yields(job, (vc,)) and any(p.node in nodes for p in job.placement)
            if job.id not in theirs
        }
        lost_gpu_s = dict(zip(start.preempts, start.lost_gpu_s, strict=False))  # another's policy may not say it
        for victim in start.preempts:
            rule = f"of all that would do, it loses least ({lost_gpu_s.get(victim, 0.0) / 3600.0:.2f} GPU-hours)"
            words = f"by job {record.id} of {vc}, which gets {show_placement(start.placement)}: {rule}"
            self._writer.note_seen(victim, "claimed", words)

    def lucid_stops(self, record: SlurmJob, home: str, facts: Observation) -> bool:
        """Whether Lucid requeues this victim of a job of ``home``: it does where the victim runs in slots, for of
        these Slurm preempts the wrong ones (docs/site.md)."""
        mine = record.request.shards and self._writer.ownership.ours(record)
        runs = record.state == "RUNNING" and not record.completing
        return mine and runs and facts.preemption.lets_lucid(record, (home,))

    def emptied(self, record: SlurmJob, note: JobNote, jobs: Mapping[str, SlurmJob], facts: Observation) -> bool:
        """Whether the jobs have left that Lucid stopped for this one, and those that were leaving already."""
        home = self._writer.ownership.home(record, note)
        where, victims = parse_placement(note.where), (jobs[name] for name in note.claims.split() if name in jobs)
        return not any(
            victim.completing or (common_gpus(where, victim.placement) and self.lucid_stops(victim, home, facts))
            for victim in victims
        )

    def keeps_off(self, record: SlurmJob, facts: Observation) -> bool:
        """Whether GPUs are being emptied for a job that may preempt this one, which would start there if released
        now, and be preempted."""
        homes = {note.home for note in facts.notes.values() if note.claims and not note.released}
        return any(home == record.partition or facts.preemption.over(home, record.partition) for home in homes)

    def waits(self, note: JobNote, jobs: Mapping[str, SlurmJob], facts: Observation) -> bool:
        """Whether a start that preempts others still has to wait for these to leave: within the grace time of their
        partitions, and while Slurm is stopping them."""
        victims = [jobs[victim] for victim in note.claims.split() if victim in jobs and jobs[victim].running]
        if not victims:
            return False
        going = any(job.completing for job in victims)
        most_s = _GOES_S if going else max(facts.preemption.grace_of(job) for job in victims)
        if " " in note.claims:  # of several Slurm may stop one, and the next only then
            most_s += facts.preemption.again_s
        since_s, most_s = max(note.asked_s, self._writer.silent_s), most_s + self._writer.settings.start_grace_s
        return to_come(since_s + most_s, facts.now_s, most_s)

    def parted(self, record: SlurmJob, note: JobNote, facts: Observation) -> None:
        """Note that Slurm requeued a job by itself: the jobs that shared its GPUs go on alone, with the reason in
        their stories."""
        where = tuple(sorted(parse_placement(note.where)))
        for job in facts.jobs if note.shards else ():
            if job.running and not job.completing and job.request.shards and tuple(sorted(job.placement)) == where:
                self._writer.note_seen(job.id, "alone", f"on its GPUs, since Slurm requeued its partner {record.id}")

    def ran(self, record: SlurmJob, note: JobNote, jobs: Mapping[str, SlurmJob]) -> str:
        """Note, in its story and in theirs, which jobs Slurm stopped for the job that now runs; returns that in
        words."""
        chosen, seen = note.claims.split(), self._seen.pop(record.id, {})
        self._chosen.pop(record.id, None)
        stopped = [job_id for job_id, restarts in seen.items() if _stopped(jobs.get(job_id), restarts)]
        if not seen:  # lucidd was started anew meanwhile
            stopped = [job_id for job_id in chosen if job_id not in jobs or not jobs[job_id].ended]
        others, spared = _others(stopped, chosen), _others(chosen, stopped)
        for job_id in stopped:
            self._writer.note_seen(job_id, "preempted", f"for job {record.id}")
        words = f"{' '.join(stopped)} for its GPUs" if stopped else "no job for its GPUs"
        if others or spared:
            words += f"; Lucid had chosen {' '.join(chosen)}"
        self._writer.note_seen(record.id, "preempts", words)
        self._writer.put(structs.replace(note, claims=""))
        if not others:
            return ""
        return f"job {record.id}: Slurm preempted {' '.join(others)}, which Lucid had not chosen"


def common_gpus(one: Placement, other: Placement) -> bool:
    """Whether two placements have a GPU in common."""
    masks = dict(one)
    return any(masks.get(part.node, 0) & part.mask for part in other)


def _stopped(record: SlurmJob | None, restarts: int) -> bool:
    """Whether the job was preempted; false for one that ended by itself meanwhile."""
    return record is not None and (record.restarts > restarts or record.state == "PREEMPTED")


def _others(some: Iterable[str], than: Sequence[str]) -> list[str]:
    return [job_id for job_id in some if job_id not in than]


class Emptied:
    """The last step of a start on GPUs that Lucid empties. ``take_back``: gives a job back the request that its user
    wrote."""

    def __init__(self, writer: JobWriter, claims: ClaimWatch, take_back: Callable[[SlurmJob, JobNote], None]) -> None:
        self._writer = writer
        self._claims = claims
        self._take_back = take_back

    def let_all_in(self, facts: Observation) -> None:
        """Release the jobs whose GPUs are empty by now."""
        writer, jobs = self._writer, dict[str, SlurmJob]()
        for note in [note for note in writer.notes.values() if note.claims and not note.released]:
            jobs = jobs or {job.id: job for job in facts.jobs}
            record = jobs.get(note.job_id)
            if record is None or writer.full(ONE_JOB, start=True):
                continue
            if writer.ownership.state(record, note, facts.now_s) is not JobState.EMPTYING:
                continue
            packs = facts.modes.get(writer.ownership.home(record, note)) is Mode.PACK
            if packs and self._claims.emptied(record, note, jobs, facts):
                with suppress(ActionRefused):
                    self.let_in(record, note, jobs, facts)

    def let_in(self, record: SlurmJob, note: JobNote, jobs: Mapping[str, SlurmJob], facts: Observation) -> str:
        """The next step of one job, in words; empty where it has only to wait."""
        writer, ownership = self._writer, self._writer.ownership
        changed = ownership.leaves(record) or ownership.waits_for(record, note, facts.now_s)
        if changed or left_to_slurm(record):
            self._take_back(record, note)
            return f"job {record.id}: is not let to its GPUs, its user has changed it"
        if self._claims.emptied(record, note, jobs, facts):
            where, others = parse_placement(note.where), (job for job in facts.jobs if job.running)
            if any(common_gpus(where, job.placement) for job in others if job.id not in note.claims.split()):
                self._take_back(record, note)
                return f"job {record.id}: another job has come to the GPUs that were emptied for it"
            return self._released(record, note)
        if self._claims.waits(note, jobs, facts):
            return ""
        self._take_back(record, note)
        return writer.not_started(record, "those in slots have not left its GPUs")

    def _released(self, record: SlurmJob, note: JobNote) -> str:
        writer = self._writer
        try:
            writer.do(record.id, "let in", note.where, lambda: writer.client.release(record.id))
        except ActionRefused as error:
            return writer.start_refused(record, error)
        writer.put(structs.replace(note, released=True, asked_s=writer.clock.now_s()))
        return ""
