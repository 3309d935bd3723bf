"""Models in words and as a page, for ``lucidctl models show``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lucid.models.packing.share_score import ShareTree
from lucid.models.upkeep.kind import Kind

__all__ = ["text", "write_page"]

_MOST_TERMS = 15


def text(kind: Kind[Any, Any], model: Any) -> str:
    """The model in words: additive parts by importance of their terms, the tree as indented text."""
    lines = kind.words(model)
    for title, unit, tables in kind.tables(model):
        lines.append(f"{title} (mean absolute contribution, {unit}); intercept {tables.intercept:.4g}")
        ranked = sorted(tables.terms, key=lambda term: -term.importance)
        lines += [f"  {term.importance:8.4f}  {term.name}" for term in ranked[:_MOST_TERMS]]
        if len(ranked) > _MOST_TERMS:
            lines.append(f"            and {len(ranked) - _MOST_TERMS} smaller terms")
    return "\n".join(lines)


def write_page(kind: Kind[Any, Any], model: Any, folder: Path, facts: Mapping[str, Any]) -> list[Path]:
    """Write the model as one HTML page, and return its path; nothing for a model without tables."""
    from lucid.models.page import additive_page, tree_page  # loads jinja2, which only pages need

    page = folder / f"{kind.name}.html"
    if isinstance(model, ShareTree):
        tree_page(model, page, f"Model {kind.name}", facts)
        return [page]
    parts = kind.tables(model)
    if not parts:
        return []
    (title, unit, tables), *more = parts
    additive_page(tables, page, title, unit, facts, more)
    return [page]
