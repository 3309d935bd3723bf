"""Slurm's answers in JSON, translated into records of our own: the only place that knows its field names.

Read: ``squeue --json`` (jobs), ``scontrol show nodes --json``, and slurmrestd's answers, which have the same
shape. Versions differ in wrappers (a number is 5, or {"set": true, "number": 5}) and in fields that are
absent; what is missing falls back to "unknown", never to an error. A document without jobs or nodes, or with
errors, is one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lucid.adapters.slurm_answers import checked_list
from lucid.adapters.slurm_request import EXCLUSIVE, Request, from_mark, per_gpu
from lucid.adapters.slurm_text import (
    array_tasks,
    gpu_count,
    gpu_mask,
    gpu_types,
    hosts,
    memory_mib,
    parse_mark,
    shard_counts,
)
from lucid.core.placement import NodeGpus, Placement

__all__ = [
    "ENDED",
    "SlurmJob",
    "SlurmNode",
    "jobs_from",
    "nodes_from",
    "number_of",
    "reads_whole",
    "version_of",
]

_MOST_TASKS = 1000
"""Tasks shown of one array that still waits: what bounds a snapshot."""

ENDED = frozenset(
    [
        "COMPLETED",
        "CANCELLED",
        "FAILED",
        "TIMEOUT",
        "NODE_FAIL",
        "PREEMPTED",
        "BOOT_FAIL",
        "DEADLINE",
        "OUT_OF_MEMORY",
        "REVOKED",
    ]
)
"""States of jobs that have left."""


_LAUNCH_FAILED = "launch failed requeued held"
"""slurmctld's words where a node refused a job, such as one that it runs already and whose start was not saved."""


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """One job, or one task of an array. Times in Unix seconds, 0 where there is none.

    ``id`` is how commands address it (``17`` or ``17_3``); ``number`` is Slurm's job number. ``held``: its
    priority is 0. ``simple``: nothing about it (features, excluded nodes, licenses, a reservation, an
    exclusive node, a request by socket, more than one component) would stop it from running on a node that somebody
    else chose; the user's own node list is in ``request``, and features apart.
    """

    id: str
    number: int
    state: str
    flags: frozenset[str]
    partition: str
    user: str
    account: str
    name: str
    admin_comment: str
    reason: str
    held: bool
    gpus: int
    min_nodes: int
    cpus: int
    mem_mib: int
    submit_s: float
    eligible_s: float
    start_s: float
    end_s: float
    time_limit_s: float | None
    restarts: int
    requeue: bool
    batch: bool
    request: Request
    features: str
    simple: bool
    dependent: bool
    placement: Placement
    hosts_used: tuple[tuple[str, int, int], ...] = ()
    """(node, CPUs, MiB) that it holds now."""
    extra: str = ""
    comment: str = ""
    qos: str = ""
    reservation: str = ""
    launch_failed: bool = False
    """Slurm itself holds it, because a node did not take it: nobody else does."""

    @property
    def completing(self) -> bool:
        """Has it stopped, and still holds what it had?"""
        return "COMPLETING" in self.flags

    @property
    def pending(self) -> bool:
        """Does it wait (and hold nothing)?"""
        return self.state == "PENDING" and not self.completing

    @property
    def running(self) -> bool:
        """Does it hold resources?"""
        return self.state in ("RUNNING", "SUSPENDED") or self.completing

    @property
    def ended(self) -> bool:
        """Has it left?"""
        return self.state in ENDED and not self.completing


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """One node. ``gpu_types``: the GRES type of each GPU by index; ``shard_types``: those that have shards."""

    name: str
    gpu_types: tuple[str, ...]
    shard_types: frozenset[str]
    cpus: int
    mem_mib: int
    features: frozenset[str]
    partitions: frozenset[str]
    states: frozenset[str]
    reason: str = ""
    slots: frozenset[int] = frozenset()
    """How many shards its GPUs have, each; several numbers where they differ."""

    @property
    def available(self) -> bool:
        """May something new start here?"""
        return not self.states & _OUT

    @property
    def out(self) -> str:
        """Why nothing new may start here, in Slurm's words; empty where it may."""
        return ", ".join(sorted(state.lower() for state in self.states & _OUT))

    @property
    def addressable(self) -> bool:
        """Can each of its GPUs be asked for by name, as a shard? Then two jobs can be put on the same one."""
        types = self.gpu_types
        return bool(types) and len(set(types)) == len(types) and set(types) <= self.shard_types


_OUT = frozenset(
    [
        "DOWN",
        "DRAIN",
        "DRAINED",
        "DRAINING",
        "FAIL",
        "FAILING",
        "NOT_RESPONDING",
        "MAINTENANCE",
        "POWERED_DOWN",
        "POWERING_DOWN",
        "REBOOT_ISSUED",
        "UNKNOWN",
        "INVALID",
        "INVALID_REG",
        "FUTURE",
        "RESERVED",
        "BLOCKED",
        "ERROR",
    ]
)


def number_of(value: Any, otherwise: float = 0.0) -> float:
    """A number in either of its wrappers; ``otherwise`` where it is not set or infinite."""
    if isinstance(value, Mapping):
        if not value.get("set", True) or value.get("infinite"):
            return otherwise
        value = value.get("number")
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else otherwise


def _words(value: Any) -> list[str]:
    """States come as a list, or in old versions as one word."""
    if isinstance(value, str):
        return value.replace("+", " ").split()
    return [str(item) for item in value] if isinstance(value, list) else []


def version_of(document: Any) -> tuple[int, int] | None:
    """Slurm's release, as (24, 11), from the ``meta`` of any answer; ``None`` where it does not say."""
    meta = document.get("meta", {}) if isinstance(document, Mapping) else {}
    slurm = meta.get("slurm") or meta.get("Slurm") or {}
    version = slurm.get("version") or {}
    try:
        return int(version["major"]), int(version["minor"])
    except (KeyError, TypeError, ValueError):
        return None


def reads_whole(document: Any) -> bool:
    """Does the answer tell all that is read here? Data parser v0.0.45 (the default of 26.05) does not say which jobs
    are ``--exclusive``: it empties ``shared`` and has nothing in its place (seen on 26.05.5)."""
    meta = document.get("meta", {}) if isinstance(document, Mapping) else {}
    return "v0.0.45" not in str((meta.get("plugin") or {}).get("data_parser"))


def jobs_from(document: Any) -> list[SlurmJob]:
    """Jobs of one answer; waiting tasks of an array apart, in order of their number.

    Raises:
        ClusterError: the answer is none, or says that it failed.
    """
    found: list[SlurmJob] = []
    raws = checked_list(document, "jobs", "jobs")
    at_work = Counter(
        int(number_of(raw.get("array_job_id"))) for raw in raws if _words(raw.get("job_state"))[:1] == ["RUNNING"]
    )
    for raw in raws:
        made = _job(raw)
        if len(made) > 1:  # tasks beyond the array's own limit could not start, whoever decided
            limit = int(number_of(raw.get("array_max_tasks")))
            made = made[: max(limit - at_work[int(number_of(raw.get("array_job_id")))], 0)] if limit else made
        found += made
    return found


def _job(raw: Mapping[str, Any]) -> list[SlurmJob]:
    states = _words(raw.get("job_state"))
    number = int(number_of(raw.get("job_id")))
    array = int(number_of(raw.get("array_job_id")))
    task = number_of(raw.get("array_task_id"), -1.0)
    tasks = str(raw.get("array_task_string") or "")
    request = Request(
        tres_per_node=str(raw.get("tres_per_node") or ""),
        tres_per_job=str(raw.get("tres_per_job") or ""),
        tres_per_socket=str(raw.get("tres_per_socket") or ""),
        tres_per_task=str(raw.get("tres_per_task") or ""),
        req_nodes=str(raw.get("required_nodes") or ""),
        cpus_per_tres=per_gpu(str(raw.get("cpus_per_tres") or "")),
        mem_per_tres=per_gpu(str(raw.get("memory_per_tres") or "")),
        num_cpus=int(number_of(raw.get("cpus"))),
        tasks=max(int(number_of(raw.get("tasks"), 1.0)), 1),
        max_nodes=int(number_of(raw.get("max_nodes"))),
        tasks_per_gpu=int(number_of(raw.get("tasks_per_tres"))),
        exact_cpus="EXACT_CPU_COUNT_REQUESTED" in _words(raw.get("flags")),
        exact_mem="EXACT_MEMORY_REQUESTED" in _words(raw.get("flags")),
        others=tuple(_others(raw)),
    )
    asked = request
    if request.emptied:  # half-way between two requests of ours: its user's stands in the tag
        asked = from_mark(parse_mark(str(raw.get("admin_comment") or "")) or {})
    nodes = max(int(number_of(raw.get("node_count"), 1.0)), 1)
    count = max(int(number_of(raw.get("tasks"), 1.0)), 1)
    gpus = max(
        gpu_count(asked.tres_per_node) * nodes,
        gpu_count(asked.tres_per_job),
        gpu_count(asked.tres_per_socket) * nodes,
        gpu_count(asked.tres_per_task) * count,
    )
    resources = raw.get("job_resources")
    used, placement = _held(resources if isinstance(resources, Mapping) else {}, raw)
    limit = number_of(raw.get("time_limit"), -1.0)
    flags = frozenset([*states[1:], *_words(raw.get("flags"))])
    dependent = bool(raw.get("dependency")) or str(raw.get("state_reason")) in ("Dependency", "BeginTime")
    ids = [(str(number), number)]
    if array and task >= 0:
        ids = [(f"{array}_{int(task)}", number)]
    elif array and tasks:
        ids = [(f"{array}_{n}", number) for n in array_tasks(tasks, _MOST_TASKS)[0]]
    mem_mib = memory_mib(str(raw.get("tres_req_str") or ""))
    priority = number_of(raw.get("priority"), -1.0)
    return [
        SlurmJob(
            id=job_id,
            number=rank,
            state=states[0] if states else "UNKNOWN",
            flags=flags,
            partition=str(raw.get("partition") or ""),
            user=str(raw.get("user_name") or ""),
            account=str(raw.get("account") or ""),
            name=str(raw.get("name") or ""),
            admin_comment=str(raw.get("admin_comment") or ""),
            reason=str(raw.get("state_reason") or ""),
            held=bool(raw["hold"]) if "hold" in raw else priority == 0,
            gpus=gpus,
            min_nodes=nodes,
            cpus=int(number_of(raw.get("cpus"))),
            mem_mib=mem_mib,
            submit_s=number_of(raw.get("submit_time")),
            eligible_s=number_of(raw.get("eligible_time")),
            start_s=number_of(raw.get("start_time")),
            end_s=number_of(raw.get("end_time")),
            time_limit_s=limit * 60 if limit >= 0 else None,
            restarts=int(number_of(raw.get("restart_cnt"))),
            requeue=bool(number_of(raw.get("requeue")))
            if not isinstance(raw.get("requeue"), bool)
            else raw["requeue"],
            batch=bool(raw.get("batch_flag")),
            request=request,
            features=str(raw.get("features") or ""),
            simple=not request.others,
            dependent=dependent,
            placement=placement,
            hosts_used=used,
            extra=str(raw.get("extra") or ""),
            comment=str(raw.get("comment") or ""),
            qos=str(raw.get("qos") or ""),
            reservation=str(raw.get("resv_name") or ""),
            launch_failed=raw.get("state_description") == _LAUNCH_FAILED,
        )
        for job_id, rank in ids
    ]


def _others(raw: Mapping[str, Any]) -> list[str]:
    """What else about a job binds it to nodes or to whole GPUs, in words."""
    shared = " ".join(_words(raw.get("shared"))).lower()
    bind = str(raw.get("tres_bind") or "")
    found = {
        "it excludes nodes": raw.get("excluded_nodes"),
        "it asks for licenses": raw.get("licenses"),
        "it asks for a reservation": raw.get("resv_name"),
        "it asks for a network": raw.get("network"),
        "it is part of a heterogeneous job": number_of(raw.get("het_job_id")) > 0,
        EXCLUSIVE: "none" in shared.split(),
        "it asks for GPUs by socket": raw.get("tres_per_socket"),
        "it binds its tasks to GPUs (--gpu-bind)": bind and not re.fullmatch(r"gres[/:]gpu:per_task:\d+", bind),
        "it asks for a GPU frequency": raw.get("tres_freq"),
        "it binds its CPUs to GPUs (--gres-flags)": any(f.startswith("GRES_") for f in _words(raw.get("flags"))),
    }
    return [words for words, there in found.items() if there]


def _held(resources: Mapping[str, Any], raw: Mapping[str, Any]) -> tuple[tuple[tuple[str, int, int], ...], Placement]:
    """CPUs, memory and GPUs by node. ``gres_detail`` has one entry a node, in the order of the node list."""
    nodes = resources.get("nodes")
    used = []
    for part in (nodes.get("allocation") or []) if isinstance(nodes, Mapping) else []:
        memory = part.get("memory") or {}
        cpus = part.get("cpus") or {}
        used.append(
            (str(part.get("name")), int(number_of(cpus.get("count"))), int(number_of(memory.get("allocated"))))
        )
    for part in resources.get("allocated_nodes") or []:  # as v0.0.40 has it
        cores = [core for socket in (part.get("sockets") or {}).values() for core in socket.get("cores") or {}]
        cpus_used = int(number_of(part.get("cpus_used"))) or len(cores)
        used.append((str(part.get("nodename")), cpus_used, int(number_of(part.get("memory_allocated")))))
    detail = raw.get("gres_detail") or []
    masks = [gpu_mask(str(item)) for item in detail] if isinstance(detail, list) else []
    names = hosts(str(raw.get("nodes") or ""))
    placement = tuple(NodeGpus(name, mask) for name, mask in zip(names, masks, strict=False) if mask)
    return tuple(used), placement


def nodes_from(document: Any) -> list[SlurmNode]:
    """Nodes of one answer.

    Raises:
        ClusterError: the answer is none, or says that it failed.
    """
    found = []
    for raw in checked_list(document, "nodes", "nodes"):
        types, shards = gpu_types(str(raw.get("gres") or ""))
        mem_mib = int(number_of(raw.get("real_memory"))) - int(number_of(raw.get("specialized_memory")))
        found.append(
            SlurmNode(
                name=str(raw.get("name") or ""),
                gpu_types=tuple(types),
                shard_types=frozenset(shards),
                cpus=int(number_of(raw.get("effective_cpus")) or number_of(raw.get("cpus"))),
                mem_mib=mem_mib,
                features=frozenset(_features(raw.get("active_features") or raw.get("features"))),
                partitions=frozenset(_words(raw.get("partitions"))),
                states=frozenset(_words(raw.get("state"))),
                reason=str(raw.get("reason") or ""),
                slots=frozenset(shard_counts(str(raw.get("gres") or "")).values()),
            )
        )
    return found


def _features(value: Any) -> list[str]:
    return value.split(",") if isinstance(value, str) else _words(value)
