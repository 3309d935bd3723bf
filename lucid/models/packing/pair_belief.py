"""What is believed of a pair that was never seen, from the pairs that were: guesses, corrected by what they missed.

A guess of a pair's speeds (the pair model's, the contention model's) is made on other GPUs than the site's. Each pair
seen says by how much the guess missed. These misses are taken apart as random effects, each shrunk towards zero:

    miss of a beside b = all pairs + family of a + partner's family b + a + partner b + families of both

(a random-effects analysis of variance with crossed factors, fitted by backfitting: Hastie and Tibshirani,
Generalized Additive Models, 1990). The families are the models of the workloads' labels, or the programs' names
without numbers. A few dozen pairs then say what all the thousands do on this kind of GPU.
"""

from __future__ import annotations

from typing import Final

from lucid.models.duration.features import name_stem

__all__ = ["PairBelief", "family"]

Key = tuple[str, ...]
_SHRINK: Final = (0.5, 2.0, 2.0, 3.0, 3.0, 1.0)
"""How many misses an effect of each level must have to be believed half."""
_SWEEPS: Final = 6
_REFIT_SHARE: Final = 0.1
"""The effects are fitted anew once so many more sides are known …"""
_FEW: Final = 20
"""… and at every new side up to so many."""
_LEAST, _MOST = 0.05, 1.0


def family(workload: str) -> str:
    """What a workload has in common with its like: the first part of a label ``model|data|batch|amp``, else the name
    without case and numbers."""
    head, bar, _ = workload.partition("|")
    return head if bar else name_stem(workload) or ""


def _levels(own: str, other: str) -> tuple[Key, ...]:
    mine, theirs = family(own), family(other)
    return (), ("of", mine), ("pf", theirs), ("o", own), ("p", other), ("ff", mine, theirs)


class PairBelief:
    """Misses of the guesses by side ``(workload, partner's workload)``, and the effects that they are made of."""

    def __init__(self) -> None:
        self._misses: dict[tuple[str, str], float] = {}
        self._keys: dict[tuple[str, str], tuple[Key, ...]] = {}
        self._effects: dict[Key, float] = {}
        self._fitted = 0
        self._told: dict[tuple[str, str], float] = {}

    def knows(self, own: str, other: str) -> bool:
        """Was a pair of these two seen?"""
        return (own, other) in self._misses

    def note(self, own: str, other: str, miss: float) -> None:
        """The mean of what was seen of the first of these two beside the other, less the guess."""
        self._misses[own, other] = miss
        self._keys.setdefault((own, other), _levels(own, other))
        if len(self._misses) <= _FEW or len(self._misses) >= self._fitted * (1.0 + _REFIT_SHARE):
            self._fit()

    def _fit(self) -> None:
        self._fitted = len(self._misses)
        self._told = {}
        rows = [self._keys[side] for side in self._misses]
        left = list(self._misses.values())
        effects: dict[Key, float] = {}
        for _ in range(_SWEEPS):
            for level, shrink in enumerate(_SHRINK):
                total: dict[Key, float] = {}
                count: dict[Key, int] = {}
                for i, keys in enumerate(rows):
                    key = keys[level]
                    total[key] = total.get(key, 0.0) + left[i]
                    count[key] = count.get(key, 0) + 1
                new = {k: (total[k] + effects.get(k, 0.0) * count[k]) / (count[k] + shrink) for k in total}
                for i, keys in enumerate(rows):
                    key = keys[level]
                    left[i] -= new[key] - effects.get(key, 0.0)
                effects.update(new)
        self._effects = effects

    def corrected(self, own: str, other: str, guess: tuple[float, float]) -> tuple[float, float]:
        """The speeds believed of both."""
        if not self._misses:
            return guess
        mine, theirs = guess[0] + self._miss(own, other), guess[1] + self._miss(other, own)
        return min(max(mine, _LEAST), _MOST), min(max(theirs, _LEAST), _MOST)

    def _miss(self, own: str, other: str) -> float:
        told = self._told.get((own, other))
        if told is None:
            told = self._told[own, other] = sum(self._effects.get(key, 0.0) for key in _levels(own, other))
        return told
