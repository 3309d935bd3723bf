"""Where a job runs: which GPUs of which nodes."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from lucid.core.names import Shown

__all__ = ["NodeGpus", "Placement", "indices_of", "mask_of", "placement_gpus", "show_placement"]


class NodeGpus(NamedTuple):
    """The GPUs of one node that a job holds. Bit *i* of ``mask`` is GPU *i*; a mask makes set questions one
    machine instruction, which matters with thousands of GPUs a cycle."""

    node: Shown
    mask: int

    @property
    def gpus(self) -> tuple[int, ...]:
        """GPU indices, ascending."""
        return indices_of(self.mask)


Placement = tuple[NodeGpus, ...]
"""All GPUs of a job, nodes in order of choice; empty only for a job that asked for no GPU."""


@lru_cache(maxsize=65536)
def indices_of(mask: int) -> tuple[int, ...]:
    """Positions of the bits set in ``mask``, ascending."""
    return tuple(i for i in range(mask.bit_length()) if mask >> i & 1)


def mask_of(gpus: Iterable[int]) -> int:
    """The bit mask of some GPU indices."""
    mask = 0
    for gpu in gpus:
        mask |= 1 << gpu
    return mask


def placement_gpus(placement: Placement) -> int:
    """How many GPUs a placement holds."""
    if len(placement) == 1:  # nearly always, and asked for each running job of every plan
        return placement[0].mask.bit_count()
    return sum(part.mask.bit_count() for part in placement)


def show_placement(placement: Placement) -> str:
    """As an administrator writes it: ``n1:0,3 n2:0-7``."""
    return " ".join(f"{part.node}:{_ranges(part.gpus)}" for part in placement)


def _ranges(gpus: tuple[int, ...]) -> str:
    runs: list[list[int]] = []
    for gpu in gpus:
        if runs and runs[-1][1] == gpu - 1:
            runs[-1][1] = gpu
        else:
            runs.append([gpu, gpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
