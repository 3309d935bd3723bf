"""Reasons of preemption: who holds GPUs of a partition that is not their own, and who has to give them up."""

from __future__ import annotations

from lucid.core.frozen import dataclass
from lucid.core.names import Shown
from lucid.core.reason.base import Reason

__all__ = ["Claims", "HeldBy", "Victim"]


@dataclass(frozen=True, slots=True)
class Victim:
    """A job that is preempted, and the GPU-seconds that it loses: all since it started, unless it saves its work."""

    job: Shown
    vc: Shown
    gpus: int
    lost_gpu_s: float
    saves: bool = False
    """Does it save its work when it is told to stop, and go on from there?"""
    ends: bool = False
    """Is it cancelled, not put back into the queue?"""


@dataclass(frozen=True, slots=True)
class Claims(Reason):
    """Whom the start of a job preempts. Of all sets of jobs that would do, the one that loses least: work of jobs
    that would be cancelled counts first, then that of jobs that start over, then how many they are. Jobs that save
    their work lose none. ``gpus``: how many of its GPUs they hold. ``next_gpu_s``: what the best choice on another
    node would have lost, ``None`` where there is none."""

    gpus: int
    victims: tuple[Victim, ...]
    next_gpu_s: float | None = None

    @property
    def lost_gpu_s(self) -> float:
        """What all of them lose."""
        return sum(victim.lost_gpu_s for victim in self.victims)


@dataclass(frozen=True, slots=True)
class HeldBy(Reason):
    """So many GPUs of the partition are held by jobs of another one, ``vc``. ``yielding`` of the ``jobs`` may be
    preempted by jobs of this one, the first from ``from_s`` on (Unix s); it did not suffice."""

    vc: Shown
    gpus: int
    jobs: int
    yielding: int = 0
    from_s: float = 0.0
