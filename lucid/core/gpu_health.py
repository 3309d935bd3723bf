"""What is wrong with single GPUs, and which of them are left out of new starts."""

from __future__ import annotations

from dataclasses import field

from lucid.core.frozen import dataclass
from lucid.core.names import Shown

__all__ = ["KINDS", "MOST_NUMBER", "CardHealth", "GpuFault", "GpuOut", "NodeHealth"]

MOST_NUMBER = 999
"""No device file of a GPU has a higher number: /dev/nvidia0, /dev/dri/renderD128."""

KINDS = ("xid", "ecc", "row remap", "lost", "thermal", "power")
"""What a sampler sees of a GPU that is not well. ``xid``: an error that the driver reported. ``ecc``: uncorrected
errors of its memory. ``row remap``: a row of its memory waits for a reset, or cannot be remapped. ``lost``: the
driver does not reach it. ``thermal``, ``power``: the hardware slows it down for long, for heat or lack of power."""


@dataclass(frozen=True, slots=True)
class GpuFault:
    """One thing that a sampler saw. Times in Unix seconds.

    ``code``: the number of the Xid, 0 for other kinds. ``began_s``: when it began the last time. ``last_s``: when it
    was seen last. ``lasts``: is it a state that still holds? ``times``: how often it was seen to begin. ``whose``
    fault it is: ``application``, ``gpu``, ``driver`` or ``unclear``. ``needs``: what ends it: nothing, a ``reset`` of
    the GPU, or a ``reboot`` of the node. ``bad``: is a GPU with it left out of new starts?
    """

    kind: Shown
    words: Shown
    since_s: float
    began_s: float
    last_s: float
    code: int = 0
    lasts: bool = False
    times: int = 1
    whose: Shown = "gpu"
    needs: Shown = ""
    bad: bool = True


@dataclass(frozen=True, slots=True)
class CardHealth:
    """One GPU. ``index``: the number of its device file (3 for /dev/nvidia3). ``uncorrected``: its count
    of uncorrected memory errors, as last read. ``faults``: the oldest first."""

    index: int
    uuid: Shown
    name: Shown = ""
    faults: tuple[GpuFault, ...] = ()
    uncorrected: int = 0


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """What the sampler of a node tells. ``boot``: names the node's boot; ``since_s``: since when a sampler has looked
    in it. ``silent_s``: since when the driver as a whole does not answer, 0 while it does: nothing is known of single
    GPUs then. ``order``: the device numbers of its GPUs as the driver lists them, which is CUDA's order."""

    node: Shown
    at_s: float
    boot: Shown = ""
    since_s: float = 0.0
    silent_s: float = 0.0
    cards: tuple[CardHealth, ...] = field(default=())
    order: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuOut:
    """A GPU that gets no new start. ``index``: the number of its device file. ``by``: the person who said so, or
    empty where Lucid's rule did. ``words``: why. ``uuid``: of the card that was there then. ``kind``, ``code``,
    ``whose``, ``needs``: as of the fault."""

    node: Shown
    index: int
    since_s: float
    words: Shown
    kind: Shown = ""
    code: int = 0
    whose: Shown = ""
    needs: Shown = ""
    by: str = ""
    uuid: Shown = ""
    ends_jobs: bool = False
    """Do jobs leave it that may be started over? Their fault it is not, and they would hardly go on."""
    place: int | None = None
    """Its place among the node's GPUs as Slurm counts them, where that is another number than ``index``."""

    @property
    def bit(self) -> int:
        """Its place in masks of the node's GPUs."""
        return self.index if self.place is None else self.place

    @property
    def name(self) -> str:
        """As commands take it: ``node7:3``."""
        return f"{self.node}:{self.index}"
