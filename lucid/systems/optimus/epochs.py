"""How many epochs a job will take (O4, O5)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lucid.systems.optimus.fit import LossModel, fit_loss

__all__ = ["converged_at", "end_epoch"]

WINDOW = 10
LITTLE_CHANGE = 0.05
MOST_EPOCHS = 100
AFTER_FAILURE = 20


def converged_at(model: LossModel, progress: float) -> int | None:
    """The epoch at which the loss has hardly changed for ten (O4).

    The first epoch e with loss(e - i) - loss(e) <= 0.05 for i = 0..9, looked for from ten before the
    present progress on, with a full window.

    Args:
        model: the fitted loss.
        progress: epochs done.

    Returns:
        The epoch; None if it lies beyond 100.
    """
    start = max(0, int(progress) - WINDOW)
    loss = model.loss(np.arange(start, MOST_EPOCHS + 1))
    for end in range(WINDOW - 1, len(loss)):
        # All ten differences, as the rule says; for a falling curve the oldest is the largest.
        if (loss[end - WINDOW + 1 : end + 1] - loss[end] <= LITTLE_CHANGE).all():
            return start + end
    return None


def end_epoch(
    progress: float,
    *,
    specified: float | None = None,
    same_type: Sequence[float] = (),
    epochs: Sequence[float] = (),
    losses: Sequence[float] = (),
) -> float:
    """The epoch at which a job will end (O5).

    Args:
        progress: epochs done.
        specified: epochs that the user gave; they win.
        same_type: epochs known of jobs of the same type; their mean, rounded down, comes next.
        epochs: epochs at which the loss was seen.
        losses: the losses.

    Returns:
        The specified or the mean number; else where the fitted loss converges, at least the present
        epoch; else ``progress`` + 20.
    """
    if specified is not None:
        return specified
    if same_type:
        return int(sum(same_type) / len(same_type))
    model = fit_loss(epochs, losses)
    found = None if model is None else converged_at(model, progress)
    return progress + AFTER_FAILURE if found is None else max(float(found), progress)
