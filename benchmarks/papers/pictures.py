"""Lucid's models drawn as its paper draws them: the tree of share scores with its Gini importances, shape functions
and one local explanation. Of these only pictures were published, so there is nothing to compare by figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from benchmarks.packs import shared
from benchmarks.papers.packing import measured
from lucid.models.packing.kind import labelled
from lucid.models.packing.share_score import ShareTree, fit_share
from lucid.models.throughput.bins import read_bins
from lucid.models.throughput.fit import fit_throughput

__all__ = ["draw", "gini_importances", "share_tree"]

_UNTIL: Final = datetime(2020, 9, 1, tzinfo=UTC)
_NOON: Final = datetime(2020, 9, 9, 12, tzinfo=UTC)
_MOST_TERMS: Final = 10


def share_tree() -> ShareTree:
    """The tree trained on the published measurements, with the labels that were published with them."""
    usages, pairings = measured()
    rows = labelled(usages, pairings)
    return fit_share([usage for usage, _ in rows], [label for _, label in rows])


def gini_importances(tree: ShareTree) -> dict[str, float]:
    """How much of the tree's decrease of impurity is each feature's; the largest first, together 1."""
    whole = sum(tree.nodes[0].counts)
    found: dict[str, float] = {}
    for node in tree.nodes:
        if node.feature is None:
            continue
        below, above = tree.nodes[node.below], tree.nodes[node.above]
        lost = _impurity(node.counts) - _impurity(below.counts) - _impurity(above.counts)
        found[node.feature] = found.get(node.feature, 0.0) + lost / whole
    total = sum(found.values()) or 1.0
    return {name: value / total for name, value in sorted(found.items(), key=lambda item: -item[1])}


def _impurity(counts: tuple[int, ...]) -> float:
    """Gini impurity times the number of rows."""
    whole = sum(counts)
    return whole - sum(count * count for count in counts) / whole if whole else 0.0


def draw(folder: Path) -> Iterator[Path]:
    """Write the pictures; needs matplotlib."""
    from benchmarks.papers.plots import draw_pictures, draw_tree, save_figure

    tree = share_tree()
    path = folder / "share-tree.png"
    save_figure(draw_tree(tree, "Share score of the published measurements"), path)
    yield path
    path = folder / "share-gini.png"
    _bars(gini_importances(tree), "Gini importance", "Share score", path)
    yield path
    bins = read_bins(shared("venus_throughput.csv"))
    model = fit_throughput(bins.upto(_UNTIL), 5, parallel=1)
    yield from draw_pictures(model.gpus.model, folder / "throughput", "GPUs submitted in ten minutes", "√GPUs")
    terms = {f"{term.name} = {term.value}": term.score for term in model.explain(bins.upto(_NOON), "gpus")}
    largest = dict(sorted(terms.items(), key=lambda item: -abs(item[1]))[:_MOST_TERMS])
    path = folder / "throughput" / "local-explanation.png"
    _bars(largest, "contribution (√GPUs)", f"Why this many GPUs are expected after {_NOON:%d %B %Y, %H:%M}", path)
    yield path


def _bars(values: Mapping[str, float], label: str, title: str, path: Path) -> None:
    from matplotlib.figure import Figure

    from benchmarks.papers.plots import save_figure

    figure = Figure(figsize=(7.5, 1.4 + 0.32 * len(values)), layout="constrained", facecolor="white")
    axes = figure.add_subplot()
    axes.barh(list(values), list(values.values()), color=["#b5432f" if v < 0 else "#1f5fa8" for v in values.values()])
    axes.invert_yaxis()
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_xlabel(label)
    axes.set_title(title, loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    save_figure(figure, path)
