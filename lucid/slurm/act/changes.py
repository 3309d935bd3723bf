"""Which fields of a pending job to change to start it on chosen GPUs, and to give its request back. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from msgspec import structs

from lucid.core.placement import Placement, placement_gpus
from lucid.errors import ActionRefused
from lucid.slurm.act.prolog_extra import free_extra, is_batch_item
from lucid.slurm.client import Changes
from lucid.slurm.elastic.opt_in import sized
from lucid.slurm.records.fields import features_of, gpu_count, hosts, split_outside
from lucid.slurm.records.job import SlurmJob, SlurmNode
from lucid.slurm.records.request import (
    EXCLUSIVE,
    GPU_FIELDS,
    NO_DEFAULTS,
    PER_GPU,
    WRITTEN,
    JobDefaults,
    Request,
    host_needs,
)
from lucid.slurm.view.observation import as_written, users_nodes
from lucid.store.port import JobNote
from lucid.text import digits


def start_changes(
    record: SlurmJob,
    note: JobNote,
    placement: Placement,
    shards: bool,
    partition: str,
    nodes: Sequence[SlurmNode],
    extra: str = "",
    defaults: JobDefaults = NO_DEFAULTS,
    claims: bool = False,
) -> Changes:
    """The changes that start the job on these GPUs: as slots of exactly these, or on these nodes with the request as
    it was written.

    ``claims``: others are to be preempted for the job. Slurm chooses them by what the job asks for, so these very
    GPUs are asked for by their addresses, unless that cannot be said or a node list or other wish of its user is in
    the way; as slots it would preempt the wrong jobs.

    ``extra``: what the prolog is to know of a job in slots, or the batch of a resized one. A job whose user chose
    nodes, or that asks for what only some nodes have, keeps its own choice of nodes. ``defaults``: JobDefaults of the
    partition. In slots the job asks for the CPUs and memory that Slurm would derive from its GPUs.

    Raises: ActionRefused: a node is not known, or its GPUs cannot be named."""
    written = note.as_written
    move = partition if record.partition != partition else None
    names = ",".join(part.node for part in placement)
    if not shards and _resized(written, placement):
        wanted = {**{key: written.get(key, "") for key in WRITTEN}, **sized(placement)}
        cpus = None if record.request.cpus_per_tres else _cpus_back(record, written)
        made = _changes_to(wanted, record.request, cpus, forget=not _stale(record, defaults))
        return _whole(replace(made, num_nodes=len(placement)), move, _extra(record, extra))
    if not shards:
        free = (
            not written.get("req_nodes")
            and not set(record.request.others) - {EXCLUSIVE}
            and (not record.features or (claims and _have(record.features, placement, nodes)))
            and record.min_nodes <= len(placement)
            and record.request.max_nodes <= record.min_nodes  # of a range Slurm gives as many as there are
            and (len(placement) == 1 or not any(node.spread_by_slurm for node in nodes))
        )
        req = names if free else _kept(written.get("req_nodes", ""), partition, nodes)
        wanted = {**{key: written.get(key, "") for key in WRITTEN}, "req_nodes": req}
        if claims and free:
            wanted |= _by_address(written, placement, nodes)
        made = _changes_to(wanted, record.request, _cpus_back(record, written), forget=not _stale(record, defaults))
        made = replace(made, num_nodes=_nodes_back(record, written), switches=_switches(record, placement, nodes))
        return _whole(made, move, _extra(record, extra))
    (part,) = placement
    node = next((node for node in nodes if node.name == part.node), None)
    if written.get("req_nodes") and part.node not in hosts(written["req_nodes"]):
        raise ActionRefused(f"its user asked for nodes {written['req_nodes']}, and {part.node} is none of them")
    if node is None or not node.addressable or part.mask >> len(node.gpu_types):
        raise ActionRefused(f"job {record.id}: the GPUs of node {part.node!r} cannot be asked for by name")
    wanted = {
        "tres_per_node": shard_request([node.gpu_types[i] for i in part.gpus]),
        "tres_per_job": _without_gpus(written.get("tres_per_job", "")),
        "tres_per_task": _without_gpus(written.get("tres_per_task", "")),
        "req_nodes": part.node,
        "cpus_per_tres": "",
        "mem_per_tres": "",
    }
    cpus, mem_mib = host_needs(written, record.request, record.gpus, defaults)
    return _whole(_changes_to(wanted, record.request, cpus, mem_mib), move, _extra(record, extra))


def _by_address(written: Mapping[str, str], placement: Placement, nodes: Sequence[SlurmNode]) -> dict[str, str]:
    """The request for exactly these GPUs, which Slurm reads for each node alike; empty where it cannot be said."""
    types = {node.name: node.gpu_types for node in nodes if node.addressable}
    asked = {tuple(types[part.node][i] for i in part.gpus) for part in placement if part.node in types}
    if len(asked) != 1 or len({part.mask for part in placement}) != 1 or any(p.node not in types for p in placement):
        return {}
    (names,) = asked
    fields = ("tres_per_node", "tres_per_job", "tres_per_socket", "tres_per_task")
    rest = {key: _without_gpus(written.get(key, "")) for key in fields}
    gpus = [f"gres/gpu:{name}:1" for name in names]
    return {**rest, "tres_per_node": ",".join([*gpus, *filter(None, [rest["tres_per_node"]])])}


def _have(features: str, placement: Placement, nodes: Sequence[SlurmNode]) -> bool:
    """Has each of these nodes all that is asked for? No where that is more than a list of features."""
    asked, names = features_of(features), {part.node for part in placement}
    return all(asked <= node.features for node in nodes if node.name in names)


def _whole(made: Changes, partition: str | None = None, extra: str | None = None) -> Changes:
    return replace(made, partition=partition, start_now=True, extra=extra)


def _stale(record: SlurmJob, defaults: JobDefaults) -> bool:
    """Whether the CPUs and memory by GPU that Slurm wrote into the job at an earlier start, and keeps, are
    JobDefaults of this partition."""
    kept = (record.request.cpus_per_tres, record.request.mem_per_tres)
    given = (defaults.cpus, defaults.mem_mib)
    return all(not text or text == f"gres/gpu:{number}" for text, number in zip(kept, given, strict=True))


def _cpus_back(record: SlurmJob, written: Mapping[str, str]) -> int | None:
    """The number of CPUs that Slurm reckoned with before the request became slots. Beside CPUs by GPU the present
    one: with each request for GPUs Slurm reckons anew, and without the tasks. Else ``None``."""
    request = record.request
    if request.shards or request.emptied:
        return digits(written.get("num_cpus", ""))
    return request.num_cpus or None if request.cpus_per_tres else None


def _resized(written: Mapping[str, str], placement: Placement) -> bool:
    """Whether an elastic job starts on another number of GPUs or nodes than its user wrote."""
    gpus, nodes = digits(written.get("gpus", "")), digits(written.get("num_nodes", ""))
    return gpus is not None and (gpus != placement_gpus(placement) or nodes != len(placement))


def _nodes_back(record: SlurmJob, written: Mapping[str, str]) -> int | None:
    """The number of nodes that the user of an elastic job wrote, where the job now has another; else ``None``."""
    nodes = digits(written.get("num_nodes", ""))
    return nodes if nodes != record.min_nodes else None


def _switches(record: SlurmJob, placement: Placement, nodes: Sequence[SlurmNode]) -> int | None:
    """The switches to ask for anew where a job has waited long enough for fewer and starts below more: without that
    Slurm would wait as long again from its start on. Else ``None``."""
    above = {node.name: node.switches[:1] for node in nodes}
    found = {above.get(part.node, ()) for part in placement}
    return record.most_switches if 0 < record.most_switches < len(found) else None


def _extra(record: SlurmJob, wanted: str) -> str | None:
    """The new value of the job's Extra; ``None`` leaves it."""
    if not wanted and is_batch_item(record.extra):
        return None
    return wanted if wanted != record.extra and free_extra(record.extra) else None


def _kept(req_nodes: str, partition: str, nodes: Sequence[SlurmNode]) -> str:
    """The node list that the job's user asked for, which no start leaves.

    Raises: ActionRefused: not all of its nodes are in the partition."""
    there = {node.name for node in nodes if partition in node.partitions}
    if there and not there >= set(hosts(req_nodes)):
        raise ActionRefused(f"its user asked for nodes {req_nodes}, and they are not all in partition {partition}")
    return req_nodes


def back_to(record: SlurmJob, note: JobNote | None) -> Changes | None:
    """The changes that give a waiting job the request that its user wrote, and remove the items for its prolog;
    ``None`` where there is nothing to do."""
    extra = _extra(record, "")
    # of an earlier start, of which nothing is noted any more
    ours = record.restarts > 0 and users_nodes(record, note) != record.request.req_nodes
    if note is not None and note.as_written:
        written = {**note.as_written, "req_nodes": users_nodes(record, note)}
    elif record.request.shards or record.request.emptied or record.request.addressed or ours:
        written = as_written(record).written()
    else:
        return _whole(Changes(), extra=extra) if extra is not None else None
    wanted = {key: written.get(key, "") for key in WRITTEN}
    changes = _changes_to(wanted, record.request, _cpus_back(record, written), forget=False)
    nodes, most = _nodes_back(record, written), digits(written.get("max_nodes", "")) or 0
    if most > record.min_nodes and most != record.request.max_nodes:  # a range, of which a resize leaves one number
        changes = replace(changes, max_nodes=most)
        nodes = digits(written.get("num_nodes", "")) or 1
    changes = replace(changes, num_nodes=nodes)
    return _whole(changes, extra=extra) if changes != Changes() or extra is not None else None


def _changes_to(
    wanted: Mapping[str, str], now: Request, cpus: int | None = None, mem_mib: int | None = None, forget: bool = True
) -> Changes:
    """The changes that turn the request ``now`` into the wanted one (in the fields that ``wanted`` names), with these
    CPUs and this memory where given. ``forget``: remove CPUs and memory by GPU that are not wanted.

    Slurm refuses slots beside CPUs or memory by GPU, and forgets these only together with the GPUs (an empty
    ``CpusPerTres=`` alone leaves something that is refused for ever). So removing them takes two updates, of which
    the first empties the request; the job is held meanwhile."""
    fields = {
        key: value
        for key, value in wanted.items()
        if key in WRITTEN and getattr(now, key) != value and (value or forget or key not in PER_GPU)
    }
    first = None
    if any(fields.get(key) == "" for key in PER_GPU):
        empty = {
            **{key: _without_gpus(getattr(now, key)) for key in GPU_FIELDS if gpu_count(getattr(now, key))},
            **{key: "" for key in PER_GPU if getattr(now, key)},
        }
        first = Changes(**empty)  # type: ignore[arg-type]
        rest = structs.replace(now, **empty)
        fields = {k: v for k, v in wanted.items() if k in WRITTEN and getattr(rest, k) != v}
    return Changes(
        **fields,  # type: ignore[arg-type]
        num_cpus=cpus if cpus != now.num_cpus or (now.cpus_per_tres and fields.keys() & GPU_FIELDS) else None,
        mem_node_mib=mem_mib,
        first=first,
    )


def _without_gpus(tres: str) -> str:
    """A TRES request without its GPUs, which are asked for as shards (``cpu=2,gres/gpu:1`` becomes ``cpu=2``)."""
    return ",".join(
        item
        for item in split_outside(tres)
        if not item.startswith(("gres/gpu", "gres:gpu", "gres/shard", "gres:shard"))
    )


def shard_request(types: list[str]) -> str:
    """The TRES string for one shard on each GPU of these types."""
    return ",".join(f"gres/shard:{kind}:1" for kind in types)
