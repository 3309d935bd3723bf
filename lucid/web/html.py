"""From values to HTML: templates that escape everything, and the words and addresses that they use."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse, Response

from lucid.escaping import for_html
from lucid.explain.quantities import ago, duration
from lucid.web.site import Site, clock
from lucid.web.viewer import Viewer

if TYPE_CHECKING:
    from lucid.web.pages import Page

__all__ = ["on_every_page", "page_response", "templates"]

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
        duration=duration, age=ago, clock=clock, percent=_percent, speed=_speed, count=_count, hm=_hm, hours=_hours
    )
    return made


def page_response(
    site: Site, viewer: Viewer, page: Page | None, data: Mapping[str, Any], path: str, status: int = 200
) -> Response:
    """One page; without a ``page`` the words of ``data``."""
    name = "words.html.j2" if page is None else page.template
    text = site.environment.get_template(name).render(
        **data, **on_every_page(site, viewer, "" if page is None else page.section, path)
    )
    return HTMLResponse(text.encode("utf-8", "replace"), status)


def on_every_page(site: Site, viewer: Viewer, section: str, path: str) -> dict[str, Any]:
    """What every template finds beside the page's own data. ``path``: of the page."""
    now_s = site.now_s()
    picture = site.source.picture

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
        "seen_s": None if picture is None else max(picture.now_s, site.source.status.at_s or 0.0),
        "json_link": to(path if path != "/" else "/cluster", suffix=".json"),
        "store_trouble": site.source.trouble,
        "demo": site.source.demo_speed,
        "version": 0 if picture is None else picture.version,
        "paused": site.source.status.paused,
    }


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f} %"


def _speed(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f} %"


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _hours(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def _hm(at_s: float) -> str:
    return time.strftime("%H:%M", time.localtime(at_s))
