"""``Repair``: puts right what a poll shows to be wrong with jobs; and lucid-release's list of released jobs.

lucid-release leaves a list in ``daemon.state_dir``, where no user writes, of the jobs that it released while no
lucidd decided: a lucidd that comes back holds those again that still wait."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from lucid.errors import ClusterUnavailable, LucidError, StoreError
from lucid.places import Mode
from lucid.slurm.act.changes import back_to
from lucid.slurm.act.preempt import ClaimWatch, Emptied
from lucid.slurm.act.write import GIVEN_UP, ONE_JOB, JobWriter, LeaseRenewal, paused
from lucid.slurm.client import Changes
from lucid.slurm.elastic.resize import Resizes
from lucid.slurm.own.reasons import CROWDED, NOT_IN_TIME, Outlook, may_end, may_start, outlook, whose_limit
from lucid.slurm.own.release import CpuStarvation, HoldOrder, Releases
from lucid.slurm.own.state import ASSIGNED, JobState
from lucid.slurm.own.waits import (
    LEASE_S,
    begins_s,
    in_queue,
    left_to_slurm,
    never_changed,
    next_lease_s,
    parked,
    to_come,
    whole_array,
)
from lucid.slurm.records.fields import says
from lucid.slurm.records.job import SlurmJob
from lucid.slurm.view.observation import Observation
from lucid.store.port import GivenUp, JobNote

_MOST = 4 << 20
_LINE = re.compile(rb"^([0-9]{1,12}) ([0-9]{1,9}) [0-9]{1,12}$", re.MULTILINE)


class Released:
    """Reads lucid-release's list when it has changed: a number, a count of restarts and a time per job. Anything else
    in it is passed over, and a list that cannot be read counts as none."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "released"
        self._seen: tuple[int, int, int] | None = None
        self._jobs: set[tuple[int, int]] = set()
        self.settled = False
        """Whether the list has not changed since the previous poll. What Slurm shows now is newer than such a list;
        but lucid-release, maybe on another host, may still be writing one that has changed."""

    def read(self) -> bool:
        """Read the list; returns whether there is one."""
        try:
            seen = self._stat()
            self.settled = seen == self._seen
            if not self.settled:
                with self.path.open("rb") as file:
                    text = file.read(_MOST)
                self._jobs = {(int(number), int(restarts)) for number, restarts in _LINE.findall(text)}
                self._seen = seen
        except OSError:
            self._jobs, self._seen, self.settled = set(), None, False
        return bool(self._jobs)

    def has(self, record: SlurmJob) -> bool:
        """Whether this job, or its array, was released by lucid-release, and has not been started and put back
        since."""
        base = record.id.partition("_")[0]
        numbers = {record.number, int(base) if base.isdecimal() else -1}
        return any((number, record.restarts) in self._jobs for number in numbers)

    def done(self) -> None:
        """Remove the list, since nothing of it is left to do. A list that has grown since the last poll stays."""
        with suppress(OSError):
            if self._stat() == self._seen:
                self.path.unlink(missing_ok=True)
                self._jobs = set()

    def _stat(self) -> tuple[int, int, int]:
        stat = self.path.stat()
        return stat.st_ino, stat.st_mtime_ns, stat.st_size


_FIRST_S, _MOST_S = 1.0, 300.0


def _since(note: JobNote | None) -> float:
    return 0.0 if note is None else note.wait_since_s


def _place(record: SlurmJob) -> tuple[int, str]:
    return record.number, record.id


class Repair:
    """Takes back starts that did not come about; releases jobs that Slurm does not start as asked, that their user
    wants out, or whose partition is no longer packed; gives back changed requests of jobs that somebody else holds,
    or that wait again."""

    def __init__(self, writer: JobWriter, released: Released, claims: ClaimWatch) -> None:
        """``released``: the jobs that lucid-release released while no lucidd decided. ``claims``: the starts that
        preempt others."""
        self._writer = writer
        self._claims = claims
        self.emptied = Emptied(writer, self._claims, self._take_back)
        """Jobs that are held until others have left their GPUs."""
        self._jobs: Mapping[str, SlurmJob] = {}
        self._hold_order: HoldOrder | None = None
        self._cpu_starvation = CpuStarvation(writer.settings.start_grace_s)
        self._crowded: frozenset[str] = frozenset()
        self._released = released
        self._resizes = Resizes(writer)
        self._taken = 0
        self._leases = LeaseRenewal(writer)
        self._later: dict[str, tuple[float, float]] = {}
        """Jobs for which Slurm declined a change: the earliest time to try again, and how long to wait after that."""
        self._served: tuple[int, str] | None = None
        """The last job that the previous round reached, if the cap on writes ended it."""

    def mend(self, facts: Observation) -> list[str]:
        """One round over all jobs, within the cap on writes; returns what was done, in words."""
        done: list[str] = []
        self._hold_order = None
        self._leases.due.clear()
        self._go = Releases(self._writer.ownership, facts)
        self._crowded = self._cpu_starvation.observe(self._writer.ownership, facts)
        self._taken, listed, whole = 0, self._released.read(), True
        self._jobs = {job.id: job for job in facts.jobs} if facts.preemption.by else {}
        if self._later:
            there = {job.id for job in facts.jobs}
            self._later = {job_id: later for job_id, later in self._later.items() if job_id in there}
        jobs, served, self._served = self._in_order(facts.jobs), self._served, None
        for record in jobs:
            if self._writer.full(ONE_JOB):
                self._served, whole = served, False
                break
            served = _place(record)
            if record.id in self._writer.touched:
                continue
            not_before_s, pause_s = self._later.get(record.id, (0.0, _FIRST_S))
            if to_come(not_before_s, facts.now_s, pause_s):
                continue
            try:
                words = self._mend(record, self._writer.notes.get(record.id), facts)
                self._later.pop(record.id, None)
            except (ClusterUnavailable, StoreError):
                raise
            except Exception as error:  # one job never keeps lucidd from the others
                self._later[record.id] = (facts.now_s + pause_s, min(pause_s * 2, _MOST_S))
                said = f"{error}" if isinstance(error, LucidError) else f"{type(error).__name__}: {error}"
                words = f"job {record.id}: cannot be repaired yet ({said})"
            if words:
                done.append(words)
        done += self._leases.renew()
        if listed and whole and not self._taken and self._released.settled:
            self._released.done()
        return done

    def _in_order(self, jobs: Sequence[SlurmJob]) -> Sequence[SlurmJob]:
        """The jobs, those after the last one served first where the previous round did not reach the end."""
        if self._served is None:
            return jobs
        ordered = sorted(jobs, key=_place)
        begin = bisect_right(ordered, self._served, key=_place)
        return [*ordered[begin:], *ordered[:begin]]

    def _mend(self, record: SlurmJob, note: JobNote | None, facts: Observation) -> str:
        writer, ownership = self._writer, self._writer.ownership
        packs = facts.modes.get(ownership.home(record, note)) is Mode.PACK
        if note is not None and note.going_to:
            return self._resizes.go_on(record, note, facts, packs)
        if record.state == "RUNNING" and note is not None and note.stopped_s and note.where:
            self._resizes.went_on(record, note)
            note = writer.notes[record.id]
        if record.state == "RUNNING" and note is not None and note.where:
            # its nodes have booted, and have taken it
            settled = not record.configuring and facts.now_s - record.start_s >= writer.settings.start_grace_s
            if not note.released or (note.tries and settled):
                # killed between telling Slurm and noting that it had taken it; and what was refused before is over
                tries, refusal = (0, "") if settled else (note.tries, note.refusal)
                writer.put(structs.replace(note, released=True, tries=tries, refusal=refusal))
            if note.claims:
                return self._claims.ran(record, writer.notes[record.id], self._jobs)
        if not record.pending or not record.asks or not ownership.ours(record):
            return ""
        state = ownership.state(record, note, facts.now_s)
        if note is not None and state in ASSIGNED:
            return self._under_way(record, note, facts, packs)
        if not record.held:
            queues = packs and not record.reservation
            words = self._parked(record, note, facts) if queues else self._unparked(record, note, facts.now_s)
            words = words or self._comes_back(record, note, facts, packs)
            if words or record.id in writer.touched:  # what was seen of it is not so any more
                return words
        if state is JobState.QUEUED:
            return self._held(record, note, facts)
        told = record.request.shards or record.request.addressed  # to start, as a store knew that is lost
        if not record.held and (not told or says(record.comment, "held")):
            return self._taken_up(record, note, packs)
        return self._restored(record, note)  # its user or an administrator may hold it

    def _taken_up(self, record: SlurmJob, note: JobNote | None, packs: bool) -> str:
        """Hold a job again that lucid-release released while no lucidd decided, and that still waits, unless its user
        wants it out or Slurm did not start it as Lucid asked."""
        writer = self._writer
        if not packs or not self._released.has(record) or (note is not None and note.given_up):
            return ""
        if says(record.comment, "held") or writer.ownership.leaves(record):
            return ""
        writer.do(record.id, "take up", "lucid-release had let it go", lambda: writer.tell_hold(record.id))
        if note is not None:
            writer.put(structs.replace(note, where="", released=False, shards=False, restarts=record.restarts))
        self._taken += 1
        return f"job {record.id}: held again: lucid-release had let it go while no lucidd ran"

    def _comes_back(self, record: SlurmJob, note: JobNote | None, facts: Observation, packs: bool) -> str:
        """Queue a job again, at its old place, that was released for a reason outside of it, once that has ended.
        Slurm's reason has ended when Slurm no longer names it; then the job is tried once."""
        writer, now_s = self._writer, facts.now_s
        if not packs or note is None or not (note.given_up and note.released and may_end(note)):
            return ""
        if note.given_up_for is GivenUp.SLURM:
            ended = not paused(note, now_s) and outlook(record.reason) is Outlook.WAITS and not left_to_slurm(record)
        else:
            ended = self._go.ended(record, note)
        if not ended or says(record.comment, "held") or writer.ownership.leaves(record):
            return ""
        why, begin_s, target = note.given_up, begins_s(record, note, now_s), whole_array(record)
        writer.do(record.id, "take up", f"may have ended: {why}", lambda: writer.tell_hold(target, begin_s))
        writer.put(
            structs.replace(
                note, given_up="", given_up_for=None, retry_s=0.0, released=False, restarts=record.restarts
            )
        )
        if target != record.id:
            writer.touched.update(one.id for one in facts.jobs if whole_array(one) == target)
        return f"job {target}: held again: what kept it from starting may have ended ({why})"

    def _held(self, record: SlurmJob, note: JobNote | None, facts: Observation) -> str:
        """Mend a job that Lucid holds."""
        writer = self._writer
        if note is not None and note.released and record.never_runs:
            for_good = note.given_up or left_to_slurm(record)
            return writer.never_runs(record) if for_good else writer.not_started(record, record.reason)
        if note is not None and note.released and record.launch_failed:
            return writer.not_started(record, "a node did not take it: launch failed")
        if note is not None and self._go.ended(record, note):  # before Slurm was told, or it was parked meanwhile
            note = structs.replace(note, given_up="", given_up_for=None, released=False, restarts=record.restarts)
            writer.put(note)
        unpacked = self._go.unpacked(record, note)
        why = unpacked or writer.ownership.leaves(record)
        if not why and note is not None and note.given_up and not note.released:
            if record.never_runs and paused(note, facts.now_s):
                return ""
            why = f"{GIVEN_UP} {note.tries} times as Lucid asked ({note.given_up})" if note.tries else note.given_up
        if why:
            if unpacked:
                writer.give_up(record, note, why, GivenUp.UNPACKED)
            writer.release(record, why)
            return f"job {record.id}: let go as its user wrote it, {why}"
        return (
            self._queued(record, note, facts) or self._kept_out(record, note, facts) or self._restored(record, note)
        )

    def _parked(self, record: SlurmJob, note: JobNote | None, facts: Observation) -> str:
        """Mend a job that is not held, and that waits for its turn, for other jobs, or no longer for those. A job
        that was released at its turn and has been requeued since queues again."""
        writer, now_s = self._writer, facts.now_s
        if note is not None and note.released and in_queue(record, note):
            # a begin time is in seconds: that of a release can be the one at which its lease was to end
            if not parked(record, note, now_s):
                return ""
            writer.put(structs.replace(note, released=False))
            return f"job {record.id}: queues again, since Slurm has it as it was before its release"
        if record.dependency or in_queue(record, note):
            until_s = next_lease_s(record, note, now_s)
            if not until_s:
                return ""
            first = record.dependency and not parked(record, note, now_s)
            if not first and self._leases.takes(record, until_s):
                writer.touched.add(record.id)  # what comes next in this round would go by the old lease
                return ""
            writer.park(record, until_s)
            return f"job {record.id}: has a dependency, and queues when Slurm has ended that" if first else ""
        known = note or JobNote(record.id)
        ahead = record.eligible_s > now_s and not known.given_up
        again = record.restarts > known.restarts and (left_to_slurm(record) or ahead)
        begin_s = max(begins_s(record, note, now_s), _since(note))
        if parked(record, note, now_s):
            array = record.id.partition("_")[0] if "_" in record.id else ""
            if array and not record.restarts:  # task by task, Slurm would make a record of each
                tasks = [one for one in facts.jobs if one.id.partition("_")[0] == array and not one.ended]
                whole = all(parked(one, writer.notes.get(one.id), now_s) for one in tasks)
                target, ahead_s = array if whole else record.id, begin_s if begin_s > now_s else 0.0
                words = f"{target} waits until Lucid starts it"
                writer.do(record.id, "hold", words, lambda: writer.tell_hold(target, ahead_s))
                writer.touched.update(one.id for one in tasks if whole)
                return f"job {target}: held until Lucid starts it"
        elif not again and not (begin_s > now_s and not known.released):
            return ""
        writer.take_over(record, begin_s)
        return f"job {record.id}: queues from now on"

    def _unparked(self, record: SlurmJob, note: JobNote | None, now_s: float) -> str:
        """Give a job of a partition where no job queues (any more) its user's begin time back."""
        if not parked(record, note, now_s):
            return ""
        begin_s = begins_s(record, note, now_s)
        if begin_s == record.eligible_s:
            return ""
        back = Changes(start_at_s=begin_s) if begin_s else Changes(start_now=True)
        if why := self._go.unpacked(record, note):
            known = note or JobNote(record.id, submit_s=record.submit_s)
            self._writer.put(
                structs.replace(
                    known, given_up=why, given_up_for=GivenUp.UNPACKED, released=True, restarts=record.restarts
                )
            )
        self._writer.do(record.id, "restore", "its begin time", lambda: self._writer.client.update(record.id, back))
        return f"job {record.id}: given back its begin time"

    def _queued(self, record: SlurmJob, note: JobNote | None, facts: Observation) -> str:
        """Mend a job that Lucid holds, and that is not in the queue, or is in it as one that only Slurm can work
        out."""
        writer, now_s = self._writer, facts.now_s
        begin_s = begins_s(record, note, now_s)
        if begin_s != (_since(note) if _since(note) > now_s else 0.0):
            # its wait begins then; in the past, should its user have thought better of it
            known = note or JobNote(record.id, submit_s=record.submit_s)
            writer.put(structs.replace(known, wait_since_s=begin_s or now_s))
        if record.dependency:
            writer.park(record, next_lease_s(record, note, now_s) or now_s + LEASE_S)
            return f"job {record.id}: has a dependency, and queues when Slurm has ended that"
        why = left_to_slurm(record) or self._go.no_node(record, note)
        if begin_s or not why or (record.never_runs and note is not None and paused(note, now_s)):
            return ""
        if self._claims.keeps_off(record, facts):
            return ""
        self._hold_order = self._hold_order or HoldOrder(writer.ownership, facts)
        if self._hold_order.before(record, note):
            return ""
        if not left_to_slurm(record):
            writer.give_up(record, note, why, GivenUp.NO_NODE)
        writer.release(record, f"no earlier job needs as few GPUs, and {why}")
        return f"job {record.id}: let go at its turn as its user wrote it: {why}"

    def _kept_out(self, record: SlurmJob, note: JobNote | None, facts: Observation) -> str:
        """Release a job that jobs without GPUs have kept from its CPUs or memory for too long, or that no quota
        allows for."""
        writer, crowded = self._writer, record.id in self._crowded
        why = CROWDED if crowded else self._go.over_quota(record, note)
        if not why or not (crowded or writer.ownership.decides(record, note, facts)):
            return ""
        writer.give_up(record, note, why, GivenUp.CROWDED if crowded else GivenUp.QUOTA)
        writer.release(record, why)
        if crowded:
            self._cpu_starvation.went(writer.ownership.home(record, note), record.id, facts.now_s)
        return f"job {record.id}: let go as its user wrote it: {why}"

    def _restored(self, record: SlurmJob, note: JobNote | None) -> str:
        writer = self._writer
        if record.unread:
            return ""  # what it asks for now is not known
        if note is not None and note.where:
            writer.put(structs.replace(note, where="", shards=False))
        back = None if never_changed(record) else back_to(record, note)
        if back is None:
            return ""
        begin_s = begins_s(record, note, writer.clock.now_s())
        if begin_s:  # said in the same update, or job_submit.lua takes that for its user's change of the job's size
            back = replace(back, start_now=False, start_at_s=begin_s)
        steps = [lambda: writer.client.update(record.id, back)]
        if not record.held:
            steps.insert(0, lambda: writer.tell_hold(record.id))  # that update says 'start now'
        writer.do(record.id, "restore", "", *steps)
        return f"job {record.id}: given back the request that its user wrote"

    def _under_way(self, record: SlurmJob, note: JobNote, facts: Observation, packs: bool) -> str:
        """Mend a job that was released to start and has not started."""
        writer = self._writer
        if not packs:
            changes = back_to(record, note)
            if writer.away(record):
                changes = replace(changes or Changes(), partition=writer.ownership.home(record, note))
            if changes is not None:
                writer.do(record.id, "restore", "", lambda: writer.client.update(record.id, changes))
            why = self._go.unpacked(record, note)
            writer.put(
                structs.replace(
                    note, where="", shards=False, released=True, given_up=why, given_up_for=GivenUp.UNPACKED
                )
            )
            return f"job {record.id}: given back the request that its user wrote, its partition is not packed"
        if record.restarts != note.restarts:
            self._claims.parted(record, note, facts)
            self._take_back(record, note)
            return f"job {record.id}: was requeued, not by Lucid; waits again"
        if record.held:
            return self.emptied.let_in(record, note, self._jobs, facts)
        found = outlook(record.reason)
        # what was ordered while Slurm was silent says nothing about the job until Slurm has had its time
        since_s, grace_s = max(note.asked_s, writer.silent_s), writer.settings.start_grace_s
        late = not to_come(since_s + grace_s, facts.now_s, grace_s)
        if may_start(record) and (not late or self._claims.waits(note, self._jobs, facts)):
            return ""
        self._take_back(record, note)
        if found is Outlook.BARRED and (whose_limit(record.reason) or not writer.at_profiling(record)):
            smaller = self._resizes.smaller(record, note, facts.now_s)
            if smaller:
                return smaller
            writer.obstacles.met(record, record.reason, facts.now_s)
            return f"job {record.id}: Slurm does not start it now ({record.reason}); waits"
        if found is Outlook.WAITS:
            home = replace(record, partition=writer.ownership.home(record, note))
            writer.obstacles.met(home, NOT_IN_TIME, facts.now_s)
        return writer.not_started(record, record.reason or "no reason given")

    def _take_back(self, record: SlurmJob, note: JobNote) -> None:
        writer = self._writer
        begin_s = begins_s(record, note, writer.clock.now_s())  # as Slurm sets it for a job that it requeues
        words = f"{note.where} (Slurm: {record.reason})"
        writer.do(record.id, "take back", words, lambda: writer.tell_hold(record.id, begin_s))
        note = structs.replace(note, where="", released=False, shards=False, restarts=record.restarts, claims="")
        writer.put(note)
        changes = back_to(record, note)
        if changes is not None:
            # that it says when it starts tells job_submit.lua that no user changed the job's size
            changes = replace(changes, start_now=not begin_s, start_at_s=begin_s or None)
            writer.do(record.id, "restore", "", lambda: writer.client.update(record.id, changes))
