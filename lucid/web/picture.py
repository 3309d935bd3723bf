"""One look at lucidd's store, indexed by what pages ask for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from lucid.config import Mode
from lucid.core.decision import DecisionRow, row_of
from lucid.core.job import Pending, Running
from lucid.core.node import Node
from lucid.core.reason import Reserved
from lucid.live.plans.stored_plan import StoredPlan
from lucid.orchestrator.forecast.start_times import StartTimes
from lucid.web.status import Status

__all__ = ["Entry", "Picture"]

Entry = Pending | Running


@dataclass(frozen=True)
class Picture:
    """``version`` rises with every picture."""

    version: int
    seen: StoredPlan
    status: Status
    times: StartTimes = field(default_factory=StartTimes)
    """What came true of lucidd's forecasts of starts."""
    positions: Mapping[str, int] = field(init=False)
    """Of the jobs that wait: the place in their partition's order."""

    def __post_init__(self) -> None:
        found: dict[str, int] = {}
        for part in self.seen.plan.partitions.values():
            found.update(part.positions)
        object.__setattr__(self, "positions", found)

    @property
    def now_s(self) -> float:
        """When lucidd looked."""
        return self.seen.snapshot.now_s

    @cached_property
    def waiting(self) -> dict[str, tuple[str, Pending]]:
        """Partition and job, in the order of the partitions' plans."""
        found: dict[str, tuple[str, Pending]] = {}
        for name, part in self.seen.snapshot.partitions.items():
            for entry in sorted(part.pending, key=lambda e: self.positions.get(e.job.id, 0)):
                found[entry.job.id] = name, entry
        return found

    @cached_property
    def running(self) -> dict[str, tuple[str, Running]]:
        """Partition and job."""
        return {e.job.id: (n, e) for n, part in self.seen.snapshot.partitions.items() for e in part.running}

    @cached_property
    def nodes(self) -> dict[str, tuple[str, Node]]:
        """Partition and node, in the partitions' order."""
        return {node.name: (n, node) for n, part in self.seen.snapshot.partitions.items() for node in part.nodes}

    @cached_property
    def on_node(self) -> dict[str, list[Running]]:
        """The jobs on each node, oldest first."""
        found: dict[str, list[Running]] = {name: [] for name in self.nodes}
        for _, entry in self.running.values():
            for part in entry.placement:
                found.setdefault(part.node, []).append(entry)
        return found

    @cached_property
    def aliases(self) -> dict[str, str]:
        """Users by number, as ``public.json`` has them."""
        found: dict[str, str] = {"": ""}
        for part in self.seen.snapshot.partitions.values():
            for job in (*(e.job for e in part.pending), *(e.job for e in part.running)):
                found.setdefault(job.user, f"user {len(found)}")
        return found

    @cached_property
    def kept(self) -> dict[str, list[dict[str, Any]]]:
        """By partition, for which jobs nodes are kept, how many and until about when, as decisions on others say."""
        found: dict[str, dict[str, dict[str, Any]]] = {}
        for name, part in self.seen.plan.partitions.items():
            seen: set[int] = set()
            for decision in part.decisions.values():
                if id(decision.reasons) in seen:
                    continue
                seen.add(id(decision.reasons))
                for reason in decision.reasons:
                    if isinstance(reason, Reserved):
                        told = {"job": reason.holder, "nodes": reason.nodes, "until_s": reason.until_s}
                        found.setdefault(name, {})[reason.holder] = told
        return {name: list(by_job.values()) for name, by_job in found.items()}

    @cached_property
    def _gpu_states(self) -> dict[str, dict[str, int]]:
        found = {}
        for name, part in self.seen.snapshot.partitions.items():
            once, twice, out = dict.fromkeys((n.name for n in part.nodes), 0), dict[str, int](), 0
            asleep = 0
            for entry in part.running:
                for placed in entry.placement:
                    before = once.get(placed.node, 0)
                    twice[placed.node] = twice.get(placed.node, 0) | (before & placed.mask)
                    once[placed.node] = before | placed.mask
            shared = sum(mask.bit_count() for mask in twice.values())
            taken = sum(mask.bit_count() for mask in once.values())
            for node in part.nodes:
                left = max(node.gpus - once[node.name].bit_count(), 0)
                if not node.available:
                    out += left
                    continue
                bad = (~node.usable & (1 << node.gpus) - 1 & ~once[node.name]).bit_count()
                out, left = out + bad, left - bad
                if node.boot_s:
                    asleep += left
            free = max(part.gpus - taken - out, 0)
            found[name] = {"alone": taken - shared, "shared": shared, "free": free, "asleep": asleep, "out": out}
        return found

    def gpu_states(self, partition: str) -> dict[str, int]:
        """How many GPUs one job holds, two or more share, nobody holds (and how many of these are on nodes that sleep
        or boot), and nobody may have."""
        return self._gpu_states[partition]

    def warm(self) -> None:
        """Index it, so that no page has to."""
        _ = self.waiting, self.running, self.nodes, self.on_node, self.aliases, self.kept, self._gpu_states

    def decision(self, partition: str, job_id: str) -> DecisionRow | None:
        """The plan's decision on a job that waits in this partition."""
        seen = self.seen
        part = seen.plan.partitions.get(partition)
        made = None if part is None else part.decisions.get(job_id)
        if made is None:
            return seen.row(job_id)
        return row_of(seen.plan.now_s, job_id, partition, made, seen.modes.get(partition, Mode.PACK))

    def entry(self, job_id: str) -> tuple[str, Entry] | None:
        """A job that waits or runs."""
        return self.waiting.get(job_id) or self.running.get(job_id)
