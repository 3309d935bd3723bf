"""``JobViews``: a job's request in Slurm as a ``Job`` of the core, the same object as long as nothing changes it."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from lucid.core.job import Job
from lucid.slurm.elastic.jobs import NOT_ELASTIC, Elasticity, ElasticJobs
from lucid.slurm.elastic.turn_jobs import takes_turns
from lucid.slurm.own.state import Ownership
from lucid.slurm.records.fields import features_of
from lucid.slurm.records.job import SlurmJob
from lucid.slurm.records.preemption import Preemption
from lucid.slurm.records.request import NO_DEFAULTS, JobDefaults, whole_because
from lucid.slurm.view.nodes import NodesAskedFor
from lucid.slurm.view.observation import Observation, Pool, gpus_taken, submitted_s, users_nodes
from lucid.store.port import JobNote

InVc = Callable[[str], bool]
"""A property of the policy of a VC, by the VC's name."""


def nowhere(vc: str) -> bool:  # noqa: ARG001 - an InVc
    """False: no policy has the property."""
    return False


@dataclass(frozen=True, slots=True)
class _Scene:
    """What the jobs of one VC are made from besides their records and notes."""

    defaults: JobDefaults | None
    pool: Pool | None
    features: frozenset[str] | None
    tiers: Mapping[str, int]
    preemption: Preemption
    switch_wait_s: float


@dataclass(frozen=True, slots=True)
class _Made:
    """A job as last shown, and what it was made from. ``plain``: it was made from its record, note and scene alone,
    so neither nodes nor the job's reports can change it."""

    record: SlurmJob
    note: JobNote | None
    scene: _Scene
    plain: bool
    rest: tuple[object, ...]
    job: Job


class JobViews:
    """Makes the jobs of one poll after the other. ``interleaves``: whether the policy of a VC forms groups."""

    def __init__(self, ownership: Ownership, elastic: ElasticJobs, interleaves: InVc) -> None:
        self._ownership = ownership
        self._elastic = elastic
        self._interleaves = interleaves
        self._common: dict[str, frozenset[str] | None] = {}
        self._neighbours: dict[str, frozenset[str]] = {}
        self.asked = NodesAskedFor(Observation((), (), {}, {}, 0.0))
        """Which nodes meet what each job's user asks of nodes."""
        self._scenes: dict[str, _Scene] = {}
        """The scene of each VC at the last poll; the same object is used as long as it is equal."""
        self._scenes_now: dict[str, _Scene] = {}
        """The scenes of VCs that were asked for at this poll."""
        self._made: dict[str, _Made] = {}

    def new_poll(self, facts: Observation) -> None:
        """Take in a poll, of which jobs are made from now on."""
        self._common, self._neighbours, self.asked = {}, {}, NodesAskedFor(facts)
        self._scenes_now = {}

    def forget_all_but(self, alive: Collection[str]) -> None:
        """Forget all jobs but these."""
        self._made = {job_id: kept for job_id, kept in self._made.items() if job_id in alive}

    def job(self, record: SlurmJob, note: JobNote | None, facts: Observation) -> Job:
        """The user's request as a ``Job``; the same object as long as nothing that it is made from changes."""
        home = self._ownership.home(record, note)
        scene = self._scenes_now.get(home) or self._scene(home, facts)
        before = self._made.get(record.id)
        same = before is not None and before.record is record and before.note is note and before.scene is scene
        if before is not None and same and before.plain:
            return before.job
        stays = self._ownership.stays(record, home)
        asked = self.asked.words_for(record, note, home, bool(stays))
        asks = self._elastic.elasticity_of(record, note, home, facts.now_s)
        rest = (
            facts.nodes if record.request.whole_nodes else None,
            asked,
            self._reaches(record, home, facts),
            asks if asks is NOT_ELASTIC else replace(asks, progress=None, words="", restart_s=None),
        )
        if before is not None and same and before.rest == rest:
            return before.job
        made = self._job(record, note, home, facts, asks, asked, stays)
        if before is not None and before.job == made:  # read anew, and the same
            made = before.job
        elsewhere = record.request.whole_nodes or record.time_min_s or record.features or record.excludes
        plain = asks is NOT_ELASTIC and not (elsewhere or stays or users_nodes(record, note))
        self._made[record.id] = _Made(record, note, scene, plain, rest, made)
        return made

    def _scene(self, home: str, facts: Observation) -> _Scene:
        known, features = facts.defaults, self._features_of(home, facts)
        defaults = None if known is None else known.get(home, NO_DEFAULTS)
        scene = _Scene(defaults, facts.pool, features, facts.tiers, facts.preemption, facts.switch_wait_s)
        before = self._scenes.get(home)
        if before == scene:
            scene = before
        self._scenes[home] = self._scenes_now[home] = scene
        return scene

    def _job(
        self,
        record: SlurmJob,
        note: JobNote | None,
        home: str,
        facts: Observation,
        asks: Elasticity,
        constraint: str,
        stays: str,
    ) -> Job:
        mark = record.tag or {}
        whole = self._whole_because(record, note, home, facts)
        return Job(
            id=record.id,
            vc=home,
            gpus=asks.gpus or gpus_taken(record, home, facts),
            submit_s=submitted_s(record.submit_s, note),
            rank=record.number,
            user=record.user,
            account=record.account,
            name=record.name,
            cpus=asks.cpus or record.cpus,
            mem_mib=asks.mem_mib or record.mem_mib,
            time_limit_s=record.shortened_s if self._reaches(record, home, facts) else record.time_limit_s,
            requeueable=record.requeue and record.batch,
            restart_asked=mark.get("restart") == "1",
            amp=True if mark.get("amp") == "1" else None,
            long_cold_start=mark.get("cold") == "1",
            shareable=not whole,
            whole_because=whole,
            min_nodes=1 if asks.limits is not None else min(asks.nodes or record.min_nodes, max(record.gpus, 1)),
            elastic=asks.limits,
            most_switches=record.most_switches,
            switches_until_s=self._switches_until_s(record, note, facts),
            constraint=constraint,
            tier=facts.tiers.get(record.qos, 0),
            nice=record.nice,
            takes_turns=self._interleaves(home) and takes_turns(record) and not whole and record.min_nodes <= 1,
            qos=record.qos if facts.preemption.by == "qos" else "",
            array=record.id.partition("_")[0] if "_" in record.id else "",
            stays=stays,
            borrows=not (stays and facts.pool is not None and home in facts.pool.bounded),
        )

    @staticmethod
    def _reaches(record: SlurmJob, home: str, facts: Observation) -> bool:
        """Whether Slurm's backfill may shorten this job before a window of its VC's nodes, as far as its user
        allows."""
        if not (record.time_min_s and facts.windows):
            return False
        return any(not facts.open_to(node.name, record) for node in facts.nodes_of(home))

    @staticmethod
    def _switches_until_s(record: SlurmJob, note: JobNote | None, facts: Observation) -> float | None:
        """Until when a job waits for the switches that it asks for: from when it may start, as long as its user said,
        and no longer than Slurm allows."""
        if not record.most_switches:
            return None
        wait_s = min(record.switch_wait_s or math.inf, facts.switch_wait_s)
        return (note.wait_since_s if note and note.wait_since_s else record.submit_s) + wait_s

    def _whole_because(self, record: SlurmJob, note: JobNote | None, home: str, facts: Observation) -> str:
        """Why a job's request cannot become slots, in words; empty where it can. It cannot where its user or
        job_submit.lua said no, where slots would not give it what it asks for, or where it asks for what the nodes of
        its VC do not all have."""
        mark = record.tag or {}
        known = facts.defaults
        defaults = None if known is None else known.get(home, NO_DEFAULTS)
        why = whole_because(record.request, mark, record.min_nodes, record.batch, defaults)
        if why:
            return why
        if users_nodes(record, note):
            return "it names its nodes"
        if facts.preemption.by and not facts.preemption.in_slots(record, self._beside(record.partition, facts)):
            return "it may be preempted, and could not be requeued by Lucid"
        common = self._features_of(home, facts)
        if common is None:
            return f"{home} is not set up for sharing (lucidctl setup --mode pack)"
        if any(c in record.features for c in "|[]()*!"):
            return "its constraint is more than a list of features"
        lacking = features_of(record.features) - common
        return f"not every node of {home} has the feature {min(lacking)}" if lacking else ""

    def _beside(self, partition: str, facts: Observation) -> frozenset[str]:
        """Partitions that have GPU nodes in common with this one."""
        if partition not in self._neighbours:
            here = (n.partitions for n in facts.nodes if n.gpu_types and partition in n.partitions)
            self._neighbours[partition] = frozenset[str]().union(*here) - {partition}
        return self._neighbours[partition]

    def _features_of(self, home: str, facts: Observation) -> frozenset[str] | None:
        """Features that all GPU nodes of a VC have; ``None`` where not all of its GPUs can be asked for by name."""
        if home not in self._common:
            nodes = [node for node in facts.nodes_of(home) if node.gpu_types]
            able = bool(nodes) and all(node.addressable for node in nodes)
            self._common[home] = frozenset.intersection(*(n.features for n in nodes)) if able else None
        return self._common[home]
