"""Slurm's answers in JSON as records of our own: the only place that knows its field names for jobs and nodes.

It reads ``squeue --json``, ``scontrol show nodes --json``, and what pyslurm gives in the same shape. Versions differ
in wrappers (a number is 5, or {"set": true, "number": 5}) and in absent fields. A record that lacks what every
version has (``JOB_NEEDS``, ``NODE_NEEDS``) cannot be read; other missing fields fall back to "unknown". A document
without jobs or nodes, or with errors, is an error. A record that cannot be read is left out (``left_out``), but of a
job's the part that can still be read is kept, since it may hold GPUs (``unread_job``)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lucid.errors import ClusterUnreadable
from lucid.left_out import LeftOut, Reading
from lucid.slurm.records.fields import array_tasks, gpu_types, memory_mib, parse_mark, shard_counts
from lucid.slurm.records.job import BASE_STATES, SlurmJob, SlurmNode, held_by, holds, job_named, unread_job
from lucid.slurm.records.json import checked_list, number_of, states_of, time_limit_s
from lucid.slurm.records.json import words_of as _words
from lucid.slurm.records.request import EXCLUSIVE, Request, from_mark, per_gpu
from lucid.text import MOST_GPUS, digits, moment, text_of

_MOST_TASKS = 1000
"""Most tasks shown of one array that still waits, which bounds a snapshot."""
_LONGEST = 8192
"""Most characters of one field of a request; a list of all nodes of a large cluster is shorter."""

JOB_NEEDS: Final = frozenset(
    [
        "admin_comment", "batch_flag", "comment", "cpus", "dependency", "eligible_time", "excluded_nodes", "features",
        "gres_detail", "het_job_id", "job_id", "job_state", "licenses", "node_count", "nodes", "partition",
        "priority", "required_nodes", "requeue", "restart_cnt", "resv_name", "start_time", "state_reason",
        "submit_time", "time_limit", "tres_per_job", "tres_per_node", "user_name",
    ]
)  # fmt: skip
"""Fields of a job that every Slurm has given so far, and whose absence would read as nothing: no dependency, no
reservation, nobody's job, no GPUs. A job without one of them cannot be read, and neither can a running one without
``job_resources`` (`held_by`)."""
NODE_NEEDS: Final = frozenset(["cpus", "gres", "name", "partitions", "real_memory", "state"])
"""Fields of a node that every Slurm has given so far. ``features`` stands under one of two names."""


def _whole_record(raw: Mapping[str, Any], needs: frozenset[str]) -> None:
    if not needs <= raw.keys():
        raise ValueError(f"Slurm's answer lacks {', '.join(sorted(needs - raw.keys()))}")


def _known_form(document: Any, raws: Sequence[Any], needs: frozenset[str], what: str) -> None:
    """Check that most records have each needed field. A field that most lack was renamed, or is gone: then no single
    record is at fault. No user can remove a field from a record.

    Raises: ClusterUnreadable: most records lack one."""
    records = [raw for raw in raws if isinstance(raw, Mapping)]
    lacking = Counter(field for raw in records for field in needs - raw.keys())
    gone = sorted(field for field, count in lacking.items() if 2 * count > len(records))
    if gone:
        version = version_of(document)
        slurm = f"Slurm {version[0]}.{version[1]:02d}" if version else "this Slurm"
        more = f", nor {len(gone) - 1} others" if len(gone) > 1 else ""
        raise ClusterUnreadable(
            f"{slurm} answers in a form that this version of Lucid does not know: of its {what} it tells no field "
            f"{gone[0]!r}{more} ({lacking[gone[0]]} of {len(records)} records lack it). lucidd decides nothing; a "
            "version of Lucid that knows this Slurm is needed (docs/slurm-versions.md)"
        )


_LAUNCH_FAILED = "launch failed requeued held"
"""slurmctld's reason where a node refused a job, such as one that it runs already and whose start was not saved."""


def version_of(document: Any) -> tuple[int, int] | None:
    """Slurm's release, as (24, 11), from the ``meta`` of any answer; ``None`` where it is missing."""
    try:
        meta = document["meta"]
        version = (meta.get("slurm") or meta["Slurm"])["version"]
        major, minor = (digits(str(version[key])) for key in ("major", "minor"))
    except (KeyError, TypeError, AttributeError):
        return None
    return None if major is None or minor is None else (major, minor)


def reads_whole(document: Any) -> bool:
    """Whether the answer has all that is read here. Data parser v0.0.45 (the default of 26.05) does not say which
    jobs are ``--exclusive``: it empties ``shared`` and has nothing in its place (seen on 26.05.5)."""
    try:
        return "v0.0.45" not in str(document["meta"]["plugin"]["data_parser"])
    except (KeyError, TypeError, IndexError):
        return True


def jobs_from(document: Any, left_out: LeftOut | None = None) -> list[SlurmJob]:
    """Jobs of one answer; waiting tasks of an array apart, in order of their number. A job whose record cannot be
    read has ``unread`` set.

    Raises: ClusterError: the document is no answer, or says that it failed. ClusterUnreadable: most of its records
    lack the same field."""
    raws = checked_list(document, "jobs", "jobs")
    _known_form(document, raws, JOB_NEEDS, "jobs")
    _known_form(document, [raw for raw in raws if holds(raw)], frozenset(["job_resources"]), "running jobs")
    at_work = Counter(
        int(number_of(raw.get("array_job_id")))
        for raw in raws
        if isinstance(raw, Mapping) and _words(raw.get("job_state"))[:1] == ["RUNNING"]
    )
    found: list[SlurmJob] = []
    with (left_out or LeftOut()).reading("jobs") as look:
        for raw in raws:
            found += _tasks(raw, at_work, look)
    return found


def _tasks(raw: Any, at_work: Mapping[int, int], look: Reading) -> list[SlurmJob]:
    try:
        made = _job(raw)
        if len(made) > 1:  # tasks beyond the array's own limit could not start, whoever decided
            limit = int(number_of(raw.get("array_max_tasks")))
            made = made[: max(limit - at_work[int(number_of(raw.get("array_job_id")))], 0)] if limit else made
        return made
    except Exception as error:
        look.add(job_named(raw), error)
        return [unread_job(raw, f"{type(error).__name__}: {error}"[:200])]


def _job(raw: Mapping[str, Any]) -> list[SlurmJob]:
    states = states_of(raw.get("job_state"))
    number = int(number_of(raw.get("job_id")))
    if number <= 0 or not states:
        raise ValueError("no job number, or no state")
    array = int(number_of(raw.get("array_job_id")))
    task = number_of(raw.get("array_task_id"), -1.0)
    tasks = text_of(raw.get("array_task_string"))
    request = Request(
        tres_per_node=_request(raw, "tres_per_node"),
        tres_per_job=_request(raw, "tres_per_job"),
        tres_per_socket=_request(raw, "tres_per_socket"),
        tres_per_task=_request(raw, "tres_per_task"),
        req_nodes=_request(raw, "required_nodes"),
        cpus_per_tres=per_gpu(_request(raw, "cpus_per_tres")),
        mem_per_tres=per_gpu(_request(raw, "memory_per_tres")),
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
        asked = from_mark(parse_mark(text_of(raw.get("admin_comment"))) or {})
    nodes = max(int(number_of(raw.get("node_count"), 1.0)), 1)
    if request.max_nodes == nodes and (
        least := re.search(r"(?:^|,)node=(\d{1,6})(?!\d)", text_of(raw.get("tres_req_str")))
    ):
        nodes = max(min(nodes, int(least[1])), 1)  # of a range (-N1-2) that waits squeue shows the most
    gpus = asked.gpus(nodes, request.tasks)
    if not 0 <= gpus <= MOST_GPUS:
        raise ValueError(f"asks for {gpus} GPUs, and {MOST_GPUS} are the most that Lucid reads")
    used, placement = held_by(raw)
    _whole_record(raw, JOB_NEEDS)
    flags = frozenset([*states[1:], *_words(raw.get("flags"))])
    dependent = bool(raw.get("dependency")) or str(raw.get("state_reason")) in ("Dependency", "BeginTime")
    ids = [(str(number), number)]
    if array and task >= 0:
        ids = [(f"{array}_{int(task)}", number)]
    elif array and tasks:
        ids = [(f"{array}_{n}", number) for n in array_tasks(tasks, _MOST_TASKS)[0]]
    mem_mib = memory_mib(text_of(raw.get("tres_req_str")))
    priority = number_of(raw.get("priority"), -1.0)
    return [
        SlurmJob(
            id=job_id,
            number=rank,
            state=states[0],
            flags=flags,
            partition=text_of(raw.get("partition")),
            user=text_of(raw.get("user_name")),
            account=text_of(raw.get("account")),
            name=text_of(raw.get("name")),
            admin_comment=text_of(raw.get("admin_comment")),
            reason=_reason(raw),
            held=bool(raw["hold"]) if "hold" in raw else priority == 0,
            gpus=gpus,
            min_nodes=nodes,
            cpus=int(number_of(raw.get("cpus"))),
            mem_mib=mem_mib,
            submit_s=moment(number_of(raw.get("submit_time"))),
            eligible_s=moment(number_of(raw.get("eligible_time"))),
            start_s=moment(number_of(raw.get("start_time"))),
            end_s=moment(number_of(raw.get("end_time"))),
            time_limit_s=time_limit_s(raw.get("time_limit")),
            time_min_s=max(number_of(raw.get("time_minimum")), 0.0) * 60,
            restarts=int(number_of(raw.get("restart_cnt"))),
            requeue=bool(number_of(raw.get("requeue")))
            if not isinstance(raw.get("requeue"), bool)
            else raw["requeue"],
            batch=bool(raw.get("batch_flag")),
            request=request,
            features=text_of(raw.get("features")),
            simple=not request.others,
            dependent=dependent,
            placement=placement,
            hosts_used=used,
            extra=text_of(raw.get("extra")),
            excludes=_request(raw, "excluded_nodes"),
            comment=text_of(raw.get("comment")),
            qos=text_of(raw.get("qos")),
            nice=int(number_of(raw.get("nice"))),
            reservation=text_of(raw.get("resv_name")),
            dependency=text_of(raw.get("dependency")),
            het=int(number_of(raw.get("het_job_id"))),
            priority=max(int(priority), 0),
            launch_failed=raw.get("state_description") == _LAUNCH_FAILED,
            most_switches=max(int(number_of(raw.get("required_switches"))), 0),
            switch_wait_s=max(number_of(raw.get("maximum_switch_wait_time")), 0.0),
            uid=int(number_of(raw.get("user_id"), -1.0)),
        )
        for job_id, rank in ids
    ]


def _reason(raw: Mapping[str, Any]) -> str:
    """Why the job waits. About nodes that may not be had Slurm says more in words of its own: which, or for whom they
    are reserved."""
    reason = text_of(raw.get("state_reason"))
    if not reason.startswith("ReqNodeNotAvail"):
        return reason
    said = text_of(raw.get("state_description")).replace("_", " ")
    return said if said.startswith("ReqNodeNotAvail,") else reason.replace("_", " ")


def _request(raw: Mapping[str, Any], key: str) -> str:
    """A field of the request, bounded in length since it is read character by character at every poll."""
    text = text_of(raw.get(key))
    if len(text) > _LONGEST:
        raise ValueError(f"{key} has {len(text)} characters, and {_LONGEST} are the most that Lucid reads")
    return text


def _others(raw: Mapping[str, Any]) -> list[str]:
    shared = " ".join(_words(raw.get("shared"))).lower()
    bind = str(raw.get("tres_bind") or "")
    found = {
        "it excludes nodes": raw.get("excluded_nodes"),
        "it asks for licenses": raw.get("licenses"),
        "it asks for a reservation": raw.get("resv_name"),
        "it asks for a network": raw.get("network"),
        "it prefers some nodes (--prefer)": raw.get("prefer"),
        "it is part of a heterogeneous job": number_of(raw.get("het_job_id")) > 0,
        EXCLUSIVE: "none" in shared.split(),
        "it asks for GPUs by socket": raw.get("tres_per_socket"),
        "it binds its tasks to GPUs (--gpu-bind)": bind and not re.fullmatch(r"gres[/:]gpu:per_task:\d+", bind),
        "it asks for a GPU frequency": raw.get("tres_freq"),
        "it binds its CPUs to GPUs (--gres-flags)": any(f.startswith("GRES_") for f in _words(raw.get("flags"))),
    }
    return [words for words, there in found.items() if there]


def nodes_from(document: Any, left_out: LeftOut | None = None) -> list[SlurmNode]:
    """Nodes of one answer. Nothing is known of a node whose record cannot be read, so nothing is started on it.

    Raises: ClusterError: the document is no answer, or says that it failed. ClusterUnreadable: most of its records
    lack the same field."""
    raws = checked_list(document, "nodes", "nodes")
    _known_form(document, raws, NODE_NEEDS, "nodes")
    with (left_out or LeftOut()).reading("nodes") as look:
        return look.each(raws, _node, lambda raw: f"node {raw['name']}")


def _node(raw: Mapping[str, Any]) -> SlurmNode:
    gres = text_of(raw.get("gres"))
    shards = shard_counts(gres)
    name = text_of(raw.get("name"))
    states = frozenset(_words(raw.get("state")))
    if not name or not states & BASE_STATES:
        raise ValueError("no name, or no state that Slurm's nodes have")
    _whole_record(raw, NODE_NEEDS)
    return SlurmNode(
        name=name,
        gpu_types=tuple(gpu_types(gres)),
        shard_types=frozenset(shards),
        cpus=int(number_of(raw.get("effective_cpus")) or number_of(raw.get("cpus"))),
        mem_mib=int(number_of(raw.get("real_memory"))) - int(number_of(raw.get("specialized_memory"))),
        features=frozenset(_words(raw.get("active_features") or raw.get("features"))),
        partitions=frozenset(_words(raw.get("partitions"))),
        states=states,
        reason=text_of(raw.get("reason")),
        slots=frozenset(shards.values()),
        available_features=frozenset(_words(raw.get("features"))),
        weight=int(number_of(raw.get("weight"), 1.0)),
    )
