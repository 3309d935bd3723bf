"""The bundles of GPUs that Sia hands out: powers of two within a node, whole nodes beyond (section 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Bundle", "Kind", "bundles_of", "kinds_of", "powers"]


@dataclass(frozen=True, slots=True)
class Kind:
    """Nodes that are alike, with ``free``, the GPUs of each that may be given out.

    Attributes:
        gpu_type: type of their GPUs.
        width: GPUs of such a node.
        nodes: their numbers in the cluster.
        free: GPUs of each that may be given out.
    """

    gpu_type: str
    width: int
    nodes: tuple[int, ...]
    free: tuple[int, ...]

    @property
    def levels(self) -> tuple[int, ...]:
        """The sizes of which a node is made: the powers of two up to its GPUs."""
        return powers(self.width)

    @property
    def whole(self) -> int:
        """Nodes of which all GPUs may be given out."""
        return sum(here == self.width for here in self.free)

    def room(self, level: int) -> int:
        """GPUs in pieces of at least ``level``, where each node's are cut into powers of two, largest first."""
        return sum(_in_pieces(here, level) for here in self.free)


@dataclass(frozen=True, slots=True)
class Bundle:
    """A configuration (n, r, t): ``gpus`` GPUs of the kind number ``kind``, on ``nodes`` nodes.

    ``whole``: it takes whole nodes.
    """

    kind: int
    nodes: int
    gpus: int
    whole: bool

    def takes(self, kind: Kind, level: int) -> int:
        """How much it takes of ``kind.room(level)``."""
        if self.whole:
            return self.nodes * _in_pieces(kind.width, level)
        return self.gpus if self.gpus >= level else 0


def powers(most: int) -> tuple[int, ...]:
    """1, 2, 4, ... up to ``most``."""
    return tuple(1 << i for i in range(most.bit_length()))


def _in_pieces(gpus: int, level: int) -> int:
    """Of so many GPUs cut into the powers of two that they are the sum of, those in pieces of at least ``level``."""
    return gpus & -level


def kinds_of(types: Sequence[str], widths: Sequence[int], free: Sequence[int]) -> list[Kind]:
    """Nodes by type and size, in the order of the first of each; those without GPUs are left out."""
    groups: dict[tuple[str, int], list[int]] = {}
    for number, key in enumerate(zip(types, widths, strict=True)):
        if key[1] > 0:
            groups.setdefault(key, []).append(number)
    return [
        Kind(gpu_type, width, tuple(numbers), tuple(int(free[i]) for i in numbers))
        for (gpu_type, width), numbers in groups.items()
    ]


def bundles_of(kinds: Sequence[Kind]) -> list[Bundle]:
    """All that fits the nodes as they are: (1, 1), (1, 2), (1, 4), ... within a node, then whole nodes."""
    out: list[Bundle] = []
    for number, kind in enumerate(kinds):
        out += [Bundle(number, 1, size, size == kind.width) for size in kind.levels if kind.room(size)]
        first = 2 if kind.width in kind.levels else 1
        out += [Bundle(number, n, n * kind.width, True) for n in range(first, kind.whole + 1)]
    return out
