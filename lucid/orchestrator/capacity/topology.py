"""Under which switches the nodes of a job stand: as few as can be, the smallest part of the network that has room.

Slurm's own rule (topology/tree) is a best fit: the lowest switch below which there are enough nodes, of equals the
one with the fewest to spare. The same is done here with blocks (topology/block).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lucid.core.job import Job
from lucid.core.ledger import Ledger
from lucid.core.placement import Placement
from lucid.core.reason import Spread, Switches

__all__ = ["domains", "leaf_order", "spread", "within_switches"]


def domains(ledger: Ledger, gpus: int) -> Iterator[frozenset[int]]:
    """Sets of nodes, by index, to be tried in turn for a job of so many GPUs, before all nodes are: those below one
    switch, the lowest level first, and of one level those with the fewest free GPUs first."""
    deepest = max((len(node.switches) for node in ledger.nodes), default=0)
    for level in range(deepest):
        below: dict[str, list[int]] = {}
        for i, node in enumerate(ledger.nodes):
            if level < len(node.switches):
                below.setdefault(node.switches[level], []).append(i)
        sized = [(sum(ledger.free_count[i] for i in nodes), nodes[0], nodes) for nodes in below.values()]
        yield from (frozenset(nodes) for free, _, nodes in sorted(sized) if free >= gpus)


def leaf_order(ledger: Ledger, indices: Iterable[int]) -> list[int]:
    """Nodes in the order in which a job of several leaves takes them: the fullest leaf first, so that few are
    needed; those of one leaf in their own order."""
    found = list(indices)
    count: dict[str, int] = {}
    for i in found:
        leaf = _leaf(ledger, i)
        count[leaf] = count.get(leaf, 0) + 1
    first: dict[str, int] = {}
    for i in found:
        first.setdefault(_leaf(ledger, i), i)
    return sorted(found, key=lambda i: (-count[_leaf(ledger, i)], first[_leaf(ledger, i)], i))


def _leaf(ledger: Ledger, i: int) -> str:
    switches = ledger.nodes[i].switches
    return switches[0] if switches else ""


def spread(ledger: Ledger, placement: Placement, one_s: float | None = None) -> tuple[Spread, ...]:
    """Below how many switches a job of several nodes stands; empty where there is nothing to say. ``one_s``: when it
    would have had room below one."""
    if len(placement) == 1 or not ledger.switched:
        return ()
    return (Spread(len(placement), _leaves(ledger, placement), one_s),)


def _leaves(ledger: Ledger, placement: Placement) -> int:
    """How many switches (or blocks) of the lowest level a placement stands below."""
    return len({_leaf(ledger, ledger.index[part.node]) for part in placement})


def within_switches(ledger: Ledger, job: Job, placement: Placement | None) -> Switches | None:
    """The comparison of a place with what ``--switches`` asked for; ``None`` where it asked for nothing."""
    if not job.most_switches or not ledger.switched:
        return None
    found = 0 if placement is None else _leaves(ledger, placement)
    assert ledger.now_s is not None
    return Switches(job.most_switches, found, job.switches_until_s, ledger.now_s)
