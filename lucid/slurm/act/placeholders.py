"""Placeholder jobs of lucidd's own user, each of which holds a GPU that gets no new start.

Slurm cannot drain one GPU, and its reservations do not do it: one of ``TRES=gres/gpu:g2=1`` takes all cores of the
node (seen on 24.11). A job that asks for ``gres/gpu:g2:1`` on that node gets that GPU and no other. By a dependency
it waits for the jobs that run there, so it stops nobody; once they have ended it goes first. Its time limit is
renewed as long as lucidd lives: so long after the last renewal the GPU is Slurm's again. It asks for one core, in the
partition of the highest tier: nobody preempts it, and it preempts nobody, since it begins where its GPU and a core
are free. It wakes no node, and is gone while its node is drained or reserved."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from lucid.core.gpu import GpuOut
from lucid.errors import ActionRefused, ClusterError
from lucid.places import Mode
from lucid.slurm.act.write import JobWriter
from lucid.slurm.client import HeldGpu
from lucid.slurm.commands import CommandClient
from lucid.slurm.own.waits import to_come
from lucid.slurm.records.job import SlurmJob, SlurmNode
from lucid.slurm.records.request import Request
from lucid.slurm.view.observation import Observation

NAME = "lucid-gpu-out:"
"""Prefix of the placeholders' job names, before ``node7:3``."""
_MOST_WRITES = 4
"""Most writes of one cycle, refused ones included."""
_AGAIN_S = 120.0
"""How long after a refusal or silence of Slurm it is tried again: a few times before a placeholder ends."""
_LEAST_S = 60.0
"""The least time before a window for which a placeholder is begun."""
_PATIENCE_S = 5.0
"""A placeholder that could start for so long, and did not, has lost its GPU to another job: it waits for that one,
too."""


class Placeholders:
    """Begins, renews and ends placeholders, by what the last poll showed."""

    def __init__(self, client: CommandClient, writer: JobWriter, lasts_s: float) -> None:
        self._client = client
        self._writer = writer
        self._lasts_s = lasts_s
        self._jobs: list[SlurmJob] = []
        self._me: tuple[int, str] | None = None
        self._ask_s = 0.0
        self._why_unknown = ""
        self._announced = False
        """Whether a heartbeat names lucidd's user, whose jobs may ask for a single GPU. One is written after each
        turn."""
        self.unannounced = False
        """Whether a placeholder is wanted that is begun after the next heartbeat."""
        self._not_before_s: dict[str, float] = {}
        self._sent = 0
        """How many writes this cycle has sent."""
        self.refused: dict[str, str] = {}
        """By GPU, why Slurm cannot be kept off it."""

    @property
    def uid(self) -> int:
        """Number of the user who owns the placeholders on the cluster; -1 where that is not known."""
        return -1 if self._me is None else self._me[0]

    def others(self, jobs: Sequence[SlurmJob], now_s: float) -> Sequence[SlurmJob]:
        """The jobs without placeholders; a running placeholder becomes a job without GPUs. The same object where
        there is none."""
        self._jobs = [job for job in jobs if job.name.startswith(NAME) and self._mine(job, now_s)]
        if not self._jobs:
            return jobs
        mine = {job.id for job in self._jobs}
        plain = [replace(job, gpus=0, placement=(), request=Request()) for job in self._jobs if job.running]
        return [*(job for job in jobs if job.id not in mine), *plain]

    def _mine(self, job: SlurmJob, now_s: float) -> bool:
        me = self._known(now_s)  # anybody may give a job such a name
        return me is not None and job.user == me[1] and job.uid in (-1, me[0])

    def _known(self, now_s: float) -> tuple[int, str] | None:
        """Number and name of lucidd's user on the cluster; ``None`` where that is not known (a prefix that runs
        nothing but Slurm's commands). A failure ends no turn, and is tried again after a while."""
        if self._me is None and not to_come(self._ask_s, now_s, _AGAIN_S):
            self._ask_s = now_s + _AGAIN_S
            try:
                self._me = self._client.who()
            except ClusterError as error:
                self._why_unknown = f"who lucidd is on the cluster is not known: {error}"
        return self._me

    def settle(self, wanted: Mapping[str, GpuOut], facts: Observation) -> list[str]:
        """Begin missing placeholders, renew those that run, end those no longer wanted; returns what was done."""
        me = self._known(facts.now_s) if wanted else self._me
        ready, self._announced = self._announced, me is not None
        self.unannounced = bool(wanted) and me is not None and not ready
        if wanted and me is None:
            self.refused = dict.fromkeys(wanted, self._why_unknown)
        if not ready:
            return []
        nodes = {node.name: node for node in facts.nodes}
        done: list[str] = []
        kept: set[str] = set()
        self._sent = 0
        self.refused = {name: why for name, why in self.refused.items() if name in wanted}
        alive = [job for job in self._jobs if not job.ended and not job.completing]
        for job in sorted(alive, key=lambda one: (not one.running, one.number)):
            name = job.name.removeprefix(NAME)
            out = wanted.get(name)
            node = None if out is None else nodes.get(out.node)
            asks = job.running or job.gpus > 0  # a lucidd killed between two commands leaves one that does neither
            if self._full or to_come(self._not_before_s.get(name, 0.0), facts.now_s, _AGAIN_S):
                kept.add(name)
            elif out is None or node is None or name in kept or not self._may(node, facts) or not asks:
                end = partial(self._client.cancel, job.id)
                done += self._try(name, f"GPU {name} is Slurm's again", end, facts.now_s)
            else:
                kept.add(name)
                done += self._renew(job, out, node, facts)
        for name in sorted(wanted.keys() - kept):
            out, node = wanted[name], nodes.get(wanted[name].node)
            if not self._full and node is not None and self._may(node, facts):
                done += self._begin(out, node, facts)
        return done

    def _begin(self, out: GpuOut, node: SlurmNode, facts: Observation) -> list[str]:
        place = node.place_of(out.index)
        if place is None:
            have = ", ".join(map(str, node.gpu_numbers))
            self.refused[out.name] = f"Slurm knows no GPU of this number on its node (it has {have or 'none'})"
            return []
        if to_come(self._not_before_s.get(out.name, 0.0), facts.now_s, _AGAIN_S):
            return []
        if not node.addressable:
            self.refused[out.name] = "its node's GPUs cannot be asked for one by one (lucidctl setup --mode pack)"
            return []
        lasts_s = min(self._lasts_s, self._room_s(node, facts))
        tiers = facts.preemption.tiers
        packed = [name for name in node.partitions if facts.modes.get(name) is Mode.PACK]
        after = tuple(_holders(node, place, facts))
        if lasts_s < _LEAST_S or not packed or not (after or _has_core(node, facts)):
            return []
        held = HeldGpu(
            NAME + out.name,
            node.name,
            min(packed, key=lambda name: (-tiers.get(name, 0), name)),
            f"gres/gpu:{node.gpu_types[place]}:1",
            int(lasts_s // 60),
            after,
            f"GPU {out.index} of {out.node} is out: {out.words}"[:200],
        )
        hold = partial(self._client.hold_gpu, held)
        return self._try(out.name, f"GPU {out.name} is kept from Slurm", hold, facts.now_s)

    def _renew(self, job: SlurmJob, out: GpuOut, node: SlurmNode, facts: Observation) -> list[str]:
        if job.running:
            ran_s = max(facts.now_s - job.start_s, 0.0)
            left_s = math.inf if job.time_limit_s is None else job.time_limit_s - ran_s
            lasts_s = min(self._lasts_s, self._room_s(node, facts))
            if left_s > self._lasts_s * 2 / 3:
                return []
            minutes = int((ran_s + lasts_s) // 60) + (lasts_s == self._lasts_s)  # Slurm counts whole minutes
            if job.time_limit_s is not None and minutes * 60.0 <= job.time_limit_s:
                return []  # a window begins
            renew = partial(self._client.renew_held_gpu, job.id, minutes, ())
            return self._try(out.name, "", renew, facts.now_s)
        place = node.place_of(out.index)
        after = [] if place is None else _holders(node, place, facts)
        holders = [name for name in after if name not in job.dependency.replace(":", ",").split(",")]
        waits = bool(job.dependency) or facts.now_s < max(job.submit_s, job.eligible_s) + _PATIENCE_S
        if not holders or waits:
            return []
        wait = partial(self._client.renew_held_gpu, job.id, None, tuple(holders))
        return self._try(out.name, "", wait, facts.now_s)

    @property
    def _full(self) -> bool:
        return self._sent >= _MOST_WRITES or self._writer.full(1)

    def _try(self, name: str, words: str, step: Callable[[], object], now_s: float) -> list[str]:
        self._sent += 1
        self._not_before_s[name] = now_s + _AGAIN_S
        try:
            self._writer.tell(step)
        except ActionRefused as error:
            self.refused[name] = str(error)
            return []
        self._not_before_s[name] = now_s + _PATIENCE_S  # what came of it may not show at the next look
        self.refused.pop(name, None)
        return [words] if words else []

    @staticmethod
    def _may(node: SlurmNode, facts: Observation) -> bool:
        """Whether a placeholder may begin on the node: not on one that is out, and none is woken for it."""
        awake = node.available and not node.sleeps and not node.boot_s
        return awake and any(facts.modes.get(name) is Mode.PACK for name in node.partitions)

    @staticmethod
    def _room_s(node: SlurmNode, facts: Observation) -> float:
        """Seconds until the next window of the node."""
        ends = [window.ends_by_s for window in facts.windows.get(node.name, ())]
        return min(ends, default=math.inf) - facts.now_s


def _has_core(node: SlurmNode, facts: Observation) -> bool:
    """Whether a core of the node is free, so that nobody is preempted for one."""
    used = sum(cpus for job in facts.jobs if job.running for name, cpus, _ in job.hosts_used if name == node.name)
    return not facts.preemption.by or used < node.cpus


def _holders(node: SlurmNode, place: int, facts: Observation) -> list[str]:
    """The jobs that run on the node's GPU of this index."""
    return [
        job.id
        for job in facts.jobs
        if job.running and any(part.node == node.name and part.mask >> place & 1 for part in job.placement)
    ]
