"""What one client may hold of lucid-web's server: over a real server, with limits that make the tests short."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from lucid.config import WebSettings
from lucid.web.app import build_app
from lucid.web.limits import Crowd, Gate, Gated, Limits
from lucid.web.server import limited
from lucid.web.viewer import client_of
from scenes.pages import Pages

LIMITS = Limits(of_client=4, waiting=8, pages=6, scrapes=4, header_s=0.3, answer_s=5.0)
BIG = 8_000_000
UNFINISHED = b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: "


def request_for(path: str, *, keep: bool = False) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n{'' if keep else 'Connection: close' + chr(13) + chr(10)}\r\n".encode()


class Server:
    """An application behind the limits, and the connections of its clients."""

    def __init__(self, app: Any, limits: Limits) -> None:
        protocol = limited(WebSettings(), limits)
        self.crowd = protocol.crowd
        self._server = uvicorn.Server(
            uvicorn.Config(app, http=protocol, ws="none", lifespan="off", log_level="critical")
        )
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._server.run, args=([self._listening],), daemon=True)
        self._held: list[socket.socket] = []
        self._thread.start()

    def connect(self, sent: bytes, take: int | None = None) -> socket.socket:
        """A connection on which ``sent`` was sent; ``take``: bytes that its end takes before it is read."""
        sock = socket.socket()
        if take is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, take)
        sock.settimeout(5.0)
        sock.connect(self._listening.getsockname())
        sock.sendall(sent)
        self._held.append(sock)
        return sock

    def get(self, path: str) -> int:
        """The status of an answer; 0 where there is none."""
        with self.connect(request_for(path)) as sock:
            found = sock.recv(4096)
            return int(found.split()[1]) if found else 0

    def close(self) -> None:
        for sock in self._held:
            sock.close()
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(10)
        self._listening.close()


def lasts_s(sock: socket.socket, drips: bytes = b"") -> float:
    """Until the server has closed it, while every 20 ms a piece more is sent."""
    began_s = time.monotonic()
    sock.settimeout(0.02)
    while time.monotonic() - began_s < 5.0:
        try:
            if drips:
                sock.sendall(drips)
            if not sock.recv(1):
                break
        except TimeoutError:
            continue
        except OSError:
            break
    return time.monotonic() - began_s


@contextmanager
def serving(app: Any, limits: Limits = LIMITS) -> Iterator[Server]:
    made = Server(app, limits)
    try:
        yield made
    finally:
        made.close()


class Slow:
    """``/`` and ``/metrics``: at once; ``/big``: more than the system takes; ``/wait``: once ``go`` is set."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.began = threading.Semaphore(0)
        routes = [
            Route("/", lambda _: PlainTextResponse("x")),
            Route("/metrics", lambda _: PlainTextResponse("x")),
            Route("/big", lambda _: PlainTextResponse("x" * BIG)),
            Route("/wait", self._wait),
            Route("/events", lambda _: StreamingResponse(self._events(), media_type="text/event-stream")),
        ]
        self.app = Gated(Starlette(routes=routes), LIMITS, lambda at: client_of(WebSettings(), at))

    def _wait(self, _: Request) -> PlainTextResponse:
        self.began.release()
        self.go.wait(10.0)
        return PlainTextResponse("x")

    async def _events(self) -> Any:
        while True:
            yield "x\n"
            await asyncio.sleep(0.01)


def test_connections_without_a_request_keep_nobody_out() -> None:
    with serving(Slow().app, Limits(of_client=4, waiting=8)) as server:
        first, *_ = [server.connect(UNFINISHED) for _ in range(24)]
        assert server.get("/") == 200
        assert server.get("/metrics") == 200
        assert lasts_s(first) < 4.0, "the one that has waited longest went"


@pytest.mark.parametrize(("sent", "drips"), [(b"", b""), (UNFINISHED, b"x"), (request_for("/", keep=True), b"")])
def test_a_connection_on_which_nothing_is_asked_ends(sent: bytes, drips: bytes) -> None:
    with serving(Slow().app) as server:
        sock = server.connect(sent)
        if sent and not drips:
            assert sock.recv(4096).startswith(b"HTTP/1.1 200")
        assert 0.1 < lasts_s(sock, drips) < 2.0


def test_a_body_that_never_ends_is_not_waited_for() -> None:
    with serving(Slow().app) as server:
        sock = server.connect(b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n")
        assert sock.recv(4096).startswith(b"HTTP/1.1 200")
        assert lasts_s(sock, b"x") < 2.0


def test_an_answer_that_is_not_taken_is_dropped() -> None:
    with serving(Slow().app, replace(LIMITS, of_client=16, waiting=32, answer_s=1.0)) as server:
        held = [server.connect(request_for("/big", keep=True), take=4096) for _ in range(2)]
        assert server.get("/") == 200
        time.sleep(1.3)
        for sock in held:
            came = 0
            with suppress(ConnectionResetError):
                while part := sock.recv(1 << 20):
                    came += len(part)
            assert came < BIG


def test_pages_that_take_long_leave_metrics_alone() -> None:
    slow = Slow()
    with serving(slow.app, Limits(of_client=4)) as server:
        for _ in range(4):
            server.connect(request_for("/wait"))
        for _ in range(4):
            assert slow.began.acquire(timeout=5.0)
        assert server.get("/") == 503
        assert server.get("/metrics") == 200
        slow.go.set()
        assert any(server.get("/") == 200 for _ in range(50)), "there is room again"


def test_who_listens_is_no_request_that_takes_too_long() -> None:
    with serving(Slow().app, replace(LIMITS, answer_s=0.3)) as server:
        sock = server.connect(request_for("/events"))
        until_s = time.monotonic() + 0.6
        while time.monotonic() < until_s:
            assert sock.recv(65536)


def test_one_client_has_so_many_listeners_and_all_else_beside_them(tmp_path: Any) -> None:
    pages = Pages(tmp_path, {"connections_per_client": 4, "trusted_proxies": ()})
    with serving(build_app(pages.source, pages.planning), Limits()) as server:
        for _ in range(4):
            assert b" 200 " in server.connect(request_for("/events")).recv(64)
        assert server.get("/events") == 503
        assert (server.get("/queue"), server.get("/metrics")) == (200, 200)
    pages.source.stop()


class Held:
    def __init__(self, held_by: str) -> None:
        self.held_by, self.dropped = held_by, False

    def drop(self) -> None:
        self.dropped = True


def test_the_client_with_most_connections_makes_room() -> None:
    crowd = Crowd(Limits(of_client=4, waiting=8))
    few, many, proxy = ([Held(name) for _ in range(n)] for name, n in (("few", 2), ("many", 4), ("", 5)))
    for one in (*few, *many, *proxy):
        crowd.waits(one)
    assert [one.dropped for one in few] == [False, False]
    assert sum(one.dropped for one in (*many, *proxy)) == 3
    assert many[0].dropped or proxy[0].dropped


def test_a_gate_counts_clients_apart() -> None:
    gate = Gate(of_client=2, most=3)
    assert [gate.enter(client) for client in ("a", "a", "a", "b", "c")] == [True, True, False, True, False]
    gate.leave("a")
    assert gate.enter("c")
    gate = Gate(of_client=2, most=5)
    assert [gate.enter("") for _ in range(6)] == [True] * 5 + [False], "a proxy stands for many"


@pytest.mark.parametrize(
    ("client", "held_by"),
    [
        (("127.0.0.1", 1), "loopback"),
        (("127.9.9.9", 1), "loopback"),
        (("::1", 1), "loopback"),
        (("::ffff:127.0.0.1", 1), "loopback"),
        (("10.0.0.9", 1), "10.0.0.9"),
        (("::ffff:10.0.0.9", 1), "10.0.0.9"),
        (("2001:db8::1", 1), "2001:db8::/64"),
        (("2001:db8::2", 1), "2001:db8::/64"),
        (("unix", 4242), "unix:4242"),
        (("10.0.0.1", 1), ""),
        (("unix", 65534), ""),
        (None, ""),
    ],
)
def test_who_holds_a_connection(client: tuple[str, int] | None, held_by: str) -> None:
    assert client_of(WebSettings(trusted_proxies=("10.0.0.1", "unix:nobody")), client) == held_by
