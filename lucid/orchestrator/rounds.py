"""Base of policies that decide in rounds: at multiples of an interval, or at the first plan after a missed one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from lucid.core.decision import Action, Decision, Hold, PartitionPlan, Start
from lucid.core.job import Pending
from lucid.core.ledger import Ledger
from lucid.core.placement import placement_gpus
from lucid.core.reasons.queue import NextRound
from lucid.core.snapshot import Partition, Snapshot
from lucid.core.times import next_round_s
from lucid.orchestrator.policy import PartitionPolicy


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """What a policy that decides in rounds leaves in a partition's memory.

    ``due_s``: the awaited round; ``None``: none. ``starts``: by job id, what the last round decided to start.
    ``rest``: the policy's own memory."""

    due_s: float | None = None
    starts: Mapping[str, Start] | None = None
    rest: object = None


def after_round_s(now_s: float, interval_s: float) -> float:
    """The round after the one that is decided at ``now_s``, which may be late."""
    at_s = next_round_s(now_s, interval_s)
    return at_s if at_s > now_s else now_s + interval_s


class RoundPolicy(PartitionPolicy):
    """Base of policies that decide only at multiples of ``interval_s`` seconds of the clock.

    A plan is seldom made at the exact moment, so a round that has passed is decided late, at the first plan after it.
    The round is kept in the partition's memory: without it (a restart) the next multiple is awaited. A start that a
    round decided, but whose GPUs another job had not left yet, is carried out between rounds as soon as those GPUs
    are free."""

    def __init__(self, interval_s: float) -> None:
        super().__init__()
        self.interval_s = interval_s

    @abstractmethod
    def plan_round(self, partition: Partition, snapshot: Snapshot, memory: object) -> PartitionPlan:
        """Decide one partition at a round. ``memory``: what the last plan left, at a round or between."""

    def idle_plan(self, partition: Partition, memory: object) -> PartitionPlan | None:  # noqa: ARG002
        """The plan where there is nothing to decide; ``None`` where there is."""
        return None if partition.pending or partition.running else PartitionPlan({})

    def plan_partition(self, partition: Partition, snapshot: Snapshot) -> PartitionPlan:
        """Decide at a round; between rounds, wait for the next."""
        found = snapshot.memory.get(partition.name)
        before = found if isinstance(found, Round) else Round()
        idle = self.idle_plan(partition, before.rest)
        if idle is not None:
            return idle if idle.memory is None else PartitionPlan({}, memory=Round(rest=idle.memory))
        now_s = snapshot.now_s
        at_s = next_round_s(now_s, self.interval_s)
        if at_s > now_s and (before.due_s is None or now_s < before.due_s):
            return _wait(partition, before, now_s, at_s)
        made = self.plan_round(partition, snapshot, before.rest)
        starts = {a.job_id: a.decision for a in made.actions if isinstance(a.decision, Start)}
        return PartitionPlan(made.decisions, made.actions, made.wake_s, Round(made.wake_s, starts, made.memory))


def _wait(partition: Partition, before: Round, now_s: float, at_s: float) -> PartitionPlan:
    """The plan in which all jobs wait for the round at ``at_s``, but for the starts that the last one left."""
    hold = Hold((NextRound(at_s),))
    decisions: dict[str, Decision] = {}
    actions: list[Action] = []
    open_starts = before.starts or {}
    ledger = Ledger(partition, now_s) if any(e.job.id in open_starts for e in partition.pending) else None
    for entry in partition.pending:
        start = open_starts.get(entry.job.id)
        if ledger is None or start is None or not _free(ledger, entry, start):
            decisions[entry.job.id] = hold
            continue
        ledger.claim(entry.job, start.placement)
        decisions[entry.job.id] = start
        actions.append(Action(entry.job.id, partition.name, start))
    return PartitionPlan(decisions, tuple(actions), at_s, Round(at_s, before.starts, before.rest))


def _free(ledger: Ledger, entry: Pending, start: Start) -> bool:
    """Whether the GPUs of the start are free, with CPUs and memory for this job, and as many as it asks for."""
    if entry.job.elastic is None and placement_gpus(start.placement) != entry.job.gpus:
        return False  # an older memory: another job had this number
    for name, mask in start.placement:
        node = ledger.index.get(name)
        if node is None or mask & ~ledger.free_mask[node]:
            return False
        if ledger.selective and not ledger.host_fits(node, entry.job, mask.bit_count()):
            return False
    return True
