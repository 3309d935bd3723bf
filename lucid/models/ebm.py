"""Copies the tables out of a fitted explainable boosting machine (interpret), once, after training."""

from __future__ import annotations

from typing import Any

from lucid.errors import ModelError
from lucid.models.additive import LINKS, AdditiveModel, Axis, Term, frozen

__all__ = ["from_ebm"]


def from_ebm(ebm: Any) -> AdditiveModel:
    """Copy the tables out of a fitted ``interpret.glassbox.ExplainableBoostingRegressor`` (0.7).

    Interpret bins a feature by ``bins_[feature][resolution]``, resolution 0 for main effects and 1 (or the
    last there is) for pairs; a list holds cut points or a name-to-bin mapping; tensors keep missing at 0 and
    unknown last.

    Raises:
        ModelError: not a fitted regressor, a link other than identity or log, or a term of more than
            two features.
    """
    link = getattr(ebm, "link_", None)
    if link not in LINKS or not isinstance(ebm.intercept_, float):
        raise ModelError(
            f"cannot take tables from this estimator (link {link!r}); give a fitted regressor with "
            f"link {' or '.join(LINKS)}"
        )
    axes: dict[tuple[int, int], Axis] = {}
    terms = []
    for features, name, scores, weights in zip(
        ebm.term_features_, ebm.term_names_, ebm.term_scores_, ebm.bin_weights_, strict=True
    ):
        if len(features) > 2:
            raise ModelError(f"term {name!r} joins {len(features)} features; only one or two can be read")
        used = []
        for feature in features:
            level = min(len(ebm.bins_[feature]), len(features)) - 1
            if (feature, level) not in axes:
                axes[feature, level] = _axis(str(ebm.feature_names_in_[feature]), ebm.bins_[feature][level])
            used.append(axes[feature, level])
        terms.append(Term(str(name), tuple(used), frozen(scores), frozen(weights)))
    return AdditiveModel(float(ebm.intercept_), str(link), tuple(terms))


def _axis(feature: str, bins: Any) -> Axis:
    if isinstance(bins, dict):
        return Axis(feature, "categorical", categories={str(name): int(index) for name, index in bins.items()})
    return Axis(feature, "continuous", cuts=tuple(float(cut) for cut in bins))
