"""Share score: how much of a GPU a job leaves to others, by a decision tree small enough to print.

Labels (Lucid, row L9): a configuration has the score of the normalised speed, averaged over both sides of all its
pairings (`score_of`): Tiny (0), Medium (1) or Jumbo (2). Both sides count because a share
score speaks of harm done as well as harm taken; this reading also agrees best with the published labels
(`lucid.models.packing.evaluate` prints how well). The tree sees only what is known when packing is decided: GPU
utilisation, GPU memory utilisation, GPU memory and, if wished, the AMP flag.

Pruning is minimal cost-complexity pruning (Breiman et al. 1984, chapter 3); its alpha is chosen by leaving every two
workloads out (`choose_alpha`), since configurations of one workload resemble each other and would flatter a plain
cross-validation. sklearn grows the tree; `ShareTree` predicts without it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Annotated, Final

import numpy as np
import numpy.typing as npt
from msgspec import Meta, Struct

from lucid.core.prediction import Split, score_of
from lucid.errors import ModelError
from lucid.models.library import StoredModel
from lucid.models.packing.measured import Pairing, Usage

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.intp]

LABELS: Final = ("Tiny", "Medium", "Jumbo")  # index = share score
FEATURES: Final = ("gpu_util", "gmem_util", "gmem_mib")
_UNITS: Final = {"gpu_util": "%", "gmem_util": "%", "gmem_mib": " MiB", "amp": ""}
_ALPHAS: Final = (0.0, *(round(0.005 * step, 3) for step in range(1, 13)), *(0.01 * s for s in range(7, 21)))
_NEIGHBOURS: Final = 2


Count = Annotated[int, Meta(ge=0)]


class Node(Struct, frozen=True, omit_defaults=True):
    """A split (feature, threshold, indices of both children) or a leaf (feature None)."""

    label: Annotated[int, Meta(ge=0, le=2)]
    counts: tuple[Count, Count, Count]  # training configurations per label
    feature: str | None = None
    threshold: float = 0.0
    below: int = -1
    above: int = -1


class ShareTree(StoredModel, frozen=True, tag="lucid-share-tree/1"):
    """A decision tree as a list of nodes; the first is the root."""

    nodes: tuple[Node, ...]
    alpha: float = 0.0

    def __post_init__(self) -> None:
        if not self.nodes:
            raise ValueError("there are no nodes")
        for index, node in enumerate(self.nodes):
            if node.feature is not None and node.feature not in _UNITS:
                raise ValueError(f"nodes[{index}] splits on {node.feature!r}; known are {', '.join(_UNITS)}")
            # children come after their parent in the list, so every walk ends
            if node.feature is not None and not index < min(node.below, node.above) <= max(
                node.below, node.above
            ) < len(self.nodes):
                raise ValueError(f"the children {node.below}, {node.above} of nodes[{index}] are not later nodes")

    def predict(self, usages: Sequence[Usage]) -> IntArray:
        """Share scores, shape (len(usages),)."""
        return np.array([self._leaf(usage).label for usage in usages], dtype=np.intp)

    def path(self, usage: Usage) -> list[Split]:
        """The comparisons that lead to the usage's share score: its explanation."""
        steps, node = [], self.nodes[0]
        while node.feature is not None:
            value = _value(usage, node.feature)
            below = value <= node.threshold
            steps.append(Split(node.feature, value, below, node.threshold))
            node = self.nodes[node.below if below else node.above]
        return steps

    def _leaf(self, usage: Usage) -> Node:
        node = self.nodes[0]
        while node.feature is not None:
            below = _value(usage, node.feature) <= node.threshold
            node = self.nodes[node.below if below else node.above]
        return node

    @property
    def leaves(self) -> int:
        """Number of leaves."""
        return sum(node.feature is None for node in self.nodes)

    def to_text(self) -> str:
        """The tree as indented text."""
        return "\n".join(self._lines(0, ""))

    def _lines(self, index: int, indent: str) -> list[str]:
        node = self.nodes[index]
        if node.feature is None:
            counts = ", ".join(f"{n} {name}" for n, name in zip(node.counts, LABELS, strict=True) if n)
            return [f"{indent}{LABELS[node.label]} ({node.label})  [{counts}]"]
        bar = f"{node.threshold:g}{_UNITS.get(node.feature, '')}"
        return [
            f"{indent}{node.feature} <= {bar}",
            *self._lines(node.below, indent + "    "),
            f"{indent}{node.feature} > {bar}",
            *self._lines(node.above, indent + "    "),
        ]


def share_labels(usages: Sequence[Usage], pairings: Sequence[Pairing]) -> list[int | None]:
    """Labels by the paper's rule from measured pairs.

    A configuration never measured beside another keeps the label its profile brings (a workload too large to
    be paired has the label of its table), or None."""
    speeds: dict[str | None, list[float]] = {}
    for pairing in pairings:
        average = (pairing.speed_first + pairing.speed_second) / 2
        for config in {pairing.first.config, pairing.second.config}:
            speeds.setdefault(config, []).append(average)
    return [
        score_of(math.fsum(own) / len(own)) if (own := speeds.get(usage.config)) else usage.label for usage in usages
    ]


def fit_share(usages: Sequence[Usage], labels: Sequence[int], *, alpha: float | None = None) -> ShareTree:
    """Grow and prune the tree; without `alpha` it is chosen by `choose_alpha`.

    Thresholds are rounded to whole units where no training value lies between: drivers report whole percent
    and MiB, so finer ones would pretend a precision that cannot be measured.

    Raises:
        ModelError: no data, labels outside 0, 1, 2, or a feature that is missing."""
    table = _table(usages)
    target = _targets(labels, len(usages))
    return _grow(table, target, choose_alpha(usages, labels) if alpha is None else alpha)


def choose_alpha(usages: Sequence[Usage], labels: Sequence[int]) -> float:
    """Pruning strength by leaving out every two workloads together.

    The loss is the squared distance of the share scores (Tiny for Jumbo is four times as bad as Medium for
    Jumbo). It is averaged over neighbouring alphas, so that a plateau wins over a lucky spike, and ties go to
    the stronger pruning. With fewer than four workloads the middle of the grid is returned."""
    from sklearn.tree import DecisionTreeClassifier

    table, target = _table(usages), _targets(labels, len(usages))
    groups = np.array([usage.workload or "" for usage in usages])
    names = sorted(set(groups.tolist()))
    if len(names) < 4:
        return _ALPHAS[len(_ALPHAS) // 2]
    loss = np.zeros(len(_ALPHAS))
    for pair in itertools.combinations(names, 2):
        out = np.isin(groups, pair)
        held = [usage for usage, is_out in zip(usages, out.tolist(), strict=True) if is_out]
        # The pruned tree changes only at the alphas of this path: as few fits as there are trees.
        path = DecisionTreeClassifier(random_state=0).cost_complexity_pruning_path(table[~out], target[~out])
        losses: dict[int, float] = {}
        for number, alpha in enumerate(_ALPHAS):
            turn = int(np.searchsorted(path.ccp_alphas, alpha, side="right"))
            if turn not in losses:
                tree = _grow(table[~out], target[~out], alpha)
                losses[turn] = float(((tree.predict(held) - target[out]) ** 2).sum())
            loss[number] += losses[turn]
    width = 2 * _NEIGHBOURS + 1
    smooth = np.convolve(np.pad(loss, _NEIGHBOURS, mode="edge"), np.full(width, 1 / width), "valid")
    return float(_ALPHAS[np.flatnonzero(smooth <= smooth.min() + 1e-9)[-1]])


def _grow(table: FloatArray, target: IntArray, alpha: float) -> ShareTree:
    # Imported here: predicting must not load sklearn.
    from sklearn.tree import DecisionTreeClassifier

    tree = DecisionTreeClassifier(ccp_alpha=alpha, random_state=0).fit(table, target).tree_
    nodes: list[Node] = []

    def add(index: int, rows: IntArray) -> int:
        counts = np.bincount(target[rows], minlength=3)
        label = int(counts.argmax())
        place = len(nodes)
        nodes.append(Node(label, (int(counts[0]), int(counts[1]), int(counts[2]))))
        column = int(tree.feature[index])
        if column >= 0:
            values = table[rows, column]
            threshold = _rounded(values, float(tree.threshold[index]))
            below = add(int(tree.children_left[index]), rows[values <= threshold])
            above = add(int(tree.children_right[index]), rows[values > threshold])
            nodes[place] = Node(label, nodes[place].counts, FEATURES[column], threshold, below, above)
        return place

    add(0, np.arange(len(target), dtype=np.intp))
    return ShareTree(tuple(nodes), alpha)


def _rounded(values: FloatArray, threshold: float) -> float:
    whole = float(round(threshold))
    same = values[values <= threshold].max() <= whole < values[values > threshold].min()
    return whole if same else threshold


def _value(usage: Usage, feature: str) -> float:
    value = getattr(usage, feature)
    if value is None:
        raise ModelError(f"share score needs {feature}, which the profile of {usage.config} lacks; profile it")
    return float(value)


def _table(usages: Sequence[Usage]) -> FloatArray:
    if not usages:
        raise ModelError("no profiled configuration to train the share score on; profile some jobs first")
    return np.array([[_value(usage, name) for name in FEATURES] for usage in usages], dtype=np.float64)


def _targets(labels: Sequence[int], rows: int) -> IntArray:
    target = np.array(labels, dtype=np.intp)
    if target.shape != (rows,) or not np.isin(target, (0, 1, 2)).all():
        raise ModelError(f"labels must be {rows} share scores 0, 1 or 2, got {list(labels)[:5]}...")
    return target
