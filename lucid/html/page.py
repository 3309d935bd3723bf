"""Puts a self-contained HTML page together (style, script, templates); shows durations, shares, counts."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from lucid.text import for_html

STYLE = ("html/style.css", "html/page.css")
SCRIPT = "html/page.js"
"""The script of all pages, from the folder of the package ``lucid``."""


class Asset(NamedTuple):
    """A text of ours that goes into a page as it stands, and the hash under which the page admits it."""

    text: Markup
    digest: str


def asset(*names: str) -> Asset:
    """Files of the package ``lucid``, joined."""
    text = "".join(files("lucid").joinpath(name).read_text(encoding="utf-8") for name in names)
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return Asset(Markup(text), f"sha256-{digest}")


def page_environment(package: str) -> Environment:
    """The environment of the templates of ``package``, and of those that all pages share. Values put into them are
    shown as text."""
    return Environment(
        loader=ChoiceLoader([PackageLoader(package, "."), PackageLoader("lucid.html", ".")]),
        autoescape=True,
        finalize=for_html,  # whatever the file is called: names of traces, VCs and users are anybody's text
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def write_page(
    path: Path, package: str, template: str, context: dict[str, Any], scripts: tuple[str, ...] = ()
) -> None:
    """Write the page that a template of ``package`` makes of ``context``; it extends ``base.html.j2``.

    ``scripts``: more files of the package ``lucid`` that go after the script which all pages have.

    Raises:
        OSError: it cannot be written."""
    environment = page_environment(package)
    assets = {"style": asset(*STYLE), "script": asset(SCRIPT, *scripts)}
    page = environment.get_template(template).render({"readouts": {}, **context, **assets})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8", errors="replace", newline="\n")


class Unit(NamedTuple):
    """A unit of time."""

    name: str
    seconds: float
    plural: str


SECOND = Unit("s", 1.0, "seconds")
MINUTE = Unit("min", 60.0, "minutes")
HOUR = Unit("h", 3600.0, "hours")
DAY = Unit("d", 86400.0, "days")

_MISSING = "–"
_FROM_NEXT_UNIT = ((SECOND, 100.0), (MINUTE, 100.0), (HOUR, 240.0))
"""From this many on, the next larger unit reads better; hours are what the field reports, so they go further."""
_LEAST_IN_UNIT = 0.1
"""Below this many of a column's unit, a cell is shown in a unit of its own."""


def unit_of(seconds: float) -> Unit:
    """The unit in which a duration reads best; days at most."""
    return next((unit for unit, most in _FROM_NEXT_UNIT if seconds < most * unit.seconds), DAY)


def show_duration(seconds: float | None, unit: Unit | None = None) -> str:
    """The duration with three significant digits and a unit: the given one, unless the value would vanish in it."""
    if seconds is None:
        return _MISSING
    if unit is None or seconds < _LEAST_IN_UNIT * unit.seconds:
        unit = unit_of(seconds)
    value = seconds / unit.seconds
    if unit is SECOND and value == round(value):
        return f"{value:.0f} s"
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f} {unit.name}"


def show_share(share: float | None) -> str:
    """The fraction as a percentage."""
    return _MISSING if share is None else f"{100 * share:.1f} %"


def show_count(count: float | None) -> str:
    """The whole number with separators."""
    return _MISSING if count is None else f"{count:,.0f}"


def show_many(count: int, one: str, more: str = "") -> str:
    """A count with its noun."""
    return f"{show_count(count)} {one if count == 1 else more or one + 's'}"


def show_change(value: float, reference: float) -> str:
    """By how many percent *value* is above or below *reference*; empty where that means nothing."""
    if reference == 0:
        return ""
    percent = 100 * (value / reference - 1)
    if abs(percent) < 0.05:
        return "the same"
    return f"{abs(percent):,.1f} % {'more' if percent > 0 else 'less'}"
