"""Asks an ASGI application as a browser would, without a server: one request at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx

__all__ = ["WebClient"]


class WebClient:
    """``address``: from where it seems to come."""

    def __init__(self, app: Any, headers: dict[str, str] | None = None, address: str = "127.0.0.1") -> None:
        self._app, self._headers, self._address = app, headers or {}, address

    def request(self, method: str, path: str, params: dict[str, Any] | None = None) -> httpx.Response:
        """One answer, redirections as they are."""

        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(app=self._app, client=(self._address, 40000))
            async with httpx.AsyncClient(
                transport=transport, base_url="http://site", headers=self._headers
            ) as client:
                return await client.request(method, path, params=params)

        return asyncio.run(ask())

    def get_each(self, paths: Sequence[str]) -> dict[str, httpx.Response | Exception]:
        """Many answers, one after the other; what the application raised is in place of the answer."""

        async def ask() -> dict[str, httpx.Response | Exception]:
            transport = httpx.ASGITransport(app=self._app, client=(self._address, 40000))
            found: dict[str, httpx.Response | Exception] = {}
            async with httpx.AsyncClient(
                transport=transport, base_url="http://site", headers=self._headers
            ) as client:
                for path in paths:
                    try:
                        found[path] = await client.get(path)
                    except Exception as error:
                        found[path] = error
            return found

        return asyncio.run(ask())

    def get(self, path: str, params: dict[str, Any] | None = None) -> httpx.Response:
        """``GET``."""
        return self.request("GET", path, params)
