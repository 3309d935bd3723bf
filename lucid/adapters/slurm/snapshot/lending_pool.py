"""VCs that lend GPUs to each other on Slurm: one pool, with the partition over all nodes beside theirs. Pure.

Slurm keeps a VC to its GPUs in one of two ways: its partition has nodes of its own, or a QOS with GrpTRES. A job that
is to run beyond either is moved to the pool's partition, which has all nodes of the VCs and not the QOS. Its user's
QOS and account stay, with their limits. What a VC has borrowed is not remembered: it follows from what its jobs hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from lucid.adapters.slurm.records.jobs_and_nodes import SlurmNode
from lucid.config import Mode, PoolSettings
from lucid.core.decision import Start

__all__ = ["Pool", "mode_of_pool", "modes_with_pool", "pool_of"]

_RANK = (Mode.OBSERVE, Mode.ORDER, Mode.PACK)


@dataclass(frozen=True, slots=True)
class Pool:
    """``quotas``: GPUs of each VC that is in it now. ``own``: names of the nodes in each VC's own partition.
    ``open``: has the pool's partition all these nodes? Where it has not, no job is moved there. ``bounded``: VCs
    whose own partition has more GPUs than their quota, so that a QOS may stop a job there."""

    name: str
    quotas: Mapping[str, int]
    own: Mapping[str, frozenset[str]]
    open: bool
    bounded: frozenset[str]

    def start_in(self, home: str, start: Start) -> str:
        """The partition in which a job of VC ``home`` starts: its own, where that has the nodes and Slurm counts the
        start within the VC's quota, else the pool's. A guest takes none of the quota here, but counts there."""
        mine = self.own.get(home, frozenset())
        if not self.open:
            return home
        if any(part.node not in mine for part in start.placement):
            return self.name
        return home if home not in self.bounded or start.within_quota else self.name


def pool_of(settings: PoolSettings, modes: Mapping[str, Mode], nodes: Sequence[SlurmNode]) -> Pool | None:
    """The pool by the nodes as they are; ``None`` where there is none, or where the VCs have nodes of their own and
    no partition over all of them: each then keeps to itself, as without lending.

    VCs in another mode than the others are left out: in a VC that only observes, nothing is done.
    """
    mode = mode_of_pool(settings, modes)
    vcs = [name for name in settings.quotas if mode is not None and modes.get(name) is mode]
    if not vcs:
        return None
    gpu_nodes = [node for node in nodes if node.gpu_types]
    own = {name: frozenset(node.name for node in gpu_nodes if name in node.partitions) for name in vcs}
    everywhere = frozenset(node.name for node in gpu_nodes if settings.partition in node.partitions)
    is_open = all(mine <= everywhere for mine in own.values())
    if not is_open and not any(one & other for one, other in combinations(own.values(), 2)):
        return None
    gpus = {node.name: len(node.gpu_types) for node in gpu_nodes}
    quotas = {name: settings.quotas[name] for name in vcs}
    bounded = frozenset(name for name in vcs if sum(gpus[node] for node in own[name]) > quotas[name])
    return Pool(settings.partition, quotas, own, is_open, bounded)


def mode_of_pool(settings: PoolSettings, modes: Mapping[str, Mode]) -> Mode | None:
    """The mode of the pool: of its VCs' modes the one that does most; ``None`` where none of them is looked after."""
    return max((modes[name] for name in settings.quotas if name in modes), key=_RANK.index, default=None)


def modes_with_pool(settings: PoolSettings, modes: Mapping[str, Mode]) -> dict[str, Mode]:
    """The modes, with that of the pool under its name: for those who look at plans."""
    mode = mode_of_pool(settings, modes)
    return dict(modes) if mode is None or not settings.partition else {**modes, settings.partition: mode}
