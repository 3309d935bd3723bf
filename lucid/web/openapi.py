"""The pages' JSON twins and the other addresses of lucid-web, as OpenAPI 3.1: made from the pages themselves."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from lucid.web.pages import PAGES, Page

__all__ = ["openapi_of", "schemas", "twin_of"]

_ERROR = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
_REFUSALS = {
    "403": "This reader is not known, or may not see it.",
    "404": "There is no such thing.",
    "500": "The page could not be made: a defect. The log of lucid-web says more.",
    "503": "lucidd has not finished a cycle yet, its store does not answer, or too many ask at once.",
}
_OTHERS = {
    "/events": ("text/event-stream", "An event `news` whenever there is another picture."),
    "/metrics": (
        "text/plain",
        "Metrics for Prometheus. Only where the extra web has prometheus-client. Where web.anonymous is nothing: 401 "
        "without a name or the site's token.",
    ),
    "/openapi.json": ("application/json", "This description."),
}


@cache
def schemas() -> dict[str, Any]:
    """The schema of each JSON twin, by its path as Starlette writes it: recorded by
    tests/unit/web/test_openapi.py."""
    found: dict[str, Any] = json.loads(files("lucid").joinpath("web", "schemas.json").read_text(encoding="utf-8"))
    return found


def twin_of(page: Page) -> str:
    """The path of a page's JSON."""
    return f"{page.path if page.path != '/' else '/cluster'}.json"


def openapi_of(version: str, pages: Sequence[Page] = PAGES) -> dict[str, Any]:
    """The whole description. Pages may add members; they drop none within a minor version (docs/versions.md)."""
    paths: dict[str, Any] = {}
    known = schemas()
    for page in pages:
        content = {"application/json": {"schema": known.get(twin_of(page), {"type": "object"})}}
        paths[re.sub(r"\{(\w+):\w+\}", r"{\1}", twin_of(page))] = _get(
            (page.data.__doc__ or page.path).strip().split("\n")[0], content, page.path, refused=True
        )
        shown = {"text/html": {"schema": {"type": "string"}}}
        paths[re.sub(r"\{(\w+):\w+\}", r"{\1}", page.path)] = _get("The same as a page.", shown, page.path)
    for path, (kind, words) in _OTHERS.items():
        paths[path] = _get(words, {kind: {"schema": {"type": "string"} if "text" in kind else {"type": "object"}}})
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "lucid-web",
            "version": version,
            "description": "Read-only. Answers GET and HEAD alone. Who reads is what the proxy's header says "
            "(web.user_header); filters of a page are its query.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": dict(sorted(paths.items())),
    }


def _get(words: str, content: dict[str, Any], path: str = "", *, refused: bool = False) -> dict[str, Any]:
    answers: dict[str, Any] = {"200": {"description": words, "content": content}}
    for status, said in _REFUSALS.items() if refused else ():
        answers[status] = {"description": said, "content": {"application/json": {"schema": _ERROR}}}
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"\{(\w+)(?::\w+)?\}", path)
    ]
    return {"get": {"summary": words, "responses": answers, **({"parameters": parameters} if parameters else {})}}
