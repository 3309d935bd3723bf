"""What one look at the GPUs of a node shows."""

from __future__ import annotations

from lucid.core.frozen import dataclass

__all__ = ["GpuCard", "GpuCondition", "GpuLost", "GpuProcess", "GpuReading"]


@dataclass(frozen=True, slots=True)
class GpuCard:
    """One GPU as the driver names it. ``index`` is the driver's (PCI order); only ``uuid`` never changes."""

    uuid: str
    index: int
    name: str
    mem_mib: float | None = None
    mig: bool = False
    """True in MIG mode: the card has no utilisation of its own then, and no two jobs are paired on it."""
    minor: int | None = None
    """The minor number of its device file, the 3 of /dev/nvidia3. ``index`` moves when another card is lost, and on
    some hosts counts in another order; this does neither."""

    @property
    def number(self) -> int:
        """By which Lucid names the card on its node: ``minor``, or ``index`` where the source does not tell that."""
        return self.index if self.minor is None else self.minor


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """One process on a GPU: memory in MiB and its share of time (%) of SMs and of memory, ``None`` where the
    driver does not say."""

    pid: int
    mem_mib: float | None = None
    sm_util: float | None = None
    mem_util: float | None = None


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU at one moment. Shares are percentages (0-100), ``None`` where the card does not offer them.

    ``gpu_util`` and ``mem_util``: time in which any kernel ran, and in which memory was read or written, over
    NVML's last sampling period. ``sm_active``, ``sm_occupancy``, ``dram_active``: DCGM's profiling fields, or
    NVML GPM between this reading and the one before. ``processes`` is ``None`` where the source knows of none.
    """

    uuid: str
    gpu_util: float | None = None
    mem_util: float | None = None
    mem_mib: float | None = None
    sm_active: float | None = None
    sm_occupancy: float | None = None
    dram_active: float | None = None
    processes: tuple[GpuProcess, ...] | None = None
    xid: int | None = None
    """The newest Xid error since the reading before, if there was one."""
    energy_j: float | None = None
    """What the card has taken since its driver was loaded, joules."""


@dataclass(frozen=True, slots=True)
class GpuLost:
    """A GPU that could not be read this time, and why in the source's words."""

    uuid: str
    why: str


@dataclass(frozen=True, slots=True)
class GpuCondition:
    """How one GPU is, apart from its work; ``None`` where the card does not tell. ``index``: the number of its device
    file. ``lost``: the driver's words where it does not reach the card. ``uncorrected``: memory errors since the
    driver was loaded. ``throttle``: what slows it down by its hardware now, of ``thermal`` and ``power``."""

    uuid: str
    index: int
    name: str = ""
    lost: str = ""
    uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    throttle: tuple[str, ...] = ()
