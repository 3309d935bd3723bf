"""Models in words and pictures, for ``lucidctl models show``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lucid.models.additive import AdditiveModel
from lucid.models.duration.model import DurationModel
from lucid.models.packing.pair_speed import PairModel
from lucid.models.packing.share_score import ShareTree
from lucid.models.throughput.model import ThroughputModel
from lucid.models.upkeep.kinds import Loaded

__all__ = ["draw", "text"]

_MOST_TERMS = 15


def text(model: Loaded) -> str:
    """The model in words: additive ones by importance of their terms, the tree as indented text."""
    if isinstance(model, ShareTree):
        return model.to_text()
    lines: list[str] = []
    if isinstance(model, DurationModel):
        choice = model.choice
        lines.append(f"  trained on {model.trained_jobs:,} jobs; estimates of users it knows: {choice.name}")
        lines += [
            f"    validation, {name}: {score:.3f} of the running median's loss"
            for name, score in choice.scores.items()
        ]
    if isinstance(model, PairModel):
        lines.append(f"  packs where the slower side is expected to reach {model.threshold:.3f} of its speed alone")
    for title, unit, tables in _parts(model):
        lines.append(f"{title} (mean absolute contribution, {unit}); intercept {tables.intercept:.4g}")
        ranked = sorted(tables.terms, key=lambda term: -term.importance)
        lines += [f"  {term.importance:8.4f}  {term.name}" for term in ranked[:_MOST_TERMS]]
        if len(ranked) > _MOST_TERMS:
            lines.append(f"            and {len(ranked) - _MOST_TERMS} smaller terms")
    return "\n".join(lines)


def draw(name: str, model: Loaded, folder: Path, facts: Mapping[str, Any]) -> list[Path]:
    """Pictures as PNG files (the tree as SVG too) and one HTML page of all of them; returns the paths."""
    # Imported here: matplotlib takes a second, and only pictures need it.
    from lucid.models.plots import draw_page, draw_pictures, draw_tree, save_figure

    if isinstance(model, ShareTree):
        paths = [folder / "tree.png", folder / "tree.svg"]
        for path in paths:
            save_figure(draw_tree(model), path)
        return paths
    paths = []
    parts = _parts(model)
    for number, (title, unit, tables) in enumerate(parts):
        place = folder if number == 0 else folder / f"part{number + 1}"
        paths += draw_pictures(tables, place, title, unit)
    if parts:
        (title, unit, tables), *more = parts
        page = folder / f"{name}.html"
        draw_page(tables, page, title, unit, facts, more)
        paths.append(page)
    return paths


def _parts(model: Loaded) -> list[tuple[str, str, AdditiveModel]]:
    """Title, unit and tables of every additive part."""
    if isinstance(model, DurationModel):
        log = "log of the factor"
        parts = [
            (f"Duration: {model.choice.name}, beside the user's median", log, model.tables),
            ("Duration of new users' jobs, beside the mean of the same GPU demand", log, model.new_user_tables),
            ("Duration of profiled jobs, beside the estimate at submission", log, model.profiled_tables),
        ]
        return [(title, unit, tables) for title, unit, tables in parts if tables is not None]
    if isinstance(model, PairModel):
        return [("Speed beside a partner", "share of the speed alone", model.model)]
    if isinstance(model, ThroughputModel):
        return [
            (f"{what} submitted per bin", "square root of the count" if part.root else what, part.model)
            for what, part in (("GPU jobs", model.jobs), ("GPUs", model.gpus))
        ]
    return []
