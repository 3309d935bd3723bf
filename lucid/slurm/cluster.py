"""``SlurmCluster``, Slurm as a ``Cluster``: one poll per cycle; decisions become changes to held jobs.

Everything is derived anew from what Slurm shows and from the store's notes, so a daemon killed at any point goes on
from there: a note is written before Slurm is asked for anything, and each step may be repeated."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from lucid.config.live import DaemonSettings, SlurmSettings
from lucid.core.codec import to_json
from lucid.core.decision import Action, Start
from lucid.core.gpu import GpuOut
from lucid.core.job import Ended
from lucid.core.ports import Applied, Capability, Clock
from lucid.core.snapshot import Snapshot
from lucid.errors import ClusterError, ClusterUnavailable, Refusal
from lucid.places import Mode
from lucid.slurm.act.apply import Actions
from lucid.slurm.act.placeholders import Placeholders
from lucid.slurm.act.preempt import ClaimWatch
from lucid.slurm.act.repair import Released, Repair
from lucid.slurm.act.site_factors import SiteFactors
from lucid.slurm.act.write import JobWriter
from lucid.slurm.commands import CommandClient
from lucid.slurm.elastic.reports import Trouble
from lucid.slurm.own.release import not_yet
from lucid.slurm.own.state import ASSIGNED, JobState
from lucid.slurm.own.waits import parked
from lucid.slurm.records.configuration import NO_NETWORK, FairShares, Kept, with_network
from lucid.slurm.records.job import SlurmJob, SlurmNode, numbers_unread, tells_all, without_unread
from lucid.slurm.records.preemption import NO_PREEMPTION
from lucid.slurm.records.request import JobDefaults
from lucid.slurm.view.failed_pairs import FailedPairs
from lucid.slurm.view.jobs import InVc, nowhere
from lucid.slurm.view.nodes import NodePolls
from lucid.slurm.view.observation import Observation, of_another, pool_of
from lucid.slurm.view.power_saving import Boots, boots_of
from lucid.slurm.view.profiles import KnownProfiles, ProfileFolder
from lucid.slurm.view.snapshot import Profiled, Viewer
from lucid.slurm.view.windows import Closings
from lucid.store.port import JobNote
from lucid.store.sqlite import SqliteStore

GpusOut = Callable[[Mapping[str, Sequence[int]], float], Mapping[str, GpuOut]]
"""From the numbers of each node's GPUs and the time: the GPUs that get no new start, by name."""

PLACEHOLDER_S = 900.0
"""Slurm is kept off a GPU that is not well by a job of lucidd's user with this time limit, which lucidd renews: so
long after lucidd is gone for good the GPU is Slurm's again."""
_REUSE_PROFILES_DAYS = 30.0
"""A job of the same user, name and GPU count measured since then is not profiled again."""
_DEFAULTS_EVERY_S = 120.0
"""Seconds between reads of JobDefaults, which only a new configuration changes."""
_SHUT_EVERY_S, _SAID_EVERY_S = 10.0, 2.0
_SHUT = ("PartitionDown", "PartitionInactive")
_REPLAN = "a reservation was made, changed or deleted meanwhile: it is planned again in the next cycle"


def _no_gpu(gpus: Mapping[str, Sequence[int]], now_s: float) -> Mapping[str, GpuOut]:  # noqa: ARG001 - a GpusOut
    return {}


def _by_node(outs: Mapping[str, GpuOut], machines: Sequence[SlurmNode]) -> dict[str, tuple[GpuOut, ...]]:
    """The GPUs that get no new start, by node, each with the place that Slurm gives it; GPUs that their node does not
    have, as far as Slurm knows, are dropped."""
    nodes = {node.name: node for node in machines} if outs else {}
    found: dict[str, tuple[GpuOut, ...]] = {}
    for out in sorted(outs.values(), key=lambda one: (one.node, one.index)):
        place = nodes[out.node].place_of(out.index)
        if place is not None:
            placed = out if place == out.index else replace(out, place=place)
            found[out.node] = (*found.get(out.node, ()), placed)
    return found


class SlurmCluster:
    """Slurm as a ``Cluster``. ``modes`` says at any time what may be done in each partition; ``token`` is the
    daemon's lease, without which nothing is written. ``shares``: fair-share factors, where Lucid's order uses
    them."""

    def __init__(
        self,
        client: CommandClient,
        store: SqliteStore,
        profiles: ProfileFolder,
        clock: Clock,
        slurm: SlurmSettings,
        daemon: DaemonSettings,
        modes: Callable[[], Mapping[str, Mode]],
        profiled: Profiled,
        token: int,
        shares: FairShares | None = None,
        slurm_knows_all: Callable[[], bool] = lambda: True,
        lends: bool = False,
        resizes: InVc = nowhere,
        interleaves: InVc = nowhere,
        gpus_out: GpusOut = _no_gpu,
        keeps_list: bool = False,
    ) -> None:
        """``slurm_knows_all``: whether slurmctld knows by now which jobs have ended, as far as can be told.
        ``lends``: whether the VCs of ``daemon.pool`` have their nodes in common. ``resizes``, ``interleaves``:
        whether the policy of a VC resizes jobs, or forms groups. ``gpus_out``: which GPUs get no new start.
        ``keeps_list``: whether a job is listed in ``daemon.state_dir`` before it is held."""
        self._client = client
        self._store = store
        self._clock = clock
        self._slurm = slurm
        self._daemon = daemon
        self._modes = modes
        self._shares = shares
        self._lends = lends
        self.token = token
        self.known = KnownProfiles(store, profiles, clock, _REUSE_PROFILES_DAYS)
        """Profiles, by job."""
        self._writer = JobWriter(client, store, clock, slurm, daemon, token, keeps_list)
        self._ownership = self._writer.ownership
        self._viewer = Viewer(
            daemon, self._ownership, self.known.profile_of, profiled, resizes, interleaves, store, self.known.worked
        )
        claims = ClaimWatch(self._writer)
        self._actions = Actions(self._writer, daemon, self.known, slurm_knows_all, claims)
        self.factors = SiteFactors(self._writer)
        """Order mode's writes."""
        self._gpus_out = gpus_out
        self._left_out: Mapping[str, GpuOut] = {}
        self.placeholders = Placeholders(client, self._writer, PLACEHOLDER_S)
        """Jobs that keep Slurm from using single GPUs."""
        self._repair = Repair(self._writer, Released(Path(daemon.state_dir)), claims)
        self._machines = NodePolls(client, store, slurm.nodes_every_s)
        self._defaults: Mapping[str, JobDefaults] | None = None
        self._defaults_at_s = float("-inf")
        self._tiers: Kept[Mapping[str, int]] = Kept(client.qos_priorities, {})
        self._network = Kept(client.network, NO_NETWORK)
        self._preemption = NO_PREEMPTION
        self.notes = self._writer.notes
        """The stored notes, by job."""
        self._ended_reported: set[str] = set()
        """Jobs that have ended and of which nothing more is to be reported."""
        self._untold: dict[str, Ended] = {}
        """Ended jobs that were reported, and that as far as is known the store does not have yet."""
        self._boots = Boots()
        self._failed_pairs = FailedPairs(store)
        self._closings = Closings(client)
        self._ownership.draws = lambda job: self._closings.draws(job, self._machines.nodes, self.facts.now_s)
        self.facts = Observation((), (), self.notes, {}, 0.0)
        """The last poll, in Slurm's terms."""
        self._jobs: dict[str, SlurmJob] = {}

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The capabilities. All need a client that can requeue; profiling needs a partition for it; elastic jobs and
        groups need a folder for reports. Members of a group are never moved: others join them where they run."""
        if not self._slurm.packs:
            return frozenset()
        able = {Capability.PREEMPT, Capability.SHARE}
        if self._daemon.profiling_partition:
            able.add(Capability.PROFILE)
        if self._daemon.elastic.reports_dir:
            able |= {Capability.RESIZE, Capability.ADAPT, Capability.INTERLEAVE}
        return frozenset(able)

    @property
    def most_gpus(self) -> Mapping[str, int]:
        """GPUs of the largest node of each partition."""
        found: dict[str, int] = {}
        for node in self._machines.nodes:
            for name in node.partitions & self.facts.modes.keys():
                found[name] = max(found.get(name, 0), len(node.gpu_types))
        return found

    # -- look ------------------------------------------------------------------------------------------------

    def observe(self) -> Snapshot:
        """The snapshot of one poll: one request, or two or three when the nodes are due (``view.nodes``)."""
        with self._writer.listening():
            every = self._client.jobs()
        now_s = self._clock.now_s()
        jobs = self.placeholders.others(every, now_s)
        network = self._network(now_s)
        machines = self._machines.poll(jobs, now_s)
        if self._closings.update(jobs, machines, now_s):
            machines = self._machines.poll(jobs, now_s, fresh=True)
        machines = with_network(machines, network)
        noted = ((job, self.notes.get(job.id)) for job in jobs)
        self._forget([job.id for job, note in noted if note is not None and not job.unread and of_another(job, note)])
        jobs = self._writer.ours.restored(jobs, self.notes)
        self._jobs = {job.id: job for job in jobs if job.id}
        self._writer.new_cycle(self._jobs)
        self._writer.obstacles.observe(jobs, now_s)
        self._boots.observe(jobs, now_s)
        # once for those that run: until then their requests could not be said in slots
        if any(job.gpus and (job.pending or (job.running and self._defaults is None)) for job in jobs):
            self._read_defaults(now_s, {job.partition for job in jobs if job.pending and job.reason in _SHUT})
        nodes = without_unread(self._closings.explained(machines, now_s), jobs)
        modes = dict(self._modes())
        pool = pool_of(self._daemon.pool, modes, nodes) if self._lends else None
        waits = any(job.gpus and job.pending for job in jobs)
        self._left_out = self._left_out_of(machines, modes, now_s)
        self.facts = Observation(
            jobs,
            nodes,
            self.notes,
            modes,
            now_s,
            self._defaults,
            pool,
            tiers=self._tiers(now_s) if waits else self.facts.tiers,
            switch_wait_s=network.max_wait_s,
            windows=self._closings.windows(now_s),
            preemption=self._preemption,
            gpus_out=_by_node(self._left_out, machines),
            unpaired=self._failed_pairs.check(self._jobs, machines, now_s),
        )
        self.known.update(self._jobs, jobs, now_s, self.token)
        self._ownership.not_yet = {}  # it asks whom Lucid decides
        self._ownership.not_yet = not_yet(self._ownership, self.facts)
        partitions = self._viewer.partitions(self.facts)
        self._failed_pairs.observe(partitions.values(), now_s)
        self._viewer.elastic.forget_all_but(self._jobs.keys())
        self._viewer.turns.forget_all_but(self._jobs.keys())
        self._actions.observe(self.facts, self._jobs)
        fair_share = {} if self._shares is None else self._shares(now_s)
        return Snapshot(now_s, partitions, self._ended(jobs), fair_share=fair_share)

    def _left_out_of(
        self, machines: Sequence[SlurmNode], modes: Mapping[str, Mode], now_s: float
    ) -> Mapping[str, GpuOut]:
        """The GPUs that get no new start, of nodes with a partition in pack mode."""
        gpus = {node.name: node.gpu_numbers for node in machines if node.gpu_types}
        found = self._gpus_out(gpus, now_s)
        if not found:
            return {}
        packs = [name for name, mode in modes.items() if mode is Mode.PACK]
        rooms = {*packs, *(self._daemon.rooms if packs else ())}
        packed = {node.name for node in machines if not node.partitions.isdisjoint(rooms)}
        return {name: out for name, out in found.items() if out.node in packed}

    def _read_defaults(self, now_s: float, said: Set[str]) -> None:
        """Read what partitions give to each GPU, which jobs may preempt which, and whether jobs of a partition may
        start: soon where some may not, and at once where Slurm says so of one for the first time (``said``). If that
        cannot be read, the earlier values stay, and it is asked for again soon: until it is known, every job starts
        on whole GPUs."""
        shut = {name for name, rule in (self._defaults or {}).items() if rule.shut}
        every_s = _SAID_EVERY_S if said - shut else _SHUT_EVERY_S if shut else _DEFAULTS_EVERY_S
        if 0 <= now_s - self._defaults_at_s < every_s:
            return
        self._defaults_at_s = now_s - _DEFAULTS_EVERY_S + _SAID_EVERY_S
        try:
            self._defaults = self._client.job_defaults()
            preemption = self._client.preemption()
            if preemption != self._preemption:  # what is made of it is kept as long as it is the same
                self._preemption = preemption
            self._defaults_at_s = now_s
        except ClusterUnavailable:
            raise
        except ClusterError:
            return
        finally:
            self._writer.rules = self._defaults or {}

    def _ended(self, jobs: Sequence[SlurmJob]) -> tuple[Ended, ...]:
        """The ended jobs, reported at each poll until the store has them: a cycle may fail before it has stored
        anything."""
        self._ended_reported &= self._jobs.keys()
        found = {
            job.id: job
            for job in jobs
            if job.ended and job.gpus and not job.unread and job.id not in self._ended_reported
        }
        if not (found or self._untold):
            return ()
        self._ended_reported |= self._store.ended_ids(found.keys() | self._untold.keys())
        for record in found.values():
            note = self.notes.get(record.id)
            if record.id in self._ended_reported or record.id in self._untold:
                continue
            if self._ownership.home(record, note) not in self.facts.modes or not record.start_s:
                self._ended_reported.add(record.id)
                continue
            job, ran_s = self._viewer.jobs.job(record, note, self.facts), self._boots.ran_s(record)
            self._untold[record.id] = Ended(job, record.end_s, ran_s, record.state, self.known.profile_of(record))
        self._untold = {job_id: one for job_id, one in self._untold.items() if job_id not in self._ended_reported}
        return tuple(sorted(self._untold.values(), key=lambda e: e.end_s))

    # -- act -------------------------------------------------------------------------------------------------

    def apply(self, actions: Sequence[Action]) -> list[Applied]:
        """Carry out the actions: jobs that leave first, then starts. In a partition that is not in pack mode nothing
        is done."""
        self._repair.emptied.let_all_in(self.facts)
        starts = any(isinstance(action.decision, Start) for action in actions)
        if starts and self._closings.changed(self._clock.now_s()):
            kept = [action for action in actions if not isinstance(action.decision, Start)]
            done = iter(self._actions.apply(kept))
            return [
                Applied(a, _REPLAN, Refusal.NODES_NOT_FREE_YET) if isinstance(a.decision, Start) else next(done)
                for a in actions
            ]
        applied = self._actions.apply(actions)
        self._failed_pairs.started(applied, self._clock.now_s())
        return applied

    def order(self, factors: Mapping[str, int]) -> int:
        """Write the site factors that differ from those written last, within ``slurm.writes_per_cycle``; returns how
        many. A job that has a factor and is not in *factors* gets 0."""
        return self.factors.write(factors, self._jobs)

    # -- mend ------------------------------------------------------------------------------------------------

    def heal(self) -> list[str]:
        """Put right what the last poll showed to be wrong (``repair``), and drop the notes of jobs that have left;
        returns what was done, in words."""
        self._viewer.turns.keep()
        done = self._repair.mend(self.facts)
        done += self.placeholders.settle(self._left_out, self.facts)
        if (self.facts.jobs or self.facts.nodes) and tells_all(self.facts.jobs):
            unread = numbers_unread(self.facts.jobs)
            self._forget([job_id for job_id in self.notes if self._left(job_id, unread)])
            for job_id in self.known.measured - self.notes.keys():
                if self._left(job_id, unread):
                    self.known.forget(job_id)
            self._writer.ours.drop(unread)
        return done

    def _forget(self, gone: Sequence[str]) -> None:
        if not gone:
            return
        self._store.forget(gone, self.token)
        for job_id in gone:
            del self.notes[job_id]
            self._writer.batches.pop(job_id, None)
            self.known.forget(job_id)

    def _left(self, job_id: str, unread: Collection[str]) -> bool:
        """Whether a noted job has left. A job whose record could not be read this time may still be there."""
        record = self._jobs.get(job_id)
        if record is None:
            return job_id.partition("_")[0] not in unread
        return record.ended and job_id not in self._writer.touched

    @property
    def settling(self) -> bool:
        """Whether the last poll showed a job that was released to start, or asked to stop, and has not started yet,
        or a job whose node boots."""
        if self.placeholders.unannounced or any(job.configuring for job in self.facts.jobs):
            return True
        return any(state in (*ASSIGNED, JobState.RESIZING) for state in self._states())

    @property
    def emptying(self) -> bool:
        """Whether GPUs are about to come free for a job that is released to them at the next poll."""
        return any(state is JobState.EMPTYING for state in self._states())

    def _states(self) -> Iterator[JobState]:
        """The states of jobs that Lucid has a note of: without a note nothing is under way."""
        noted = ((job, self.notes.get(job.id)) for job in self.facts.jobs)
        return (self._ownership.state(job, note, self.facts.now_s) for job, note in noted if note is not None)

    @property
    def following(self) -> bool:
        """Whether a job that Lucid will order waits for another to end. Slurm wakes nobody when it does."""
        modes = self.facts.modes
        return any(
            job.pending
            and job.gpus > 0
            and job.dependency != ""
            and modes.get(self._ownership.home(job, self.notes.get(job.id))) is Mode.PACK
            for job in self.facts.jobs
        )

    def reports_trouble(self) -> Trouble:
        """What is wrong with the folder for reports."""
        return self._viewer.elastic.reports.trouble(self.facts.now_s)

    def status(self) -> dict[str, Any]:
        """What lucidd's status says of the last poll: waiting jobs that nobody decides; jobs whose users opted in to
        resizing or to turns, in words, and those whose reports are doubted; the folder for reports; nodes that boot
        for jobs; jobs on GPUs that get no new start; our jobs whose AdminComment somebody else has overwritten, and
        why their list cannot be written; jobs of which Slurm refused a change since it last took one."""
        facts, viewer, ours = self.facts, self._viewer, self._writer.ours
        return {
            "aside": self.aside(),
            "elastic": dict(viewer.elastic.words),
            "doubted": viewer.elastic.check.doubted(),
            "reports": to_json(self.reports_trouble()),
            "turns": dict(viewer.turns.words),
            "boots": boots_of(facts.jobs, facts.nodes, facts.now_s),
            "on_gpus_out": self._on_gpus_out(),
            "lost_tags": list(ours.lost),
            "list_trouble": ours.trouble,
            "refused": [f"job {job_id}: {words}" for job_id, words in self._writer.refused.items()],
        }

    def _on_gpus_out(self) -> list[dict[str, str]]:
        """Jobs that run on GPUs that get no new start, with the reason in words."""
        found = []
        for job in self.facts.jobs:
            outs = self.facts.outs_under(job.placement) if job.running and job.placement else []
            if outs:
                words = "; ".join(f"GPU {out.index} of {out.node}: {out.words}" for out in outs)
                found.append({"job": job.id, "words": words})
        return found

    def aside(self) -> dict[str, str]:
        """Waiting jobs of ours that nobody decides at present, by id, with the reason in words."""
        why = ((job.id, self._ownership.aside(job, self.notes.get(job.id), self.facts)) for job in self.facts.jobs)
        return {job_id: words for job_id, words in why if words}

    def still_ours(self) -> list[str]:
        """Ids of jobs that by the last poll Lucid holds, or that wait with a request that Lucid changed, or were
        asked to stop for a resize (these are held once they have stopped)."""
        return [job.id for job in self.facts.jobs if self._ours_still(job, self.notes.get(job.id))]

    def _ours_still(self, job: SlurmJob, note: JobNote | None) -> bool:
        if not job.pending:
            return note is not None and bool(note.going_to) and not job.ended
        held = self._ownership.holds(job, note) or job.request.shards or parked(job, note, self.facts.now_s)
        return held and self._ownership.ours(job)


class SystemClock:
    """Unix time. Slurm's own stamps are Unix time too, so both compare as they are."""

    def now_s(self) -> float:
        """Seconds since 1970."""
        return time.time()
