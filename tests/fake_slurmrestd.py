"""slurmrestd of 26.05 in memory, over a slurmctld in memory: requests in, JSON of Slurm's shape out."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import httpx

from fake_slurm import FakeSlurm
from lucid.adapters.slurm.clients.port import Breaker, Changes
from lucid.adapters.slurm.clients.rest import RestClient
from lucid.adapters.slurm.clients.rest_connection import REQUEUES, VERSIONS
from lucid.adapters.slurm.records.configuration import Partition
from lucid.adapters.slurm.records.jobs_and_nodes import SlurmJob, SlurmNode
from lucid.adapters.slurm.records.preemption import NO_PREEMPTION, Preemption
from lucid.adapters.slurm.records.request import JobDefaults
from lucid.adapters.slurm.records.reservations import Reservation
from lucid.errors import ActionRefused

FACTOR = 2**31


def _time(seconds: float) -> dict[str, Any]:
    return {"set": True, "infinite": False, "number": int(seconds)}


def job_json(job: SlurmJob) -> dict[str, Any]:
    """One job, as slurmrestd has it."""
    return {
        "job_id": job.number, "job_state": [job.state, *job.flags], "partition": job.partition, "name": job.name,
        "user_name": job.user, "account": job.account, "admin_comment": job.admin_comment, "extra": job.extra,
        "state_reason": job.reason, "hold": job.held, "node_count": _time(job.min_nodes), "cpus": _time(job.cpus),
        "tres_req_str": f"cpu={job.cpus},mem={job.mem_mib}M", "submit_time": _time(job.submit_s),
        "eligible_time": _time(job.eligible_s), "start_time": _time(job.start_s), "end_time": _time(job.end_s),
        "restart_cnt": job.restarts, "requeue": job.requeue, "batch_flag": job.batch, "features": job.features,
        "tres_per_node": job.request.tres_per_node, "tres_per_job": job.request.tres_per_job,
        "tres_per_socket": job.request.tres_per_socket, "tres_per_task": job.request.tres_per_task,
        "cpus_per_tres": job.request.cpus_per_tres, "memory_per_tres": job.request.mem_per_tres,
        "flags": ["EXACT_MEMORY_REQUESTED"] if job.request.exact_mem else [],
        "comment": job.comment, "dependency": job.dependency, "resv_name": job.reservation, "het_job_id": job.het,
        "excluded_nodes": "", "licenses": "", "priority": _time(job.priority), "job_resources": {},
        "time_limit": {"set": job.time_limit_s is not None, "number": int((job.time_limit_s or 0) / 60)},
        "required_nodes": job.request.req_nodes, "shared": [] if job.simple else ["none"],
        "nodes": ",".join(part.node for part in job.placement),
        "gres_detail": [
            ",".join(f"gpu:g{gpu}:1(IDX:{gpu})" for gpu in part.gpus) for part in job.placement
        ],
    }  # fmt: skip


def node_json(node: SlurmNode) -> dict[str, Any]:
    """One node."""
    gres = [f"gpu:{kind}:1" for kind in node.gpu_types] + [f"shard:{kind}:2" for kind in sorted(node.shard_types)]
    return {
        "name": node.name, "gres": ",".join(gres), "cpus": node.cpus, "real_memory": node.mem_mib,
        "partitions": sorted(node.partitions), "state": sorted(node.states), "reason": node.reason,
    }  # fmt: skip


def reservation_json(one: Reservation) -> dict[str, Any]:
    """One reservation."""
    return {
        "name": one.name, "node_list": ",".join(one.nodes), "start_time": _time(one.start_s),
        "end_time": _time(one.end_s), "flags": sorted(one.flags), "users": ",".join(one.users),
        "accounts": ",".join(one.accounts), "tres": "gres/gpu=1" if one.gres else "cpu=1",
        "core_specializations": [{"node": node, "core": f"0-{count - 1}"} for node, count in one.cores],
    }  # fmt: skip


class FakeSlurmrestd:
    """A handler for httpx; ``client`` speaks to it. Jobs are addressed by number, as on a real one."""

    def __init__(self, slurm: FakeSlurm) -> None:
        self.slurm = slurm

    def __call__(self, request: httpx.Request) -> httpx.Response:
        _, _, interface, *rest = request.url.path.split("/")
        path = "/".join(rest)
        if interface not in (REQUEUES, VERSIONS[0]) or (path == "jobs/requeue" and interface != REQUEUES):
            return httpx.Response(404, text="Unable to find requested URL endpoint.")
        body = json.loads(request.content) if request.content else {}
        meta = {"slurm": {"version": {"major": "26", "minor": "05"}}}
        try:
            found = self._answer(path, body)
        except ActionRefused as error:
            errors = [{"error_number": 2037, "error": str(error), "description": "Job update requested failed"}]
            return httpx.Response(422, json={"meta": meta, "errors": errors})
        return httpx.Response(200, json={"meta": meta, "errors": [], "warnings": [], **found})

    def _answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path == "jobs/":
            return {"jobs": [job_json(job) for job in self.slurm.jobs()]}
        if path == "nodes/":
            return {"nodes": [node_json(node) for node in self.slurm.nodes()]}
        if path == "reservations/":
            return {"reservations": [reservation_json(one) for one in self.slurm.reservations()]}
        if path == "jobs/requeue":
            for number in body["jobs"]:
                self.slurm.requeue_hold(self._name(number))
        elif path.startswith("job/"):
            self._post(self._name(path.removeprefix("job/")), body)
        return {}

    def _name(self, number: str) -> str:
        return next((job.id for job in self.slurm.records.values() if str(job.number) == number), number)

    def _post(self, name: str, body: dict[str, Any]) -> None:
        if "hold" in body:
            (self.slurm.hold if body["hold"] else self.slurm.release)(name)
            return
        nodes = body.get("required_nodes")
        self.slurm.update(
            name,
            Changes(
                **{key: body[key] for key in ("partition", "tres_per_node", "tres_per_job", "tres_per_socket",
                                              "tres_per_task", "extra") if key in body},
                cpus_per_tres=body.get("cpus_per_tres"),
                mem_per_tres=body.get("memory_per_tres"),
                num_cpus=body.get("minimum_cpus"),
                mem_node_mib=body["memory_per_node"]["number"] if "memory_per_node" in body else None,
                req_nodes=None if not nodes else ",".join(nodes),
                start_now="begin_time" in body and not _ahead(body),
                start_at_s=float(body["begin_time"]["number"]) if _ahead(body) else None,
                site_factor=body["site_factor"] - FACTOR if "site_factor" in body else None,
            ),
        )  # fmt: skip


def _ahead(body: dict[str, Any]) -> bool:
    """The client writes real time where it means now, and the fake's clock begins at 0."""
    return "begin_time" in body and not abs(body["begin_time"]["number"] - time.time()) < 600


class NamedClient:
    """The real client over the fake slurmrestd; a job goes by its name, as the scenes' jobs do."""

    name = "slurmrestd"

    def __init__(self, slurm: FakeSlurm) -> None:
        handler = httpx.MockTransport(FakeSlurmrestd(slurm))
        self.rest = RestClient("unix:/run/fake.sock", Breaker(slurm.now_s), transport=handler)
        self.numbers: dict[str, str] = {}

    def version(self) -> tuple[int, int]:
        return self.rest.version()

    def jobs(self) -> Sequence[SlurmJob]:
        found = self.rest.jobs()
        self.numbers = {job.name: job.id for job in found}
        return [replace(job, id=job.name) for job in found]

    def nodes(self) -> Sequence[SlurmNode]:
        return self.rest.nodes()

    def network(self) -> None:
        return None

    def reservations(self) -> list[Reservation]:
        return self.rest.reservations()

    def qos_priorities(self) -> dict[str, int]:
        return {}

    def fair_shares(self) -> dict[tuple[str, str], float]:
        return {}

    def preemption(self) -> Preemption:
        return NO_PREEMPTION

    def partitions(self) -> Sequence[Partition]:
        return self.rest.partitions()

    def config(self) -> dict[str, str] | None:
        return self.rest.config()

    def node_states(self) -> str | None:
        return self.rest.node_states()

    def job_defaults(self) -> dict[str, JobDefaults]:
        return {}

    def update(self, job_id: str, changes: Changes) -> None:
        self.rest.update(self.numbers[job_id], changes)

    def seal(self, text: str) -> str:
        return self.rest.seal(text)

    def number(self, job_id: str) -> int:
        return self.rest.number(self.numbers[job_id])

    @property
    def at_once(self) -> int:
        return self.rest.at_once

    def set_begin(self, job_ids: Sequence[str], begin_s: float) -> None:
        self.rest.set_begin([self.numbers[job_id] for job_id in job_ids], begin_s)

    def hold(self, job_id: str, begin_s: float = 0.0) -> None:
        self.rest.hold(self.numbers[job_id], begin_s)

    def release(self, job_id: str) -> None:
        self.rest.release(self.numbers[job_id])

    def requeue_hold(self, job_id: str) -> None:
        self.rest.requeue_hold(self.numbers[job_id])

    def requeue_ended(self, job_id: str) -> None:
        self.rest.requeue_ended(self.numbers[job_id])

    def cancel(self, job_id: str) -> None:
        self.rest.cancel(self.numbers[job_id])
