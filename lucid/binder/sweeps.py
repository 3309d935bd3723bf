"""Sweeps: several tasks of one array on the same GPUs, more than a pair where they fit.

Tasks of an array run one program for one user: they are like each other, and may hurt nobody else. So no capacity
bounds how many share (GSS bounds what users do to each other), but what was measured: their fenced memory, and the
speed expected of them. A GPU that has such tasks takes nobody else.

How fast k tasks run is not measured before they do. It is taken from what the predictor says of two: whatever the
second costs the first, each further one costs it again, in time for the same work. So with a speed of s in a pair, k
tasks run at 1 / (1 + (k - 1) (1 / s - 1)) each. That is the pair's own speed for k = 2, and an assumption beyond.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Final

from lucid.binder.sharing import memory_limit_mib
from lucid.core.decision import Decision, Requeue, Start
from lucid.core.job import Job, JobProfile, Pending, Running, Stage
from lucid.core.ledger import Ledger
from lucid.core.node import Node
from lucid.core.placement import Placement
from lucid.core.ports import Predictor
from lucid.core.reason import HostFits, Reason, SlowsSweep, Stable, SweepFits
from lucid.core.restart import Restarts, may_restart
from lucid.core.snapshot import Partition

if TYPE_CHECKING:
    from lucid.config import PackingSettings

__all__ = ["LEAST_WORK", "Gang", "Sweeps", "gang_of", "may_stack", "sweep_partings", "sweep_speed"]

LEAST_WORK: Final = 0.1
"""A further task has to add so much work, as a share of what one does alone: less is not worth its risk."""
_SLOTS_UNTOLD = 99


def sweep_speed(pair_speed: float, tasks: int) -> float:
    """The normalised speed of each of so many tasks, of which two run at ``pair_speed`` beside each other."""
    if pair_speed <= 0.0:
        return 0.0 if tasks > 1 else 1.0
    return 1.0 / (1.0 + (tasks - 1) * max(1.0 / pair_speed - 1.0, 0.0))


@dataclass(slots=True)
class Gang:
    """The tasks of one array that hold the same GPUs. ``ids``: with those that a plan adds. ``fenced_mib``: what
    their fences take of each GPU."""

    members: tuple[Running, ...]
    ids: list[str]
    placement: Placement
    fenced_mib: float


def may_stack(job: Job, profile: JobProfile | None, alone: bool) -> bool:
    """Does every rule hold that concerns a task alone: willing, measured, steady, of a size that does not change?"""
    return bool(
        job.array
        and job.shareable
        and not alone
        and job.elastic is None
        and not job.takes_turns
        and profile is not None
        and profile.gpu_mem_mib > 0
        and not profile.unstable
    )


def gang_of(members: Sequence[Running], node: Node) -> Gang | None:
    """The jobs on one set of GPUs as a gang; ``None`` where another could not join them, whatever is free."""
    first = members[0].job
    fenced_mib = 0.0
    for entry in members:
        if not may_stack(entry.job, entry.profile, entry.alone) or entry.job.array != first.array:
            return None
        if entry.job.user != first.user or entry.job.gpus != first.gpus or entry.visits or entry.idle is not None:
            return None
        if entry.stage is not Stage.MAIN:
            return None
        fenced_mib += _fence_mib(entry.profile, node)
    return Gang(tuple(members), [entry.job.id for entry in members], members[0].placement, fenced_mib)


def _fence_mib(profile: JobProfile | None, node: Node) -> float:
    """What MPS lets the task take of a GPU of this node; the whole where nothing fences it."""
    return float(memory_limit_mib(profile, node.gpu_mem_mib) or node.gpu_mem_mib)


def _by_placement(running: Iterable[Running]) -> Mapping[Placement, list[Running]]:
    """The jobs of arrays, and those beside them, by the GPUs that they hold."""
    found: defaultdict[Placement, list[Running]] = defaultdict(list)
    for entry in running:
        if len(entry.placement) == 1:
            found[entry.placement].append(entry)
    return {placement: members for placement, members in found.items() if members[0].job.array}


class Sweeps:
    """The gangs of one plan of one partition that a further task may join."""

    def __init__(self, partition: Partition, ledger: Ledger, predictor: Predictor, settings: PackingSettings) -> None:
        self._ledger, self._predictor, self._settings = ledger, predictor, settings
        on = settings.gss > 0 and settings.mps is not False  # without MPS nothing fences a task's memory
        self._running = partition.running if on and not partition.profiling else ()
        self._gangs: dict[str, list[Gang]] | None = None
        self._gone: set[str] = set()
        self._pending = partition.pending
        self._least: dict[str, float] | None = None
        """By array, "" for the jobs of none: the fewest GPUs that a job of it asks for that waits."""

    def _of(self, array: str) -> list[Gang]:
        if self._gangs is None:
            self._gangs = {}
            for placement, members in _by_placement(self._running).items():
                node = self._ledger.nodes[self._ledger.index[placement[0].node]]
                gang = gang_of(members, node) if node.available else None
                if gang is not None:
                    self._gangs.setdefault(members[0].job.array, []).append(gang)
        return self._gangs.get(array, [])

    def drop(self, gone: Iterable[str]) -> None:
        """Nobody joins a gang any more that has one of these jobs."""
        self._gone.update(gone)

    def _asked_by_others(self, array: str, decided: Mapping[str, Decision]) -> float:
        """The fewest GPUs that a waiting job asks for that is no task of this array; infinite: nobody else waits.
        Tasks of other arrays do not count that have a gang of their own to join."""
        if self._least is None:
            self._least = {}
            for entry in self._pending:
                job = entry.job
                if entry.barred or isinstance(decided.get(job.id), Start) or (job.array and self._joins_own(entry)):
                    continue
                self._least[job.array] = min(job.gpus, self._least.get(job.array, inf))
        return min((gpus for other, gpus in self._least.items() if not other or other != array), default=inf)

    def _joins_own(self, entry: Pending) -> bool:
        return may_stack(entry.job, entry.profile, entry.alone) and bool(self._of(entry.job.array))

    def find(
        self, entry: Pending, fenced: Container[str], decided: Mapping[str, Decision]
    ) -> tuple[Gang, tuple[Reason, ...]] | None:
        """The gang to join, the smallest of those that have room, with the comparisons; ``None``: there is none.

        ``fenced`` names nodes that this job must keep off; ``decided``: what the plan does so far. Where another
        job waits that could run on a node, no task takes the place of one that ends there: the GPU is to come free.
        """
        job, profile, ledger = entry.job, entry.profile, self._ledger
        if not may_stack(job, profile, entry.alone):
            return None
        assert profile is not None
        asks_host = ledger.host_limits and (job.cpus > 0 or job.mem_mib > 0)
        others = self._asked_by_others(job.array, decided) if self._of(job.array) else inf
        for gang in sorted(self._of(job.array), key=lambda one: len(one.ids)):
            at = ledger.index[gang.placement[0].node]
            node, host = ledger.nodes[at], gang.members[0]
            if not self._gone.isdisjoint(gang.ids):
                continue
            if host.job.gpus != job.gpus or host.job.user != job.user or node.name in fenced:
                continue
            if others <= node.gpus or not ledger.meets(at, job):
                continue
            if ledger.closing and not ledger.ends_before(at, job):
                continue
            if asks_host and not ledger.host_fits(at, job, job.gpus):
                continue
            fits = self._fits(job, profile, gang, node)
            if fits:
                said: Sequence[Reason] = (HostFits(job.cpus, job.mem_mib, True),) if asks_host else ()
                return gang, (fits, *said)
        return None

    def _fits(self, job: Job, profile: JobProfile, gang: Gang, node: Node) -> SweepFits:
        most = min(self._settings.sweep_most, job.most_together or _SLOTS_UNTOLD, node.slots or _SLOTS_UNTOLD)
        most = min([most, *(one.job.most_together for one in gang.members if one.job.most_together)])
        said = self._predictor.pair_speed(profile, gang.members[0].profile or profile)
        pair = min(said) if isinstance(said, tuple) else 0.0  # without an opinion on two nothing is known of three
        tasks = len(gang.ids) + 1
        speed, before = sweep_speed(pair, tasks), sweep_speed(pair, tasks - 1)
        return SweepFits(
            tuple(gang.ids),
            most,
            gang.fenced_mib + _fence_mib(profile, node),
            node.gpu_mem_mib,
            speed,
            self._settings.part_below_speed,
            tasks * speed - (tasks - 1) * before,
            LEAST_WORK,
        )

    def joined(self, entry: Pending, gang: Gang) -> None:
        """Note that the task holds the gang's GPUs, too."""
        node = self._ledger.nodes[self._ledger.index[gang.placement[0].node]]
        gang.ids.append(entry.job.id)
        gang.fenced_mib += _fence_mib(entry.profile, node)


def sweep_partings(
    running: Iterable[Running], nodes: Mapping[str, Node], bound: float, restarts: Restarts
) -> Iterator[tuple[Running, Requeue]]:
    """Of each GPU with three or more tasks that have outgrown it, or run too slow, the newest that may be started
    over. One at a time: what is left is measured again. Two are a pair, for which ``binder.unpack`` has rules."""
    grouped = [entry for entry in running if entry.in_sweep]
    for placement, members in _by_placement(grouped).items():
        node = nodes[placement[0].node]
        profiles = [entry.profile for entry in members if entry.profile is not None]
        seen = [
            profile.seen_speed
            for entry, profile in ((entry, entry.profile) for entry in members)
            if profile is not None and profile.seen_speed is not None and profile.seen_beside in entry.group
        ]
        shaky = next((e for e in members if e.profile is not None and e.profile.unstable), None)
        why: Reason = SlowsSweep(
            len(members),
            min(seen, default=None),
            bound,
            sum(profile.gpu_mem_mib for profile in profiles),
            node.gpu_mem_mib,
        )
        if shaky is not None:
            why = Stable(shaky.job.id, True)
        if why:
            continue
        for entry in sorted(members, key=lambda one: (one.start_s, one.job.rank, one.job.id), reverse=True):
            may = may_restart(entry.job, restarts)
            if may:
                yield entry, Requeue((why, may), part=True)
                break
