"""What one client may hold of the server, and for how long, so that no client keeps the others out.

uvicorn has no time limit for a header. Its limit of connections counts those that have asked for nothing, and holds
for every path alike. So connections that wait for their client stand in a ``Crowd``, where a new one makes room for
itself; requests that wait for us pass a ``Gate``, of which ``/metrics`` has one of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["EVENTS", "METRICS", "Connection", "Crowd", "Gate", "Gated", "Limits"]

EVENTS, METRICS = "/events", "/metrics"


@dataclass(frozen=True, slots=True)
class Limits:
    """``of_client``: connections of one client that wait for it, and requests of one client that are answered at a
    time. ``waiting``, ``pages``, ``scrapes``: of all clients together. With those who listen to ``/events`` these
    stay below the 1,024 open files that systemd gives a process."""

    of_client: int = 64
    waiting: int = 256
    pages: int = 256
    scrapes: int = 64
    header_s: float = 10.0
    """From the connection, or the end of the last answer, until a request has its whole header."""
    answer_s: float = 60.0
    """Until an answer is made, and until it has been taken."""


class Connection(Protocol):
    """``held_by``: as ``viewer.client_of`` has it; empty for a proxy, which stands for many."""

    held_by: str

    def drop(self) -> None:
        """Close it at once, whatever is under way."""
        ...


class Crowd:
    """The connections that wait for their client: for a header, for the next request, for an answer to be taken.

    One too many closes the one that has waited longest: of the same client, or of the client that has most. Who sends
    his request when he has connected gets in, however many others hold connections.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._by_client: dict[str, dict[Connection, None]] = {}
        self._count = 0

    def waits(self, one: Connection) -> None:
        """It does from now on."""
        own = self._by_client.setdefault(one.held_by, {})
        if one in own:
            return
        own[one] = None
        self._count += 1
        if one.held_by and len(own) > self._limits.of_client:
            self._drop(own)
        elif self._count > self._limits.waiting:
            self._drop(max(self._by_client.values(), key=len))

    def leaves(self, one: Connection) -> None:
        """It has sent its request, or is gone."""
        own = self._by_client.get(one.held_by, {})
        if one in own:
            del own[one]
            self._count -= 1
            if not own:
                del self._by_client[one.held_by]

    def _drop(self, own: dict[Connection, None]) -> None:
        longest = next(iter(own))
        self.leaves(longest)
        longest.drop()


class Gate:
    """Lets so many requests through at a time, of one client and of all."""

    def __init__(self, of_client: int, most: int) -> None:
        self._of_client, self._most = of_client, most
        self._inside: Counter[str] = Counter()

    def has_room(self, client: str) -> bool:
        """For one more."""
        return self._inside.total() < self._most and not (client and self._inside[client] >= self._of_client)

    def enter(self, client: str) -> bool:
        """If there is room. Who enters has to leave."""
        if not self.has_room(client):
            return False
        self._inside[client] += 1
        return True

    def leave(self, client: str) -> None:
        """Make room."""
        self._inside[client] -= 1
        if not self._inside[client]:
            del self._inside[client]


class Gated:
    """An application behind its gates. Those who listen to ``/events`` are counted there."""

    def __init__(self, app: ASGIApp, limits: Limits, client_of: Callable[[Any], str]) -> None:
        """``client_of``: of a scope's ``client``."""
        self._app, self._client_of = app, client_of
        self._pages = Gate(limits.of_client, limits.pages)
        self._scrapes = Gate(limits.of_client, limits.scrapes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http" or scope["path"] == EVENTS:
            await self._app(scope, receive, send)
            return
        gate = self._scrapes if scope["path"] == METRICS else self._pages
        client = self._client_of(scope.get("client"))
        if not gate.enter(client):
            words = "Too many requests at once: ask again in a moment.\n"
            await PlainTextResponse(words, 503, {"retry-after": "1"})(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            gate.leave(client)
