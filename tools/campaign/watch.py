"""Looks at Slurm every few seconds: what became of each job, who is held by nobody, where nothing starts.

Pure but for the time that it is given: it is tested on made-up looks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from campaign.facts import Order, Record
from lucid.core.placement import hosts_in

HELD_S = 60.0
"""So long a job may stay held after the bound has passed without a heartbeat, while Slurm answers."""
WAITS_S = 240.0
"""So long a job may wait, with nothing broken, beside free GPUs on which it fits."""
_STEP_S = 8.0
"""Between two looks further apart than this nobody knows what was."""


@dataclass(frozen=True)
class Look:
    """What was seen at one time. ``beat_age_s``: of the heartbeat, by the true clock."""

    at_s: float
    jobs: Sequence[Mapping[str, Any]]
    free: Mapping[str, Sequence[int]]
    """Free whole GPUs of each usable node, by partition."""
    beat_age_s: float
    broken: tuple[str, ...]
    """Faults in force, or just over."""
    barred: bool = False
    """A fault is in force without which a held job could be let go: Slurm itself cannot be told."""


@dataclass
class Standstill:
    """The longest time in which free GPUs stood beside a job that could have had them, and nothing started."""

    longest_s: float = 0.0
    at_s: float = 0.0
    partition: str = ""
    key: str = ""
    broken: tuple[str, ...] = ()


@dataclass
class Watch:
    """Everything seen so far. ``orders``: by token."""

    orders: dict[str, Order]
    folder: str
    bound_s: float
    records: dict[str, Record] = field(default_factory=dict)
    """By key."""
    stuck: dict[str, str] = field(default_factory=dict)
    """Key to why."""
    whole: Standstill = field(default_factory=Standstill)
    """As it was, faults and all."""
    clear: Standstill = field(default_factory=Standstill)
    """Only time in which nothing was broken counts; a fault's end does not begin it anew."""
    counts: dict[str, int] = field(default_factory=dict)
    _last: Look | None = None
    _held: dict[str, float] = field(default_factory=dict)
    _waits: dict[str, float] = field(default_factory=dict)
    _still: dict[str, list[float]] = field(default_factory=dict)
    _running: dict[str, set[str]] = field(default_factory=dict)

    def look(self, look: Look) -> None:
        """Take in one look."""
        step_s = look.at_s - self._last.at_s if self._last else 0.0
        step_s = step_s if 0 < step_s <= _STEP_S else 0.0
        self._last = look
        seen = records_from(look.jobs, self.orders, self.folder, look.at_s)
        self.records.update(seen)
        by_key = dict(keyed(look.jobs, self.orders, self.folder))
        self._count(seen)
        self._look_for_held(by_key, look, step_s)
        self._look_for_standstill(by_key, look, step_s)

    def _count(self, seen: Mapping[str, Record]) -> None:
        states = [record.state for record in seen.values()]
        self.counts = {state: states.count(state) for state in sorted(set(states))}

    def _look_for_held(self, by_key: Mapping[str, Mapping[str, Any]], look: Look, step_s: float) -> None:
        """Held by Lucid, and no heartbeat for longer than the bound: the timer should have let it go."""
        held = {key for key, job in by_key.items() if held_by_lucid(job)}
        self.counts["held"] = len(held)
        nobody = look.beat_age_s > self.bound_s and not look.barred
        for key in list(self._held):
            if key not in held or look.beat_age_s <= self.bound_s:
                del self._held[key]
        if not nobody:
            return
        for key in held:
            self._held[key] = self._held.get(key, 0.0) + step_s
            if self._held[key] > HELD_S:
                self.stuck.setdefault(
                    key, f"held for {self._held[key]:.0f} s though no heartbeat was younger than {self.bound_s:.0f} s"
                )

    def _look_for_standstill(self, by_key: Mapping[str, Mapping[str, Any]], look: Look, step_s: float) -> None:
        running = {
            key for key, job in by_key.items() if "RUNNING" in job["job_state"] or "COMPLETING" in job["job_state"]
        }
        startable = {key: self._order(key) for key, job in by_key.items() if self._could_start(key, job, look)}
        clear_s = 0.0 if look.broken else step_s
        for key in list(self._waits):
            if key not in startable:
                del self._waits[key]
        for key, order in startable.items():
            self._waits[key] = self._waits.get(key, 0.0) + clear_s
            if self._waits[key] > WAITS_S:
                self.stuck.setdefault(
                    key, f"waited {self._waits[key]:.0f} s beside free GPUs in {order.partition}, with nothing broken"
                )
        for partition in {order.partition for order in self.orders.values() if order.partition}:
            keys = sorted(key for key, order in startable.items() if order.partition == partition)
            mine = {key for key in running if self._order(key).partition == partition}
            started = mine - self._running.get(partition, set())
            self._running[partition] = mine
            spans = self._still.setdefault(partition, [0.0, 0.0])
            if not keys or started:
                self._still[partition] = [0.0, 0.0]
                continue
            spans[0] += step_s
            spans[1] += clear_s
            for span_s, most in ((spans[0], self.whole), (spans[1], self.clear)):
                if span_s > most.longest_s:
                    most.longest_s, most.at_s, most.partition = span_s, look.at_s - span_s, partition
                    most.key, most.broken = keys[0], look.broken

    def _could_start(self, key: str, job: Mapping[str, Any], look: Look) -> bool:
        order = self._order(key)
        if job["job_state"] != ["PENDING"] or not order.partition or not order.gpus:
            return False
        if job.get("dependency") or number(job, "eligible_time") > look.at_s + 1 or held_by_user(job, order):
            return False
        fit = [free for free in look.free.get(order.partition, ()) if free >= order.gpus]
        return len(fit) >= order.nodes

    def _order(self, key: str) -> Order:
        return self.orders[key.rpartition("_")[0] if "_" in key else key]


def held_by_lucid(job: Mapping[str, Any]) -> bool:
    """Does Lucid keep it from starting?"""
    tag = str(job.get("admin_comment", ""))
    waits = job["job_state"] == ["PENDING"] and number(job, "priority") == 0
    return waits and tag.startswith("lucid:") and "held=1" in tag and "lucid:held" not in str(job.get("comment", ""))


def held_by_user(job: Mapping[str, Any], order: Order) -> bool:
    """Does its user keep it from starting?"""
    return order.release_after_s is not None and number(job, "priority") == 0


def number(job: Mapping[str, Any], key: str) -> float:
    """A number as Slurm's JSON has it; 0 where it is not set."""
    value = job.get(key)
    if isinstance(value, Mapping):
        return float(value["number"]) if value.get("set") else 0.0
    return float(value or 0)


def records_from(
    jobs: Iterable[Mapping[str, Any]],
    orders: Mapping[str, Order],
    folder: str,
    at_s: float,
) -> dict[str, Record]:
    """What Slurm says of our jobs, by key."""
    found: dict[str, Record] = {}
    for key, job in keyed(jobs, orders, folder):
        found[key] = Record(
            str(job["job_id"]), str(job["job_state"][0]), int(job.get("restart_cnt") or 0),
            str(job.get("state_reason", "")), at_s, str(job.get("nodes", "")),
        )  # fmt: skip
    return found


def keyed(
    jobs: Iterable[Mapping[str, Any]], orders: Mapping[str, Order], folder: str
) -> Iterable[tuple[str, Mapping[str, Any]]]:
    """Our jobs, each by the name of the file that counts its runs; tasks of an array one by one."""
    for job in jobs:
        token = str(job.get("standard_output", "")).removeprefix(f"{folder}/out/")
        order = orders.get(token)
        if order is None:
            continue
        if not order.tasks:
            yield token, job
            continue
        task = job.get("array_task_id")
        if isinstance(task, Mapping) and task.get("set"):
            yield f"{token}_{int(task['number'])}", job
            continue
        for number_ in _tasks(str(job.get("array_task_string", ""))):
            yield f"{token}_{number_}", job


def _tasks(text: str) -> list[int]:
    """The tasks of an array that Slurm has not told apart yet: ``0-2,4%1``."""
    found: list[int] = []
    for part in text.partition("%")[0].split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            found += range(int(first), int(last or first) + 1)
    return found


def yielding(jobs: Iterable[Mapping[str, Any]], partition: str) -> dict[str, set[str]]:
    """GPUs of each node that jobs of this partition hold and nobody else does."""
    theirs: dict[str, set[str]] = {}
    others: dict[str, set[str]] = {}
    for job in jobs:
        if not {"RUNNING", "COMPLETING"} & set(job["job_state"]):
            continue
        held = theirs if job.get("partition") == partition else others
        for node, text in zip(hosts_in(str(job["nodes"])), job.get("gres_detail", ()), strict=False):
            held.setdefault(node, set()).update(gpu for _, gpu, used in _GRES.findall(text) if used != "0")
    return {node: gpus - others.get(node, set()) for node, gpus in theirs.items()}


def free_gpus(
    nodes: Iterable[Mapping[str, Any]], partitions: Iterable[str], yields: Mapping[str, set[str]] | None = None
) -> dict[str, list[int]]:
    """Free whole GPUs of each node that can be used and has a CPU and memory to spare, by partition.
    One that sleeps can be used: Slurm wakes it. ``yields``: held by jobs that these partitions preempt."""
    wanted = set(partitions)
    found: dict[str, list[int]] = {name: [] for name in wanted}
    for node in nodes:
        states = set(node.get("state", ()))
        if not states & {"IDLE", "MIXED", "ALLOCATED"} or states & {
            "DRAIN", "DOWN", "NOT_RESPONDING", "FAIL", "COMPLETING", "RESERVED", "MAINTENANCE",
            "REBOOT_REQUESTED", "REBOOT_ISSUED", "POWERING_DOWN", "POWER_DOWN", "POWER_DRAIN",
        }:  # fmt: skip
            continue
        if (
            int(node["cpus"]) - int(node["alloc_cpus"]) < 4
            or int(node["real_memory"]) - int(node["alloc_memory"]) < 5000
        ):
            continue
        given = (yields or {}).get(str(node.get("name")), set())
        taken = {gpu for _, gpu, used in _GRES.findall(str(node.get("gres_used", ""))) if used != "0"}
        total = {gpu for kind, gpu, _ in _GRES.findall(str(node.get("gres", ""))) if kind == "gpu"}
        for name in wanted & set(node.get("partitions", ())):
            found[name].append(len(total - (taken - given)))
    return found


_GRES = re.compile(r"(gpu|shard):(g\d+):(\d+)")
