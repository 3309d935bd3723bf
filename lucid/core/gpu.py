"""GPUs as samplers read them: cards, readings, processes, faults, and which GPUs get no new start."""

from __future__ import annotations

from msgspec import Struct, field

from lucid.core.names import Shown


class GpuCard(Struct, frozen=True):
    """One GPU as the driver names it. ``index`` is the driver's (PCI order); only ``uuid`` never changes."""

    uuid: str
    index: int
    name: str
    mem_mib: float | None = None
    mig: bool = False
    """True in MIG mode: the card reports no utilisation of its own then, and no two jobs are paired on it."""
    minor: int | None = None
    """The minor number of the card's device file, the 3 of /dev/nvidia3. It stays when another card is lost, unlike
    ``index``, which on some hosts also counts in another order."""

    @property
    def number(self) -> int:
        """The number by which Lucid names the card on its node: ``minor``, or ``index`` where the source does not
        report that."""
        return self.index if self.minor is None else self.minor


class GpuProcess(Struct, frozen=True):
    """One process on a GPU: memory in MiB and its share of time (%) of SMs and of memory, ``None`` where the
    driver does not say."""

    pid: int
    mem_mib: float | None = None
    sm_util: float | None = None
    mem_util: float | None = None


class GpuReading(Struct, frozen=True):
    """One GPU at one moment. Shares are percentages (0-100), ``None`` where the card does not offer them.

    ``gpu_util`` and ``mem_util``: time in which any kernel ran, and in which memory was read or written, over
    NVML's last sampling period. ``sm_active``, ``sm_occupancy``, ``dram_active``: DCGM's profiling fields, or
    NVML GPM between this reading and the one before. ``processes`` is ``None`` where the source knows of none."""

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
    """The energy that the card has used since its driver was loaded, joules."""


class GpuLost(Struct, frozen=True):
    """A GPU that could not be read this time, and why in the source's words."""

    uuid: str
    why: str


class GpuCondition(Struct, frozen=True):
    """The health of one GPU; a field is ``None`` where the card does not report it. ``index``: the number of its
    device file. ``lost``: the driver's words where it does not reach the card. ``uncorrected``: memory errors since
    the driver was loaded. ``throttle``: why its hardware slows it down now, of ``thermal`` and ``power``."""

    uuid: str
    index: int
    name: str = ""
    lost: str = ""
    uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    throttle: tuple[str, ...] = ()


MOST_NUMBER = 999
"""No device file of a GPU has a higher number: /dev/nvidia0, /dev/dri/renderD128."""

KINDS = ("xid", "ecc", "row remap", "lost", "thermal", "power")
"""The kinds of fault that a sampler reports. ``xid``: an error of the driver. ``ecc``: uncorrected errors of the
GPU's memory. ``row remap``: a row of its memory waits for a reset, or cannot be remapped. ``lost``: the driver does
not reach it. ``thermal``, ``power``: the hardware slows it down for long, for heat or lack of power."""


class GpuFault(Struct, frozen=True):
    """One fault that a sampler saw. Times in Unix seconds.

    ``code``: the number of the Xid, 0 for other kinds. ``began_s``: when the fault last began. ``last_s``: when it
    was last seen. ``lasts``: whether it is a state that still holds. ``times``: how often it began. ``whose`` fault
    it is: ``application``, ``gpu``, ``driver`` or ``unclear``. ``needs``: what ends it: nothing, a ``reset`` of the
    GPU, or a ``reboot`` of the node. ``bad``: whether a GPU with it gets no new start."""

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


class CardHealth(Struct, frozen=True):
    """The health of one GPU. ``index``: the number of its device file (3 for /dev/nvidia3). ``uncorrected``: its
    count of uncorrected memory errors, as last read. ``faults``: the oldest first."""

    index: int
    uuid: Shown
    name: Shown = ""
    faults: tuple[GpuFault, ...] = ()
    uncorrected: int = 0


class NodeHealth(Struct, frozen=True):
    """What the sampler of a node reports of its GPUs. ``boot``: names the node's boot. ``since_s``: since when a
    sampler has watched in this boot. ``silent_s``: since when the driver as a whole does not answer, so that nothing
    is known of single GPUs; 0 while it answers. ``order``: the device numbers of its GPUs as the driver lists them,
    which is CUDA's order."""

    node: Shown
    at_s: float
    boot: Shown = ""
    since_s: float = 0.0
    silent_s: float = 0.0
    cards: tuple[CardHealth, ...] = field(default=())
    order: tuple[int, ...] = ()


class GpuOut(Struct, frozen=True):
    """A GPU that gets no new start. ``index``: the number of its device file. ``by``: the person who took it out;
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
    """Whether restartable jobs on this GPU are requeued: the fault is not theirs, and they would hardly go on."""
    place: int | None = None
    """The GPU's place among the node's GPUs as Slurm counts them, where that differs from ``index``."""

    @property
    def bit(self) -> int:
        """The GPU's place in masks of the node's GPUs."""
        return self.index if self.place is None else self.place

    @property
    def name(self) -> str:
        """The GPU's name as commands take it: ``node7:3``."""
        return f"{self.node}:{self.index}"
