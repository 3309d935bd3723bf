"""``/metrics``, apart from the pages: made in a thread of its own, and for all who ask within a second once."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from hmac import compare_digest
from importlib.util import find_spec
from pathlib import Path

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from lucid.errors import ConfigError
from lucid.web.source import Source
from lucid.web.viewer import Viewer

__all__ = ["scrapes"]

_STANDS_S = 1.0


def scrapes(source: Source, viewer: Callable[[Request], Viewer]) -> Callable[[Request], Awaitable[Response]] | None:
    """What Prometheus scrapes: no user is named there. ``None`` where prometheus-client is not installed.

    Raises:
        ConfigError: the file with the token cannot be read.
    """
    if find_spec("prometheus_client") is None:
        return None
    from lucid.metrics.exposition import CONTENT_TYPE, render
    from lucid.metrics.source import MetricsSource

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
    """Empty where no file is named."""
    if not path:
        return b""
    try:
        found = Path(path).read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"web.metrics_token_file: {error}") from None
    if not found:
        raise ConfigError(f"web.metrics_token_file: {path} is empty")
    return found
