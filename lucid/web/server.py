"""The process of ``lucid-web``: listens, names the user at the other end of a Unix socket, and ends in order."""

from __future__ import annotations

import asyncio
import socket
import struct
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from lucid.config.live import WebSettings
from lucid.errors import ConfigError
from lucid.web.app import build_app
from lucid.web.site import UNIX
from lucid.web.source import Source

_AT_ONCE = 512
"""Most connections and requests at once; one more gets 503. A proxy in front keeps its clients apart
(docs/web.md)."""


class PeerProtocol(H11Protocol):
    """HTTP that names the peer of a Unix socket by its uid, which the kernel gives."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Note the peer as a connection begins."""
        super().connection_made(transport)
        sock: socket.socket | None = transport.get_extra_info("socket")
        if sock is not None and sock.family == socket.AF_UNIX:
            size = struct.calcsize("3i")
            _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
            self.client = (UNIX, uid)


def serve(source: Source, web: WebSettings) -> None:
    """Serve the pages until the process is told to end.

    Raises:
        ConfigError: the address or the socket cannot be had."""
    source.start()
    try:
        _run(build_app(source, web.root_path), web)
    finally:
        source.stop()


def _run(app: Any, web: WebSettings) -> None:
    where: dict[str, Any] = {"uds": web.socket} if web.socket else {"host": web.host, "port": web.port}
    config = uvicorn.Config(
        app,
        **where,
        http=PeerProtocol,
        ws="none",
        lifespan="off",
        proxy_headers=False,
        server_header=False,
        access_log=False,
        log_level="warning",
        timeout_graceful_shutdown=2,
        timeout_keep_alive=10,
        limit_concurrency=_AT_ONCE,
    )
    server = uvicorn.Server(config)
    try:
        server.run()
    except SystemExit:
        place = web.socket or f"{web.host}:{web.port}"
        raise ConfigError(f"{place}: cannot be listened on; is it taken? choose another --port") from None
    if web.socket:
        Path(web.socket).unlink(missing_ok=True)
