"""Share scores and pairs as kinds of model, judged on measurements that are held back and then learned from.

Measurements have no times: every third configuration (pair) that the version in service has not learned from is held
back to judge by, and once judged the new version learns from it too. They do not age, and nothing drifts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final, Generic, TypeVar

import numpy as np

from lucid.models.kind import Kind, Tables, Task, TooFew
from lucid.models.library import Library, StoredModel
from lucid.models.packing.measured import Pairing, Usage
from lucid.models.packing.pair_speed import PairModel, fit_pairs
from lucid.models.packing.share_score import ShareTree, fit_share, share_labels
from lucid.models.training import Drift, Evidence, Rules

M = TypeVar("M", bound=StoredModel)
Row = TypeVar("Row")
Measured = tuple[Sequence[Usage], Sequence[Pairing]]
"""Configurations measured alone, and pairs of them measured together."""

_THIRD: Final = 3
_NEW: Final = 10
_LEAST_NEW: Final = 3


class _MeasuredKind(Kind[M, Measured], Generic[M, Row]):
    """Base of both kinds. ``rows``: what the kind learns from, each with a digest by which it is recognised."""

    data = "measured"

    def _rows(self, data: Measured) -> Sequence[tuple[str, Row]]:
        raise NotImplementedError

    def _fit(self, rows: Sequence[Row]) -> M:
        raise NotImplementedError

    def _judge(self, rows: Sequence[Row]) -> Callable[[M], float]:
        """The loss on these rows."""
        raise NotImplementedError

    def rules(self, rules: Rules) -> Rules:
        """The bounds, in measurements."""
        return replace(rules, new_jobs=_NEW, least_jobs=_LEAST_NEW)

    def task(self, library: Library, data: Measured) -> Task[M]:
        """Fit on the rows that are not held back, judge on the others, store a model that has learned from all."""
        rows = self._rows(data)
        known = self._learned(library)
        new = sorted({digest for digest, _ in rows if digest not in known})
        if len(new) < _THIRD:
            raise TooFew(f"{self.name}: {len(new)} new measurements since the version in service; measure more first")
        held = set(new[::_THIRD])
        rest = [row for digest, row in rows if digest not in held]
        judged = [row for digest, row in rows if digest in held]
        facts = {
            "learned_from": len(rows),
            "judged_on": len(judged),
            "learned": sorted({digest for digest, _ in rows}),
        }
        everything = [row for _, row in rows]
        return Task(lambda: self._fit(rest), self._judge(judged), facts, final=lambda: self._fit(everything))

    def evidence(self, library: Library, data: Measured, now: datetime) -> Evidence:
        """The number of new measurements."""
        digests = [digest for digest, _ in self._rows(data)]
        if library.serving(self.name) is None:
            return Evidence(now, None, len(digests), Drift(None, 0))
        known = self._learned(library)
        return Evidence(now, now, sum(digest not in known for digest in digests), Drift(None, 0))

    def _learned(self, library: Library) -> set[str]:
        version = self.in_service(library)
        return set() if version is None else set(version.facts.get("learned", ()))


class ShareKind(_MeasuredKind[ShareTree, tuple[Usage, int]]):
    """The share tree; its loss is the mean squared distance of share scores."""

    name = "share"
    stand_in = "synthetic share tree"
    model = ShareTree

    def words(self, model: ShareTree) -> list[str]:
        """The tree as text."""
        return [model.to_text()]

    def _rows(self, data: Measured) -> Sequence[tuple[str, tuple[Usage, int]]]:
        return [(_digest(f"{usage.config}:{label}"), (usage, label)) for usage, label in labelled(*data)]

    def _fit(self, rows: Sequence[tuple[Usage, int]]) -> ShareTree:
        return fit_share([usage for usage, _ in rows], [label for _, label in rows])

    def _judge(self, rows: Sequence[tuple[Usage, int]]) -> Callable[[ShareTree], float]:
        usages, labels = [usage for usage, _ in rows], np.array([label for _, label in rows])
        return lambda tree: float(np.square(tree.predict(usages) - labels).mean())


class PairsKind(_MeasuredKind[PairModel, Pairing]):
    """The pair model; its loss is the mean absolute error of the slower side's speed."""

    name = "pairs"
    stand_in = "contention model"
    model = PairModel

    def words(self, model: PairModel) -> list[str]:
        """The speed from which on it packs."""
        return [f"  packs where the slower side is expected to reach {model.threshold:.3f} of its speed alone"]

    def tables(self, model: PairModel) -> list[Tables]:
        """The one table of the pair model."""
        return [Tables("Speed with a partner", "share of the speed alone", model.model)]

    def _rows(self, data: Measured) -> Sequence[tuple[str, Pairing]]:
        return [(_pair_digest(pairing), pairing) for pairing in data[1]]

    def _fit(self, rows: Sequence[Pairing]) -> PairModel:
        return fit_pairs(rows)

    def _judge(self, rows: Sequence[Pairing]) -> Callable[[PairModel], float]:
        pairs, truth = [(p.first, p.second) for p in rows], np.array([p.slower for p in rows])
        return lambda model: float(np.abs(model.speeds(pairs).min(axis=1) - truth).mean())


SHARE: Final = ShareKind()
PAIRS: Final = PairsKind()


def labelled(usages: Sequence[Usage], pairings: Sequence[Pairing]) -> list[tuple[Usage, int]]:
    """Configurations with their measurer's label, else the one computed from pairs."""
    labels = [
        given.label if given.label is not None else computed
        for given, computed in zip(usages, share_labels(usages, pairings), strict=True)
    ]
    return [(usage, label) for usage, label in zip(usages, labels, strict=True) if label is not None]


def _pair_digest(pairing: Pairing) -> str:
    sides = sorted(
        [(str(pairing.first.config), pairing.speed_first), (str(pairing.second.config), pairing.speed_second)]
    )
    return _digest(repr(sides))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:12]
