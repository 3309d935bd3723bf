"""Sphinx makes the pages of this repository into a site: ``make docs``. Why so: docs/decisions/0057-site.md.

The pages are Markdown as every forge shows it, with nothing in them for Sphinx. The tables of docs/README.md are the
navigation.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

project = "Lucid"
release = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
copyright = "Lucid's authors"
extensions = ["myst_parser"]
root_doc = "docs/README"
include_patterns = ["docs/**.md", "README.md", "SECURITY.md", "CHANGELOG.md", "CONTRIBUTING.md"]
exclude_patterns = ["docs/schemas"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 4
# Shown as text: these are not Python or a shell's lines, and a word that a lexer does not know is a warning.
highlight_language = "none"
html_theme = "furo"
html_title = f"Lucid {release}"
html_copy_source = False
html_show_sourcelink = False
html_static_path = ["static"]
html_css_files = ["site.css"]
html_theme_options = {
    "navigation_with_keys": True,
    "light_css_variables": {"color-sidebar-link-text--top-level": "var(--color-foreground-primary)"},
    "dark_css_variables": {"color-sidebar-link-text--top-level": "var(--color-foreground-primary)"},
}


def navigation(text: str) -> str:
    """``text`` with a hidden table of contents below each heading whose table or list links to pages."""
    head, *parts = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    return "".join([head, *(part + contents(part) for part in parts)]) if parts else head + contents(head)


def contents(part: str) -> str:
    """What Sphinx reads of a part: its links, under its heading. Where the text is a file name, by title."""
    links = re.findall(r"\[([^]]+)\]\(([^)#\s]+\.md)\)", part)
    lines = [path if re.search(r"\.md$|^\d{4}$", text) else f"{text} <{path}>" for text, path in links]
    heading = re.match(r"## (.+)", part)
    caption = f":caption: {heading[1]}\n" if heading else ""
    return f"\n```{{toctree}}\n:hidden:\n{caption}\n" + "\n".join(dict.fromkeys(lines)) + "\n```\n\n" if links else ""


def setup(app: Any) -> None:
    """Two of Sphinx' events: pages are read, the site is made."""

    def read(_app: Any, page: str, source: list[str]) -> None:
        if page in (root_doc, "docs/decisions/README"):
            source[0] = navigation(source[0])

    def made(app: Any, trouble: Exception | None) -> None:
        if trouble is None and app.builder.name == "html":
            to = f"{root_doc}.html"
            page = f'<title>Lucid</title><meta http-equiv="refresh" content="0; url={to}"><a href="{to}">Lucid</a>'
            Path(app.outdir, "index.html").write_text(f"<!doctype html>{page}\n", encoding="utf-8")

    app.connect("source-read", read)
    app.connect("build-finished", made)
