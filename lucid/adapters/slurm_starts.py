"""What to change about a pending job: to start it on chosen GPUs, and to give its request back. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lucid.adapters.slurm_client import Changes
from lucid.adapters.slurm_extra import free_extra
from lucid.adapters.slurm_records import SlurmJob, SlurmNode
from lucid.adapters.slurm_text import hosts, shard_request, split_outside
from lucid.adapters.slurm_view import as_written
from lucid.adapters.store import JobNote
from lucid.core.placement import Placement
from lucid.errors import ActionRefused

__all__ = ["back_to", "start_changes"]

_FIELDS = ("tres_per_node", "tres_per_job", "tres_per_socket", "tres_per_task", "req_nodes")


def start_changes(
    record: SlurmJob,
    note: JobNote,
    placement: Placement,
    shards: bool,
    partition: str,
    nodes: Sequence[SlurmNode],
    extra: str = "",
) -> Changes:
    """To start on these GPUs: as slots of exactly these, or on these nodes with the request as it was written.

    ``extra``: what its prolog is to know of a job in slots; one on whole GPUs has none. A job whose user chose
    nodes, or that asks for what only some nodes have, keeps its own choice of nodes.

    Raises:
        ActionRefused: a node is not known, or its GPUs cannot be named.
    """
    written = note.as_written
    move = partition if record.partition != partition else None
    names = ",".join(part.node for part in placement)
    if not shards:
        back = _differences(record, {key: written.get(key, "") for key in _FIELDS if key != "req_nodes"})
        free = (
            not written.get("req_nodes")
            and record.simple
            and not record.features
            and record.min_nodes <= len(placement)
        )
        req = names if free else _within(written.get("req_nodes", ""), partition, nodes)
        if req != record.request.req_nodes:
            back["req_nodes"] = req
        return _changes(back, move, _extra(record, ""))
    (part,) = placement
    node = next((node for node in nodes if node.name == part.node), None)
    if node is None or not node.addressable or part.mask >> len(node.gpu_types):
        raise ActionRefused(f"job {record.id}: the GPUs of node {part.node!r} cannot be asked for by name")
    wanted = {
        "tres_per_node": shard_request([node.gpu_types[i] for i in part.gpus]),
        "tres_per_job": _without_gpus(written.get("tres_per_job", "")),
        "tres_per_task": _without_gpus(written.get("tres_per_task", "")),
        "req_nodes": part.node,
    }
    return _changes(_differences(record, wanted), move, _extra(record, extra))


def _extra(record: SlurmJob, wanted: str) -> str | None:
    """What to make of the job's Extra; ``None`` leaves it."""
    return wanted if wanted != record.extra and free_extra(record.extra) else None


def _within(req_nodes: str, partition: str, nodes: Sequence[SlurmNode]) -> str:
    """The user's node list, unless none of it is in the partition: then it was noted by mistake, from a run on a
    profiling node whose note was lost, and the job could never start with it."""
    there = {node.name for node in nodes if partition in node.partitions}
    return req_nodes if not there or there & set(hosts(req_nodes)) else ""


def back_to(record: SlurmJob, note: JobNote | None) -> Changes | None:
    """To give a waiting job the request that its user wrote, and take back what its prolog was to be told; ``None``
    where there is nothing to do."""
    extra = _extra(record, "")
    if note is not None and note.as_written:
        wanted = {key: note.as_written.get(key, "") for key in _FIELDS}
    elif record.request.shards:
        request = as_written(record)
        wanted = {key: getattr(request, key) for key in _FIELDS}
    else:
        wanted = {}
    different = _differences(record, wanted)
    return _changes(different, extra=extra) if different or extra is not None else None


def _without_gpus(tres: str) -> str:
    """The rest of a request (``cpu=2,gres/gpu:1`` is then ``cpu=2``): the GPUs are asked for as shards."""
    return ",".join(item for item in split_outside(tres) if not item.startswith(("gres/gpu", "gres:gpu")))


def _differences(record: SlurmJob, wanted: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in wanted.items() if getattr(record.request, key) != value}


def _changes(fields: Mapping[str, str], partition: str | None = None, extra: str | None = None) -> Changes:
    return Changes(
        partition=partition,
        tres_per_node=fields.get("tres_per_node"),
        tres_per_job=fields.get("tres_per_job"),
        tres_per_socket=fields.get("tres_per_socket"),
        tres_per_task=fields.get("tres_per_task"),
        req_nodes=fields.get("req_nodes"),
        start_now=True,
        extra=extra,
    )
