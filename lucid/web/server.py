"""The process: listens, tells the pages who is at the other end of a Unix socket, and ends in order."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from lucid.config import WebSettings
from lucid.errors import ConfigError
from lucid.web.app import build_app
from lucid.web.limits import EVENTS, Crowd, Limits
from lucid.web.planner_client import Planning
from lucid.web.source import Source
from lucid.web.viewer import UNIX, client_of

__all__ = ["PeerProtocol", "limited", "serve"]

_LOG = logging.getLogger("lucid.web")


class PeerProtocol(H11Protocol):
    """HTTP that names the peer of a Unix socket by its uid, as the kernel tells it, and that waits for no client for
    ever. ``limited`` makes the class that a server uses."""

    limits: ClassVar[Limits]
    crowd: ClassVar[Crowd]
    client_of: ClassVar[Callable[[Any], str]]
    held_by = ""
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A connection begins."""
        super().connection_made(transport)
        sock: socket.socket | None = transport.get_extra_info("socket")
        if sock is not None and sock.family == socket.AF_UNIX:
            size = struct.calcsize("3i")
            _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
            self.client = (UNIX, uid)
        self.held_by = type(self).client_of(self.client)
        self._waits(self.limits.header_s)

    def data_received(self, data: bytes) -> None:
        """A piece of a request: a header is whole, or still is not, for which the time goes on."""
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._begun()

    def on_response_complete(self) -> None:
        """An answer is made, and may yet have to be taken."""
        before = self.cycle
        super().on_response_complete()
        if self.cycle is not before:  # the next request had come already
            self._begun()
        else:
            untaken = self.transport.get_write_buffer_size()
            self._waits(self.limits.answer_s if untaken else self.limits.header_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """A connection ends."""
        self._stop()
        self.crowd.leaves(self)
        super().connection_lost(exc)

    def drop(self) -> None:
        """Close it at once, whatever is under way."""
        self.transport.abort()

    def _waits(self, seconds: float) -> None:
        self._stop()
        self._timer = self.loop.call_later(seconds, self.drop)
        self.crowd.waits(self)

    def _begun(self) -> None:
        self._stop()
        self.crowd.leaves(self)
        if not self.cycle.response_complete and not self.scope["path"].endswith(EVENTS):
            self._timer = self.loop.call_later(self.limits.answer_s, self.drop)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def limited(web: WebSettings, limits: Limits) -> type[PeerProtocol]:
    """The protocol of one server: its connections know of each other."""
    members = {"limits": limits, "crowd": Crowd(limits), "client_of": staticmethod(partial(client_of, web))}
    return type("LimitedProtocol", (PeerProtocol,), members)


def serve(source: Source, web: WebSettings) -> None:
    """Serve the pages until the process is told to end.

    Raises:
        ConfigError: the address or the socket cannot be had.
    """
    source.start()
    planning = Planning(source)
    planning.start()
    planning.look()
    try:
        _run(build_app(source, planning, web.root_path), web)
    finally:
        planning.stop()
        source.stop()


def _run(app: Any, web: WebSettings) -> None:
    where: dict[str, Any] = {"uds": web.socket} if web.socket else {"host": web.host, "port": web.port}
    config = uvicorn.Config(
        app,
        **where,
        http=limited(web, Limits(of_client=web.connections_per_client)),
        ws="none",
        lifespan="off",
        proxy_headers=False,
        server_header=False,
        access_log=False,
        log_level="warning",
        timeout_graceful_shutdown=2,
    )
    server = uvicorn.Server(config)
    try:
        server.run()
    except SystemExit:
        place = web.socket or f"{web.host}:{web.port}"
        raise ConfigError(f"{place}: cannot be listened on; is it taken? choose another --port") from None
    if web.socket:
        Path(web.socket).unlink(missing_ok=True)
