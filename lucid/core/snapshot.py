"""Snapshots of the cluster, which policies plan from: partitions, predictions, arrivals, and what changed since.

Few jobs come and go between two polls, and thousands stay, so partitions and mappings say how they differ from
earlier ones. ``windows_of`` lists the windows that lie ahead or have begun, as people are shown them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import ref

import msgspec
from msgspec import Struct

from lucid.core.job import Ended, Pending, Running
from lucid.core.names import Shown
from lucid.core.node import Node, Window
from lucid.core.prediction import Prediction
from lucid.core.reasons.queue import Unranked


class ArrivalForecast(Struct, frozen=True):
    """GPUs expected to be submitted per hour, in the hours to come.

    ``gpus_per_hour``: by VC. ``profiled_per_hour``: GPUs of all VCs that go through profiling nodes first. ``by``:
    the forecaster (``seasonal means``, ``throughput v3``), empty where there is none."""

    by: str = ""
    gpus_per_hour: Mapping[str, float] = msgspec.field(default_factory=dict)
    profiled_per_hour: float = 0.0

    def per_hour(self, *vcs: str) -> float:
        """GPUs per hour of these VCs together; an unknown VC counts as 0."""
        return sum(self.gpus_per_hour.get(vc, 0.0) for vc in vcs)


_Entry = TypeVar("_Entry")
WAITING_ORDER = attrgetter("since_s", "job.submit_s", "job.rank")
"""The key by which ``Partition.pending`` is in order."""


class Changes(Struct, Generic[_Entry], frozen=True):
    """The entries that differ between a collection and an earlier one: ``came`` were not in the earlier one, ``went``
    are no longer here. Both by identity: a changed entry came, and its predecessor went."""

    came: tuple[_Entry, ...]
    went: tuple[_Entry, ...]


class Changed(Generic[_Entry]):
    """Base of collections of entries that say how they differ from an earlier one. The difference is worked out once,
    unless ``follows`` has set it. A copy does not inherit it."""

    __slots__ = ("__weakref__", "_ids", "_last")

    if TYPE_CHECKING:
        _ids: dict[int, _Entry]
        _last: tuple[ref[Changed[_Entry]], Changes[_Entry]]

    def listed(self) -> Iterable[_Entry]:
        """The entries, in order."""
        raise NotImplementedError

    def since(self, before: Changed[_Entry]) -> Changes[_Entry]:
        """The changes from ``before`` to this collection."""
        if before is self:
            return Changes((), ())
        last = getattr(self, "_last", None)
        if last is None or last[0]() is not before:
            ours, theirs = self._by_id(), before._by_id()
            came = tuple([entry for i, entry in ours.items() if i not in theirs])
            went = tuple([entry for i, entry in theirs.items() if i not in ours])
            self.follows(before, Changes(came, went))
        return self._last[1]

    def follows(self, before: Changed[_Entry], changes: Changes[_Entry]) -> None:
        """Set the changes from ``before``, which the maker of this collection knows."""
        object.__setattr__(self, "_last", (ref(before), changes))

    def _by_id(self) -> dict[int, _Entry]:
        """The entries by their ``id``, which no other object can have while they are kept here."""
        if not hasattr(self, "_ids"):
            entries = [*self.listed()]
            object.__setattr__(self, "_ids", dict(zip(map(id, entries), entries, strict=True)))
        return self._ids


class ByName(dict[str, _Entry]):
    """A mapping that never changes, and says in which names it may differ from the one that it ``follows``: one cycle
    changes few of a thousand partitions."""

    __slots__ = ("__weakref__", "_before", "changed")

    def __init__(self, entries: Mapping[str, _Entry], changed: Mapping[str, _Entry] | None = None) -> None:
        """The ``entries``, with what is ``changed`` among them: new entries under some of their names."""
        super().__init__(entries)
        self._before = ref(entries) if changed is not None and isinstance(entries, ByName) else None
        self.changed: Collection[str] = self.keys() if changed is None else changed.keys()
        if changed:
            self.update(changed)

    def follows(self, before: Mapping[str, Any] | None) -> bool:
        """Whether ``changed`` names all that differs from ``before``."""
        return self._before is not None and before is not None and self._before() is before


def changed_names(entries: Mapping[str, Any], before: Mapping[str, Any] | None) -> Collection[str]:
    """The names under which ``entries`` may hold other objects than ``before``: all, where that is not known."""
    if entries is before:
        return ()
    return entries.changed if isinstance(entries, ByName) and entries.follows(before) else entries.keys()


@dataclass(frozen=True, slots=True, eq=False)
class Partition(Changed[Pending | Running]):
    """A Slurm partition: a VC, a pool of VCs, or the profiling partition. Every node is in exactly one,
    but for partitions whose jobs give way to those of another (``Running.yields``): these have its nodes, too.

    Compared by identity: an adapter hands out the same object as long as nothing in it has changed, so that
    a policy may keep what it derived from it. ``pending`` is in ``WAITING_ORDER``, ``running`` in order of start."""

    name: Shown
    nodes: tuple[Node, ...]
    pending: tuple[Pending, ...] = ()
    running: tuple[Running, ...] = ()
    profiling: bool = False
    acting: bool = True
    """Whether the plan for the partition is carried out; false where the daemon only observes, or only orders."""
    quotas: Mapping[Shown, int] = field(default_factory=dict)
    """GPUs to which each VC of a pool is entitled, by name; empty unless VCs have their nodes in common."""
    fitting: Mapping[Shown, tuple[Shown, ...]] = field(default_factory=dict)
    """The names of the nodes that meet each ``Job.constraint`` of its jobs. A constraint that is not here rules out
    no node."""

    def listed(self) -> tuple[Pending | Running, ...]:
        """All jobs of the partition: those that wait, then those that run."""
        return self.pending + self.running

    @property
    def vcs(self) -> tuple[str, ...]:
        """The VCs whose jobs run here."""
        return tuple(self.quotas) or (self.name,)

    @property
    def live(self) -> bool:
        """Whether the partition is Slurm's, where each GPU has a number of slots. There nobody is moved, and a
        stopped job that is not elastic starts over. In a replay a job goes on elsewhere for the costs that the
        settings name."""
        return any(node.slots for node in self.nodes)

    @property
    def gpus(self) -> int:
        """GPUs of all its nodes, available or not."""
        return sum(node.gpus for node in self.nodes)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Snapshot:
    """The state of the cluster that ``Cluster.observe`` returned, and what the models said of it.

    ``ended``: jobs that ended since the snapshot before, and those of that one if its cycle failed before they were
    stored. ``predictions``: by job id, filled in by ``orchestrator.annotate``. ``memory``: by partition, what the
    plan before left for this one (``Plan.memory``), filled in by the cycle. ``arrivals``: the forecast of
    submissions, filled in like the predictions. ``fair_share``: Slurm's fair-share factor by account and user, from 0
    (has used far more than its share) to 1 (nothing), where known. ``trust``: how well estimates ranked the jobs that
    ended last, by VC and for the whole cluster as ""; filled in like the predictions, empty before enough have ended.
    ``arrivals`` and ``fair_share`` stay the same objects as long as they are equal."""

    now_s: float
    partitions: Mapping[str, Partition]
    ended: tuple[Ended, ...] = ()
    predictions: Mapping[str, Prediction] = field(default_factory=dict)
    memory: Mapping[str, object] = field(default_factory=dict)
    arrivals: ArrivalForecast = field(default_factory=ArrivalForecast)
    fair_share: Mapping[tuple[str, str], float] = field(default_factory=dict)
    trust: Mapping[Shown, Unranked] = field(default_factory=dict)

    def unranked(self, vc: str) -> Unranked | None:
        """How well estimates rank the jobs of this VC; ``None`` where that is not known."""
        return self.trust.get(vc, self.trust.get(""))

    def home(self, vc: str) -> Partition | None:
        """The partition in which jobs of this VC run: its own, or its pool; ``None`` if there is none."""
        own = self.partitions.get(vc)
        if own is not None:
            return own
        return next((part for part in self.partitions.values() if vc in part.quotas), None)

    @property
    def profiling(self) -> Partition | None:
        """The profiling partition, if the cluster has one."""
        for partition in self.partitions.values():
            if partition.profiling:
                return partition
        return None


class Seen(Struct, frozen=True):
    """One window, the nodes of the partition that it closes, and the running jobs on them that may last into it."""

    window: Window
    nodes: tuple[str, ...]
    reaching: tuple[str, ...]


def windows_of(partition: Partition) -> list[Seen]:
    """The windows of a partition, the earliest first."""
    nodes: dict[Window, list[str]] = {}
    for node in partition.nodes:
        for window in node.windows:
            nodes.setdefault(window, []).append(node.name)
    found = []
    for window in sorted(nodes, key=lambda w: (w.from_s, w.end_s, w.why)):
        here = set(nodes[window])
        on_them = (entry for entry in partition.running if any(part.node in here for part in entry.placement))
        reaching = tuple(entry.job.id for entry in on_them if _lasts_until_s(entry) > window.from_s)
        found.append(Seen(window, tuple(nodes[window]), reaching))
    return found


def opens_s(partition: Partition, limit_s: float | None, now_s: float) -> float:
    """When a job of this time limit could start at the earliest, were there no other jobs: now, unless every node is
    closed at some time until the job would end. Infinite where nobody knows."""
    length_s = math.inf if limit_s is None else limit_s
    return min((_open_s(node, length_s, now_s) for node in partition.nodes), default=now_s)


def _open_s(node: Node, length_s: float, now_s: float) -> float:
    at_s = now_s
    for window in node.windows:
        if window.end_s > at_s and window.ends_by_s < at_s + length_s:
            at_s = window.end_s
    return at_s


def _lasts_until_s(entry: Running) -> float:
    limit_s = entry.job.time_limit_s
    return math.inf if limit_s is None else entry.start_s + limit_s
