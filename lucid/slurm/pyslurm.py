"""``PyslurmClient``: jobs and nodes through pyslurm in this process, without a command of Slurm's for each poll.

pyslurm is under GPL-2, so it is never a dependency of Lucid: this module imports it where its administrator has
installed it, and nothing else imports this module. What pyslurm does not report or cannot do (a site factor of 0, one
task of an array, fields cleared, ``Extra``, a requeue that never runs an ended job again, partitions, shares) goes
through Slurm's commands. It does not report all that pack mode needs (``--gpu-bind``, which CPUs and memory a user
asked for exactly), so it observes and orders (docs/decisions/0032-pyslurm.md)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, TypeVar

from lucid.config.live import SlurmSettings
from lucid.errors import ClusterUnavailable, ConfigError
from lucid.files import user_name
from lucid.left_out import LeftOut
from lucid.slurm.client import Breaker, Changes, checked_id, declined, guarded
from lucid.slurm.commands import CommandClient, silent
from lucid.slurm.records.configuration import counted
from lucid.slurm.records.from_json import JOB_NEEDS, jobs_from, nodes_from
from lucid.slurm.records.job import SlurmJob, SlurmNode

_T = TypeVar("_T")
_NEEDED = ("requested_tres", "extra")
"""Attributes of ``pyslurm.Job`` since 25.11.2, without which nobody can tell how many GPUs ``--gpus=2`` asks for."""


class PyslurmClient(CommandClient):
    """A client by pyslurm, which does by Slurm's commands what pyslurm cannot do. ``pyslurm``: the module
    itself, in tests.

    A call of pyslurm holds Python's lock until slurmctld answers or libslurm gives up (MessageTimeout), so
    ``slurm.timeout_s`` does not bound it.

    Raises: ConfigError: pyslurm is not installed, cannot be loaded, or is too old."""

    name = "pyslurm"

    def __init__(
        self,
        prefix: Sequence[str],
        breaker: Breaker,
        timeout_s: float = 20.0,
        left_out: LeftOut | None = None,
        pyslurm: Any = None,
    ) -> None:
        super().__init__(prefix, breaker, timeout_s, left_out)
        self._pyslurm = pyslurm or _imported()
        self._types: dict[str, tuple[str, ...]] = {}
        missing = [name for name in _NEEDED if not hasattr(self._pyslurm.Job, name)]
        if missing:
            raise ConfigError(
                f"slurm.client = 'pyslurm': pyslurm {self._pyslurm.__version__} does not tell {' and '.join(missing)}"
                " of a job: use 25.11.2 or later, of the release of your Slurm, or slurm.client = 'command'"
            )

    def jobs(self) -> list[SlurmJob]:
        """All jobs by one request, and before the first one a request for the nodes: of slots pyslurm reports the
        GPUs' types alone."""
        loaded = self._load(lambda: self._pyslurm.Jobs.load())
        if not self._types:
            self.nodes()
        return jobs_from({"jobs": [_job(job, self._types) for job in loaded.values()]}, self.left_out)

    def nodes(self) -> list[SlurmNode]:
        """All nodes by one request."""
        loaded = self._load(lambda: self._pyslurm.Nodes.load())
        found = nodes_from({"nodes": [_node(node) for node in loaded.values()]}, self.left_out)
        self._types = {node.name: node.gpu_types for node in found}
        return found

    def update(self, job_id: str, changes: Changes) -> None:
        """Set a site factor of a whole job by pyslurm, unless it is 0 (which pyslurm takes for none given); all else
        by ``scontrol``."""
        if (
            "_" in checked_id(job_id)
            or not changes.site_factor
            or changes != Changes(site_factor=changes.site_factor)
        ):
            super().update(job_id, changes)
            return
        self._modify(job_id, site_factor=changes.site_factor)

    def hold(self, job_id: str, begin_s: float = 0.0) -> None:
        """Hold a whole job by pyslurm, a task of an array by ``scontrol``."""
        if "_" in checked_id(job_id):
            super().hold(job_id, begin_s)
        else:
            self._modify(job_id, priority=0, begin_time=int(begin_s or time.time()))

    def release(self, job_id: str) -> None:
        """Release a whole job by pyslurm, a task of an array by ``scontrol``."""
        if "_" in checked_id(job_id):
            super().release(job_id)
        else:
            self._change(lambda: self._pyslurm.Job(int(job_id)).release())

    def _modify(self, job_id: str, **fields: int) -> None:
        made = self._pyslurm.JobSubmitDescription(**fields)
        self._change(lambda: self._pyslurm.Job(int(job_id)).modify(made))

    def _change(self, call: Callable[[], Any]) -> None:
        self._breaker.calls.writes += 1
        guarded(self._breaker, lambda: self._called(call))

    def _load(self, call: Callable[[], _T]) -> _T:
        self._breaker.calls.reads += 1
        return guarded(self._breaker, lambda: self._called(call))

    def _called(self, call: Callable[[], _T]) -> _T:
        try:
            return call()
        except self._pyslurm.RPCError as error:
            said = " ".join(str(error).split())[:500]
            if silent(said):
                raise ClusterUnavailable(f"pyslurm: {said}") from None
            raise declined(f"pyslurm: {said}") from None


def _imported() -> Any:
    try:
        return import_module("pyslurm")
    except ImportError as error:
        raise ConfigError(
            f"slurm.client = 'pyslurm': it cannot be loaded ({error}); it is built against the headers of your Slurm "
            "(https://github.com/PySlurm/pyslurm), or set slurm.client = 'command'"
        ) from None


_Types = Mapping[str, tuple[str, ...]]


def _job(job: Any, types: _Types) -> dict[str, Any]:
    """A job as ``squeue --json`` has it; for a record that cannot be read, one that says so."""
    try:
        return _job_data(job, types)
    except Exception as error:  # a name of other bytes than UTF-8, say: it may hold GPUs all the same
        said = {"job_id": job.id, "job_state": job.state, "gres_detail": f"{type(error).__name__}: {error}"}
        return {
            **dict.fromkeys([*JOB_NEEDS, "job_resources"]),
            **said,
        }  # its form is known: it is the record that is at fault


def _job_data(job: Any, types: _Types) -> dict[str, Any]:
    per_node = _gres(job.gres_per_node)
    wanted = job.requested_tres
    gpus = _gres({f"gres/{name}": one.count for name, one in wanted.gres.items()} if wanted else {})
    layout: Mapping[str, Mapping[str, Any]] = job.get_resource_layout_per_node()
    return {
        "job_id": job.id,
        "array_job_id": job.array_id or 0,
        "array_task_id": {"set": job.array_task_id is not None, "number": job.array_task_id},
        "array_task_string": job.array_tasks_waiting or "",
        "array_max_tasks": job.array_tasks_parallel or 0,
        "job_state": job.state,
        "state_reason": job.state_reason or "",
        "priority": job.priority or 0,
        "partition": job.partition or "",
        "account": job.account or "",
        "qos": job.qos or "",
        "user_name": user_name(job.user_id),
        "user_id": -1 if job.user_id is None else job.user_id,
        "name": job.name or "",
        "comment": job.comment or "",
        "admin_comment": job.admin_comment or "",
        "extra": job.extra or "",
        "tres_per_node": per_node,
        "tres_per_job": "" if per_node else gpus,
        "tres_req_str": f"mem={wanted.mem.count}M" if wanted and wanted.mem else "",
        "required_nodes": job.required_nodes or "",
        "excluded_nodes": job.excluded_nodes or "",
        "cpus": job.cpus,
        "tasks": job.ntasks,
        "tasks_per_tres": job.ntasks_per_gpu or 0,
        "node_count": job.num_nodes,
        "max_nodes": job.max_nodes or 0,
        "features": ",".join(job.constraints or ()),
        "licenses": ",".join(job.licenses or ()),
        "network": job.network or "",
        "resv_name": job.reservation or "",
        "dependency": "yes" if job.dependencies else "",
        "shared": "none" if job.resource_sharing in ("NO", "EXCLUSIVE") else "",
        "flags": ["GRES_ENFORCE_BIND"] if job.gres_binding else [],
        "het_job_id": job.heterogeneous_id or 0,
        "requeue": bool(job.is_requeueable),
        "batch_flag": bool(job.is_batch_job),
        "restart_cnt": job.requeue_count or 0,
        "submit_time": job.submit_time or 0,
        "eligible_time": job.eligible_time or 0,
        "start_time": job.start_time or 0,
        "end_time": job.end_time or 0,
        "time_limit": {"set": job.time_limit is not None, "number": job.time_limit},
        "time_minimum": getattr(job, "time_limit_min", None) or 0,  # not recorded yet from a real pyslurm
        "nodes": job.allocated_nodes or "",
        "gres_detail": [_detail(held["gres"], types.get(name, ())) for name, held in layout.items()],
        "job_resources": {
            "allocated_nodes": [
                {
                    "nodename": name,
                    "cpus_used": counted(held["cpu_ids"]) if held["cpu_ids"] else 0,
                    "memory_allocated": held["memory"] or 0,
                }
                for name, held in layout.items()
            ]
        },
    }


def _gres(counts: Mapping[str, int]) -> str:
    """``{"gres/gpu:a100": 2}`` as ``gres/gpu:a100:2``. The sum of all types of a kind is given beside the types."""
    typed = {name.partition(":")[0] for name in counts if ":" in name}
    return ",".join(
        f"{name if name.startswith('gres/') else f'gres/{name}'}:{count}"
        for name, count in counts.items()
        if name not in typed
    )


def _detail(held: Mapping[str, Any], types: tuple[str, ...]) -> str:
    """``{"gpu:g0": {"count": 1, "indexes": "0"}}`` as ``gpu:g0:1(IDX:0)``, and the slots ``{"shard:g1": 1}`` of a
    node whose GPUs have these *types* as ``gpu:g1:1(IDX:1)``.

    Raises:
        ValueError: slots of GPUs that their type does not tell apart."""
    found = []
    for name, item in held.items():
        kind, _, of = name.partition(":")
        if isinstance(item, Mapping) and item["count"]:
            found.append(f"{name}:{item['count']}(IDX:{item['indexes']})")
        elif kind == "shard" and item:
            if types.count(of) != 1:
                raise ValueError(f"slots of {of or 'any GPU'}: it is not told which GPU that is")
            found.append(f"gpu:{of}:1(IDX:{types.index(of)})")
    return ",".join(found)


def _node(node: Any) -> dict[str, Any]:
    states = node.state.replace("+", " ").split()
    return {
        "name": node.name,
        "gres": _gres(node.configured_gres).replace("gres/", ""),
        "effective_cpus": node.effective_cpus or 0,
        "cpus": node.total_cpus,
        "real_memory": node.real_memory or 0,
        "specialized_memory": node.memory_reserved_for_system or 0,
        "active_features": list(node.active_features or ()),
        "features": list(getattr(node, "available_features", None) or node.active_features or ()),
        "weight": getattr(node, "weight", None) or 1,
        "partitions": list(node.partitions or ()),
        "state": states,
        "reason": node.reason or "",
    }


def make_client(slurm: SlurmSettings, breaker: Breaker, left_out: LeftOut | None = None) -> CommandClient:
    """The client of these settings; ``left_out`` learns of what cannot be read.

    Raises:
        ConfigError: pyslurm is not installed, or too old."""
    made = CommandClient if slurm.client == "command" else PyslurmClient
    return made(slurm.prefix, breaker, slurm.timeout_s, left_out)
