"""Sphinx makes the pages of this repository into a site: ``make docs``. Why so: docs/decisions/0057-site.md.

The pages are Markdown as every forge shows it, with nothing in them for Sphinx. The tables of docs/README.md are the
side bar; pages that only its lists name are found from there, and by the search.
"""

from __future__ import annotations

import os
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
include_patterns = ["docs/**.md", "README.md", "examples/README.md", "SECURITY.md", "CHANGELOG.md", "CONTRIBUTING.md"]
exclude_patterns = ["docs/schemas"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 4
# Shown as text: these are not Python or a shell's lines, and a word that a lexer does not know is a warning.
highlight_language = "none"
# Quotes and dashes are to be copied as they stand: --config, not a dash.
smartquotes = False
html_theme = "furo"
html_title = f"Lucid {release}"
html_copy_source = False
html_show_sourcelink = False
html_static_path = ["static"]
html_css_files = ["site.css"]
html_search_scorer = str(Path(__file__).with_name("scorer.js"))
html_theme_options = {
    "navigation_with_keys": True,
    "light_css_variables": {"color-sidebar-link-text--top-level": "var(--color-foreground-primary)"},
    "dark_css_variables": {"color-sidebar-link-text--top-level": "var(--color-foreground-primary)"},
}


UNSEARCHED = (
    "CHANGELOG",
    "docs/decisions/",
    "docs/papers",
    "docs/systems/muri",
    "docs/systems/pollux",
    "docs/figures",
)
"""What the search leaves out: records and research. Whoever looks for a word there has the repository."""


def links(text: str) -> list[tuple[str, str]]:
    """Text and path of each link to a page."""
    return re.findall(r"\[([^]]+)\]\(([^)#\s]+\.md)\)", text)


def navigation(text: str, whole: bool = False) -> str:
    """``text`` with a hidden table of contents below each heading: of its table's links, or of all."""
    head, *parts = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    return (
        "".join([head, *(part + contents(part, whole) for part in parts)]) if parts else head + contents(head, whole)
    )


def contents(part: str, whole: bool) -> str:
    """What Sphinx reads of a part: its links, under its heading. Where the text is a number, by title."""
    rows = part if whole else "".join(re.findall(r"^\|.*\n", part, re.MULTILINE))
    lines = [path if re.search(r"^\d{4}$", text) else f"{text} <{path}>" for text, path in links(rows)]
    heading = re.match(r"## (.+)", part)
    caption = f":caption: {heading[1]}\n" if heading else ""
    return f"\n```{{toctree}}\n:hidden:\n{caption}\n" + "\n".join(dict.fromkeys(lines)) + "\n```\n\n" if lines else ""


INDEX = (ROOT / f"{root_doc}.md").read_text(encoding="utf-8")
SIDE_BAR = {
    os.path.normpath(f"docs/{path}") for _, path in links("".join(re.findall(r"^\|.*\n", INDEX, re.MULTILINE)))
}


def setup(app: Any) -> None:
    """Two of Sphinx' events: pages are read, the site is made."""

    def read(_app: Any, page: str, source: list[str]) -> None:
        marks = ["nosearch: true"] * page.startswith(UNSEARCHED)
        if page == root_doc:
            source[0] = navigation(source[0])
        elif page == "docs/decisions/README":
            source[0] = navigation(source[0], whole=True)
        elif not page.startswith("docs/decisions/") and f"{page}.md" not in SIDE_BAR:
            marks.append("orphan: true")
        if marks:
            source[0] = "\n".join(["---", *marks, "---", source[0]])

    def made(app: Any, trouble: Exception | None) -> None:
        if trouble is None and app.builder.name == "html":
            to = f"{root_doc}.html"
            page = f'<title>Lucid</title><meta http-equiv="refresh" content="0; url={to}"><a href="{to}">Lucid</a>'
            Path(app.outdir, "index.html").write_text(f"<!doctype html>{page}\n", encoding="utf-8")

    app.connect("source-read", read)
    app.connect("build-finished", made)
