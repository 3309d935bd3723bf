"""Consolidated placement (rows L4, L19): as few nodes as possible, the tightest that fit, below as few switches.

Slurm's own rule for switches (topology/tree) is a best fit: the lowest switch below which there are enough nodes, of
equals the one with the fewest to spare. Here blocks (topology/block) are treated alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

from lucid.core.job import Job, Pending
from lucid.core.ledger import Ledger, gpus_by_node
from lucid.core.placement import NodeGpus, Placement
from lucid.core.reason import Reason
from lucid.core.reasons.queue import AsksForGpus, EverFits, FreeGpus, HostFits, Spread, Switches, TooLarge
from lucid.core.snapshot import Partition


def domains(ledger: Ledger, gpus: int) -> Iterator[frozenset[int]]:
    """Sets of nodes, by index, to be tried in turn for a job of so many GPUs, before all nodes are: the nodes below
    one switch. The lowest level comes first; of one level, the set with the fewest free GPUs."""
    deepest = max((len(node.switches) for node in ledger.nodes), default=0)
    for level in range(deepest):
        below: dict[str, list[int]] = {}
        for i, node in enumerate(ledger.nodes):
            if level < len(node.switches):
                below.setdefault(node.switches[level], []).append(i)
        sized = [(sum(ledger.free_count[i] for i in nodes), nodes[0], nodes) for nodes in below.values()]
        yield from (frozenset(nodes) for free, _, nodes in sorted(sized) if free >= gpus)


def leaf_order(ledger: Ledger, indices: Iterable[int]) -> list[int]:
    """The nodes in the order in which a job over several leaf switches takes them: the fullest leaf first, so that
    few leaves are needed; the nodes of one leaf in their own order."""
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
    """The reason that says below how many switches a job of several nodes stands; empty where there is nothing to
    say. ``one_s``: when there would have been room below one switch."""
    if len(placement) == 1 or not ledger.switched:
        return ()
    return (Spread(len(placement), _leaves(ledger, placement), one_s),)


def _leaves(ledger: Ledger, placement: Placement) -> int:
    """How many switches (or blocks) of the lowest level a placement stands below."""
    return len({_leaf(ledger, ledger.index[part.node]) for part in placement})


def within_switches(ledger: Ledger, job: Job, placement: Placement | None) -> Switches | None:
    """The comparison of a place with the switches that ``--switches`` asked for; ``None`` where the job asked for
    nothing."""
    if not job.most_switches or not ledger.switched:
        return None
    found = 0 if placement is None else _leaves(ledger, placement)
    assert ledger.now_s is not None
    return Switches(job.most_switches, found, job.switches_until_s, ledger.now_s)


def consolidated(
    ledger: Ledger,
    job: Job,
    allowed: Callable[[int], bool] | None = None,
    remainder_on_emptiest: bool = False,
) -> Placement | None:
    """Free GPUs for a job, or ``None``.

    A job that fits on one node gets the node with the fewest free GPUs that has enough (lowest index among equals). A
    larger one gets whole free nodes in index order, and one more node for the remainder: the tightest fit, or with
    ``remainder_on_emptiest`` the one with the most free GPUs, as the published simulator does. ``allowed`` rules
    nodes out by index. CPUs and host memory must fit in proportion to the GPUs on each node, and the job's time limit
    must end before a node closes. Sleeping nodes are taken where those awake do not suffice. A job without GPUs gets
    none; a job that asks for several nodes has its GPUs spread over as many (``gpus_by_node``). A job on several
    nodes stands below as few switches as possible, where the network is known, and below no more than its user
    allows."""
    if not 0 < job.gpus <= ledger.free:
        return None
    for out in (ledger.asleep, ledger.not_woken) if ledger.asleep else ():
        up = _both(allowed, lambda i, out=out: i not in out)  # type: ignore[misc]
        found = _below_switches(ledger, job, up, remainder_on_emptiest)
        if found is not None:
            return found
    return _below_switches(ledger, job, allowed, remainder_on_emptiest)


def no_place(ledger: Ledger, entry: Pending) -> tuple[Reason, ...]:
    """Why ``consolidated`` found nothing for a job."""
    job = entry.job
    free: tuple[Reason, ...] = (FreeGpus(job.gpus, ledger.largest, ledger.free, False),)
    other = ledger.other_nodes(job)
    if other is not None:
        free = (*free, other)
    closes = ledger.closes(job) if ledger.closing else None
    if closes is not None:
        free = (*free, closes)
    switches = within_switches(ledger, job, None)
    if switches is not None and not switches:
        free = (*free, switches)
    free = (*free, *ledger.held_by())
    out = ledger.out()
    if out is not None:
        free = (*free, out)
    gpus_out = ledger.gpus_out()
    if gpus_out is not None:
        free = (*free, gpus_out)
    host = closes is None and ledger.host_limits and (job.cpus or job.mem_mib)
    if host and _gpus_suffice(ledger, job.gpus) and consolidated(ledger, job) is None:  # else nodes are kept
        return (*free, HostFits(job.cpus, job.mem_mib, False))
    return free


def _gpus_suffice(ledger: Ledger, gpus: int) -> bool:
    """Whether enough GPUs are free on as few nodes as possible; if not, the missing resource is GPUs."""
    whole, rest = divmod(gpus, ledger.gpus_per_node)
    full = sum(count >= ledger.gpus_per_node for count in ledger.free_count)
    part = any(rest <= count < ledger.gpus_per_node for count in ledger.free_count)
    return full >= whole + (rest > 0 and not part)


def _below_switches(
    ledger: Ledger, job: Job, allowed: Callable[[int], bool] | None, remainder_on_emptiest: bool
) -> Placement | None:
    if not ledger.switched or (job.gpus <= ledger.gpus_per_node and job.min_nodes <= 1):
        return _consolidated(ledger, job, allowed, remainder_on_emptiest)
    for nodes in domains(ledger, job.gpus):
        found = _consolidated(ledger, job, _both(allowed, nodes.__contains__), remainder_on_emptiest)
        if found is not None:
            break
    else:
        found = _consolidated(ledger, job, allowed, remainder_on_emptiest)
    asked = within_switches(ledger, job, found)
    return found if asked is None or asked else None


def _both(one: Callable[[int], bool] | None, other: Callable[[int], bool]) -> Callable[[int], bool]:
    return other if one is None else lambda i: one(i) and other(i)


def _consolidated(
    ledger: Ledger, job: Job, allowed: Callable[[int], bool] | None, remainder_on_emptiest: bool
) -> Placement | None:
    gpus, per_node = job.gpus, ledger.gpus_per_node
    needs_host = ledger.picks(job)

    def fits(i: int, here: int) -> bool:
        return (allowed is None or allowed(i)) and (not needs_host or ledger.host_fits(i, job, here))

    if job.min_nodes > 1:
        return _spread(ledger, gpus_by_node(job, per_node), fits)
    if gpus <= per_node:
        if allowed is None and not needs_host:
            i = ledger.tightest(gpus)
        else:
            i = ledger.tightest(gpus, lambda n: fits(n, gpus))
        return None if i is None else (ledger.lowest(i, gpus),)
    whole, rest = divmod(gpus, per_node)
    chosen: list[int] = []
    nodes = leaf_order(ledger, ledger.buckets[per_node]) if ledger.switched else ledger.buckets[per_node]
    for i in ledger.awake_first(nodes) if ledger.asleep else nodes:
        if fits(i, per_node):
            chosen.append(i)
            if len(chosen) == whole:
                break
    else:
        return None
    parts: list[NodeGpus] = [ledger.lowest(i, per_node) for i in chosen]
    if rest:
        taken = set(chosen)
        i = _remainder(ledger, rest, lambda n: n not in taken and fits(n, rest), remainder_on_emptiest)
        if i is None:
            return None
        parts.append(ledger.lowest(i, rest))
    return tuple(parts)


def _spread(
    ledger: Ledger, wanted: tuple[tuple[int, int], ...], fits: Callable[[int, int], bool]
) -> Placement | None:
    """A placement on as many different nodes as ``wanted`` names, each the tightest that fits."""
    taken: set[int] = set()
    parts: list[NodeGpus] = []
    for gpus, nodes in wanted:
        for _ in range(nodes):
            i = ledger.tightest(gpus, lambda n, here=gpus: n not in taken and fits(n, here))  # type: ignore[misc]
            if i is None:
                return None
            taken.add(i)
            parts.append(ledger.lowest(i, gpus))
    return tuple(parts)


def emptiest(ledger: Ledger, job: Job, gpus: int) -> Placement | None:
    """``gpus`` free GPUs for a job: all of the emptiest node, then of the next; ``None`` where there are too few.
    CPUs and host memory must fit as well, in proportion to the GPUs on each node. Nodes that close before the job's
    time limit ends are left out, and sleeping ones come last."""
    if gpus > ledger.free:
        return None
    parts: list[NodeGpus] = []
    needs_host = ledger.picks(job)
    left = gpus
    nodes = [i for bucket in ledger.buckets[:0:-1] for i in bucket]
    for i in ledger.awake_first(nodes) if ledger.asleep else nodes:
        here = min(ledger.free_count[i], left)
        while here and needs_host and not ledger.host_fits(i, job, here):
            here -= 1
        if here:
            parts.append(ledger.lowest(i, here))
            left -= here
        if not left:
            return tuple(parts)
    return None


def own_first(free: int, own: int, count: int) -> int:
    """The mask of ``count`` of a node's free GPUs, the job's own GPUs first."""
    mask = 0
    for candidates in (free & own, free):
        left = candidates & ~mask
        while left and mask.bit_count() < count:
            mask |= left & -left
            left &= left - 1
    return mask


def _remainder(ledger: Ledger, gpus: int, allowed: Callable[[int], bool], on_emptiest: bool) -> int | None:
    if not on_emptiest:
        return ledger.tightest(gpus, allowed)
    for count in range(ledger.gpus_per_node, gpus - 1, -1):
        for i in ledger.buckets[count]:
            if allowed(i):
                return i
    return None


_MOST_SHAPES = 4096


class _EmptyNodes:
    """The nodes of a partition as if nothing ran there, and which shapes of jobs fit on them."""

    def __init__(self, partition: Partition, up_only: bool) -> None:
        self.nodes, self.fitting = partition.nodes, partition.fitting
        nodes = [node for node in partition.nodes if node.available or not up_only]
        if not up_only:
            nodes = [replace(node, left_out=()) if node.left_out else node for node in nodes]
        self.gpus = sum(node.gpus - len(node.left_out) for node in nodes)
        alike = len({node.gpus for node in nodes}) <= 1 and not any(node.left_out for node in nodes)
        self.plain = alike and not any(n.cpus or n.mem_mib for n in nodes)
        self._name, self._up_only, self._up = partition.name, up_only, nodes
        self._known: dict[tuple[object, ...], bool] = {}
        self._ledger: Ledger | None = None

    def possible(self, job: Job) -> bool:
        shape = (job.gpus, job.cpus, job.mem_mib, job.min_nodes, job.constraint)
        possible = self._known.get(shape)
        if possible is None:
            if len(self._known) >= _MOST_SHAPES:
                self._known.clear()
            possible = self._known[shape] = consolidated(self._empty(), job) is not None
        return possible

    def _empty(self) -> Ledger:
        if self._ledger is None:
            held: dict[str, Any] = {} if self._up_only else {"available": True, "cpus_used": 0, "mem_used_mib": 0}
            nodes = [replace(node, windows=(), shut=None, boot_s=0.0, switches=(), **held) for node in self._up]
            self._ledger = Ledger(Partition(self._name, tuple(nodes), fitting=self.fitting))
        return self._ledger


_KNOWN: Final[dict[tuple[str, bool], _EmptyNodes]] = {}
"""Empty nodes by partition and ``up_only``, kept since each plan asks for the same few shapes, and each trial makes a
ledger of all nodes."""


class Feasibility:
    """Says whether a job could ever run in this partition, on empty nodes; asked before a job may block others.

    With ``up_only`` the nodes that are not available at present do not count, nor the CPUs and the memory that jobs
    without GPUs hold: the answer is what could run once all planned jobs have ended."""

    def __init__(self, partition: Partition, up_only: bool = False) -> None:
        known = _KNOWN.get((partition.name, up_only))
        if known is None or known.nodes != partition.nodes or known.fitting != partition.fitting:
            known = _KNOWN[partition.name, up_only] = _EmptyNodes(partition, up_only)
        self._quotas, self._nodes = partition.quotas, known

    def bar(self, job: Job) -> AsksForGpus | TooLarge | EverFits | None:
        """Why the job can never run here; ``None`` if it can."""
        nodes = self._nodes
        if job.gpus <= 0:
            return AsksForGpus(job.gpus)
        if job.gpus > nodes.gpus:
            return TooLarge(job.gpus, nodes.gpus)
        quota = self._quotas.get(job.vc) if self._quotas else None
        if quota is not None and job.gpus > quota:
            return TooLarge(job.gpus, quota)
        if (nodes.plain and job.min_nodes <= 1 and not job.constraint) or nodes.possible(job):
            return None
        return EverFits(job.gpus, job.cpus, job.mem_mib, False)
