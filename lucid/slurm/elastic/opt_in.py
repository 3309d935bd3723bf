"""A user's opt-in to resizing, in the job's comment, and what keeps a job at its size all the same. Pure.

``lucid:elastic=1-8[,nodes=1][,batch=256:4096][,epochs=30][,start=1]`` is a word of the comment. The user says by it
that the job writes a checkpoint at SIGTERM, goes on from it when it is started again, and can do so on any number of
GPUs in the range. ``nodes=1``: on one node, whatever its size; ``--nodes`` says the same. ``start=1``: already before
its first report the job may start on fewer GPUs than the user wrote, at least on so many."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from lucid.core.job import Elastic
from lucid.core.placement import Placement
from lucid.slurm.records.job import SlurmJob
from lucid.store.port import GivenUp, JobNote
from lucid.text import digits

_MOST_GPUS = 4096
_MOST_BATCH = 1 << 40
_MOST_EPOCHS = 1e9
_WORD = re.compile(r"(?:^|[\s,;])lucid:elastic=([^\s;]*)")


@dataclass(frozen=True, slots=True)
class ElasticRequest:
    """What a comment asks for. ``limits``: ``None`` where it asks for nothing, or for what cannot be read, as ``why``
    then says. ``start``: the least number of GPUs for a start before the first report."""

    limits: Elastic | None = None
    why: str = ""
    start: int | None = None


@lru_cache(maxsize=4096)
def elastic_request(comment: str) -> ElasticRequest:
    """The request of a comment's first ``lucid:elastic=``. Unknown keys are left out."""
    found = _WORD.search(comment)
    if found is None:
        return ElasticRequest()
    first, *rest = found[1].split(",")
    size = _pair(first, "-", _MOST_GPUS)
    if size is None:
        return _bad(first, f"a range of GPUs is wanted, as 1-8, of {_MOST_GPUS} at the most")
    batch, epochs, start, nodes = (1, 1), None, None, None
    for item in rest:
        key, _, value = item.partition("=")
        if key == "batch":
            pair = _pair(value, ":", _MOST_BATCH)
            if pair is None:
                return _bad(item, "a range of batch sizes is wanted, as batch=256:4096")
            batch = pair
        elif key == "epochs":
            epochs = _positive(value)
            if epochs is None:
                return _bad(item, "a number of epochs above 0 is wanted, as epochs=30")
        elif key == "nodes":
            nodes = digits(value)
            if nodes is None or not 1 <= nodes <= _MOST_GPUS:
                return _bad(item, "a number of nodes is wanted, as nodes=1")
        elif key == "start":
            start = digits(value)
            if start is None or not size[0] <= start <= size[1]:
                return _bad(item, f"a number of GPUs within {size[0]}-{size[1]} is wanted, as start={size[0]}")
    low, high = batch
    return ElasticRequest(
        Elastic(size[1], size[0], low, low, high, 1, high, epochs=epochs, max_nodes=nodes), start=start
    )


def _bad(item: str, wanted: str) -> ElasticRequest:
    return ElasticRequest(None, f"lucid:elastic: {item[:40]!r} cannot be read: {wanted}")


def _pair(text: str, between: str, most: int) -> tuple[int, int] | None:
    low, _, high = text.partition(between)
    first, last = digits(low), digits(high)
    if first is None or last is None or not 1 <= first <= last <= most:
        return None
    return first, last


def _positive(text: str) -> float | None:
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text):
        return None
    number = float(text)
    return number if math.isfinite(number) and 0 < number <= _MOST_EPOCHS else None


def written_gpus(record: SlurmJob, note: JobNote | None) -> int:
    """GPUs that the job's user asked for, whatever the job has been resized to since."""
    noted = digits(note.as_written.get("gpus", "")) if note is not None else None
    return record.gpus if noted is None else noted


def most_nodes(record: SlurmJob, limits: Elastic) -> int | None:
    """The most nodes that the job may have, by its comment and by ``--nodes``; ``None`` where neither says.

    What its user wrote is in job_submit.lua's tag. Slurm's own number does not show it: it is 1 where a user wrote
    nothing (since 23.11), 0 once the job runs, and Lucid's own after a resize."""
    written = digits((record.tag or {}).get("most", ""))
    return min((most for most in (written, limits.max_nodes) if most), default=None)


def rigid_because(record: SlurmJob, note: JobNote | None, limits: Elastic) -> str:
    """Why a job that opted in is not resized all the same, by what it asks for; empty where it can be."""
    request, mark = record.request, record.tag or {}
    gpus = written_gpus(record, note)
    written = (note.as_written if note is not None else None) or request.written()
    reasons = {
        "it is not a batch job": not record.batch,
        "it may not be requeued (--no-requeue)": not record.requeue,
        "it is a task of an array": "_" in record.id,
        # job_submit.lua then has told the task prolog nothing, and an srun inside would ask for the old size
        "its comment said so only after its submission; submit it with --comment": not mark.get("elastic"),
        "it asks for GPUs by socket": written.get("tres_per_socket"),
        "it asks for GPUs by task": written.get("tres_per_task") or request.tasks_per_gpu,
        "it names its nodes": written.get("req_nodes"),
        "it asks for features of nodes (--constraint)": record.features,
        "its script asks for GPUs in an srun of its own": mark.get("share") == "0" and mark.get("why") == "srun",
        "Slurm did not start it as Lucid asked": note is not None and note.given_up_for is GivenUp.SLURM,
    }
    why = request.others[0] if request.others else next((words for words, there in reasons.items() if there), "")
    nodes = digits(written.get("num_nodes", "")) or (record.min_nodes if record.pending else 0)
    if not why and limits.max_nodes is not None and nodes > limits.max_nodes:
        why = f"it asks for {nodes} nodes, and its comment says {limits.max_nodes} at the most"
    if not why and not limits.min_gpus <= gpus <= limits.max_gpus:
        why = f"it asks for {gpus} GPUs, which are not within {limits.min_gpus}-{limits.max_gpus}"
    return why and f"it is not resized: {why}"


def with_size(written: Mapping[str, str], record: SlurmJob) -> dict[str, str]:
    """A request as its user wrote it, with the numbers that change when the job is resized."""
    most = most_nodes(record, Elastic(1))
    numbers = {
        "gpus": record.gpus,
        "num_nodes": record.min_nodes,
        **({} if most is None else {"max_nodes": most}),
        "num_cpus": record.request.num_cpus or record.cpus,
        "mem_mib": record.mem_mib,
    }
    return {**written, **{key: str(number) for key, number in numbers.items()}}


def sized(placement: Placement) -> dict[str, str]:
    """The fields of a request for so many GPUs of these nodes; where nodes give different numbers, Slurm deals them
    out."""
    counts = [part.mask.bit_count() for part in placement]
    even = min(counts) == max(counts)
    return {
        "tres_per_node": f"gres/gpu:{counts[0]}" if even else "",
        "tres_per_job": "" if even else f"gres/gpu:{sum(counts)}",
        "req_nodes": ",".join(part.node for part in placement),
    }
