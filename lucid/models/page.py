"""A model as one HTML page: weights of its terms, each term's curve, or its tree, as inline SVG."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lucid.html.charts import WIDTH, Chart, shortened, sideways, steps
from lucid.html.page import write_page
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

Drawn = tuple[str, Chart, str]
"""Heading, chart, and the text under it."""

_DATES_FROM = 1e9
"""Facts from this size on are Unix times."""
_KEYS = (("raises the prediction", "plus"), ("lowers it", "minus"))


def additive_page(
    model: AdditiveModel,
    path: Path,
    title: str,
    unit: str = "",
    facts: Mapping[str, Any] | None = None,
    more: Sequence[tuple[str, str, AdditiveModel]] = (),
) -> None:
    """Write a page with facts, importances and the curves of the most important terms; then those of further parts
    (title, unit, tables) of the same model.

    Raises: OSError: it cannot be written."""
    known = {"intercept": f"{model.intercept:.4g}{in_unit(unit)}", "terms": len(model.terms), **_facts(facts)}
    parts = [_part("Terms" if not more else title, unit, model), *(_part(*part) for part in more)]
    lead = "The prediction is the intercept plus one addend per term."
    context = {"title": title, "lead": lead, "facts": known, "parts": parts}
    write_page(path, "lucid.models", "page.html.j2", context)


def tree_page(tree: ShareTree, path: Path, title: str, facts: Mapping[str, Any] | None = None) -> None:
    """Write a page with facts and the tree.

    Raises: OSError: it cannot be written."""
    words = "Start at the top; yes leads to the left. A leaf says what it decides, and for how many training rows."
    part = {"heading": "The tree", "words": words, "pictures": [("", chart_of_tree(tree), "")]}
    lead = f"A decision tree of {tree.leaves} leaves says how heavy a job is: {', '.join(LABELS)}."
    write_page(
        path, "lucid.models", "page.html.j2", {"title": title, "lead": lead, "facts": _facts(facts), "parts": [part]}
    )


def _facts(facts: Mapping[str, Any] | None) -> dict[str, Any]:
    """The facts as a person reads them, without unknown ones."""
    return {name.replace("_", " "): _fact(value) for name, value in (facts or {}).items() if value is not None}


def _fact(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return time.strftime("%F", time.gmtime(value)) if value >= _DATES_FROM else f"{value:.4g}"


def _part(heading: str, unit: str, model: AdditiveModel) -> dict[str, Any]:
    terms = ranked(model)
    hidden = len(model.terms) - len(terms)
    words = (
        "Each chart shows the addend of one term over the values of its feature. Grey shows how much training data "
        "stood behind a value. Point at a chart to read it."
    )
    importances = sideways(
        f"{heading}: importances",
        f"Mean absolute contribution{in_unit(unit)} of each term, largest first.",
        [(t.name, t.importance, f"{t.name}: {t.importance:.4g}{in_unit(unit)}") for t in terms],
        f"mean absolute contribution{in_unit(unit)}",
    )
    note = f"and {hidden} smaller terms" if hidden > 0 else ""
    charts = [("Importances", importances, note), *(chart_of_term(term, unit) for term in terms)]
    return {"heading": heading, "words": words, "pictures": charts}


def chart_of_term(term: Term, unit: str = "") -> Drawn:
    """One shape function: steps over a continuous feature, bars over categories, a heat map over two."""
    if len(term.axes) == 2:
        return _heat(term, unit)
    return _steps(term, unit) if term.axes[0].kind == "continuous" else _bars(term, unit)


def _label(what: str, score: float, unit: str, share: float) -> str:
    return f"{what}: {score:+.4g}{in_unit(unit)}, {share:.1%} of the data"


def _steps(term: Term, unit: str) -> Drawn:
    axis = term.axes[0]
    names = bin_names(axis)
    shares = term.weights[1:-1] / max(float(term.weights.sum()), 1e-12)
    bins = [
        (float(term.scores[i]), _label(f"{axis.feature} {names[i]}", float(term.scores[i]), unit, float(share)))
        for i, share in zip(sorted(names), shares, strict=True)
    ]
    chart = steps(
        term.name,
        f"Contribution{in_unit(unit)} of {term.name} over its values, as steps of one width for each bin.",
        bins,
        [float(share) for share in shares],
        [f"{cut:.3g}" for cut in axis.cuts],
        axis.feature,
        f"contribution{in_unit(unit)}" if len(unit) < 12 else "contribution",
        float(term.scores[0]) if term.weights[0] > 0 else None,
    )
    return term.name, chart, "Bins have the same width here, whatever they span."


def _bars(term: Term, unit: str) -> Drawn:
    names, total = bin_names(term.axes[0]), max(float(term.weights.sum()), 1e-12)
    order = sorted(names, key=lambda i: -abs(float(term.scores[i])) * float(term.weights[i]))[:MOST_SHOWN]
    order.sort(key=lambda i: float(term.scores[i]))
    rows = [
        (
            names[i],
            float(term.scores[i]),
            _label(names[i], float(term.scores[i]), unit, float(term.weights[i]) / total),
        )
        for i in order
    ]
    chart = sideways(
        term.name,
        f"Contribution{in_unit(unit)} of each value of {term.name}.",
        rows,
        f"contribution{in_unit(unit)}",
        keys=_KEYS,
    )
    cut = f"The {len(order)} that matter most of {len(names)}." if len(names) > len(order) else ""
    return term.name, chart, cut


def _heat(term: Term, unit: str) -> Drawn:
    first, second = term.axes
    names_y, names_x = bin_names(first), bin_names(second)
    rows, columns = rows_shown(term), sorted(names_x)
    left, top, right, tall = 130, 8, 586, max(6.0, min(20.0, 320 / max(len(rows), 1)))
    wide, bottom = (right - left) / max(len(columns), 1), top + tall * len(rows)
    chart = Chart(
        term.name,
        f"Contribution{in_unit(unit)} of {first.feature} (down) and {second.feature} (across) together.",
        WIDTH,
        bottom + 64,
        _KEYS,
    )
    most = max(float(np.abs(term.scores[np.ix_(rows, columns)]).max(initial=0.0)), 1e-12)
    for r, i in enumerate(rows):
        if r % max(1, round(14 / tall + 0.49)) == 0:
            chart.write("y", left - 8, top + tall * (r + 0.5) + 4, shortened(names_y[i], 16))
        for c, j in enumerate(columns):
            score = float(term.scores[i, j])
            tip = f"{first.feature} {names_y[i]}, {second.feature} {names_x[j]}: {score:+.4g}{in_unit(unit)}"
            kind, places = "plus" if score > 0 else "minus", (left + wide * c, top + tall * r)
            chart.rect(kind, *places, wide, tall, tip)
            chart.marks[-1].places["fill-opacity"] = round(abs(score) / most, 2)
    every = max(1, round(64 / wide + 0.49))
    for c, j in enumerate(columns):
        if c % every == 0:
            chart.write("x", left + wide * (c + 0.5), bottom + 16, shortened(names_x[j], 11))
    chart.write("x name", (left + right) / 2, bottom + 38, second.feature)
    note = f"Down: {first.feature}. The stronger the colour, the more: at most {most:.3g}{in_unit(unit)}."
    return term.name, chart, note


def chart_of_tree(tree: ShareTree) -> Chart:
    """The decision tree, root on top; leaves coloured by label with their training counts."""
    places = places_of(tree)
    depth = max(y for _, y in places.values())
    wide, tall, gap_x, gap_y = 122, 52, 12, 40
    chart = Chart(
        "The tree of share scores",
        f"A decision tree with {tree.leaves} leaves; yes leads to the left.",
        (wide + gap_x) * tree.leaves + gap_x,
        (tall + gap_y) * (depth + 1) + 12,
        [(label, f"leaf{i} box") for i, label in enumerate(LABELS)],
        wide=True,
    )
    middle = {i: (gap_x + wide / 2 + x * (wide + gap_x), 6 + y * (tall + gap_y)) for i, (x, y) in places.items()}
    for index, node in enumerate(tree.nodes):
        if node.feature is None:
            continue
        x, y = middle[index]
        for child, word in ((node.below, "yes"), (node.above, "no")):
            cx, cy = middle[child]
            chart.line("branch", x, y + tall, cx, cy)
            chart.write("mark middle", (x + cx) / 2, (y + tall + cy) / 2 + 4, word)
    for index, node in enumerate(tree.nodes):
        x, y = middle[index]
        if node.feature is None:
            counts = ", ".join(f"{n} {name}" for n, name in zip(node.counts, LABELS, strict=True) if n)
            chart.rect(f"box leaf{node.label}", x - wide / 2, y, wide, tall, counts)
            lines = (f"{LABELS[node.label]} ({node.label})", f"{sum(node.counts)} rows")
            tip = counts
        else:
            chart.rect("box", x - wide / 2, y, wide, tall)
            lines = (node.feature, f"<= {node.threshold:g}{tree_unit(node.feature)}?")
            tip = ""
        for i, text in enumerate(lines):
            chart.write("middle", x, y + 22 + 18 * i, text, tip)
    return chart
