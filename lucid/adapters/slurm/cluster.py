"""Slurm as a ``Cluster``: one look at it per cycle, decisions carried out as changes to held jobs.

Everything is derived anew from what Slurm shows and from the store's notes, so a daemon killed at any point
goes on from there: a note is written before Slurm is told anything, and each step may be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from lucid.adapters.gpu.known_profiles import KnownProfiles
from lucid.adapters.gpu.profiles import ProfileSource
from lucid.adapters.slurm.behind import not_yet
from lucid.adapters.slurm.client import Changes, SlurmClient
from lucid.adapters.slurm.extra import Items, free_extra, items_for, own_number, sealed
from lucid.adapters.slurm.hands import Hands
from lucid.adapters.slurm.mend import Mender
from lucid.adapters.slurm.nouns import SlurmJob, SlurmNode
from lucid.adapters.slurm.released import Released
from lucid.adapters.slurm.request import NO_DEFAULTS, JobDefaults
from lucid.adapters.slurm.shares import FairShares
from lucid.adapters.slurm.starts import start_changes
from lucid.adapters.slurm.unread import numbers_unread, tells_all, without_unread
from lucid.adapters.slurm.view import Facts, Profiled, Viewer, as_written, parse_placement
from lucid.adapters.slurm.waits import parked
from lucid.adapters.store.port import JobNote, Store
from lucid.config import DaemonSettings, Mode, SlurmSettings
from lucid.core.decision import Action, Keep, Release, Requeue, Start
from lucid.core.job import Ended
from lucid.core.placement import Placement, show_placement
from lucid.core.ports import Applied, Capability, Clock
from lucid.core.snapshot import Snapshot
from lucid.errors import ActionRefused, ClusterError, ClusterUnavailable

__all__ = ["SlurmCluster"]

_DEFAULTS_EVERY_S = 120.0
"""Seconds between looks at JobDefaults, which only a new configuration changes."""

_OLDEST = (23, 11)
"""First Slurm on which a pending job's request can be replaced (seen on 24.11; 22.05 adds to it instead)."""


class SlurmCluster:
    """See ``Cluster``. ``modes`` says at any time what may be done in each partition; ``token`` is the daemon's
    lease, without which nothing is written. ``shares``: fair-share factors, where Lucid's order goes by them."""

    def __init__(
        self,
        client: SlurmClient,
        store: Store,
        profiles: ProfileSource,
        clock: Clock,
        slurm: SlurmSettings,
        daemon: DaemonSettings,
        modes: Callable[[], Mapping[str, Mode]],
        profiled: Profiled,
        token: int,
        shares: FairShares | None = None,
        all_told: Callable[[], bool] = lambda: True,
    ) -> None:
        """``all_told``: does slurmctld know by now what has ended, as far as can be told?"""
        self._client = client
        self._store = store
        self._clock = clock
        self._slurm = slurm
        self._daemon = daemon
        self._modes = modes
        self._shares = shares
        self._all_told = all_told
        self.token = token
        self.known = KnownProfiles(store, profiles, clock, daemon.reuse_profiles_days)
        """Profiles, by job."""
        self._viewer = Viewer(daemon, self.known.of, profiled, self._barred)
        self._hands = Hands(
            client, store, clock, slurm, self._viewer, daemon.profiling_partition, token, daemon.optout
        )
        self._mender = Mender(self._hands, Released(Path(daemon.state_dir)))
        self._nodes: Sequence[SlurmNode] = ()
        self._nodes_at_s = float("-inf")
        self._defaults: Mapping[str, JobDefaults] | None = None
        self._defaults_at_s = float("-inf")
        self._notes = self._hands.notes
        self._told = {ended.job.id for ended in store.ended()}
        self._facts = Facts((), (), self._notes, {}, 0.0)
        self._jobs: dict[str, SlurmJob] = {}
        self._flying: dict[str, dict[bool, str]] = {}
        """By node, then by whether as slots: a job that was told to start there and has not yet. Slurm chooses the
        GPUs of a job with its own request, so the two kinds are not started on one node at the same time."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Sharing needs a Slurm that replaces requests; profiling a partition for it; all of it a client that can
        requeue."""
        if not self._slurm.packs:
            return frozenset()
        able = {Capability.PREEMPT}
        if self._client.version() >= _OLDEST:
            able.add(Capability.SHARE)
            if self._daemon.profiling_partition:
                able.add(Capability.PROFILE)
        return frozenset(able)

    @property
    def facts(self) -> Facts:
        """What the last look showed, in Slurm's terms."""
        return self._facts

    @property
    def most_gpus(self) -> Mapping[str, int]:
        """GPUs of the largest node of each partition."""
        found: dict[str, int] = {}
        for node in self._nodes:
            for name in node.partitions & self._facts.modes.keys():
                found[name] = max(found.get(name, 0), len(node.gpu_types))
        return found

    @property
    def viewer(self) -> Viewer:
        """How Slurm's records are read."""
        return self._viewer

    @property
    def notes(self) -> Mapping[str, JobNote]:
        """What is remembered, by job."""
        return self._notes

    # -- look ------------------------------------------------------------------------------------------------

    def observe(self) -> Snapshot:
        """One request, or two when the nodes are due."""
        jobs = self._client.jobs()
        now_s = self._clock.now_s()
        due = now_s - self._nodes_at_s >= self._slurm.nodes_every_s or now_s < self._nodes_at_s
        if due or any(job.lost for job in jobs):  # where a lost job may be, only fresh states of nodes tell
            self._nodes = self._client.nodes()
            self._nodes_at_s = now_s
        self._hands.new_cycle()
        self._hands.obstacles.saw(jobs, now_s)
        self._jobs = {job.id: job for job in jobs if job.id}
        if any(job.pending and job.gpus for job in jobs):
            self._read_defaults(now_s)
        nodes = without_unread(self._nodes, jobs)
        self._facts = Facts(jobs, nodes, self._notes, dict(self._modes()), now_s, self._defaults)
        self.known.take(self._jobs, jobs, now_s, self.token)
        self._viewer.not_yet = frozenset()
        if self._daemon.optout != "free":
            self._viewer.not_yet = not_yet(self._viewer, self._facts)
        partitions = self._viewer.partitions(self._facts)
        self._flying = {}
        for job in jobs:
            note = self._notes.get(job.id)
            if note is not None and self._viewer.under_way(job, note) and self._viewer.may_start_yet(job, note):
                self._flies(job.id, parse_placement(note.where), note.shards)
        fair_share = {} if self._shares is None else self._shares(now_s)
        return Snapshot(now_s, partitions, self._ended(jobs), fair_share=fair_share)

    def _barred(self, record: SlurmJob, now_s: float) -> tuple[str, float] | None:
        return self._hands.barred(record, now_s)

    def _read_defaults(self, now_s: float) -> None:
        """What partitions give to each GPU. Where that cannot be read, what was read before counts."""
        if 0 <= now_s - self._defaults_at_s < _DEFAULTS_EVERY_S:
            return
        self._defaults_at_s = now_s
        try:
            read = self._client.job_defaults()
        except ClusterUnavailable:
            raise
        except ClusterError:
            return
        self._defaults = self._defaults if read is None else read

    def _flies(self, job_id: str, placement: Placement, shards: bool) -> None:
        for part in placement:
            self._flying.setdefault(part.node, {})[shards] = job_id

    def _ended(self, jobs: Sequence[SlurmJob]) -> tuple[Ended, ...]:
        found = []
        for record in jobs:
            if not (record.ended and record.gpus) or record.unread or record.id in self._told:
                continue
            self._told.add(record.id)
            note = self._notes.get(record.id)
            if self._viewer.home(record, note) in self._facts.modes and record.start_s:
                job = self._viewer.job(record, note, self._facts)
                ran_s = max(record.end_s - record.start_s, 0.0)
                found.append(Ended(job, record.end_s, ran_s, record.state, self.known.of(record)))
        return tuple(sorted(found, key=lambda e: e.end_s))

    # -- act -------------------------------------------------------------------------------------------------

    def apply(self, actions: Sequence[Action]) -> list[Applied]:
        """What leaves first, then what starts. In a partition that is not in pack mode nothing is done."""
        refused: dict[int, str] = {}
        for starts in (False, True):
            for i, action in enumerate(actions):
                if isinstance(action.decision, Start) is not starts:
                    continue
                try:
                    self._carry_out(action)
                except ActionRefused as error:
                    refused[i] = str(error)
        return [Applied(action, refused.get(i)) for i, action in enumerate(actions)]

    def _carry_out(self, action: Action) -> None:
        job_id, decision = action.job_id, action.decision
        record = self._jobs.get(job_id)
        if record is None:
            raise ActionRefused(f"job {job_id} is not in partition {action.partition!r} (any more)")
        note = self._notes.get(job_id)
        home = self._viewer.home(record, note)
        mode = self._facts.modes.get(home, Mode.OBSERVE)
        if mode is not Mode.PACK:
            raise ActionRefused(f"job {job_id}: partition {home!r} is in {mode} mode, nothing was done")
        if self._hands.full(4):
            raise ActionRefused(f"job {job_id}: limit slurm.writes_per_cycle is reached; retried in the next cycle")
        if isinstance(decision, Start):
            self._start(record, note, action, decision)
        elif isinstance(decision, Requeue):
            self._requeue(record, note, decision)
        elif isinstance(decision, Release):
            self._release(record, note, action.partition)
        elif isinstance(decision, Keep):
            self._keep(record, note)
        else:
            raise ActionRefused(f"job {job_id}: Slurm has no {type(decision).__name__.lower()} for a running job")

    def _note(self, record: SlurmJob, note: JobNote | None) -> JobNote:
        """What is known of the job, with its request as it is before Lucid first touches it."""
        if note is not None and note.as_written:
            home = self._viewer.home(record, note)
            if home == note.home:
                return note
            return replace(note, home=home, as_written={**note.as_written, "partition": home})
        written = as_written(record).written()
        written["partition"] = record.partition
        return replace(
            note or JobNote(record.id),
            user=record.user,
            name=record.name,
            home=self._viewer.home(record, note),
            as_written=written,
            submit_s=record.submit_s,
        )

    def _start(self, record: SlurmJob, note: JobNote | None, action: Action, start: Start) -> None:
        job_id = record.id
        if not self._viewer.decides(record, note, self._facts):
            raise ActionRefused(
                f"job {job_id} is {'pending, and not held by Lucid' if record.pending else 'running'}"
            )
        if (bar := self._barred(record, self._facts.now_s)) is not None:
            raise ActionRefused(f"job {job_id}: Slurm did not start it or one like it ({bar[0]}); tried again later")
        if start.beside is not None:
            self._partner(job_id, start)
        note = self._note(record, note)
        shards = start.slots
        for part in start.placement:
            other = self._flying.get(part.node, {}).get(not shards)
            if other is not None and other != job_id:
                raise ActionRefused(f"job {job_id}: waits for job {other} to settle on node {part.node}")
        items = self._items(record, start) if shards and self._daemon.mps else None
        number = own_number(record)
        extra, unsealed = sealed(self._client, record, number, items) if items and number else ("", "")
        defaults = (self._defaults or {}).get(action.partition, NO_DEFAULTS)
        changes = start_changes(record, note, start.placement, shards, action.partition, self._nodes, extra, defaults)
        place = show_placement(start.placement)
        now_s = self._clock.now_s()
        self._hands.put(
            replace(note, where=place, asked_s=now_s, shards=shards, released=False, restarts=record.restarts)
        )
        words = f"{place}{f' beside {start.beside}' if start.beside else ''}{' in slots' if shards else ''}"
        if items is not None and not free_extra(record.extra):
            words += ", without MPS: its Extra is the user's"
        elif unsealed:
            words += f", without MPS: {unsealed}"
        self._hands.obstacles.tries(record)
        try:
            self._hands.do(
                job_id,
                "start",
                words,
                lambda: self._tell(record, changes, None if number else items),
                lambda: self._client.release(job_id),
            )
        except ActionRefused as error:
            in_room = replace(record, partition=action.partition)
            raise ActionRefused(self._hands.not_started(in_room, str(error).partition(": ")[2])) from None
        self._hands.put(replace(self._notes[job_id], released=True))
        self._flies(job_id, start.placement, shards)

    def _items(self, record: SlurmJob, start: Start) -> Items | None:
        """For the prolog; nothing where the node is not known, and then the start is refused anyway."""
        (part,) = start.placement
        node = next((node for node in self._nodes if node.name == part.node), None)
        if node is None:
            return None
        return items_for(part.node, part.gpus, self.known.of(record), self._viewer.gpu_mem_mib(node), start.reasons)

    def _tell(self, record: SlurmJob, changes: Changes, late: Items | None) -> None:
        """Write a start into Slurm. ``late``: what is still to be sealed for a task of an array, which has a number
        of its own only once it was changed."""
        self._client.update(record.id, changes)
        if late is not None and free_extra(record.extra):
            with suppress(ActionRefused):  # it then starts without MPS
                extra, _ = sealed(self._client, record, self._client.number(record.id), late)
                self._client.update(record.id, Changes(extra=extra))

    def _partner(self, job_id: str, start: Start) -> None:
        other = self._jobs.get(start.beside or "")
        if (
            other is None
            or other.state != "RUNNING"
            or other.completing
            or not other.request.shards
            or tuple(sorted(other.placement)) != tuple(sorted(start.placement))
        ):
            raise ActionRefused(f"job {job_id}: {start.beside} does not run on slots of these GPUs")

    def _requeue(self, record: SlurmJob, note: JobNote | None, decision: Requeue) -> None:
        if not record.running or record.completing:
            raise ActionRefused(f"job {record.id} is not running")
        note = self._note(record, note)
        note = replace(note, alone=note.alone or decision.part)
        self._put_back(record, note, "part" if decision.part else "requeue")

    def _release(self, record: SlurmJob, note: JobNote | None, room: str) -> None:
        profiling = self._daemon.profiling_partition
        at_work = record.running and record.partition == profiling
        if not at_work and not (room == profiling and self._waits_for_profiling(record, note)):
            raise ActionRefused(f"job {record.id} is not in profiling")
        note = replace(self._note(record, note), to_home=True)
        if record.running:
            self._put_back(record, note, "release")
        else:
            self._hands.put(replace(note, wait_since_s=self._facts.now_s))

    def _waits_for_profiling(self, record: SlurmJob, note: JobNote | None) -> bool:
        return self._viewer.decides(record, note, self._facts) and not (note is not None and note.to_home)

    def _put_back(self, record: SlurmJob, note: JobNote, verb: str) -> None:
        """The job runs until Slurm has taken the requeue; what is noted before says where it goes then."""
        if not self._all_told():
            raise ActionRefused(
                f"job {record.id}: slurmctld did not answer lately, and may not know yet that the job has ended; "
                "tried again later"
            )
        before = note
        now_s = self._facts.now_s
        ran_s = note.ran_s + max(now_s - record.start_s, 0.0)
        self._hands.put(replace(note, where="", released=False, shards=False, wait_since_s=now_s, ran_s=ran_s))
        try:
            self._hands.do(
                record.id, verb, show_placement(record.placement), lambda: self._client.requeue_hold(record.id)
            )
        except ActionRefused:
            self._hands.put(before if verb != "release" else replace(before, to_home=False))
            raise

    def _keep(self, record: SlurmJob, note: JobNote | None) -> None:
        if not record.running:
            raise ActionRefused(f"job {record.id} is not running")
        note = self._note(record, note)
        self._hands.do(record.id, "keep", show_placement(record.placement))
        self._hands.put(replace(note, kept=True))

    def order(self, factors: Mapping[str, int]) -> int:
        """Write the site factors that differ from the last ones written, within the cap; returns how many. Jobs
        of which a factor stands though their partition is no longer ordered get 0."""
        wanted = dict(factors)
        for job_id, note in self._notes.items():
            if note.site_factor and job_id not in wanted:
                wanted[job_id] = 0
        written = 0
        for job_id, factor in wanted.items():
            record, known = self._jobs.get(job_id), self._notes.get(job_id)
            if record is None or not record.pending or factor == (known.site_factor if known else 0):
                continue
            if self._hands.full(1):
                break
            changes = Changes(site_factor=factor)
            try:
                self._hands.do(job_id, "order", str(factor), lambda i=job_id, c=changes: self._client.update(i, c))  # type: ignore[misc]
            except ActionRefused:
                continue
            self._hands.put(replace(known or JobNote(job_id), site_factor=factor))
            written += 1
        return written

    # -- mend ------------------------------------------------------------------------------------------------

    def heal(self) -> list[str]:
        """Put right what the last look showed to be out of joint (``mend``), and drop the notes of jobs that
        have left; returns what was done, in words."""
        done = self._mender.mend(self._facts)
        if (self._facts.jobs or self._facts.nodes) and tells_all(self._facts.jobs):
            unread = numbers_unread(self._facts.jobs)
            gone = [job_id for job_id in self._notes if self._left(job_id, unread)]
            if gone:
                self._store.forget(gone, self.token)
                self._mender.forget(gone)
                for job_id in gone:
                    del self._notes[job_id]
                    self.known.forget(job_id)
        return done

    def _left(self, job_id: str, unread: Collection[str]) -> bool:
        """Has a job with a note left? One whose record could not be read this time may be there still."""
        record = self._jobs.get(job_id)
        if record is None:
            return job_id.partition("_")[0] not in unread
        return record.ended

    @property
    def settling(self) -> bool:
        """Did the last look show a job that was told to start and has not yet?"""
        return any(self._viewer.under_way(job, self._notes.get(job.id)) for job in self._facts.jobs)

    def aside(self) -> dict[str, str]:
        """Waiting jobs of ours that are nobody's to decide at present, by id, with the reason in words."""
        told = ((job.id, self._viewer.aside(job, self._notes.get(job.id), self._facts)) for job in self._facts.jobs)
        return {job_id: words for job_id, words in told if words}

    def still_ours(self) -> list[str]:
        """Ids of the jobs that the last look showed held by Lucid, or waiting with a request that Lucid changed."""
        return [
            job.id
            for job in self._facts.jobs
            if job.pending
            and self._viewer.ours(job)
            and (
                self._viewer.holds(job, self._notes.get(job.id))
                or job.request.shards
                or parked(job, self._facts.now_s)
            )
        ]
