"""``Partings``: when a pair is parted, by packing rule 4 (acceptance row L15) and by measurements of the pair."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from lucid.core.decision import Requeue
from lucid.core.job import Restarts, Running, may_restart
from lucid.core.node import Node
from lucid.core.reason import Reason
from lucid.core.reasons.sharing import GpuMemory, SeenSpeed, Stable
from lucid.core.snapshot import Partition

PART_BELOW_SPEED = 0.5
"""A pair is parted in which a job was measured to run slower than this: below 0.5 each, two jobs would both be done
sooner one after the other. Parting costs the leaver its progress, so it lies well below ``least_pair_speed``."""


class Parting(Struct, frozen=True):
    """The job to take off its partner's GPUs, and why."""

    entry: Running
    requeue: Requeue


class Partings:
    """The partings of each plan: one for each pair that one of these rules parts, in this order:

    - a job has shown an unstable pattern: it leaves;
    - its growing memory is predicted to leave no room for its partner (rule 1 over time): it leaves;
    - a job was measured to run slower than ``PART_BELOW_SPEED``: the one that began later leaves, which has less
      to lose.

    The job that leaves runs alone from then on. If it may not be started over, its partner leaves instead. A pair of
    two such jobs stays: no job is killed for the speed of another.

    A pair that stays is checked again only when something new was measured of one of its jobs. Hundreds of pairs run,
    and few change between two plans."""

    def __init__(self, restarts: Restarts) -> None:
        self._restarts: Restarts = restarts
        self._quiet: Partition | None = None
        """The partition as it was when no rule parted a pair."""

    def __call__(self, partition: Partition) -> list[Parting]:
        """The pairs of this partition to part; called for one plan after the other."""
        running, nodes, quiet = partition.running, partition.nodes, self._quiet
        if quiet is None or quiet.nodes is not nodes:
            changed = _telling(running)
        else:
            fresh = [e for e in partition.since(quiet).came if type(e) is Running and e.partner is not None]
            mine, beside = set(map(id, fresh)), {entry.partner for entry in fresh}
            telling = _telling(running) if fresh else ()
            changed = [entry for entry in telling if id(entry) in mine or entry.job.id in beside]
        found = _partings(changed, running, nodes, self._restarts)
        self._quiet = None if found else partition
        return found


def _telling(running: Iterable[Running]) -> list[Running]:
    """The jobs of pairs with a measurement that a rule uses: few, most of the time."""
    return [
        entry
        for entry in running
        if entry.partner is not None
        and (
            (seen := entry.profile) is not None and (seen.seen_speed is not None or seen.unstable or seen.mem_growing)
        )
    ]


def _partings(
    paired: Sequence[Running],
    running: Sequence[Running],
    nodes: Sequence[Node],
    restarts: Restarts,
) -> list[Parting]:
    found: list[Parting] = []
    if not paired:
        return found
    by_id = {entry.job.id: entry for entry in running}
    capacity = {node.name: float(node.gpu_mem_mib) for node in nodes}
    done: set[str] = set()
    for rule in (_unstable, _outgrows, _slowed):
        for entry in paired:
            partner = by_id.get(entry.partner or "")
            if partner is None or entry.job.id in done:
                continue
            for why, leavers in rule(entry, partner, capacity):
                for leaver in leavers:
                    may = may_restart(leaver.job, restarts)
                    if may:
                        found.append(Parting(leaver, Requeue((why, may), part=True)))
                        done.update((entry.job.id, partner.job.id))
                        break
    return found


_Found = Iterator[tuple[Reason, tuple[Running, ...]]]


def _unstable(entry: Running, partner: Running, capacity: dict[str, float]) -> _Found:  # noqa: ARG001
    if entry.profile is not None and entry.profile.unstable:
        yield Stable(entry.job.id, True), (entry, partner)


def _outgrows(entry: Running, partner: Running, capacity: dict[str, float]) -> _Found:
    own, other = entry.profile, partner.profile
    if own is None or other is None or not own.mem_growing:
        return
    least = min(capacity[part.node] for part in entry.placement)
    fits = GpuMemory(partner.job.id, own.gpu_mem_mib, other.gpu_mem_mib, least)
    if not fits:
        yield fits, (entry, partner)


def _slowed(entry: Running, partner: Running, capacity: dict[str, float]) -> _Found:  # noqa: ARG001
    if entry.profile is None or entry.profile.seen_speed is None or entry.profile.seen_beside != partner.job.id:
        return
    fast = SeenSpeed(entry.job.id, partner.job.id, entry.profile.seen_speed, PART_BELOW_SPEED)
    if not fast:
        yield fast, (entry, partner) if entry.start_s >= partner.start_s else (partner, entry)
