"""Slurm through slurmrestd: on its Unix socket, or over HTTP with a JSON web token.

Speaks the newest version of the interface that both sides know. What no version of it can do (change one task of
an array) or only a new one (requeue: v0.0.45) goes through Slurm's commands where they are given, and is refused
where they are not. Ids are checked, and a user's texts are never sent.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from lucid.adapters.left_out import LeftOut
from lucid.adapters.slurm.answers import accounting_trouble, number_of, words_of
from lucid.adapters.slurm.cli import CommandClient
from lucid.adapters.slurm.client import Breaker, Changes, checked_id, guarded
from lucid.adapters.slurm.lenient_json import loads
from lucid.adapters.slurm.nouns import SlurmJob, SlurmNode
from lucid.adapters.slurm.records import jobs_from, nodes_from, version_of
from lucid.adapters.slurm.request import JobDefaults
from lucid.adapters.slurm.shares import fair_shares_from
from lucid.adapters.slurm.site import Partition, clock_from, config_from_json, partitions_from
from lucid.adapters.slurm.token import Token
from lucid.errors import ActionRefused, ClusterError, ClusterUnavailable, ConfigError

__all__ = ["REQUEUES", "VERSIONS", "RestClient"]

VERSIONS = ("v0.0.44", "v0.0.43", "v0.0.42", "v0.0.41", "v0.0.40")
"""Versions of slurmrestd's interface that are spoken, newest first: Slurm 23.11 to 26.05. Not v0.0.45, whose jobs do
not tell whether they are exclusive."""

REQUEUES = "v0.0.45"
"""First version with endpoints to requeue and to read the configuration; used for nothing else (seen on 26.05)."""

_FACTOR_OFFSET = 2**31
"""slurmrestd hands a site factor on as it is, and slurmctld counts from here (a plain 0 is the lowest there is, not
none). The interface declares 32 signed bits and takes this all the same. Seen on 24.11 and 26.05."""

_NOT_AUTHENTICATED = 1007
_URL = re.compile(r"unix:(?P<path>/\S+)|https?://[\w.:\[\]-]+/?")


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
        found = _URL.fullmatch(url)
        if not found:
            raise ConfigError(
                f"slurm.rest_url = {url!r}: give unix:/run/slurmrestd/slurmrestd.sock or http://host:6820"
            )
        if not found["path"] and not token_file:
            raise ConfigError(
                f"slurm.rest_url = {url!r}: over HTTP slurmrestd wants a token; name its file in "
                "slurm.rest_token_file (scontrol token username=lucid lifespan=… prints one)"
            )
        self.url = url
        self.token = Token(Path(token_file)) if token_file else None
        self._breaker = breaker
        self._commands = commands
        self._timeout_s = timeout_s
        # No proxy of the environment: it would be shown the token.
        self._http = httpx.Client(
            base_url="http://slurmrestd" if found["path"] else url.rstrip("/"),
            transport=transport or httpx.HTTPTransport(uds=found["path"]),
            timeout=timeout_s,
            trust_env=False,
        )
        self._interface = ""
        self._newer: bool | None = None
        self._version: tuple[int, int] | None = None
        self._arrays: dict[str, int] = {}
        """Site factors written to whole arrays since the last look."""
        self.accounting = ""

    def close(self) -> None:
        """Let go of the connection."""
        self._http.close()

    # -- look ------------------------------------------------------------------------------------------------

    @property
    def interface(self) -> str:
        """The version of slurmrestd's interface that is spoken, as ``v0.0.42``: the newest that both know.

        Raises:
            ClusterUnavailable: slurmrestd does not answer.
            ClusterError: it knows none of `VERSIONS`.
        """
        if not self._interface:
            self._interface = guarded(self._breaker, self._newest)
        return self._interface

    def version(self) -> tuple[int, int]:
        """From the last answer, or by asking."""
        if self._version is None:
            self.read("ping/")
        if self._version is None:
            raise ClusterError(f"{self.url}: its answers do not say which Slurm this is")
        return self._version

    def jobs(self) -> list[SlurmJob]:
        """One request."""
        self._arrays.clear()
        return jobs_from(self.read("jobs/"), self.left_out)

    def nodes(self) -> list[SlurmNode]:
        """One request."""
        return nodes_from(self.read("nodes/"), self.left_out)

    def job_defaults(self) -> dict[str, JobDefaults] | None:
        """By ``scontrol``, where commands are given: slurmrestd's answers leave them empty (seen on 24.11)."""
        return self._commands.job_defaults() if self._commands else None

    def fair_shares(self) -> dict[tuple[str, str], float]:
        """One request."""
        return fair_shares_from(self.read("shares"), self.left_out)

    def config(self) -> dict[str, str] | None:
        """From v0.0.45 on; before that by ``scontrol``, where commands are given."""
        if self._has_newest():
            found = self.read("conf", interface=REQUEUES).get("slurm_conf")
            return config_from_json(found if isinstance(found, Mapping) else {})
        return self._commands.config() if self._commands else None

    def partitions(self) -> list[Partition]:
        """One request."""
        document = self.read("partitions/")
        self.accounting = accounting_trouble(document)
        return partitions_from(document, self.left_out)

    def clock_s(self) -> float | None:
        """From ``diag``."""
        return clock_from(self.read("diag/"))

    def rights(self) -> tuple[str, str] | None:
        """The token's user, and what slurmdbd says of them. Behind a socket slurmrestd acts as its own user, and
        does not say who that is."""
        user = str((self.token.claims().get("sun") if self.token else "") or "")
        if not user:
            return None
        try:
            users = self.read(f"user/{quote(user, safe='')}", "slurmdb").get("users")
        except ClusterError:
            return None
        first = users[0] if isinstance(users, list) and users else None
        levels = words_of(first.get("administrator_level")) if isinstance(first, Mapping) else []
        return (user, levels[0].lower()) if levels else None

    def gpu_limits(self) -> list[str]:
        """By ``sacctmgr``, where commands are given."""
        return self._commands.gpu_limits() if self._commands else []

    def read(self, path: str, room: str = "slurm", interface: str = "") -> Any:
        """The document at a path below ``/slurm/vX`` (or ``/slurmdb/vX``), of that version or the one spoken.

        Raises:
            ClusterUnavailable: no answer in time, or no right to one.
            ClusterError: Slurm answered with an error.
        """
        where = f"/{room}/{interface or self.interface}/{path}"
        self._breaker.calls.reads += 1
        try:
            return guarded(self._breaker, lambda: self._once("GET", where))
        except ActionRefused as error:
            raise ClusterError(str(error)) from None

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
            self._write(f"job/{array}", body)
        elif list(body) == ["site_factor"]:
            if self._arrays.get(array) != changes.site_factor:
                self._write(f"job/{array}", body)
                self._arrays[array] = changes.site_factor or 0
        else:
            self._by_command(job_id, "changes an array only as a whole").update(job_id, changes)

    def hold(self, job_id: str) -> None:
        """Write ``hold``, with a begin time beside it, by which job_submit.lua tells Lucid's holds from a user's."""
        self._hold(job_id, True)

    def release(self, job_id: str) -> None:
        """Write ``hold``, false."""
        self._hold(job_id, False)

    def _hold(self, job_id: str, hold: bool) -> None:
        if "_" not in checked_id(job_id):
            self._write(f"job/{job_id}", {"hold": hold, **({"begin_time": _set(int(time.time()))} if hold else {})})
            return
        commands = self._by_command(job_id, "holds and releases an array only as a whole")
        (commands.hold if hold else commands.release)(job_id)

    def seal(self, text: str) -> str:
        """By ``munge``, where commands are given."""
        if self._commands is None:
            raise ActionRefused("slurmrestd seals nothing; slurm.rest_commands = true lets munge do it")
        return self._commands.seal(text)

    def number(self, job_id: str) -> int:
        """By ``squeue``, where commands are given."""
        return self._by_command(job_id, "does not tell a task's number alone").number(job_id)

    def requeue_hold(self, job_id: str) -> None:
        """From v0.0.45 on by its own endpoint; ``Incomplete``: not a job that has just ended."""
        checked_id(job_id)
        if not self._has_newest():
            self._by_command(job_id, "cannot requeue").requeue_hold(job_id)
            return
        self._write("jobs/requeue", {"jobs": [job_id], "flags": ["Hold", "Incomplete"]}, REQUEUES)

    def _has_newest(self) -> bool:
        if self._newer is None:
            there = guarded(self._breaker, lambda: self._once("GET", f"/slurm/{REQUEUES}/ping/", missing=True))
            self._newer = there is not None
        return self._newer

    def _by_command(self, job_id: str, cannot: str) -> CommandClient:
        if self._commands is None:
            raise ActionRefused(f"job {job_id}: slurmrestd {cannot}; slurm.rest_commands = true lets scontrol do it")
        return self._commands

    def _write(self, path: str, body: Mapping[str, Any], interface: str = "") -> None:
        where = f"/slurm/{interface or self.interface}/{path}"
        self._breaker.calls.writes += 1
        guarded(self._breaker, lambda: self._written(self._once("POST", where, body)))

    @staticmethod
    def _written(answer: Any) -> None:
        """Raises where a request that was answered with success did not do all of what it asked for."""
        warnings = answer.get("warnings")
        for warning in warnings if isinstance(warnings, list) else []:
            words = str(warning.get("description") or "") if isinstance(warning, Mapping) else ""
            if "unknown field" in words:
                raise ActionRefused(f"slurmrestd: {words}")
        status = answer.get("status")
        listed = status if isinstance(status, list) else []
        for item in listed[0] if listed and isinstance(listed[0], list) else listed:
            if isinstance(item, Mapping) and item.get("error_code"):
                raise ActionRefused(f"slurmrestd: {item.get('error')}")

    # -- ask -------------------------------------------------------------------------------------------------

    def _newest(self) -> str:
        for interface in VERSIONS:
            if self._once("GET", f"/slurm/{interface}/ping/", missing=True) is not None:
                return interface
        raise ClusterError(
            f"{self.url}: slurmrestd knows none of {', '.join(VERSIONS)}: is it of Slurm 23.11 to 26.05, and do its "
            "-s and -d name openapi/slurmctld and one of these data parsers?"
        )

    def _once(self, method: str, path: str, body: Mapping[str, Any] | None = None, missing: bool = False) -> Any:
        """One request; ``None`` for a path that slurmrestd does not have, where that may be ``missing``."""
        headers = self.token.headers() if self.token else {}
        try:
            reply = self._http.request(method, path, json=body, headers=headers)
        except httpx.TimeoutException:
            raise ClusterUnavailable(f"{self.url}: no answer within {self._timeout_s:g} s") from None
        except httpx.ConnectError as error:
            hint = (
                "its socket exist, and may this user open it" if self.url.startswith("unix:") else "it listen there"
            )
            raise ClusterUnavailable(
                f"{self.url}: cannot be reached ({error}); does slurmrestd run, and does {hint}?"
            ) from None
        except httpx.HTTPError as error:
            raise ClusterUnavailable(f"{self.url}: {error or type(error).__name__}") from None
        if reply.status_code in (401, 403):
            raise ClusterUnavailable(self._no_right(reply.text[:200]))
        try:
            answer = loads(reply.content)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            if reply.status_code == 404:
                if missing:
                    return None
                self._interface, self._newer = "", None  # another slurmrestd than before: ask it anew
                raise ClusterUnavailable(f"{self.url}: slurmrestd has no {path} (any more)")
            start = " ".join(reply.text[:80].split())
            if reply.status_code >= 500:
                raise ClusterUnavailable(f"{self.url}: {reply.status_code} {start}")
            raise ClusterError(f"{self.url}: its answer is no JSON ({reply.status_code}): {start!r}")
        self._version = version_of(answer) or self._version
        said = answer.get("errors")
        errors = [item for item in said if isinstance(item, Mapping)] if isinstance(said, list) else []
        if errors and not (path.startswith("/slurm/") and accounting_trouble(answer)):
            self._fail(errors[0], reply.status_code)
        return answer

    def _fail(self, error: Mapping[str, Any], status: int) -> None:
        """Numbers below 2000 and from 5000 are of the way between the daemons: no answer. From 2000 on slurmctld
        declined, from 9000 on slurmrestd did."""
        number = int(number_of(error.get("error_number")))
        words = ": ".join(str(error[key]) for key in ("description", "error") if error.get(key))
        if number == _NOT_AUTHENTICATED or status == 511:
            raise ClusterUnavailable(self._no_right(words))
        if number < 2000 or 5000 <= number < 6000:
            raise ClusterUnavailable(f"slurmrestd: {words or status}")
        raise ActionRefused(f"slurmrestd: {words}")

    def _no_right(self, words: str) -> str:
        said = " ".join(words.split())
        if self.token is None:
            return f"{self.url}: {said}; slurmrestd there wants a token: slurm.rest_token_file"
        return f"{self.url}: {said}; {self.token.story(time.time())}"


def _begin_time(changes: Changes) -> dict[str, Any] | None:
    if changes.start_now:
        return _set(int(time.time()))
    return None if changes.start_at_s is None else _set(int(changes.start_at_s))


def _set(number: int) -> dict[str, Any]:
    return {"set": True, "infinite": False, "number": number}
