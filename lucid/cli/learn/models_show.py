"""Models in words and pictures, for ``lucidctl models show``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lucid.models.packing.share_score import ShareTree
from lucid.models.upkeep.kind import Kind

__all__ = ["draw", "text"]

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


def draw(kind: Kind[Any, Any], model: Any, folder: Path, facts: Mapping[str, Any]) -> list[Path]:
    """Pictures as PNG files (the tree as SVG too) and one HTML page of all of them; returns the paths."""
    # Imported here: matplotlib takes a second, and only pictures need it.
    from lucid.models.page import additive_page, tree_page
    from lucid.models.plots import draw_pictures, draw_tree, save_figure

    if isinstance(model, ShareTree):
        paths = [folder / "tree.png", folder / "tree.svg"]
        for path in paths:
            save_figure(draw_tree(model), path)
        paths.append(folder / f"{kind.name}.html")
        tree_page(model, paths[-1], f"Model {kind.name}", facts)
        return paths
    paths = []
    parts = kind.tables(model)
    for number, (title, unit, tables) in enumerate(parts):
        place = folder if number == 0 else folder / f"part{number + 1}"
        paths += draw_pictures(tables, place, title, unit)
    if parts:
        (title, unit, tables), *more = parts
        page = folder / f"{kind.name}.html"
        additive_page(tables, page, title, unit, facts, more)
        paths.append(page)
    return paths
