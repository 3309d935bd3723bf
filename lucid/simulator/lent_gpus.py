"""What the VCs of a pool lend and borrow in a replay, in GPU-seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lucid.core.placement import Placement, placement_gpus

__all__ = ["LentBook", "LentByVc"]


@dataclass(frozen=True, slots=True)
class LentByVc:
    """GPU-seconds that a VC lent and borrowed, and its quota in GPUs."""

    quota: int
    lent_gpu_s: float
    borrowed_gpu_s: float


class LentBook:
    """A VC borrows what it holds beyond its quota. The others lend that in proportion to what they leave idle of
    theirs. A pair holds its GPUs once, for the VC of the job that was there first."""

    def __init__(self, quotas: Mapping[str, int]) -> None:
        self._quotas = quotas
        self._held = dict.fromkeys(quotas, 0)
        self._on: dict[Placement, list[str]] = {}
        self._lent_gpu_s = dict.fromkeys(quotas, 0.0)
        self._borrowed_gpu_s = dict.fromkeys(quotas, 0.0)

    def hold(self, placement: Placement, vc: str) -> None:
        """A job of the VC starts on these GPUs."""
        there = self._on.setdefault(placement, [])
        there.append(vc)
        if len(there) == 1:
            self._held[vc] += placement_gpus(placement)

    def give_up(self, placement: Placement, vc: str) -> None:
        """A job of the VC leaves them."""
        there, gpus = self._on[placement], placement_gpus(placement)
        self._held[there[0]] -= gpus
        there.remove(vc)
        if there:
            self._held[there[0]] += gpus
        else:
            del self._on[placement]

    def wait(self, for_s: float) -> None:
        """So much time passes."""
        beyond = {vc: self._held[vc] - quota for vc, quota in self._quotas.items()}
        borrowed = sum(gpus for gpus in beyond.values() if gpus > 0)
        if not borrowed:
            return
        idle = -sum(gpus for gpus in beyond.values() if gpus < 0)
        for vc, gpus in beyond.items():
            if gpus > 0:
                self._borrowed_gpu_s[vc] += gpus * for_s
            elif gpus < 0:
                self._lent_gpu_s[vc] += borrowed * -gpus / idle * for_s

    def within(self, vc: str) -> bool:
        """Does the VC hold no more than its quota?"""
        return self._held.get(vc, 0) <= self._quotas.get(vc, 0)

    def by_vc(self) -> dict[str, LentByVc]:
        """The books so far."""
        return {
            vc: LentByVc(quota, self._lent_gpu_s[vc], self._borrowed_gpu_s[vc]) for vc, quota in self._quotas.items()
        }
