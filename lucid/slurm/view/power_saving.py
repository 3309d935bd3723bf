"""Slurm's power saving: when nodes that sleep, boot or go down are available; how long boots take.

Slurm says what a node does (``idle~``, ``#``, ``%``), and not for how long. So Lucid remembers since when it has seen
the node do so, and how long a job waited that woke it: for this node, else for those in the same partition;
ResumeTimeout counts until a boot was seen. Seen on 24.11.5: slurmctld gives a job a sleeping node at once (RUNNING,
with the flags CONFIGURING and POWER_UP_NODE), wakes it also where SuspendExcNodes names it, and not where SuspendTime
is INFINITE; it starts the job up to half a minute after the node has come up, and sets StartTime to then. Jobs also
wait on their GPUs while prologs run (CONFIGURING)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from lucid.core.node import Window
from lucid.slurm.records.job import SlurmJob, SlurmNode
from lucid.text import digits

ASLEEP, BOOTS, FALLS_ASLEEP = "POWERED_DOWN", "POWERING_UP", "POWERING_DOWN"
_EXCUSED = frozenset([ASLEEP, BOOTS, "NOT_RESPONDING", "POWER_UP", "POWER_DOWN"])
"""Further states of a node that sleeps or boots, which keep no job from being sent there."""
FAILED = "ResumeTimeout reached"
"""Slurm's reason for a node that did not come up in time."""
_WOKE = "POWER_UP_NODE"
"""The flag of a job whose node was asleep when the job got it, until its program begins."""
_KEPT = 5
"""How many boots of each node are remembered."""
_SURE_S = 5.0
"""A boot whose beginning is known less exactly than this says nothing of how long boots take."""
_OVERDUE_S = 2.0
"""A node that should have gone down by now is expected to need so much longer."""
_RESUME_S, _SUSPEND_S = 60.0, 30.0
"""Slurm's own defaults of ResumeTimeout and SuspendTimeout."""


@dataclass(frozen=True, slots=True)
class PowerRules:
    """The power saving settings of slurmctld. ``wakes``: whether it starts nodes that jobs need."""

    wakes: bool = False
    resume_s: float = _RESUME_S
    suspend_s: float = _SUSPEND_S
    why_not: str = "it is not known whether Slurm wakes it"

    @staticmethod
    def from_config(config: Mapping[str, str], in_partition: bool = False) -> PowerRules:
        """The rules from ``scontrol show config``. ``in_partition``: whether a partition has a SuspendTime of its
        own."""
        why_not = ""
        if not (config.get("ResumeProgram") and config.get("SuspendProgram")):
            why_not = "Slurm has no ResumeProgram and does not wake it"
        elif not (in_partition or _seconds(config.get("SuspendTime"), 0.0)):
            why_not = "SuspendTime is not set, so Slurm does not wake it"
        resume_s, suspend_s = (
            _seconds(config.get("ResumeTimeout"), _RESUME_S),
            _seconds(config.get("SuspendTimeout"), _SUSPEND_S),
        )
        return PowerRules(not why_not, resume_s, suspend_s, why_not)


def _seconds(text: str | None, otherwise: float) -> float:
    """The seconds of ``60 sec``."""
    found = digits((text or "").split(" ")[0])
    return float(found) if found else otherwise


def booting(jobs: Iterable[SlurmJob]) -> dict[str, float]:
    """By node, since when a job waits there for its boot or prolog (Slurm's CONFIGURING), Unix seconds."""
    found: dict[str, float] = {}
    for job in jobs:
        if job.configuring and job.start_s:
            for name in _hosts(job):
                found[name] = min(found.get(name, job.start_s), job.start_s)
    return found


def _hosts(job: SlurmJob) -> set[str]:
    return {name for name, _, _ in job.hosts_used} | {part.node for part in job.placement}


def begins_s(job: SlurmJob, nodes: Mapping[str, SlurmNode], now_s: float) -> float:
    """When the program of a job that has its nodes began, or begins once they have booted (Unix s): a boot is not run
    time."""
    if not job.configuring:
        return job.start_s
    mine = [nodes[part.node] for part in job.placement if part.node in nodes]
    ends_s = [n.boots_since_s + n.boot_s for n in mine if n.boots_since_s is not None]
    if not ends_s:
        return now_s if _WOKE in job.flags else job.start_s
    return max(*ends_s, now_s)


def boots_of(jobs: Iterable[SlurmJob], nodes: Iterable[SlurmNode], now_s: float) -> dict[str, dict[str, Any]]:
    """For each job that waits for the boot of its nodes, by id: one of the nodes (``node``), and until when they are
    expected to boot (``until_s``, Unix seconds)."""
    waits = [job for job in jobs if job.configuring and _WOKE in job.flags]
    if not waits:
        return {}
    known = {node.name: node for node in nodes}
    return {
        job.id: {"node": min(_hosts(job), default=""), "until_s": round(begins_s(job, known, now_s), 1)}
        for job in waits
    }


@dataclass(slots=True)
class _Seen:
    """A node's state as seen, since when, and how exactly that is known."""

    state: str
    since_s: float
    within_s: float


class Power:
    """What was seen of nodes that sleep, from poll to poll."""

    def __init__(self, boots: Mapping[str, Any] | None = None) -> None:
        """``boots``: those of an earlier lucidd, as ``boots`` has them; entries of another form are passed over."""
        self.rules = PowerRules()
        self.boots: dict[str, list[float]] = {}
        """The last boots by node, in seconds."""
        self._seen: dict[str, _Seen] = {}
        self._waits: dict[str, tuple[float, dict[str, float]]] = {}
        """Jobs that woke nodes: since when each has its nodes, and since when each of these boots."""
        self._by_partition: dict[str, float] = {}
        for name, times in (boots or {}).items():
            kept = [float(t) for t in times if isinstance(t, int | float) and 0 < t < 86400] if times else []
            if isinstance(name, str) and kept:
                self.boots[name] = kept[-_KEPT:]

    def observe_nodes(
        self, nodes: Sequence[SlurmNode], since: Mapping[str, float], now_s: float, before_s: float
    ) -> bool:
        """Take in a fresh poll of the nodes; returns whether a boot was learned. ``since``: see ``booting``.
        ``before_s``: when they were last known to be as the previous poll had shown them."""
        learned = False
        waited_for = {*since, *(name for _, names in self._waits.values() for name in names)}
        for node in nodes:
            state = next((s for s in (FALLS_ASLEEP, BOOTS, ASLEEP) if s in node.states), "")
            before = self._seen.get(node.name)
            if before is None or before.state != state:
                if before is not None and before.state == BOOTS and not state and node.name not in waited_for:
                    late_s = now_s - before_s
                    sure = node.available and max(before.within_s, late_s) <= _SURE_S
                    learned |= sure and self._learn(node.name, now_s - late_s / 2 - before.since_s)
                self._seen[node.name] = _Seen(state, now_s, now_s - before_s)
            seen = self._seen[node.name]
            if state == BOOTS and node.name in since and since[node.name] < seen.since_s:
                seen.since_s, seen.within_s = since[node.name], 0.0
        if learned or not self._by_partition:
            self._by_partition = _medians(nodes, self.boots)
        return learned

    def observe_jobs(self, jobs: Iterable[SlurmJob], nodes: Sequence[SlurmNode]) -> bool:
        """Take in a poll of the jobs; returns whether a boot was learned. A job that woke its nodes and runs now
        shows exactly how long that took."""
        learned, wait = False, {}
        for job in jobs:
            if job.configuring and _WOKE in job.flags:
                first = {name: self._seen[name].since_s for name in _hosts(job) if self._boots(name)}
                wait[job.id] = job.start_s, {**self._waits.get(job.id, (0.0, {}))[1], **first}
            elif job.id in self._waits and job.state == "RUNNING":
                asked_s, names = self._waits[job.id]
                for name, since_s in names.items():  # one that booted before the job came says nothing
                    learned |= abs(since_s - asked_s) <= _SURE_S and self._learn(name, job.start_s - asked_s)
        self._waits = wait
        if learned:
            self._by_partition = _medians(nodes, self.boots)
        return learned

    def _boots(self, name: str) -> bool:
        return name in self._seen and self._seen[name].state == BOOTS

    def _learn(self, name: str, took_s: float) -> bool:
        if took_s > 0:
            self.boots[name] = [*self.boots.get(name, ()), round(took_s, 1)][-_KEPT:]
        return took_s > 0

    def boot_s(self, node: SlurmNode) -> float:
        """How long a boot of this node takes, by the boots seen."""
        if node.name in self.boots:
            return median(self.boots[node.name])
        known = [self._by_partition[p] for p in node.partitions if p in self._by_partition]
        return max(known, default=self.rules.resume_s)

    def with_states(
        self, nodes: Sequence[SlurmNode], now_s: float, since: Mapping[str, float] | None = None
    ) -> Sequence[SlurmNode]:
        """The nodes, with windows and boot times by their power state; the same objects where it means nothing.
        ``since``: see ``booting``. A node that a job waits for boots, or is about to."""
        return [self._with_state(node, now_s, since or {}) if node.sleeps else node for node in nodes]

    def _with_state(self, node: SlurmNode, now_s: float, since: Mapping[str, float]) -> SlurmNode:
        seen = self._seen.get(node.name, _Seen("", now_s, 0.0))
        if not self.rules.wakes:
            return node if BOOTS in node.states else replace(node, why_out=self.rules.why_not)
        falls = FALLS_ASLEEP in node.states
        made = replace(node, excused=_EXCUSED | {FALLS_ASLEEP} if falls else _EXCUSED)
        if not made.available:
            # it is down or drained, too
            return replace(made, why_out="it did not come up in time") if node.reason.startswith(FAILED) else made
        boot_s = max(self.boot_s(node), 1.0)
        if falls:
            until_s = max(seen.since_s + self.rules.suspend_s, now_s + _OVERDUE_S)
            return replace(made, shut=Window(seen.since_s, until_s, "powers down"), boot_s=boot_s)
        return replace(
            made, boot_s=boot_s, boots_since_s=seen.since_s if BOOTS in node.states else since.get(node.name)
        )

    def moves(self, nodes: Iterable[SlurmNode]) -> bool:
        """Whether a node is on its way up or down."""
        return any(not node.states.isdisjoint((BOOTS, FALLS_ASLEEP, "POWER_UP")) for node in nodes)


def _medians(nodes: Iterable[SlurmNode], boots: Mapping[str, Sequence[float]]) -> dict[str, float]:
    found: defaultdict[str, list[float]] = defaultdict(list)
    for node in nodes:
        for partition in node.partitions if node.name in boots else ():
            found[partition] += boots[node.name]
    return {partition: median(times) for partition, times in found.items()}


class Boots:
    """Remembers, from poll to poll, until when jobs were seen to be set up. What is not seen counts as run time."""

    def __init__(self) -> None:
        self._until_s: dict[str, float] = {}
        self._began: set[str] = set()

    def observe(self, jobs: Iterable[SlurmJob], now_s: float) -> None:
        """Take in one poll. Jobs that it does not show are forgotten."""
        jobs = list(jobs)
        here = {job.id for job in jobs if not job.pending}
        self._until_s = {job_id: at_s for job_id, at_s in self._until_s.items() if job_id in here}
        self._began &= self._until_s.keys()
        for job in jobs:
            if job.configuring:
                self._until_s[job.id] = now_s
                self._began.discard(job.id)
            elif job.running and job.id in self._until_s:
                self._began.add(job.id)

    def ran_s(self, job: SlurmJob) -> float:
        """Seconds that an ended job ran; 0 for one that was being set up when last seen, unless it completed."""
        until_s = self._until_s.get(job.id)
        if until_s is not None and job.id not in self._began and job.state != "COMPLETED":
            return 0.0
        return max(job.end_s - max(job.start_s, until_s or 0.0), 0.0)
