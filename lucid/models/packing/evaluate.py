"""Cross-validated accuracy of share scores and of the pair model, on workloads that they were not trained on.

- ``accuracy_lomo``: share score, the configuration's whole workload ("model" in the files) left out, against the
  label column of the profiles; ``accuracy_lomo_computed``: trained on and judged by labels computed from pairs.
- ``pair_*_lomo``: packing decisions with both sides' workloads left out of training.
- ``pair_*_loco``: only one side's configuration is new, its partner is known; every pair is judged once for
  each of its sides. ``pair_*_loco_both`` is harder: both configurations are new (and with them the seventh of
  all configurations that shares their fold).

In all of them the bar that decides packing is set inside the training part (`lucid.models.packing.pair_speed`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import threadpoolctl  # type: ignore[import-untyped]  # comes with sklearn, needed to train

from lucid.models.packing.measured import Pairing, Usage, read_pairs, read_profiles
from lucid.models.packing.pair_speed import RECALL_GOAL, Leaving, PairDesign, judge, sides_by
from lucid.models.packing.share_score import fit_share, share_labels

IntArray = npt.NDArray[np.intp]

_FOLDS = 8


def evaluate(profiles: Path, pairs: Path, *, progress: Callable[[int, int], None] | None = None) -> dict[str, Any]:
    """All figures, by name.

    `progress` is called with (steps done, steps in all).

    Raises:
        TraceError: a file cannot be read or makes no sense."""
    usages = read_profiles(profiles)
    pairings = read_pairs(pairs, usages)
    # Thousands of small systems: threads would wait for each other longer than they compute.
    with threadpoolctl.threadpool_limits(1):
        return _evaluate(usages, pairings, progress)


def _evaluate(
    usages: Sequence[Usage],
    pairings: Sequence[Pairing],
    progress: Callable[[int, int], None] | None,
) -> dict[str, Any]:
    judged = _share_figures(usages, share_labels(usages, pairings))
    design = PairDesign(pairings)
    asked: dict[str, tuple[IntArray, Leaving]] = {
        "lomo": (sides_by(pairings, "workload"), "both"),
        "loco": (sides_by(pairings, "config"), "one"),
        "loco_both": (sides_by(pairings, "config", _FOLDS), "both"),
    }
    honest = {}
    for number, (name, (sides, leaving)) in enumerate(asked.items(), start=1):
        if progress is not None:
            progress(number, len(asked) + 1)
        honest[name] = judge(design, pairings, sides, leaving, RECALL_GOAL)
    for name, decisions in honest.items():
        judged[f"pair_precision_{name}"] = round(decisions.precision, 4)
        judged[f"pair_recall_{name}"] = round(decisions.recall, 4)
    return judged | {"configurations": len(usages), "pairs": len(pairings)}


def leave_workload_out(usages: Sequence[Usage], labels: Sequence[int]) -> list[int]:
    """Share score of every configuration by a tree grown and pruned without its workload."""
    predicted = [0] * len(usages)
    for workload in sorted({usage.workload or "" for usage in usages}):
        out = [number for number, usage in enumerate(usages) if (usage.workload or "") == workload]
        rest = sorted(set(range(len(usages))) - set(out))
        tree = fit_share([usages[number] for number in rest], [labels[number] for number in rest])
        scores = tree.predict([usages[number] for number in out]).tolist()
        for number, score in zip(out, scores, strict=True):
            predicted[number] = score
    return predicted


def _share_figures(usages: Sequence[Usage], computed: Sequence[int | None]) -> dict[str, Any]:
    given = [usage.label for usage in usages]
    figures: dict[str, Any] = {"accuracy_lomo": None, "accuracy_lomo_computed": None}
    for name, labels in (("accuracy_lomo", given), ("accuracy_lomo_computed", computed)):
        known = [(usage, label) for usage, label in zip(usages, labels, strict=True) if label is not None]
        if known:
            truth = [label for _, label in known]
            predicted = leave_workload_out([usage for usage, _ in known], truth)
            figures[name] = round(float(np.mean(np.equal(predicted, truth))), 4)
    both = [(a, b) for a, b in zip(given, computed, strict=True) if a is not None and b is not None]
    figures["labels_agree"] = round(float(np.mean([a == b for a, b in both])), 4) if both else None
    return figures
