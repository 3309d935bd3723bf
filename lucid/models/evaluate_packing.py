"""How well share scores and the pair model judge what they were not trained on.

``python -m lucid.models.evaluate_packing --profiles profiles.csv --pairs pairs.csv --json [--curve out.png]``

- ``accuracy_lomo``: share score, the configuration's whole workload ("model" in the files) left out, against
the
  label column of the profiles; ``accuracy_lomo_computed``: trained on and judged by labels computed from
  pairs.
- ``pair_*_lomo``: packing decisions with both sides' workloads left out of training.
- ``pair_*_loco``: only one side's configuration is new, its partner is known; every pair is judged once for
  each of its sides. ``pair_*_loco_both`` is harder: both configurations are new (and with them the seventh of
  all configurations that shares their fold).

In all of them the bar that decides packing is set inside the training part (`lucid.models.crossval`).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import threadpoolctl  # type: ignore[import-untyped]  # comes with sklearn, needed to train

from lucid.errors import ModelError
from lucid.models.crossval import Honest, judge, sides_by
from lucid.models.measured import Pairing, Usage, read_pairs, read_profiles
from lucid.models.packing import Thresholds, fit_share, share_labels
from lucid.models.pairs import RECALL_GOAL, PairDesign

__all__ = ["evaluate", "leave_workload_out", "main"]

_FOLDS = 8


def evaluate(
    profiles: Path,
    pairs: Path,
    *,
    curve: Path | None = None,
    thresholds: Thresholds | None = None,
    recall: float = RECALL_GOAL,
) -> dict[str, Any]:
    """All figures, by name; `curve` also draws precision over recall there (PNG).

    Raises:
        ModelError: a file cannot be read or makes no sense.
    """
    usages = read_profiles(profiles)
    pairings = read_pairs(pairs, usages)
    # Thousands of small systems: threads would wait for each other longer than they compute.
    with threadpoolctl.threadpool_limits(1):
        return _evaluate(usages, pairings, curve, thresholds, recall)


def _evaluate(
    usages: Sequence[Usage],
    pairings: Sequence[Pairing],
    curve: Path | None,
    thresholds: Thresholds | None,
    recall: float,
) -> dict[str, Any]:
    judged = _share_figures(usages, share_labels(usages, pairings, thresholds))
    design = PairDesign(pairings)
    honest = {
        "lomo": judge(design, pairings, sides_by(pairings, "workload"), "both", recall),
        "loco": judge(design, pairings, sides_by(pairings, "config"), "one", recall),
        "loco_both": judge(design, pairings, sides_by(pairings, "config", _FOLDS), "both", recall),
    }
    for name, decisions in honest.items():
        judged[f"pair_precision_{name}"] = round(decisions.precision, 4)
        judged[f"pair_recall_{name}"] = round(decisions.recall, 4)
    if curve is not None:
        _draw(honest, curve)
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


def _draw(honest: dict[str, Honest], path: Path) -> None:
    # Imported here: only drawing needs matplotlib.
    from lucid.models.plots import draw_tradeoff

    named = {
        "lomo": "both workloads new",
        "loco_both": "both configurations new",
        "loco": "one configuration new",
    }
    draw_tradeoff({named[name]: decisions for name, decisions in honest.items()}, path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="lucid.models.evaluate_packing", description=__doc__)
    parser.add_argument("--profiles", type=Path, required=True)
    parser.add_argument("--pairs", type=Path, required=True)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--curve", type=Path, help="draw precision over recall into this PNG")
    parser.add_argument("--recall", type=float, default=RECALL_GOAL, help="share of free pairs to find")
    parser.add_argument("--tiny", type=float, default=Thresholds.tiny)
    parser.add_argument("--medium", type=float, default=Thresholds.medium)
    given = parser.parse_args(arguments)
    try:
        figures = evaluate(
            given.profiles,
            given.pairs,
            curve=given.curve,
            thresholds=Thresholds(given.tiny, given.medium),
            recall=given.recall,
        )
    except ModelError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(json.dumps(figures) if given.json else "\n".join(f"{k}: {v}" for k, v in figures.items()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
