"""Slurm's commands over a slurmctld in memory: words in, what they print out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fake_slurm import FakeSlurm
from lucid.slurm.client import Breaker, Changes
from lucid.slurm.commands import CommandClient
from lucid.slurm.records.configuration import Network, Reservation
from lucid.slurm.records.job import SlurmJob, SlurmNode
from lucid.slurm.records.request import JobDefaults

TEXTS = {
    "Partition": "partition", "TresPerNode": "tres_per_node", "TresPerJob": "tres_per_job",
    "TresPerSocket": "tres_per_socket", "TresPerTask": "tres_per_task", "ReqNodeList": "req_nodes",
    "Extra": "extra", "CpusPerTres": "cpus_per_tres", "MemPerTres": "mem_per_tres",
}  # fmt: skip
NUMBERS = {"SiteFactor": "site_factor", "NumCPUs": "num_cpus", "MinMemoryNode": "mem_node_mib"}
"""Of ``scontrol update``: the field of `Changes`."""


def _time(seconds: float) -> dict[str, Any]:
    return {"set": True, "infinite": False, "number": int(seconds)}


def job_json(job: SlurmJob) -> dict[str, Any]:
    """One job, as ``squeue --json`` has it."""
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
    gres = [f"gpu:{kind}:1" for kind in node.gpu_types] + [f"shard:{kind}:2" for kind in sorted(node.shard_types)]
    return {
        "name": node.name, "gres": ",".join(gres), "cpus": node.cpus, "real_memory": node.mem_mib,
        "partitions": sorted(node.partitions), "state": sorted(node.states), "reason": node.reason,
    }  # fmt: skip


def reservation_json(one: Reservation) -> dict[str, Any]:
    return {
        "name": one.name, "node_list": ",".join(one.nodes), "start_time": _time(one.start_s),
        "end_time": _time(one.end_s), "flags": sorted(one.flags), "users": ",".join(one.users),
        "accounts": ",".join(one.accounts), "tres": "gres/gpu=1" if one.gres else "cpu=1",
        "core_specializations": [{"node": node, "core": f"0-{count - 1}"} for node, count in one.cores],
    }  # fmt: skip


class NamedClient(CommandClient):
    """The real client over commands that are fakes; a job goes by its name, as the scenes' jobs do."""

    def __init__(self, slurm: FakeSlurm) -> None:
        super().__init__([], Breaker(slurm.now_s), clock_s=slurm.now_s)
        self.slurm = slurm
        self.numbers: dict[str, str] = {}

    # -- by name ---------------------------------------------------------------------------------------------

    def jobs(self) -> list[SlurmJob]:
        found = super().jobs()
        self.numbers = {job.name: job.id for job in found}
        return [replace(job, id=job.name) for job in found]

    def update(self, job_id: str, changes: Changes) -> None:
        super().update(self.numbers.get(job_id, job_id), changes)

    def set_begin(self, job_ids: Sequence[str], begin_s: float) -> None:
        super().set_begin([self.numbers[job_id] for job_id in job_ids], begin_s)

    def number(self, job_id: str) -> int:
        return super().number(self.numbers[job_id])

    def hold(self, job_id: str, begin_s: float = 0.0) -> None:
        super().hold(self.numbers[job_id], begin_s)

    def release(self, job_id: str) -> None:
        super().release(self.numbers[job_id])

    def requeue_hold(self, job_id: str) -> None:
        super().requeue_hold(self.numbers[job_id])

    def cancel(self, job_id: str) -> None:
        super().cancel(self.numbers[job_id])

    # -- what no test here is about --------------------------------------------------------------------------

    def seal(self, text: str) -> str:
        return self.slurm.seal(text)

    def network(self) -> Network:
        return self.slurm.network()

    def job_defaults(self) -> dict[str, JobDefaults]:
        return self.slurm.job_defaults()

    def fair_shares(self) -> dict[tuple[str, str], float]:
        return self.slurm.fair_shares()

    # -- the commands ----------------------------------------------------------------------------------------

    def _once(self, words: Sequence[str], name: str) -> str:
        if name in ("squeue", "sinfo") or words[1] == "show" or words[1].startswith("-"):
            return self._shown(words)
        if name == "scancel":
            self.slurm.cancel(self._name(words[1]))
        elif words[1] == "update":
            self._update(dict(word.split("=", 1) for word in words[2:]))
        elif words[1] == "release":
            self.slurm.release(self._name(words[2]))
        else:
            self.slurm.requeue_hold(self._name(words[3]))
        return ""

    def _shown(self, words: Sequence[str]) -> str:
        major, minor = self.slurm.version()
        if "--version" in words:
            return f"slurm {major}.{minor:02}.0"
        if "--format=%A" in words:
            return words[-1].removeprefix("--jobs=")
        if "--json" not in words:
            if words[0] == "sinfo":
                return self.slurm.node_states()
            if words[-1] == "job":
                return "".join(f"JobId={job.number}\n" for job in self.slurm.jobs())
            return "".join(f"{key} = {value}\n" for key, value in self.slurm.config().items())
        shown: dict[str, list[Any]]
        if words[0] == "squeue":
            shown = {"jobs": [job_json(job) for job in self.slurm.jobs()]}
        elif words[2] == "nodes":
            shown = {"nodes": [node_json(node) for node in self.slurm.nodes()]}
        elif words[2] == "reservation":
            shown = {"reservations": [reservation_json(one) for one in self.slurm.reservations()]}
        else:
            shown = {"partitions": []}
        version = {"major": str(major), "minor": f"{minor:02}"}
        return json.dumps({"meta": {"slurm": {"version": version}}, "errors": [], **shown})

    def _name(self, number: str) -> str:
        return next((job.id for job in self.slurm.records.values() if str(job.number) == number), number)

    def _update(self, given: dict[str, str]) -> None:
        names = [self._name(number) for number in given.pop("JobId").split(",")]
        when = given.pop("StartTime", "")
        begin_s = float(when.removeprefix("uts")) if when.startswith("uts") else None
        if given.pop("Priority", "") == "0":
            self.slurm.hold(names[0], begin_s or 0.0)
            return
        if len(names) > 1:
            self.slurm.set_begin(names, begin_s or 0.0)
            return
        changes = Changes(
            **{TEXTS[key]: value for key, value in given.items() if key in TEXTS},
            **{NUMBERS[key]: int(value) for key, value in given.items() if key in NUMBERS},  # type: ignore[arg-type]
            start_now=when == "now",
            start_at_s=begin_s,
        )
        assert given.keys() <= TEXTS.keys() | NUMBERS.keys(), given
        self.slurm.update(names[0], changes)
