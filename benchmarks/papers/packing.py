"""Lucid's packing (ASPLOS '23, section 4.2): pairs free of interference, chances found, the tree of share scores."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator, Sequence
from typing import Final

from benchmarks.packs import shared
from benchmarks.papers.row import Row
from lucid.models.packing.evaluate import evaluate
from lucid.models.packing.measured import Pairing, Usage, read_pairs, read_profiles

__all__ = ["measured", "pairs", "share"]

_FREE: Final = 0.85
_GSS: Final = 2
_PACKED, _FOUND = "packed pairs free, %", "free pairs found, %"
_BY_LABELS: Final = {(0, 0): 98, (0, 1): 94, (0, 2): 80, (1, 1): 73, (1, 2): 29, (2, 2): 10}


def measured() -> tuple[list[Usage], list[Pairing]]:
    """The published measurements: 66 configurations alone, 1,388 pairs of them."""
    usages = read_profiles(shared("profiles.csv"))
    return usages, read_pairs(shared("pairs.csv"), usages)


def pairs() -> Iterator[Row]:
    """The published rule on the published pairs, then what stands between it and the claim."""
    _, found = measured()
    claim = {_PACKED: 98.1, _FOUND: 87.0}
    average = {pair: (pair.speed_first + pair.speed_second) / 2 >= _FREE for pair in found}
    both = {pair: pair.slower >= _FREE for pair in found}
    packed = [pair for pair in found if _labels(pair)[0] + _labels(pair)[1] <= _GSS]
    for what, free in (("the pair's average is 0.85 or more", average), ("both are at 0.85 or more", both)):
        yield Row(f"rule of labels, free: {what}", _shares(packed, free), claim, at_least=True)
    for labels in itertools.combinations_with_replacement((0, 1, 2), 2):
        of = [pair for pair in found if tuple(sorted(_labels(pair))) == labels]
        share = 100.0 * sum(both[pair] for pair in of) / len(of)
        yield Row(
            f"pairs of labels {labels[0]} and {labels[1]} ({len(of)})",
            {_PACKED: share}, {_PACKED: _BY_LABELS[labels]}, within=0.05,
        )  # fmt: skip
    for gpu in ("v100", "p100"):
        rows = _other(gpu)
        share = 100.0 * sum(slower >= _FREE for slower in rows) / len(rows)
        yield Row(f"all pairs, Gavel's table of the {gpu.upper()} ({len(rows)})", {_PACKED: share})


def share() -> Iterator[Row]:
    """What is judged by what it was not trained on; published: as measured on the published analyser, which leaks, or
    on our re-run without the leak."""
    found = evaluate(shared("profiles.csv"), shared("pairs.csv"))
    accuracy = "right share scores, %"
    ours = {accuracy: 100 * found["accuracy_lomo"]}
    yield Row("share score, the whole model left out", ours, {accuracy: 79.0}, within=0.01)
    for what, key, published in (
        ("pair model, both models left out, beside ridge regression", "lomo", (88.0, 82.1)),
        ("pair model, one configuration new, beside the rule with predicted labels", "loco", (93.7, 83.4)),
        ("pair model, both configurations new", "loco_both", None),
    ):
        ours = {_PACKED: 100 * found[f"pair_precision_{key}"], _FOUND: 100 * found[f"pair_recall_{key}"]}
        theirs = {} if published is None else dict(zip((_PACKED, _FOUND), published, strict=True))
        yield Row(what, ours, theirs, at_least=True)


def _labels(pair: Pairing) -> tuple[int, int]:
    assert pair.first.label is not None
    assert pair.second.label is not None
    return pair.first.label, pair.second.label


def _shares(chosen: Sequence[Pairing], free: dict[Pairing, bool]) -> dict[str, float]:
    right = sum(free[pair] for pair in chosen)
    return {_PACKED: 100.0 * right / len(chosen), _FOUND: 100.0 * right / sum(free.values())}


def _other(gpu: str) -> list[float]:
    with shared(f"pairs_{gpu}_simulation.csv").open(newline="", encoding="utf-8") as file:
        return [min(float(row["speed1"]), float(row["speed2"])) for row in csv.DictReader(file)]
