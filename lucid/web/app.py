"""The pages as an ASGI application: routes, ``/metrics``, and HTML from templates that escape everything.

It answers GET and HEAD, and changes nothing. ``serve`` listens, and names the user at the other end of a Unix socket.
``/metrics`` is made in a thread of its own, once for all who ask within a second.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import cache, lru_cache
from hmac import compare_digest
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import uvicorn
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from lucid.config.live import WebSettings
from lucid.core.codec import to_json
from lucid.errors import ConfigError, LucidError
from lucid.explain.formatting import ago, duration, when
from lucid.text import for_html
from lucid.web.pages import PAGES, Page
from lucid.web.pages.shown import NotShown
from lucid.web.site import UNIX, Site, Viewer, viewer_of
from lucid.web.source import Source

_STANDS_S = 1.0


def scrapes(source: Source, viewer: Callable[[Request], Viewer]) -> Callable[[Request], Awaitable[Response]] | None:
    """The handler of what Prometheus scrapes, which names no user; ``None`` where prometheus-client is not installed.

    Raises: ConfigError: the file with the token cannot be read."""
    if find_spec("prometheus_client") is None:
        return None
    from lucid.daemon.reporting.metrics import CONTENT_TYPE, render
    from lucid.daemon.reporting.waste_inputs import MetricsSource

    metrics = MetricsSource(source.settings, now_s=source.now_s, known=source)
    token = _token(source.settings.web.metrics_token_file)
    one_at_a_time = asyncio.Lock()
    made_s, text = -math.inf, b""

    async def answer(request: Request) -> Response:
        nonlocal made_s, text
        sent = request.headers.get("authorization", "").encode()
        if not (token and compare_digest(sent, b"Bearer " + token)) and viewer(request).refused:
            words = "These metrics are for those who send the token of the site (web.metrics_token_file).\n"
            return PlainTextResponse(words, 401, {"www-authenticate": "Bearer"})
        async with one_at_a_time:
            if time.monotonic() - made_s > _STANDS_S:
                text = await asyncio.to_thread(render, metrics)  # pages use other threads
                made_s = time.monotonic()
        return Response(text, headers={"content-type": CONTENT_TYPE})

    return answer


def _token(path: str) -> bytes:
    """The token in a file; empty where no file is named."""
    if not path:
        return b""
    try:
        found = Path(path).read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"web.metrics_token_file: {error}") from None
    if not found:
        raise ConfigError(f"web.metrics_token_file: {path} is empty")
    return found


_SECTIONS = (("cluster", "Cluster", "/"), ("queue", "Queue", "/queue"), ("people", "People", "/people"),
             ("health", "Health", "/health"))  # fmt: skip


@cache
def templates() -> Environment:
    """The templates' environment, which compiles each template once."""
    made = Environment(
        loader=PackageLoader("lucid.web", "templates"),
        autoescape=True,
        finalize=for_html,  # names of users, jobs and nodes are anybody's text
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        duration=duration,
        age=ago,
        clock=when,
        percent=lambda value: "–" if value is None else f"{value:.0f} %",
        speed=lambda value: "–" if value is None else f"{100 * value:.0f} %",
        count="{:,.0f}".format,
        hm=lambda at_s: time.strftime("%H:%M", time.localtime(at_s)),
        hours=lambda value: f"{value:,.0f}" if value >= 10 else f"{value:.1f}",
    )
    return made


def page_response(
    site: Site, viewer: Viewer, page: Page | None, data: Mapping[str, Any], path: str, status: int = 200
) -> Response:
    """One page as a response; without a ``page`` one with the words of ``data``."""
    name = "words.html.j2" if page is None else page.template
    text = site.environment.get_template(name).render(
        **data, **on_every_page(site, viewer, "" if page is None else page.section, path)
    )
    return HTMLResponse(text.encode("utf-8", "replace"), status)


def on_every_page(site: Site, viewer: Viewer, section: str, path: str) -> dict[str, Any]:
    """Values that every template finds beside the page's own data. ``path``: of the page."""
    now_s = site.now_s()
    view = site.source.view

    def to(path: str, *, suffix: str = "", **asked: Any) -> str:
        kept = {key: value for key, value in asked.items() if value not in ("", None, False, 0)}
        return f"{site.root}{quote(path, safe='/')}{suffix}" + (f"?{urlencode(kept)}" if kept else "")

    return {
        "to": to,
        "static": f"{site.root}/static",
        "sections": _SECTIONS,
        "section": section,
        "viewer": viewer,
        "ago": lambda at_s: "just now" if abs(now_s - at_s) < 5 else ago(now_s - at_s),
        "now_s": now_s,
        "seen_s": None if view is None else max(view.now_s, site.source.status.at_s or 0.0),
        "json_link": to(path if path != "/" else "/cluster", suffix=".json"),
        "store_trouble": site.source.trouble,
        "demo": site.source.demo_speed,
        "version": 0 if view is None else view.version,
        "paused": site.source.status.paused,
    }


_STATIC = {"lucid.js": "text/javascript", "lucid.css": "text/css", "icon.svg": "image/svg+xml"}
_EVENT_EVERY_S = 2.0
_BEAT_EVERY_S = 15.0
_MOST_LISTENERS = 256
"""Most readers who wait for news: half of what the server answers at a time, for pages are served beside them."""
_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


def build_app(source: Source, root_path: str = "") -> ASGIApp:
    """The application over a source of views.

    Args:
        source: lucidd's store as the pages see it.
        root_path: the path under which a proxy shows the pages; requests may have it or not.

    Raises:
        ConfigError: the file with the token for /metrics cannot be read."""
    root = "/" + root_path.strip("/") if root_path.strip("/") else ""
    site = Site(source, root, templates())
    own_uid = os.geteuid()

    def viewer(request: Request) -> Viewer:
        client, headers = request.scope.get("client"), dict(request.headers.items())
        at = None if client is None else (client[0], client[1])
        return viewer_of(source.settings.web, at, headers, source.status.private_data, own_uid)

    def answering(page: Page, *, as_json: bool) -> Callable[[Request], Response]:
        return lambda request: _answer(site, page, request, viewer(request), as_json=as_json)

    listeners = _Listeners(source)
    scraped = scrapes(source, viewer)
    routes = [Route(page.twin, answering(page, as_json=True)) for page in PAGES]
    routes += [Route(page.path, answering(page, as_json=False)) for page in PAGES]
    routes += [
        Route("/cluster", lambda _: RedirectResponse(f"{root}/", 308)),
        Route("/job", lambda request: _to_job(root, request)),
        Route("/events", lambda request: listeners.stream(viewer(request))),
        Route("/static/{name}", _static),
        *([] if scraped is None else [Route("/metrics", scraped)]),
    ]
    app = Starlette(
        routes=routes,
        exception_handlers={
            404: lambda request, _: _refusal(site, viewer(request), 404, "There is no such page.", _is_json(request)),
            Exception: lambda request, _: _failed(site, viewer, request),
        },
    )
    return _Shell(app, root)


class _Shell:
    """A wrapper round the application: methods, the path of the proxy, headers."""

    def __init__(self, app: ASGIApp, root: str) -> None:
        self._app, self._root = app, root

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                known = {name for name, _ in message["headers"]}
                own = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                if b"cache-control" not in known:
                    own.append((b"cache-control", b"no-store"))
                message = {**message, "headers": [*message["headers"], *own]}
            await send(message)

        if scope["method"] not in ("GET", "HEAD"):
            words = "These pages change nothing: GET and HEAD alone are answered.\n"
            await PlainTextResponse(words, 405, {"allow": "GET, HEAD"})(scope, receive, with_headers)
            return
        path = scope["path"]
        if self._root and (path == self._root or path.startswith(self._root + "/")):
            path = path[len(self._root) :] or "/"
        inner = {**scope, "path": path, "raw_path": path.encode("utf-8", "surrogateescape"), "root_path": ""}
        await self._app(inner, receive, with_headers)


def _answer(site: Site, page: Page, request: Request, viewer: Viewer, *, as_json: bool) -> Response:
    asked = dict(request.query_params)
    if viewer.refused:
        words = (
            f"Say who you are: this site shows its pages to those whom its proxy names ({site.settings.user_header})."
        )
        return _refusal(site, viewer, 403, words, as_json)
    if site.source.view is None:
        words = f"Nothing to show yet. {site.source.trouble or 'lucidd has not finished a cycle yet.'}"
        return _refusal(site, viewer, 503, words, as_json)
    try:
        data = page.data(site, viewer, dict(request.path_params), asked)
    except NotShown as error:
        return _refusal(site, viewer, 404, str(error), as_json)
    except LucidError as error:  # the store is gone, or busy, at this moment
        return _refusal(site, viewer, 503, str(error), as_json)
    if as_json:
        return _json(data)
    return page_response(site, viewer, page, data, request.scope["path"])


def _refusal(site: Site, viewer: Viewer, status: int, words: str, as_json: bool) -> Response:
    if as_json:
        return JSONResponse({"error": words}, status)
    return page_response(site, viewer, None, {"status": status, "words": words}, "/", status)


def _failed(site: Site, viewer: Callable[[Request], Viewer], request: Request) -> Response:
    """The response after a defect; Starlette raises the exception on, so that the log has it."""
    words = "That is a defect of Lucid, not of what you asked for. The log of lucid-web says more."
    try:
        return _refusal(site, viewer(request), 500, words, _is_json(request))
    except Exception:  # what broke the page may break this one: it must answer all the same
        return PlainTextResponse(f"This page could not be made. {words}\n", 500)


def _is_json(request: Request) -> bool:
    return str(request.scope["path"]).endswith(".json")


def _json(data: Mapping[str, Any]) -> Response:
    public = {key: value for key, value in data.items() if not key.startswith("_")}
    return Response(json.dumps(to_json(public), allow_nan=False, default=str), media_type="application/json")


def _to_job(root: str, request: Request) -> Response:
    """The redirect to the job whose number was typed into the box."""
    job_id = request.query_params.get("id", "").strip()
    safe = "".join(char for char in job_id if char.isalnum() or char in "_-.+")
    return RedirectResponse(f"{root}/job/{safe}" if safe else f"{root}/queue", 303)


def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _STATIC:
        return PlainTextResponse("There is no such file.\n", 404)
    return Response(_asset(name), media_type=_STATIC[name], headers={"cache-control": "no-cache"})


@lru_cache(maxsize=8)
def _asset(name: str) -> str:
    """The text of an asset. The style begins with that of the simulation's report: one family of pages."""
    folder = files("lucid")  # not the simulator's package, which would be imported with all that it needs
    text = folder.joinpath("web", "static", name).read_text(encoding="utf-8")
    if name != "lucid.css":
        return text
    return folder.joinpath("html", "style.css").read_text(encoding="utf-8") + text


class _Listeners:
    """Readers who wait for news."""

    def __init__(self, source: Source) -> None:
        self._source, self._count = source, 0

    def stream(self, viewer: Viewer) -> Response:
        """One reader's stream: an event whenever there is a new view."""
        if viewer.refused:
            return PlainTextResponse("Say who you are.\n", 403)
        if self._count >= _MOST_LISTENERS:
            return PlainTextResponse("Too many listen: load the page again from time to time.\n", 503)
        return StreamingResponse(self._events(), media_type="text/event-stream")

    async def _events(self) -> AsyncIterator[str]:
        self._count += 1
        try:
            known, quiet_s = "", 0.0
            yield "retry: 5000\n\n"
            while True:
                now = self._news()
                if now != known:
                    known, quiet_s = now, 0.0
                    yield f"event: news\ndata: {now}\n\n"
                elif quiet_s >= _BEAT_EVERY_S:
                    quiet_s = 0.0
                    yield ": still here\n\n"
                await asyncio.sleep(_EVENT_EVERY_S)
                quiet_s += _EVENT_EVERY_S
        finally:
            self._count -= 1

    def _news(self) -> str:
        view = self._source.view
        if view is None:
            return json.dumps({"version": 0})
        parts = view.seen.snapshot.partitions.values()
        counts = {"pending": sum(len(p.pending) for p in parts), "running": sum(len(p.running) for p in parts)}
        return json.dumps({"version": view.version, "at_s": round(view.now_s, 1), **counts})


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
