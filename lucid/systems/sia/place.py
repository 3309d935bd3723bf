"""On which nodes the chosen bundles go (section 3.1): those that stay first, others largest first; where no room is
left in one piece, some that would have stayed move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lucid.systems.sia.configurations import Bundle, Kind

__all__ = ["Placed", "place"]

Ints = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Placed:
    """``rows``: by job, (N,) GPUs on each node. ``evicted``: jobs that keep their bundle, and move all the same."""

    rows: Mapping[int, Ints]
    evicted: tuple[int, ...]


def place(
    chosen: Mapping[int, Bundle], staying: Mapping[int, Ints], kinds: Sequence[Kind], node_count: int
) -> Placed:
    """Nodes for every job.

    Args:
        chosen: by job, its bundle; together they obey the limits of ``choose``.
        staying: by job, (N,) GPUs on each node of those that have this bundle already.
        kinds: the kinds of nodes.
        node_count: nodes of the cluster, N.
    """
    rows: dict[int, Ints] = {}
    evicted: list[int] = []
    for number, kind in enumerate(kinds):
        mine = {job: bundle for job, bundle in chosen.items() if bundle.kind == number}
        stay = [job for job in mine if job in staying]
        used = sum((staying[job] for job in stay), np.zeros(node_count, dtype=np.intp))
        # the emptiest nodes are cleared first, and of these the smallest jobs
        stay.sort(key=lambda job: (int(used[staying[job] > 0].max()), int(staying[job].sum()), job))
        for gone in range(len(stay) + 1):
            found = _try(mine, {job: staying[job] for job in stay[gone:]}, kind, node_count)
            if found is not None:
                rows.update(found)
                evicted += [job for job in stay[:gone] if not np.array_equal(found[job], staying[job])]
                break
    return Placed(rows, tuple(evicted))


def _try(
    chosen: Mapping[int, Bundle], staying: Mapping[int, Ints], kind: Kind, node_count: int
) -> dict[int, Ints] | None:
    free = dict(zip(kind.nodes, kind.free, strict=True))
    out: dict[int, Ints] = {}
    for job, row in staying.items():
        for node in np.flatnonzero(row).tolist():
            free[node] -= int(row[node])
            if free[node] < 0:
                return None
        out[job] = row
    rest = sorted((job for job in chosen if job not in staying), key=lambda job: (-chosen[job].gpus, job))
    for job in rest:
        bundle, row = chosen[job], np.zeros(node_count, dtype=np.intp)
        if bundle.whole:
            nodes = [node for node, left in free.items() if left == kind.width][: bundle.nodes]
            each = kind.width
        else:
            fits = [node for node, left in free.items() if left >= bundle.gpus]
            # the node whose free GPUs hold the smallest piece of this size: larger pieces stay whole
            nodes = sorted(fits, key=lambda node: (_piece(free[node], bundle.gpus), free[node]))[:1]
            each = bundle.gpus
        if len(nodes) < bundle.nodes:
            return None
        for node in nodes:
            row[node] = each
            free[node] -= each
        out[job] = row
    return out


def _piece(free: int, gpus: int) -> int:
    """The smallest power of two among those ``free`` is the sum of that holds so many GPUs."""
    pieces = free & -gpus
    return pieces & -pieces
