"""Asks an ASGI application as a browser would, without a server: one request at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx


class WebClient:
    """``address``: from where it seems to come."""

    def __init__(self, app: Any, headers: dict[str, str] | None = None, address: str = "127.0.0.1") -> None:
        self._app, self.headers, self._address = app, headers or {}, address
        self.shows_errors = False
        """What the application raises is shown as a server shows it; else it is raised."""

    def _client(self) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self._app, not self.shows_errors, client=(self._address, 40000))
        return httpx.AsyncClient(transport=transport, base_url="http://site", headers=self.headers)

    def request(self, method: str, path: str, params: dict[str, Any] | None = None) -> httpx.Response:
        """One answer, redirections as they are."""

        async def ask() -> httpx.Response:
            async with self._client() as client:
                return await client.request(method, path, params=params)

        return asyncio.run(ask())

    def get_each(self, paths: Sequence[str]) -> dict[str, httpx.Response | Exception]:
        """Many answers, one after the other; what the application raised is in place of the answer."""

        async def ask() -> dict[str, httpx.Response | Exception]:
            found: dict[str, httpx.Response | Exception] = {}
            async with self._client() as client:
                for path in paths:
                    try:
                        found[path] = await client.get(path)
                    except Exception as error:
                        found[path] = error
            return found

        return asyncio.run(ask())

    def get(self, path: str, params: dict[str, Any] | None = None) -> httpx.Response:
        return self.request("GET", path, params)
