"""Pictures of models for documents: importances, shape functions, the share tree.

Everything is drawn without a display (matplotlib's Agg canvas, no pyplot state) and returned or written as PNG or
SVG. ``lucid.models.page`` is for browsers.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from lucid.models.additive import (
    MOST_SHOWN,
    AdditiveModel,
    Term,
    bin_names,
    in_unit,
    places_of,
    ranked,
    rows_shown,
    tree_unit,
)
from lucid.models.packing.share_score import LABELS, ShareTree

if TYPE_CHECKING:
    pass

__all__ = [
    "draw_importances",
    "draw_pictures",
    "draw_term",
    "draw_tree",
    "save_figure",
]

matplotlib.rcParams["text.parse_math"] = False  # a $ in a name is a character, not the beginning of a formula

_BLUE, _RED, _GREY = "#1f5fa8", "#b5432f", "#8a8f98"
_LEAF_COLOURS = ("#d8ecd9", "#fbeecb", "#f6d5cf")  # Tiny, Medium, Jumbo
_DPI = 110


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as the path's suffix says (.png, .svg), making its folder if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=_DPI)


def draw_importances(model: AdditiveModel, title: str, unit: str = "") -> Figure:
    """Mean absolute addend of the most important terms, largest on top."""
    terms = ranked(model)
    figure = _figure(7.5, 1.2 + 0.3 * max(1, len(terms)))
    axes = figure.add_subplot()
    axes.barh([term.name for term in terms], [term.importance for term in terms], color=_BLUE, height=0.7)
    axes.invert_yaxis()
    axes.set_xlabel(f"mean absolute contribution{in_unit(unit)}")
    hidden = len(model.terms) - len(terms)
    axes.set_title(title + (f" (and {hidden} smaller terms)" if hidden > 0 else ""), loc="left", fontsize=11)
    _plain(axes)
    return figure


def draw_term(term: Term, unit: str = "") -> Figure:
    """One shape function: steps over a continuous feature, bars over categories, a heat map over two."""
    if len(term.axes) == 2:
        figure = _heat(term, unit)
    else:
        figure = _steps(term, unit) if term.axes[0].kind == "continuous" else _bars(term, unit)
    figure.suptitle(term.name, x=0.01, ha="left", fontsize=11)
    return figure


def draw_tree(tree: ShareTree, title: str = "Share score") -> Figure:
    """The decision tree, root on top; leaves coloured by label with their training counts."""
    places = places_of(tree)
    depth = max(y for _, y in places.values())
    figure = _figure(max(6.0, 2.1 * tree.leaves), 1.4 + 1.25 * (depth + 1))
    axes = figure.add_subplot()
    for index, node in enumerate(tree.nodes):
        x, y = places[index]
        if node.feature is None:
            counts = "\n".join(f"{n} {name}" for n, name in zip(node.counts, LABELS, strict=True) if n)
            _box(axes, x, -y, f"{LABELS[node.label]} ({node.label})\n{counts}", _LEAF_COLOURS[node.label])
            continue
        for child, word in ((node.below, "yes"), (node.above, "no")):
            cx, cy = places[child]
            axes.plot([x, cx], [-y, -cy], color=_GREY, linewidth=1.2, zorder=1)
            axes.text(
                (x + cx) / 2,
                -(y + cy) / 2,
                word,
                ha="center",
                va="center",
                fontsize=9,
                zorder=2,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
            )
        unit = tree_unit(node.feature)
        _box(axes, x, -y, f"{node.feature}\n<= {node.threshold:g}{unit}?", "#eef1f6")
    xs = [x for x, _ in places.values()]
    axes.set_xlim(min(xs) - 0.6, max(xs) + 0.6)
    axes.set_ylim(-depth - 0.5, 0.5)
    axes.axis("off")
    axes.set_title(title, loc="left", fontsize=11)
    return figure


def draw_pictures(model: AdditiveModel, folder: Path, title: str, unit: str = "") -> list[Path]:
    """Importances and the shape functions of the most important terms as PNG files; returns their paths."""
    paths = [folder / "importances.png"]
    save_figure(draw_importances(model, title, unit), paths[0])
    for number, term in enumerate(ranked(model), start=1):
        paths.append(folder / f"term_{number:02d}_{_slug(term.name)}.png")
        save_figure(draw_term(term, unit), paths[-1])
    return paths


def _steps(term: Term, unit: str) -> Figure:
    cuts = np.asarray(term.axes[0].cuts, dtype=np.float64)
    figure, axes, below = _with_weights()
    scores, weights = term.scores[1:-1], term.weights[1:-1]
    # The outermost bins have no outer edge: draw them a little beyond the last cuts.
    left = right = 0.04 * (cuts[-1] - cuts[0]) if len(cuts) > 1 else 1.0
    if len(cuts) > 1 and cuts[0] >= 0 and cuts[-1] > 15 * max(float(np.median(cuts)), 1.0):
        # Heavy tails (GPU counts, seconds) leave everything squeezed to the left on a linear axis.
        below.set_xscale("symlog", linthresh=max(float(np.median(cuts)), 1.0))
        left = 2 * (cuts[1] - cuts[0])
    edges = np.concatenate([[cuts[0] - left], cuts, [cuts[-1] + right]]) if len(cuts) else np.array([0.0, 1.0])
    axes.stairs(scores, edges, color=_BLUE, linewidth=1.8, baseline=None)
    share = weights / max(float(weights.sum()), 1e-12)
    below.stairs(100 * share, edges, fill=True, color="#c9cdd4")
    below.set_xlabel(term.axes[0].feature)
    _labels(axes, below, unit)
    if term.weights[0] > 0:
        axes.axhline(term.scores[0], color=_RED, linestyle="--", linewidth=1)
        axes.text(edges[0], term.scores[0], " missing", color=_RED, fontsize=8, va="bottom")
    return figure


def _bars(term: Term, unit: str) -> Figure:
    names = bin_names(term.axes[0])
    order = sorted(names, key=lambda index: -abs(float(term.scores[index])) * float(term.weights[index]))[:MOST_SHOWN]
    order.sort(key=lambda index: float(term.scores[index]))
    figure = _figure(7.5, 1.3 + 0.27 * max(1, len(order)))
    axes = figure.add_subplot()
    values = [float(term.scores[index]) for index in order]
    axes.barh(
        [names[index] for index in order],
        values,
        height=0.7,
        color=[_RED if v < 0 else _BLUE for v in values],
    )
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_xlabel(f"contribution{in_unit(unit)}")
    if len(names) > len(order):
        axes.set_title(f"the {len(order)} that matter most of {len(names)}", loc="left", fontsize=9)
    _plain(axes)
    return figure


def _heat(term: Term, unit: str) -> Figure:
    first, second = term.axes
    names_y, names_x = bin_names(first), bin_names(second)
    rows, columns = rows_shown(term), sorted(names_x)
    table = term.scores[np.ix_(rows, columns)]
    figure = _figure(7.5, min(9.0, 2.4 + 0.26 * len(rows)))
    axes = figure.add_subplot()
    bound = max(float(np.abs(table).max(initial=0.0)), 1e-12)
    image = axes.imshow(table, cmap="RdBu", vmin=-bound, vmax=bound, aspect="auto", interpolation="nearest")
    _ticks(axes.xaxis, [names_x[index] for index in columns])
    _ticks(axes.yaxis, [names_y[index] for index in rows])
    axes.tick_params(axis="x", rotation=40 if second.kind == "continuous" else 60, labelsize=8)
    for label in axes.get_xticklabels():
        label.set_horizontalalignment("right")
        label.set_rotation_mode("anchor")
    axes.tick_params(axis="y", labelsize=8)
    axes.set_xlabel(second.feature)
    axes.set_ylabel(first.feature)
    figure.colorbar(image, ax=axes, label=f"contribution{in_unit(unit)}")
    return figure


def _ticks(axis: Any, names: list[str]) -> None:
    every = max(1, math.ceil(len(names) / 24))
    axis.set_ticks(list(range(0, len(names), every)), names[::every])


def _with_weights() -> tuple[Figure, Any, Any]:
    figure = _figure(7.5, 4.0)
    axes, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    return figure, axes, below


def _labels(axes: Any, below: Any, unit: str) -> None:
    axes.axhline(0, color="black", linewidth=0.6)
    axes.set_ylabel(f"contribution{in_unit(unit)}")
    below.set_ylabel("% of data")
    axes.grid(color="#e4e6ea", linewidth=0.7)
    _plain(axes)
    _plain(below)


def _figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def _box(axes: Any, x: float, y: float, text: str, colour: str) -> None:
    style = {"boxstyle": "round,pad=0.45", "facecolor": colour, "edgecolor": _GREY}
    axes.text(x, y, text, ha="center", va="center", fontsize=9.5, bbox=style, zorder=3)


def _plain(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)


def _slug(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name).strip("_")[:60]
