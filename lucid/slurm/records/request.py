"""``Request``: what a job asks of Slurm, as one value; and whether that can be said in slots. Pure.

A job that shares its GPUs asks for slots (``gres/shard:g1:1``) in place of GPUs. From GPUs Slurm derives more than
GPUs: CPUs and memory by GPU (``--cpus-per-gpu``, ``--mem-per-gpu``, a partition's JobDefaults), tasks
(``--ntasks-per-gpu``), which task sees which GPU. In slots that has to be said otherwise (lucid.slurm.act.changes),
or the job keeps its GPUs to itself and runs exactly as its user wrote it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from operator import attrgetter

from msgspec import Struct
from msgspec.structs import replace

from lucid.slurm.records.fields import gpu_count, is_shards, partition_settings_from

GPU_FIELDS = ("tres_per_node", "tres_per_job", "tres_per_socket", "tres_per_task")
PER_GPU = ("cpus_per_tres", "mem_per_tres")
WRITTEN = (*GPU_FIELDS, "req_nodes", *PER_GPU)
"""Fields of a request that Lucid may change, and gives back."""

_changed = attrgetter(*WRITTEN)

_MARKED = {"node": "tres_per_node", "job": "tres_per_job", "socket": "tres_per_socket", "task": "tres_per_task",
           "cpg": "cpus_per_tres", "mpg": "mem_per_tres"}  # fmt: skip

_ADDRESS = re.compile(r"gres/gpu:g\d+:1(?!\d)")
EXCLUSIVE = "it asks for whole nodes (--exclusive)"
UNREAD = "its record cannot be read"

_ASKED = "its user asked not to share"
WHY = {
    "asked": "its comment says lucid:exclusive",
    "gres": "it asks for other generic resources as well",
    "requeue": "it may not be requeued (--no-requeue)",
    "exclusive": EXCLUSIVE,
    "nodes": "it names its nodes",
    "constraint": "its constraint is more than a list of features",
    "srun": "its script asks for GPUs in an srun of its own",
    "variables": "it needs variables that a job in slots does not have",
    "long": "its script is too long to be checked",
}
"""job_submit.lua's words (``why=``)."""
NOT_TO_SHARE = frozenset([_ASKED, WHY["asked"], EXCLUSIVE])
"""The reasons that are a wish of the job's user, and nothing that its work needs."""


class Request(Struct, frozen=True, eq=False):
    """What a job asks for, as Slurm keeps it: first the fields that Lucid may change, by which requests are compared,
    then those that it only reads.

    ``cpus_per_tres``, ``mem_per_tres``: CPUs and MiB by GPU, the user's, or those that Slurm took from JobDefaults
    when the job last started. ``num_cpus``: CPUs that Slurm reckons the job to need. ``max_nodes``: 0 where the user
    did not say. ``exact_cpus``, ``exact_mem``: the user said how many CPUs a task has, or how much memory.
    ``others``: what else binds the job to nodes or to whole GPUs, in words."""

    tres_per_node: str = ""
    tres_per_job: str = ""
    tres_per_socket: str = ""
    tres_per_task: str = ""
    req_nodes: str = ""
    cpus_per_tres: str = ""
    mem_per_tres: str = ""
    num_cpus: int = 0
    tasks: int = 1
    max_nodes: int = 0
    tasks_per_gpu: int = 0
    exact_cpus: bool = False
    exact_mem: bool = False
    others: tuple[str, ...] = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Request) and _changed(self) == _changed(other)

    def __ne__(self, other: object) -> bool:  # Struct's own would say that all differ
        return not self == other

    def __hash__(self) -> int:
        return hash(_changed(self))

    @property
    def shards(self) -> bool:
        """Whether it asks for shards."""
        return is_shards(self.tres_per_node) or is_shards(self.tres_per_job)

    @property
    def addressed(self) -> bool:
        """Whether it asks for whole GPUs by their addresses. Only Lucid asks so, for a job that it holds
        (``start_changes``)."""
        return _ADDRESS.search(self.tres_per_node) is not None

    @property
    def emptied(self) -> bool:
        """Whether it asks for no GPU at all. A job of ours does so only half-way between two requests."""
        return not any(gpu_count(getattr(self, key)) for key in GPU_FIELDS)

    @property
    def whole_nodes(self) -> bool:
        """Whether it leaves nothing of its nodes to others."""
        return EXCLUSIVE in self.others

    def gpus(self, nodes: int, tasks: int) -> int:
        """How many GPUs a job with so many nodes and tasks gets by this request."""
        return max(
            gpu_count(self.tres_per_node) * nodes,
            gpu_count(self.tres_per_job),
            gpu_count(self.tres_per_socket) * nodes,
            gpu_count(self.tres_per_task) * tasks,
        )

    def written(self) -> dict[str, str]:
        """The fields of the request to give back to the job later."""
        found = {key: getattr(self, key) for key in WRITTEN}
        if self.num_cpus:
            found["num_cpus"] = str(self.num_cpus)
        return {key: value for key, value in found.items() if value}


class JobDefaults(Struct, frozen=True):
    """What a partition gives to each GPU of a job that does not ask for it itself; ``None`` where it gives nothing.
    ``state``: the partition's, by which its jobs start at all."""

    cpus: int | None = None
    mem_mib: int | None = None
    state: str = "UP"

    @property
    def shut(self) -> bool:
        """Whether none of the partition's jobs start. (In state DRAIN those that wait do.)"""
        return self.state in ("DOWN", "INACTIVE")


NO_DEFAULTS = JobDefaults()


def defaults_from(partitions: str, config: Mapping[str, str]) -> dict[str, JobDefaults]:
    """JobDefaults in force and states, by partition, from ``scontrol -o show partition`` (its JSON leaves JobDefaults
    empty on 24.11); the configuration's count where a partition has none."""
    everywhere = _defaults(config.get("JobDefaults", ""))
    found: dict[str, JobDefaults] = {}
    for name, said in partition_settings_from(partitions).items():
        own = _defaults(said.get("JobDefaults", ""))
        found[name] = JobDefaults(
            everywhere.cpus if own.cpus is None else own.cpus,
            everywhere.mem_mib if own.mem_mib is None else own.mem_mib,
            said.get("State", "UP"),
        )
    return found


def _defaults(text: str) -> JobDefaults:
    cpus = re.search(r"DefCpuPerGPU=([0-9]{1,15})(?![0-9])", text, re.IGNORECASE)
    mem = re.search(r"DefMemPerGPU=([0-9]{1,15})(?![0-9])", text, re.IGNORECASE)
    return JobDefaults(int(cpus[1]) if cpus else None, int(mem[1]) if mem else None)


def per_gpu(tres: str) -> str:
    """The form of ``--cpus-per-gpu`` for Slurm's ``gpu:2``, its own word once it has taken the value from
    JobDefaults."""
    return ",".join(
        item if not item or item.startswith("gres") else f"gres/{item}" for item in (tres or "").split(",")
    )


def from_mark(mark: Mapping[str, str]) -> Request:
    """The request that job_submit.lua wrote into the tag."""
    return replace(Request(), **{key: mark.get(short, "") for short, key in _MARKED.items()})


def whole_because(
    request: Request, mark: Mapping[str, str], min_nodes: int, batch: bool, defaults: JobDefaults | None
) -> str:
    """Why a job's request cannot be said in slots without changing what the job gets, in words; empty where it can.

    Args:
        request: as it stands, in GPUs or in slots.
        mark: job_submit.lua's tag.
        min_nodes: nodes that it asks for.
        batch: is it a batch job?
        defaults: JobDefaults of its VC; ``None`` where they are not known."""
    # more CPUs than several tasks ask for cannot be said, but give 'BadConstraints' for ever (seen on 24.11)
    several, ways = request.tasks > 1, sum(gpu_count(getattr(request, key)) > 0 for key in GPU_FIELDS)
    given = defaults is not None and defaults.cpus is not None and not request.exact_cpus
    found = (
        (mark.get("share") == "0", WHY.get(mark.get("why", ""), _ASKED)),
        (not batch, "it is not a batch job"),
        (request.others, next(iter(request.others), "")),
        (min_nodes > 1, f"it asks for {min_nodes} nodes"),
        (request.max_nodes > 1, f"it may be given up to {request.max_nodes} nodes"),
        (ways > 1, "it asks for GPUs in two ways at once"),
        (request.tasks_per_gpu, "its number of tasks follows from its GPUs (--ntasks-per-gpu)"),
        (defaults is None, "it is not known what its partition gives to each GPU (JobDefaults)"),
        (
            several and (mark.get("cpg") if mark else request.cpus_per_tres),
            "it asks for CPUs by GPU, and has several tasks",
        ),
        (several and given, "its partition gives CPUs to each GPU (JobDefaults), and the job has several tasks"),
    )
    return next((words for there, words in found if there), "")


def host_needs(
    written: Mapping[str, str], request: Request, gpus: int, defaults: JobDefaults
) -> tuple[int | None, int | None]:
    """CPUs and memory (MiB) of the whole job that Slurm derives from its GPUs, and that have to be said with its
    slots; ``None`` for what does not follow from them.

    ``written``: the request as its user wrote it."""
    cpus = _number(written.get("cpus_per_tres", ""))
    if cpus is None and not request.exact_cpus:
        cpus = defaults.cpus
    mem = _number(written.get("mem_per_tres", ""))
    if mem is None and not request.exact_mem:
        mem = defaults.mem_mib
    return (
        None if cpus is None else max(cpus * gpus, request.tasks),
        None if mem is None else mem * gpus,
    )


def _number(tres: str) -> int | None:
    found = re.search(r"[:=]([0-9]{1,15})$", tres)
    return int(found[1]) if found else None
