"""``JobWriter``: changes of jobs in Slurm, each noted in the store before and after; leases of parked jobs.

Plans (``act.apply``) and repairs (``act.repair``) both write through it. Leases are renewed many by one command:
after a burst thousands are due within minutes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from lucid.config.live import DaemonSettings, SlurmSettings
from lucid.core.ports import Clock
from lucid.core.times import doubled_s
from lucid.errors import ActionRefused, ClusterUnavailable, Refusal
from lucid.slurm.act.changes import back_to
from lucid.slurm.act.ours_list import OursList
from lucid.slurm.client import Changes
from lucid.slurm.commands import CommandClient
from lucid.slurm.own.reasons import Obstacles, with_cause
from lucid.slurm.own.state import Ownership
from lucid.slurm.own.waits import begins_s, left_to_slurm, never_changed, parked, to_come, whole_array
from lucid.slurm.records.job import SlurmJob
from lucid.slurm.records.request import NO_DEFAULTS, JobDefaults
from lucid.store.port import RELEASED, SEEN, GivenUp, JobNote
from lucid.store.sqlite import SqliteStore

_RETRY_S, _MOST_RETRY_S = 10.0, 600.0
_SILENT_S = 5.0
"""An answer that takes longer counts as silence."""
START_TRIES = 2
"""A job whose start Slurm refused, or did not bring about, so many times is released as its user wrote it: Slurm
alone decides about it from then on, or until a reason that lies outside of the job may have ended."""
_BACK_S, _MOST_BACK_S = 60.0, 3600.0
"""How long Slurm has for a released job before Lucid queues it again; doubled each further time, up to the second."""
ONE_JOB = 4
"""The most writes that one action on a job takes."""
GIVEN_UP = "Slurm did not start it"
"""The detail of a ``RELEASED`` where Slurm had refused to start the job as Lucid asked."""


def paused(note: JobNote, now_s: float) -> bool:
    """Whether a job whose start failed is not to be tried again yet. By no clock that was ahead."""
    first_s, times = (_BACK_S, note.tries - START_TRIES) if note.given_up else (_RETRY_S, note.tries)
    return to_come(note.retry_s, now_s, doubled_s(first_s, times, _MOST_BACK_S))


class JobWriter:
    """Writes changes of jobs, with the client, the store's notes, and the cap on writes of one cycle."""

    def __init__(
        self,
        client: CommandClient,
        store: SqliteStore,
        clock: Clock,
        settings: SlurmSettings,
        daemon: DaemonSettings,
        token: int,
        keeps_list: bool = False,
    ) -> None:
        """``token``: of the daemon's lease. ``keeps_list``: a job is only held once it is in the list of ours."""
        self.client = client
        self.store = store
        self.clock = clock
        self.settings = settings
        self.token = token
        self.rules: Mapping[str, JobDefaults] = {}
        """JobDefaults by partition, which say whether its jobs may start at all."""
        self.notes = {job_id: with_cause(note) for job_id, note in store.notes().items()}
        self.obstacles = Obstacles()
        self.ownership = Ownership(daemon, self.barred)
        self.ours = OursList(Path(daemon.state_dir), self.ownership, keeps_list)
        self._profiling = daemon.profiling_partition
        self._rooms = daemon.rooms
        self._jobs: Mapping[str, SlurmJob] = {}
        self._writes = 0
        self.silent_s = float("-inf")
        """When Slurm last was silent (Unix s): it may only just have taken in what was sent before."""
        self.touched: set[str] = set()
        """Jobs that were changed since the last look: what it showed of them is not so any more."""
        self.refused: dict[str, str] = {}
        """Jobs of which Slurm refused a change since it last took one, with its words."""
        self.batches: dict[str, str] = {}
        """The Extra with the chosen batch of each job that is being resized. A lucidd that restarts in between has
        forgotten it: the job then takes its initial batch."""

    def new_cycle(self, jobs: Mapping[str, SlurmJob]) -> None:
        """Begin a new poll of Slurm, after which nothing was written. ``jobs``: those it showed, by id."""
        self._jobs = jobs
        self._writes = 0
        self.touched.clear()
        self.ours.update(jobs.values())

    def full(self, count: int, start: bool = False) -> bool:
        """Whether ``count`` more writes would be too many for one cycle. A quarter of them is kept for repairs, which
        come after the plan's actions (``start``): under load they would never have their turn."""
        most = self.settings.writes_per_cycle
        return self._writes + count > most - (max(most // 4, ONE_JOB) if start else 0)

    def put(self, *notes: JobNote) -> None:
        """Store notes, each with the tag that shows whose the job is should others overwrite AdminComment."""
        signed = [self._signed(note) for note in notes]
        self.store.put_notes(signed, self.token)
        self.notes.update({note.job_id: note for note in signed})

    def _signed(self, note: JobNote) -> JobNote:
        record = self._jobs.get(note.job_id)
        if record is None or record.tag is None or (note.tag == record.admin_comment and note.user):
            return note
        submit_s = note.submit_s or record.submit_s
        return structs.replace(note, tag=record.admin_comment, user=note.user or record.user, submit_s=submit_s)

    def listed(self, job_id: str, cause: Refusal = Refusal.SLURM) -> None:
        """Check that a job is in the list of ours, before Slurm is asked to hold it.

        Raises: ActionRefused: it is not there. Without lucidd and tag nobody would know it as Lucid's."""
        record = self._jobs.get(job_id)
        if not self.ours.has(job_id, -1 if record is None else record.number):
            raise ActionRefused(self.ours.trouble or f"{self.ours.path} does not have it yet", cause)

    def tell_hold(self, job_id: str, begin_s: float = 0.0) -> None:
        """Ask Slurm to hold a job that is in the list; ``begin_s`` as the client has it.

        Raises: ActionRefused: the job is not listed, or Slurm declined."""
        self.listed(job_id)
        self.client.hold(job_id, begin_s)

    def do(self, job_id: str, verb: str, detail: str, *steps: Callable[[], object]) -> None:
        """Note an action, carry out its steps, note its result.

        Raises: ActionRefused: Slurm declined, in its words."""
        self.touched.add(job_id)
        action = self.store.begin_action(self.clock.now_s(), job_id, verb, detail, self.token)
        try:
            self.tell(*steps)
        except ActionRefused as error:
            self.store.end_action(action, f"refused: {error}", self.token)
            self.refused[job_id] = str(error)
            raise ActionRefused(f"job {job_id}: {error}", error.cause) from None
        self.store.end_action(action, "done", self.token)

    def tell(self, *steps: Callable[[], object]) -> None:
        """Send Slurm one command a step; each try counts for the cap, whatever its result.

        Raises: ActionRefused: Slurm declined."""
        with self.listening():
            for step in steps:
                self._writes += 1
                step()
        self.refused.clear()

    def note_seen(self, job_id: str, verb: str, detail: str) -> None:
        """Note for a job's story what happened to it without a command of ours."""
        action = self.store.begin_action(self.clock.now_s(), job_id, verb, detail, self.token)
        self.store.end_action(action, SEEN, self.token)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """A context round calls of Slurm that notes when it does not answer, or not soon."""
        began_s = self.clock.now_s()
        try:
            yield
        except ClusterUnavailable:
            self.silent_s = self.clock.now_s()
            raise
        if self.clock.now_s() - began_s > _SILENT_S:
            self.silent_s = self.clock.now_s()

    def barred(self, record: SlurmJob, now_s: float) -> tuple[str, float] | None:
        """What Slurm has against starting a waiting job now, and when it is tried again."""
        note = self.notes.get(record.id)
        if note is not None and paused(note, now_s):
            return note.refusal, note.retry_s
        home = self.ownership.home(record, note)
        rule = self.rules.get(home, NO_DEFAULTS)
        if rule.shut:
            return f"partition {home} is {rule.state}", 0.0
        found = self.obstacles.obstacle_of(record, now_s)
        return None if found is None else (found.reason, found.retry_s)

    def start_refused(self, record: SlurmJob, error: ActionRefused) -> str:
        """Call ``not_started`` for a start for which ``do`` raised an error; returns what was done, in words."""
        leaves = error.cause is Refusal.NODES_NOT_FREE_YET
        return self.not_started(record, str(error).partition(": ")[2], leaves)

    def not_started(self, record: SlurmJob, words: str, leaves: bool = False) -> str:
        """Handle a start that Slurm refused or did not bring about: the job goes back to its VC unprofiled, or is
        tried once more, or is released as its user wrote it. ``leaves``: to Slurm it has not left its nodes yet.
        Returns what was done, in words."""
        note, now_s = self.notes[record.id], self.clock.now_s()
        note = structs.replace(note, where="", released=False, shards=False)
        if self.at_profiling(record):
            self.put(structs.replace(note, to_home=True, wait_since_s=now_s))
            return f"job {record.id}: goes to its VC without profiling: no start on a profiling node ({words})"
        if leaves and now_s - note.wait_since_s < self.settings.start_grace_s:
            self.put(note)
            return f"job {record.id}: has not left its nodes yet ({words})"
        note = structs.replace(note, tries=note.tries + 1, refusal=words, retry_s=now_s + _RETRY_S)
        if note.tries < START_TRIES:
            self.put(note)
            return f"job {record.id}: did not start (Slurm: {words}); tried again in {_RETRY_S:.0f} s"
        pause_s = doubled_s(_BACK_S, note.tries - START_TRIES, _MOST_BACK_S)
        self.put(structs.replace(note, given_up=words, given_up_for=GivenUp.SLURM, retry_s=now_s + pause_s))
        return f"job {record.id}: did not start {note.tries} times (Slurm: {words}): released as its user wrote it"

    def give_up(self, record: SlurmJob, note: JobNote | None, words: str, cause: GivenUp) -> None:
        """Note why a job is about to be released."""
        note = note or JobNote(record.id, submit_s=record.submit_s)
        self.put(structs.replace(note, given_up=words, given_up_for=cause))

    def never_runs(self, record: SlurmJob) -> str:
        """Release a job again that was released and that Slurm itself holds, after pauses that grow. Returns what was
        done, in words."""
        note = self.notes[record.id]
        pause_s = doubled_s(_RETRY_S, note.tries, _MOST_RETRY_S)
        note = structs.replace(note, released=False, tries=note.tries + 1, refusal=record.reason)
        self.put(structs.replace(note, retry_s=self.clock.now_s() + pause_s))
        return f"job {record.id}: Slurm holds it itself ({record.reason}); let go again in {pause_s:.0f} s"

    def at_profiling(self, record: SlurmJob) -> bool:
        """Whether the job is in the profiling partition, and not at home there."""
        note = self.notes.get(record.id)
        return record.partition == self._profiling and self.ownership.home(record, note) != record.partition

    def away(self, record: SlurmJob) -> bool:
        """Whether the job is in a partition into which only lucidd moves jobs, and not at home there."""
        note = self.notes.get(record.id)
        return record.partition in self._rooms and self.ownership.home(record, note) != record.partition

    def park(self, record: SlurmJob, until_s: float) -> None:
        """Let a job wait for its turn, or for its dependency, which Slurm ends by its own rules (``own.waits``), with
        a begin time of ``until_s`` (Unix s).

        Raises: ActionRefused: Slurm declined."""
        known = self.notes.get(record.id) or JobNote(record.id, submit_s=record.submit_s)
        self.put(_parked(known, record, until_s))
        steps: list[Callable[[], None]] = [lambda: self.client.update(record.id, Changes(start_at_s=until_s))]
        if record.held:
            steps.append(lambda: self.client.release(record.id))
        try:
            self.do(record.id, "park", "its begin time is set", *steps)
        except ActionRefused:
            self.put(structs.replace(known, where="", shards=False))
            raise

    def park_on(self, records: Sequence[SlurmJob], until_s: float) -> None:
        """Set the begin times of parked jobs anew, all to ``until_s`` (Unix s), by one command.

        Raises: ActionRefused: Slurm declined for one of them. It does not say which; either begin time is known as
        Lucid's own."""
        known = [self.notes.get(one.id) or JobNote(one.id, submit_s=one.submit_s) for one in records]
        self.put(*(_parked(note, record, until_s) for note, record in zip(known, records, strict=True)))
        self.tell(lambda: self.client.set_begin([record.id for record in records], until_s))

    def take_over(self, record: SlurmJob, begin_s: float) -> None:
        """Hold a job that waited for something other than its turn. ``begin_s``: the begin time that its user set, 0
        for none.

        Raises: ActionRefused: Slurm declined."""
        now_s = self.clock.now_s()
        ahead_s = begin_s if begin_s > now_s else 0.0
        self.do(record.id, "take over", "it queues from now on", lambda: self.tell_hold(record.id, ahead_s))
        note = self.notes.get(record.id) or JobNote(record.id, submit_s=record.submit_s)
        since_s = max(now_s, begin_s)
        self.put(
            structs.replace(
                note, where="", shards=False, released=False, depends=False, restarts=record.restarts,
                wait_since_s=since_s,
            )
        )  # fmt: skip

    def release(self, record: SlurmJob, why: str) -> None:
        """Give a waiting job the request that its user wrote, in its own VC, and release it, unless somebody else
        holds it.

        Raises: ActionRefused: Slurm declined (the job is just completing, say); ask again."""
        note = self.notes.get(record.id)
        home = self.ownership.home(record, note)
        known = not record.unread or (note is not None and bool(note.as_written))  # else what to give back is unknown
        changes = back_to(record, note) if known and not never_changed(record) else None
        if self.away(record):
            changes = replace(changes or Changes(), partition=home)
        target = whole_array(record)
        now_s = self.clock.now_s()
        begins = begins_s(record, note, now_s)
        own = note is not None and note.requeued == record.restarts > 0
        ahead = parked(replace(record, held=False), note, now_s) or (own and not begins)  # set by Lucid, or for it
        steps: list[Callable[[], None]] = []
        if changes is not None or ahead:
            changes = replace(changes or Changes(), start_now=bool(ahead) and not begins, start_at_s=begins or None)
            steps.append(lambda: self.client.update(target, changes))
        if record.held and self.ownership.holds(record, note):
            steps.append(lambda: self.client.release(target))
        self.do(record.id, RELEASED, f"as its user wrote it: {why}", *steps)
        if target != record.id:
            self.touched.update(one.id for one in self._jobs.values() if whole_array(one) == target)
        # what Slurm makes of one that cannot be read is Slurm's: it holds a job itself whose request nothing can fill
        if note is not None or record.unread or left_to_slurm(record):
            note = note or JobNote(record.id, submit_s=record.submit_s)
            self.put(structs.replace(note, where="", shards=False, released=True, restarts=record.restarts))


def _parked(note: JobNote, record: SlurmJob, until_s: float) -> JobNote:
    """The note of a job that is about to be parked until ``until_s``."""
    before_s = record.eligible_s if record.eligible_s in note.leases else note.parked_s
    depends = bool(record.dependency)
    return structs.replace(note, where="", shards=False, parked_s=until_s, parked_before_s=before_s, depends=depends)


_FIRST, _AT_ONCE = 8, 50
"""How many jobs the first list has, and the most that any has: one command for so many takes a sixth of slurmctld's
CPU time for one each (docs/figures.md)."""
_QUICK_S, _SLOW_S = 1.0, 3.0
"""A list of jobs that took Slurm less than the first is followed by one twice as long, one that took more than the
second by one half as long."""


class LeaseRenewal:
    """Renews the leases that are due in one round of repair. Lists of jobs grow while Slurm is quick, and shrink
    where it puts requests off (``rl_enable``)."""

    def __init__(self, writer: JobWriter) -> None:
        self._writer = writer
        self.due: defaultdict[float, list[SlurmJob]] = defaultdict(list)
        """The jobs whose leases are due, by the time until which they are parked on, Unix s; those that a failed
        round has left are to be forgotten."""
        self._most = _FIRST
        self._alone: set[str] = set()
        """Jobs of lists that Slurm declined because of one of them: each is renewed alone. Those with nothing wrong
        are not due the next time."""

    def takes(self, record: SlurmJob, until_s: float) -> bool:
        """Note a lease for ``renew``, and return true, unless the job is to be renewed alone."""
        if record.id in self._alone:
            return False
        self.due[until_s].append(record)
        return True

    def renew(self) -> list[str]:
        """Renew the leases that end soonest, within the cap on writes, and return what went wrong, in words. The
        others come with the next poll: a lease is renewed long before its end.

        Raises: ClusterUnavailable: Slurm does not answer."""
        due, done, writer = self.due, list[str](), self._writer
        self.due, self._alone = defaultdict(list), set()
        for until_s, jobs in sorted(due.items(), key=lambda item: min(job.eligible_s for job in item[1])):
            while jobs and not writer.full(1):
                listed, jobs = jobs[: self._most], jobs[self._most :]
                most, began_s, self._most = self._most, writer.clock.now_s(), 1  # should Slurm not answer
                try:
                    writer.park_on(listed, until_s)
                except ActionRefused as error:
                    self._alone.update(record.id for record in listed)
                    done.append(f"{len(listed)} jobs: parked on one by one, since Slurm declined ({error})")
                took_s = writer.clock.now_s() - began_s
                more = 2 * most if took_s < _QUICK_S else most if took_s < _SLOW_S else max(most // 2, 1)
                self._most = min(more, _AT_ONCE)
        return done
