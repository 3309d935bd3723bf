"""What a job holds; and what can still be told of a job whose record cannot be read.

Such a job may hold GPUs, which must not look free. Its state, its nodes and its GPUs are Slurm's own words, which no
user writes, so they are nearly always there: it then shows as a job of somebody else's where it runs. Where they are
not, its nodes count as out, and where even those are not known, every node that is not idle.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from lucid.adapters.bounded import moment, text_of
from lucid.adapters.slurm.records.field_parsers import gpu_count, gpu_mask, hosts
from lucid.adapters.slurm.records.jobs_and_nodes import SlurmJob, SlurmNode
from lucid.adapters.slurm.records.json_values import number_of, states_of, words_of
from lucid.adapters.slurm.records.request import GPU_FIELDS, UNREAD, Request
from lucid.core.placement import NodeGpus, Placement, placement_gpus
from lucid.slurmlog.states import ENDED

__all__ = ["held_by", "holds", "job_named", "numbers_unread", "tells_all", "unread_job", "without_unread"]

_T = TypeVar("_T")
_Used = tuple[tuple[str, int, int], ...]
_WAITING: Final = ("PENDING",)


def held_by(raw: Mapping[str, Any]) -> tuple[_Used, Placement]:
    """CPUs and memory (MiB) by node, and the GPUs, that a job holds. ``gres_detail`` has one entry a node, in the
    order of the node list. A running job that asked for GPUs, or was given some, and that has none there does not
    hold none: which it holds cannot be read.

    Raises:
        TypeError, ValueError, AttributeError: it says what it holds in a way that cannot be read.
    """
    found = raw.get("job_resources")
    resources: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
    nodes = resources.get("nodes")
    used = []
    for part in (nodes.get("allocation") or []) if isinstance(nodes, Mapping) else []:
        memory = part.get("memory") or {}
        cpus = part.get("cpus") or {}
        used.append(
            (text_of(part.get("name")), int(number_of(cpus.get("count"))), int(number_of(memory.get("allocated"))))
        )
    for part in resources.get("allocated_nodes") or []:  # as v0.0.40 has it
        cores = [core for socket in (part.get("sockets") or {}).values() for core in socket.get("cores") or {}]
        cpus_used = int(number_of(part.get("cpus_used"))) or len(cores)
        used.append((text_of(part.get("nodename")), cpus_used, int(number_of(part.get("memory_allocated")))))
    placement = _gpus_of(raw)
    if "job_resources" not in raw and holds(raw):
        raise ValueError("Slurm's answer lacks job_resources")
    if found and holds(raw) and not any(cpus for _, cpus, _ in used):
        raise ValueError("job_resources does not say which CPUs it holds")
    return tuple(used), placement


def holds(raw: Any) -> bool:
    """Does Slurm tell what it holds? Not of a job that completes."""
    if not isinstance(raw, Mapping):
        return False
    states = states_of(raw.get("job_state"))
    return states[:1] in (["RUNNING"], ["SUSPENDED"]) and "COMPLETING" not in states


def _gpus_of(raw: Mapping[str, Any]) -> Placement:
    detail = raw.get("gres_detail") or []
    if not isinstance(detail, list):
        raise TypeError(f"gres_detail is not a list: {text_of(detail)[:200]}")
    masks = [_mask(text_of(item)) for item in detail]
    names = hosts(text_of(raw.get("nodes")))
    if any(masks) and len(names) < len(masks):
        raise ValueError("it holds GPUs on more nodes than it names")
    found = tuple(NodeGpus(name, mask) for name, mask in zip(names, masks, strict=False) if mask)
    if holds(raw):
        given = text_of(raw.get("tres_alloc_str"))
        asked = any(gpu_count(text_of(raw.get(field))) for field in GPU_FIELDS)
        whole = re.search(r"\bgres/gpu=(\d+)", given)
        if not found and (asked or "gres/gpu" in given or "gres/shard" in given):
            raise ValueError("it was given GPUs, and gres_detail does not say which")
        if whole is not None and placement_gpus(found) < int(whole[1][:6]):
            raise ValueError("gres_detail names fewer GPUs than it was given")
    return found


def _mask(item: str) -> int:
    mask = gpu_mask(item)
    if not mask and "IDX:" in item and "IDX:N/A" not in item:
        raise ValueError("its GPUs cannot be read")
    return mask


def job_named(raw: Any) -> str:
    """A job for an administrator, by what its record still says."""
    number = int(number_of(raw.get("job_id"))) if isinstance(raw, Mapping) else 0
    return f"job {number}" if number > 0 else "a job without a number"


def unread_job(raw: Any, why: str) -> SlurmJob:
    """What can be told of a job whose record cannot be read."""
    record: Mapping[str, Any] = raw if isinstance(raw, Mapping) else {}
    number = max(int(number_of(record.get("job_id"))), 0)
    states = _read_or(lambda: states_of(record.get("job_state")), list[str]())
    state = states[0] if states else "UNKNOWN"
    flags = frozenset(states[1:]) | frozenset(_read_or(lambda: words_of(record.get("flags")), list[str]()))
    held = _read_or(lambda: held_by(record), None) if record else None
    nodes = _read_or(lambda: hosts(text_of(record.get("nodes"))), list[str]())
    active = (state not in ENDED and state not in _WAITING) or "COMPLETING" in flags
    used, placement = held or (tuple((name, 0, 0) for name in nodes), ())
    priority = number_of(record.get("priority"), -1.0)
    return SlurmJob(
        id=_id(record, number),
        number=number,
        state=state,
        flags=flags,
        partition=_text(record, "partition"),
        user=_text(record, "user_name"),
        account=_text(record, "account"),
        name=_text(record, "name"),
        admin_comment=_text(record, "admin_comment"),
        reason=_text(record, "state_reason"),
        held=record["hold"] is True if "hold" in record else priority == 0,
        gpus=placement_gpus(placement) or (1 if active or state in _WAITING else 0),
        min_nodes=max(len(placement), 1),
        cpus=0,
        mem_mib=0,
        submit_s=moment(number_of(record.get("submit_time"))),
        eligible_s=moment(number_of(record.get("eligible_time"))),
        start_s=moment(number_of(record.get("start_time"))),
        end_s=moment(number_of(record.get("end_time"))),
        time_limit_s=None,
        restarts=int(number_of(record.get("restart_cnt"))),
        requeue=False,
        batch=False,
        request=Request(others=(UNREAD,)),
        features="",
        simple=False,
        dependent=False,
        placement=placement if active else (),
        hosts_used=used if active else (),
        comment=_text(record, "comment"),
        unread=why or "no reason",
        lost=active and held is None,
    )


def _id(record: Mapping[str, Any], number: int) -> str:
    if not number:
        return ""
    array, task = int(number_of(record.get("array_job_id"))), number_of(record.get("array_task_id"), -1.0)
    return f"{array}_{int(task)}" if array > 0 and task >= 0 else str(number)


def _read_or(read: Callable[[], _T], otherwise: _T) -> _T:
    try:
        return read()
    except Exception:  # of a record that is known to be unreadable
        return otherwise


def _text(record: Mapping[str, Any], key: str) -> str:
    return _read_or(lambda: text_of(record.get(key)), "")


def tells_all(jobs: Iterable[SlurmJob]) -> bool:
    """Does a look name every job? If not, a job that it does not show may be there all the same."""
    return all(job.id for job in jobs)


def numbers_unread(jobs: Iterable[SlurmJob]) -> frozenset[str]:
    """Numbers of jobs and arrays whose records could not be read: the tasks of such an array are not told apart."""
    return frozenset(name for job in jobs if job.unread for name in (job.id.partition("_")[0], str(job.number)))


def without_unread(nodes: Sequence[SlurmNode], jobs: Iterable[SlurmJob]) -> Sequence[SlurmNode]:
    """The nodes, those out on which a job holds GPUs that cannot be told. Of a job of which not even the nodes are
    known that is every node that Slurm does not show idle."""
    lost = [job for job in jobs if job.lost]
    if not lost:
        return nodes
    named = {name for job in lost for name, _, _ in job.hosts_used}
    known = {node.name for node in nodes}
    anywhere = any(not job.hosts_used or any(name not in known for name, _, _ in job.hosts_used) for job in lost)
    return [
        replace(node, states=node.states | {"UNREAD"})
        if node.name in named or (anywhere and "IDLE" not in node.states)
        else node
        for node in nodes
    ]
