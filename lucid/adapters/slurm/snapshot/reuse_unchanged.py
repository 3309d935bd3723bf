"""What the last look handed out, handed out again where this look comes to the same: what is kept by who plans is
kept by the objects that it was made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import attrgetter, is_
from typing import TypeVar

from lucid.core.changes import Versioned
from lucid.core.snapshot import Partition

__all__ = ["handed_on"]

_T = TypeVar("_T")
_NODE, _JOB = attrgetter("name"), attrgetter("job.id")


def handed_on(before: Versioned[Partition] | None, made: Mapping[str, Partition]) -> Versioned[Partition]:
    """Partitions equal to those of ``made``, of the partitions, nodes and entries of ``before`` as far as these are
    equal to them."""
    if before is None:
        return Versioned(made)
    now = {name: _partition(before.get(name), partition) for name, partition in made.items()}
    if list(now) != list(before):
        return Versioned(now)
    changed = {name: partition for name, partition in now.items() if partition is not before[name]}
    return Versioned(before, before.key, changed)


def _partition(before: Partition | None, made: Partition) -> Partition:
    if before is None:
        return made
    nodes = _same(before.nodes, made.nodes, _NODE)
    pending = _same(before.pending, made.pending, _JOB)
    running = _same(before.running, made.running, _JOB)
    fitting = before.fitting if before.fitting == made.fitting else made.fitting
    if (
        nodes is before.nodes
        and pending is before.pending
        and running is before.running
        and fitting is before.fitting
        and made.acting == before.acting
        and made.quotas == before.quotas
        and made.profiling == before.profiling
    ):
        return before
    return replace(made, nodes=nodes, pending=pending, running=running, fitting=fitting)


def _same(before: tuple[_T, ...], made: tuple[_T, ...], name: Callable[[_T], str]) -> tuple[_T, ...]:
    """``made``, of what there was before under the same name where that is equal; where all is, the tuple too."""
    if len(made) == len(before) and all(map(is_, made, before)):
        return before
    known = {name(item): item for item in before}
    kept = tuple(
        item if (old := known.get(name(item))) is None or old is item or old != item else old for item in made
    )
    return before if len(kept) == len(before) and all(map(is_, kept, before)) else kept
