"""Puts a page together: one file with its style and its script in it, and nothing else that it may load."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from lucid.escaping import for_html

__all__ = ["STYLE", "Asset", "asset", "page_environment", "write_page"]

STYLE = ("pages/style.css", "pages/page.css")
SCRIPT = "pages/page.js"
"""Files of all pages, from the folder of the package ``lucid``."""


class Asset(NamedTuple):
    """Text of ours that goes into a page as it stands, and the hash under which the page admits it."""

    text: Markup
    digest: str


def asset(*names: str) -> Asset:
    """Files of the package ``lucid``, one after the other."""
    text = "".join(files("lucid").joinpath(name).read_text(encoding="utf-8") for name in names)
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return Asset(Markup(text), f"sha256-{digest}")


def page_environment(package: str) -> Environment:
    """Of the templates of ``package``, and of those that all pages share. What is put into them is shown as text."""
    return Environment(
        loader=ChoiceLoader([PackageLoader(package, "."), PackageLoader("lucid.pages", ".")]),
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
        OSError: it cannot be written.
    """
    environment = page_environment(package)
    assets = {"style": asset(*STYLE), "script": asset(SCRIPT, *scripts)}
    page = environment.get_template(template).render({"readouts": {}, **context, **assets})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8", errors="replace", newline="\n")
