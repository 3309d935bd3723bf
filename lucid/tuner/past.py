"""The live cluster's own past, from the daemon's store: its ended jobs as a trace, and the nodes they ran on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lucid.core.job import Ended, JobProfile
from lucid.core.snapshot import Partition
from lucid.errors import TraceError
from lucid.simulator.layout import NodeShape
from lucid.simulator.traces.record import Trace, TraceJob
from lucid.store.sqlite import SqliteStore


def stored_trace(store: SqliteStore, since_s: float) -> Trace:
    """The jobs that ended since then (Unix seconds), as a trace that begins with the first of them.

    A job's run time is taken for its run time alone: for a job that shared its GPUs that is too much, and nothing in
    the store says by how much.

    Raises: StoreError: the store cannot be read. TraceError: no job ended since then."""
    ended = store.ended(since_s)
    profiles = {job_id: row.profile for job_id, row in store.profiles().items()}
    with_gpus = [item for item in ended if item.job.gpus > 0]
    if not with_gpus:
        raise TraceError("the store holds no GPU job that ended in that time; take more days, or give a log")
    with_gpus.sort(key=lambda item: (item.job.submit_s, item.job.rank, item.job.id))
    first_s = with_gpus[0].job.submit_s
    jobs = tuple(_trace_job(item, first_s, rank, profiles) for rank, item in enumerate(with_gpus))
    left_out = len(ended) - len(with_gpus)
    return Trace("history", jobs, first_s, (("asked for no GPU", left_out),) if left_out else ())


def _trace_job(item: Ended, first_s: float, rank: int, profiles: Mapping[str, JobProfile]) -> TraceJob:
    job = replace(item.job, submit_s=item.job.submit_s - first_s, rank=rank)
    waited_s = max(item.end_s - item.ran_s - item.job.submit_s, 0.0)
    return TraceJob(job, item.ran_s, item.state, profiles.get(job.id), waited_s=waited_s)


@dataclass(frozen=True, slots=True)
class Floorplan:
    """The nodes that a replay may run on: nodes by VC, those of the profiling partition counted to the largest of
    them and lent back from there, and the shape of most nodes. ``alike``: whether all have it."""

    vcs: Mapping[str, int]
    shape: NodeShape
    profiling_nodes: int | None
    alike: bool


def floorplan(partitions: Sequence[Partition]) -> Floorplan | None:
    """From the partitions of a live snapshot; ``None`` where it has no nodes in any VC."""
    vcs = {p.name: len(p.nodes) for p in partitions if not p.profiling and p.nodes}
    if not vcs:
        return None
    lent = sum(len(p.nodes) for p in partitions if p.profiling)
    vcs[max(vcs, key=lambda name: vcs[name])] += lent
    shapes = Counter(
        NodeShape(node.gpus, node.gpu_mem_mib, node.cpus, node.mem_mib) for p in partitions for node in p.nodes
    )
    return Floorplan(vcs, shapes.most_common(1)[0][0], lent or None, len(shapes) == 1)
