"""The connection to slurmrestd: which version of its interface is spoken, what its answers and errors mean."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from lucid.adapters.slurm.clients.port import Breaker, declined, guarded
from lucid.adapters.slurm.clients.rest_token import Token
from lucid.adapters.slurm.records.from_json import version_of
from lucid.adapters.slurm.records.json_values import accounting_trouble, number_of
from lucid.adapters.slurm.records.lenient_json import loads
from lucid.errors import ActionRefused, ClusterError, ClusterUnavailable, ConfigError

__all__ = ["REQUEUES", "VERSIONS", "Slurmrestd"]

VERSIONS = ("v0.0.44", "v0.0.43", "v0.0.42", "v0.0.41", "v0.0.40")
"""Versions of slurmrestd's interface that are spoken, newest first: Slurm 23.11 to 26.05. Not v0.0.45, whose jobs do
not tell whether they are exclusive."""

REQUEUES = "v0.0.45"
"""First version with endpoints to requeue and to read the configuration; used for nothing else (seen on 26.05)."""

_NOT_AUTHENTICATED = 1007
_NO_ACCOUNTING = 7000
"""ESLURM_DB_CONNECTION. slurmrestd of 23.11 says so, too, where slurmdbd does not take an expired token."""
_URL = re.compile(r"unix:(?P<path>/\S+)|https?://[\w.:\[\]-]+/?")


class Slurmrestd:
    """One slurmrestd. For the arguments see ``RestClient``.

    Raises:
        ConfigError: ``url`` is neither a socket nor HTTP, or is HTTP without a token file.
    """

    def __init__(
        self, url: str, breaker: Breaker, token_file: str, timeout_s: float, transport: httpx.BaseTransport | None
    ) -> None:
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

    def close(self) -> None:
        """Let go of the connection."""
        self._http.close()

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
        """Slurm's release, as (24, 11): from the last answer, or by asking."""
        if self._version is None:
            self.read("ping/")
        if self._version is None:
            raise ClusterError(f"{self.url}: its answers do not say which Slurm this is")
        return self._version

    def has_newest(self) -> bool:
        """Does it know the version `REQUEUES`?"""
        if self._newer is None:
            there = guarded(self._breaker, lambda: self._once("GET", f"/slurm/{REQUEUES}/ping/", missing=True))
            self._newer = there is not None
        return self._newer

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

    def write(self, path: str, body: Mapping[str, Any], interface: str = "") -> None:
        """Send *body* to a path below ``/slurm/vX``, of that version or the one spoken.

        Raises:
            ClusterUnavailable: no answer in time, or no right to one.
            ActionRefused: Slurm declined, in its words.
        """
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
                raise declined(f"slurmrestd: {item.get('error')}")

    def _newest(self) -> str:
        for interface in VERSIONS:
            if self._once("GET", f"/slurm/{interface}/ping/", missing=True) is not None:
                return interface
        raise ClusterError(
            f"{self.url}: slurmrestd knows none of {', '.join(VERSIONS)}; check that it belongs to Slurm 23.11 to "
            "26.05, and that its -s and -d name openapi/slurmctld and one of these data parsers"
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
                raise ClusterUnavailable(f"{self.url}: slurmrestd has no {path} now")
            start = " ".join(reply.text[:80].split())
            if reply.status_code >= 500:
                raise ClusterUnavailable(f"{self.url}: {reply.status_code} {start}")
            raise ClusterError(f"{self.url}: its answer is not JSON ({reply.status_code}): {start!r}")
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
        away = number < 2000 or 5000 <= number < 6000 or number == _NO_ACCOUNTING
        expired = self.token is not None and (self.token.left_s(time.time()) or 0.0) < 0
        if number == _NOT_AUTHENTICATED or status == 511 or (expired and away):
            raise ClusterUnavailable(self._no_right(words))
        if away:
            raise ClusterUnavailable(f"slurmrestd: {words or status}")
        raise declined(f"slurmrestd: {words}")

    def _no_right(self, words: str) -> str:
        said = " ".join(words.split())
        if self.token is None:
            return f"{self.url}: {said}; slurmrestd there wants a token: slurm.rest_token_file"
        return f"{self.url}: {said}; {self.token.story(time.time())}"
