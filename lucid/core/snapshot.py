"""The whole state of the cluster at one instant, frozen: what policies look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lucid.core.arrivals import ArrivalForecast
from lucid.core.changes import Changed
from lucid.core.job import Ended, Pending, Running
from lucid.core.names import Shown
from lucid.core.node import Node
from lucid.core.prediction import Prediction
from lucid.core.reason import Unranked

__all__ = ["Partition", "Snapshot"]


@dataclass(frozen=True, slots=True, eq=False)
class Partition(Changed[Pending | Running]):
    """A Slurm partition: a VC, a pool of VCs, or the profiling partition. Every node is in exactly one,
    but for partitions whose jobs give way to those of another (``Running.yields``): these have its nodes, too.

    Compared by identity: an adapter hands out the same object as long as nothing in it has changed, so that
    a policy may keep what it derived from it. ``pending`` is in order of (since_s, submit_s, rank), ``running``
    in order of start.
    """

    name: Shown
    nodes: tuple[Node, ...]
    pending: tuple[Pending, ...] = ()
    running: tuple[Running, ...] = ()
    profiling: bool = False
    acting: bool = True
    """Is what is planned for it carried out? Not where the daemon only observes, or only orders."""
    quotas: Mapping[Shown, int] = field(default_factory=dict)
    """GPUs to which each VC of a pool is entitled, by name; empty unless VCs have their nodes in common."""
    fitting: Mapping[Shown, tuple[Shown, ...]] = field(default_factory=dict)
    """The names of the nodes that meet each ``Job.constraint`` of its jobs. One that is not here rules out none."""

    def listed(self) -> tuple[Pending | Running, ...]:
        """All its jobs: those that wait, then those that run."""
        return self.pending + self.running

    @property
    def vcs(self) -> tuple[str, ...]:
        """The VCs whose jobs run here."""
        return tuple(self.quotas) or (self.name,)

    @property
    def live(self) -> bool:
        """Is it Slurm's, whose GPUs have a number of slots each? There nobody is moved, and who is stopped and is not
        elastic starts over. In a replay a job goes on elsewhere for the costs that the settings say."""
        return any(node.slots for node in self.nodes)

    @property
    def gpus(self) -> int:
        """GPUs of all its nodes, available or not."""
        return sum(node.gpus for node in self.nodes)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Snapshot:
    """What ``Cluster.observe`` saw, and what the models said of it.

    ``ended``: jobs that ended since the snapshot before, and those of that one if its cycle failed before they were
    stored. ``predictions``: by job id, filled in by
    ``orchestrator.annotate``; an adapter leaves it empty. ``memory``: by partition, what the plan before left
    for this one (``Plan.memory``), filled in by the cycle. ``arrivals``: what is about to be
    submitted, filled in like the predictions; the same object as long as it says the same. ``fair_share``: Slurm's
    fair-share factor, from 0 (has used far more than its share) to 1 (nothing), by account and user, where the
    adapter knows; the same object as long as it says the same. ``trust``: by VC, and as "" of the whole cluster, how
    well estimates ranked the jobs that ended last; filled in like the predictions, empty before enough have ended.
    """

    now_s: float
    partitions: Mapping[str, Partition]
    ended: tuple[Ended, ...] = ()
    predictions: Mapping[str, Prediction] = field(default_factory=dict)
    memory: Mapping[str, object] = field(default_factory=dict)
    arrivals: ArrivalForecast = field(default_factory=ArrivalForecast)
    fair_share: Mapping[tuple[str, str], float] = field(default_factory=dict)
    trust: Mapping[Shown, Unranked] = field(default_factory=dict)

    def unranked(self, vc: str) -> Unranked | None:
        """How well estimates rank the jobs of this VC; ``None`` where nothing is known of that."""
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
