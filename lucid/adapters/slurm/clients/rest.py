"""Slurm through slurmrestd: on its Unix socket, or over HTTP with a JSON web token.

Speaks the newest version of the interface that both sides know. What no version of it can do (change one task of
an array) or only a new one (requeue: v0.0.45) goes through Slurm's commands where they are given, and is refused
where they are not. Ids are checked, and a user's texts are never sent.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import httpx

from lucid.adapters.left_out import LeftOut
from lucid.adapters.slurm.clients.commands import CommandClient
from lucid.adapters.slurm.clients.port import Breaker, Changes, HeldGpu, checked_id
from lucid.adapters.slurm.clients.rest_connection import REQUEUES, Slurmrestd
from lucid.adapters.slurm.records.configuration import (
    GroupLimit,
    Limits,
    Partition,
    clock_from,
    config_from_json,
    partitions_from,
)
from lucid.adapters.slurm.records.fair_shares import fair_shares_from
from lucid.adapters.slurm.records.from_json import jobs_from, nodes_from
from lucid.adapters.slurm.records.jobs_and_nodes import SlurmJob, SlurmNode
from lucid.adapters.slurm.records.json_values import accounting_trouble, words_of
from lucid.adapters.slurm.records.network_topology import Network
from lucid.adapters.slurm.records.preemption import Preemption
from lucid.adapters.slurm.records.request import JobDefaults
from lucid.adapters.slurm.records.reservations import Reservation, reservations_from
from lucid.errors import ActionRefused, ClusterError

__all__ = ["RestClient"]

_WHOLE_ARRAYS = "holds and releases an array only as a whole"
_FACTOR_OFFSET = 2**31
"""slurmrestd hands a site factor on as it is, and slurmctld counts from here (a plain 0 is the lowest there is, not
none). The interface declares 32 signed bits and takes this all the same. Seen on 24.11 and 26.05."""


class RestClient:
    """See ``SlurmClient``.

    Args:
        url: ``unix:/run/slurmrestd/slurmrestd.sock``, or ``http://host:6820``.
        breaker: Before every request.
        token_file: Holds the token; read anew for each request, so that it can be renewed while running. Needed
            over HTTP.
        timeout_s: A request that takes longer counts as no answer.
        commands: For what slurmrestd cannot do; none: that is refused.
        transport: Instead of the network, in tests.
        left_out: Learns of what cannot be read.

    Raises:
        ConfigError: ``url`` is neither of the two, or is HTTP without a token file.
    """

    name = "slurmrestd"

    def __init__(
        self,
        url: str,
        breaker: Breaker,
        token_file: str = "",
        timeout_s: float = 20.0,
        commands: CommandClient | None = None,
        transport: httpx.BaseTransport | None = None,
        left_out: LeftOut | None = None,
    ) -> None:
        self.left_out = LeftOut() if left_out is None else left_out
        self.server = Slurmrestd(url, breaker, token_file, timeout_s, transport)
        self._commands = commands
        self._arrays: dict[str, int] = {}
        """Site factors written to whole arrays since the last look."""
        self.accounting = ""

    def close(self) -> None:
        """Let go of the connection."""
        self.server.close()

    # -- look ------------------------------------------------------------------------------------------------

    def version(self) -> tuple[int, int]:
        """From the last answer, or by asking."""
        return self.server.version()

    def jobs(self) -> list[SlurmJob]:
        """One request."""
        self._arrays.clear()
        return jobs_from(self.server.read("jobs/"), self.left_out)

    def nodes(self) -> list[SlurmNode]:
        """One request."""
        return nodes_from(self.server.read("nodes/"), self.left_out)

    def reservations(self) -> list[Reservation]:
        """One request."""
        return reservations_from(self.server.read("reservations/"), self.left_out)

    def job_defaults(self) -> dict[str, JobDefaults] | None:
        """By ``scontrol``, where commands are given: slurmrestd's answers leave them empty (seen on 24.11)."""
        return self._commands.job_defaults() if self._commands else None

    def network(self) -> Network | None:
        """By ``scontrol``, where commands are given."""
        return self._commands.network() if self._commands else None

    def preemption(self) -> Preemption | None:
        """By Slurm's commands, where these may be used."""
        return self._commands.preemption() if self._commands else None

    def qos_priorities(self) -> Mapping[str, int] | None:
        """By commands, where they are given."""
        return self._commands.qos_priorities() if self._commands else None

    def fair_shares(self) -> dict[tuple[str, str], float]:
        """One request."""
        return fair_shares_from(self.server.read("shares"), self.left_out)

    def who(self) -> tuple[int, str]:
        """By ``id``, where commands are given."""
        return self._for_gpus().who()

    def hold_gpu(self, held: HeldGpu) -> str:
        """By ``sbatch``, where commands are given."""
        return self._for_gpus().hold_gpu(held)

    def renew_held_gpu(self, job_id: str, limit_min: int | None, after: Sequence[str]) -> None:
        """By ``scontrol``, where commands are given."""
        self._for_gpus().renew_held_gpu(job_id, limit_min, after)

    def _for_gpus(self) -> CommandClient:
        if self._commands is None:
            raise ActionRefused("set slurm.rest_commands = true, so that sbatch keeps Slurm off single GPUs")
        return self._commands

    def node_states(self) -> str | None:
        """By ``sinfo``, where commands are given."""
        return self._commands.node_states() if self._commands else None

    def config(self) -> dict[str, str] | None:
        """From v0.0.45 on; before that by ``scontrol``, where commands are given."""
        if self.server.has_newest():
            found = self.server.read("conf", interface=REQUEUES).get("slurm_conf")
            return config_from_json(found if isinstance(found, Mapping) else {})
        return self._commands.config() if self._commands else None

    def partitions(self) -> list[Partition]:
        """One request."""
        document = self.server.read("partitions/")
        self.accounting = accounting_trouble(document)
        return partitions_from(document, self.left_out)

    def clock_s(self) -> float | None:
        """From ``diag``."""
        return clock_from(self.server.read("diag/"))

    def rights(self, user: str = "") -> tuple[str, str] | None:
        """The token's user, and what slurmdbd says of them. Behind a socket slurmrestd acts as its own user, and
        does not say who that is."""
        user = str((self.server.token.claims().get("sun") if self.server.token else "") or "")
        if not user:
            return None
        try:
            users = self.server.read(f"user/{quote(user, safe='')}", "slurmdb").get("users")
        except ClusterError:
            return None
        first = users[0] if isinstance(users, list) and users else None
        levels = words_of(first.get("administrator_level")) if isinstance(first, Mapping) else []
        return (user, levels[0].lower()) if levels else None

    def partition_settings(self) -> Mapping[str, Mapping[str, str]]:
        """By commands, where they are given."""
        return self._commands.partition_settings() if self._commands else {}

    def gpu_limits(self) -> Limits:
        """By ``sacctmgr``, where commands are given."""
        return self._commands.gpu_limits() if self._commands else Limits()

    def group_limits(self) -> dict[str, GroupLimit] | None:
        """By ``sacctmgr``, where commands are given."""
        return self._commands.group_limits() if self._commands else None

    # -- act -------------------------------------------------------------------------------------------------

    def update(self, job_id: str, changes: Changes) -> None:
        """Change a pending job. The site factor of a task is written to its whole array, once between two looks:
        tasks of one array have one user, name and size, so one estimate."""
        if changes.first is not None:
            self.update(job_id, changes.first)
        fields: dict[str, Any] = {
            "partition": changes.partition,
            "tres_per_node": changes.tres_per_node,
            "tres_per_job": changes.tres_per_job,
            "tres_per_socket": changes.tres_per_socket,
            "tres_per_task": changes.tres_per_task,
            # An empty list changes nothing; a list of an empty name clears.
            "required_nodes": None if changes.req_nodes is None else changes.req_nodes.split(","),
            "nodes": changes.nodes,
            "required_switches": changes.switches,
            "wait_for_switch": None if changes.switches is None else 1,
            "begin_time": _begin_time(changes),
            "site_factor": None if changes.site_factor is None else changes.site_factor + _FACTOR_OFFSET,
            "admin_comment": changes.admin_comment,
            "extra": changes.extra,
            "cpus_per_tres": changes.cpus_per_tres,
            "memory_per_tres": changes.mem_per_tres,
            "minimum_cpus": changes.num_cpus,
            "memory_per_node": None if changes.mem_node_mib is None else _set(changes.mem_node_mib),
        }
        body = {key: value for key, value in fields.items() if value is not None}
        if not body:
            return
        array, task, _ = checked_id(job_id).partition("_")
        if not task:
            self.server.write(f"job/{array}", body)
        elif list(body) == ["site_factor"]:
            if self._arrays.get(array) != changes.site_factor:
                self.server.write(f"job/{array}", body)
                self._arrays[array] = changes.site_factor or 0
        else:
            self._by_command(job_id, "changes an array only as a whole").update(job_id, changes)

    @property
    def at_once(self) -> int:
        """One job a request."""
        return 1

    def set_begin(self, job_ids: Sequence[str], begin_s: float) -> None:
        """One after the other."""
        for job_id in job_ids:
            self.update(job_id, Changes(start_at_s=begin_s))

    def hold(self, job_id: str, begin_s: float = 0.0) -> None:
        """Write ``hold`` with a begin time."""
        if "_" in checked_id(job_id):
            self._by_command(job_id, _WHOLE_ARRAYS).hold(job_id, begin_s)
        else:
            self.server.write(f"job/{job_id}", {"hold": True, "begin_time": _set(int(begin_s or time.time()))})

    def release(self, job_id: str) -> None:
        """Write ``hold``, false."""
        if "_" in checked_id(job_id):
            self._by_command(job_id, _WHOLE_ARRAYS).release(job_id)
        else:
            self.server.write(f"job/{job_id}", {"hold": False})

    def seal(self, text: str) -> str:
        """By ``munge``, where commands are given."""
        if self._commands is None:
            raise ActionRefused("slurmrestd cannot seal; set slurm.rest_commands = true, so that munge does it")
        return self._commands.seal(text)

    def number(self, job_id: str) -> int:
        """By ``squeue``, where commands are given."""
        return self._by_command(job_id, "does not give the number of one task").number(job_id)

    def requeue_hold(self, job_id: str) -> None:
        """From v0.0.45 on by its own endpoint; ``Incomplete``: not a job that has just ended."""
        checked_id(job_id)
        if not self.server.has_newest():
            self._by_command(job_id, "cannot requeue").requeue_hold(job_id)
            return
        self.server.write("jobs/requeue", {"jobs": [job_id], "flags": ["Hold", "Incomplete"]}, REQUEUES)

    def requeue_ended(self, job_id: str) -> None:
        """By ``scontrol``, where commands are given."""
        self._by_command(job_id, "is not used to requeue what has ended").requeue_ended(job_id)

    def cancel(self, job_id: str) -> None:
        """By ``scancel``, where commands are given."""
        self._by_command(job_id, "is not used to cancel").cancel(job_id)

    def _by_command(self, job_id: str, cannot: str) -> CommandClient:
        if self._commands is None:
            remedy = "set slurm.rest_commands = true, so that scontrol does it"
            raise ActionRefused(f"job {job_id}: slurmrestd {cannot}; {remedy}")
        return self._commands


def _begin_time(changes: Changes) -> dict[str, Any] | None:
    if changes.start_now:
        return _set(int(time.time()))
    return None if changes.start_at_s is None else _set(int(changes.start_at_s))


def _set(number: int) -> dict[str, Any]:
    return {"set": True, "infinite": False, "number": number}
