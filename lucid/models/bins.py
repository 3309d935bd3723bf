"""Bins of a model's terms, as people read them: for pictures and for pages."""

from __future__ import annotations

import numpy as np

from lucid.escaping import shown
from lucid.models.additive import AdditiveModel, Axis, Term
from lucid.models.packing.share_score import ShareTree

__all__ = ["MOST_SHOWN", "bin_names", "in_unit", "places_of", "ranked", "rows_shown", "tree_unit"]

MOST_SHOWN = 20
"""Terms or categories that one picture can hold and stay readable."""


def bin_names(axis: Axis) -> dict[int, str]:
    """Bin number to a name for people, leaving out missing and unknown."""
    if axis.kind == "categorical":
        named: dict[int, list[str]] = {}
        for name, index in axis.categories.items():
            named.setdefault(index, []).append(name)
        return {i: _short(shown(n[0]) + (f" +{len(n) - 1}" if len(n) > 1 else "")) for i, n in named.items()}
    cuts = axis.cuts
    if not cuts:
        return {1: "any"}
    middle = {index + 1: f"{cuts[index - 1]:.3g}..{cuts[index]:.3g}" for index in range(1, len(cuts))}
    return {1: f"< {cuts[0]:.3g}", **middle, len(cuts) + 1: f">= {cuts[-1]:.3g}"}


def rows_shown(term: Term) -> list[int]:
    """Bins of the first axis of a term of two features that a picture shows, ascending: of many categories the
    ``MOST_SHOWN`` that matter most."""
    first = term.axes[0]
    rows = sorted(bin_names(first))
    if len(rows) > MOST_SHOWN and first.kind == "categorical":
        weight = np.abs(term.scores * np.maximum(term.weights, 1e-9)).sum(axis=1)
        rows = sorted(sorted(rows, key=lambda index: -float(weight[index]))[:MOST_SHOWN])
    return rows


def _short(name: str, most: int = 28) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def ranked(model: AdditiveModel) -> list[Term]:
    """The most important terms, largest first."""
    return sorted(model.terms, key=lambda term: -term.importance)[:MOST_SHOWN]


def in_unit(unit: str) -> str:
    """A unit in brackets, if there is one."""
    return f" ({unit})" if unit else ""


def tree_unit(feature: str) -> str:
    """The unit of a threshold of the share tree."""
    return {"gmem_mib": " MiB", "amp": ""}.get(feature, " %")


def places_of(tree: ShareTree) -> dict[int, tuple[float, int]]:
    """Node number to (x, depth): leaves side by side, every split centred over its children."""
    places: dict[int, tuple[float, int]] = {}
    leaves = 0

    def place(index: int, depth: int) -> float:
        nonlocal leaves
        node = tree.nodes[index]
        if node.feature is None:
            x = float(leaves)
            leaves += 1
        else:
            x = (place(node.below, depth + 1) + place(node.above, depth + 1)) / 2
        places[index] = (x, depth)
        return x

    place(0, 0)
    return places
