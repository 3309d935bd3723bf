"""Nodes of the cluster, and the windows of time in which no job may run on them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from lucid.core.gpu import GpuOut
from lucid.core.names import Shown
from lucid.core.placement import mask_of


@dataclass(frozen=True, slots=True)
class Window:
    """A time in which no job may run on a node: maintenance, somebody's reservation, a node on its way down.

    A job may start before it only if its time limit ends by ``from_s``, as Slurm has it. Times in Unix seconds."""

    from_s: float
    until_s: float | None = None
    """When the window ends; ``None`` where that is not known."""
    why: Shown = ""
    """Why the node closes, in words that a user knows: the reservation's name and kind."""
    lead_s: float = 0.0
    """How long before ``from_s`` a job's time limit must have ended: a released job starts some seconds later."""

    @property
    def ends_by_s(self) -> float:
        """The time by which the limit of a job that starts before the window must have ended."""
        return self.from_s - self.lead_s

    @property
    def end_s(self) -> float:
        """``until_s``, or infinity where that is not known."""
        return math.inf if self.until_s is None else self.until_s


@dataclass(frozen=True, slots=True)
class Node:
    """One machine and its resources. ``cpus`` or ``mem_mib`` of 0 means that there is no limit (a trace without host
    sizes). ``gpu_mem_mib`` is the memory of each of its GPUs, in MiB."""

    name: Shown
    gpus: int
    gpu_mem_mib: int = 24576
    cpus: int = 0
    mem_mib: int = 0
    available: bool = True
    """False while down or draining: nothing new is placed here."""
    out: Shown = ""
    """Why the node is not available, in the cluster's own word: reserved, drained, down."""
    cpus_used: int = 0
    """CPUs held by jobs without GPUs, which are not planned."""
    mem_used_mib: int = 0
    """Memory held by jobs without GPUs, MiB."""
    gpu_type: Shown = ""
    """Type of the node's GPUs, where that is known."""
    slots: int = 0
    """How many jobs may hold one of the node's GPUs at once, as Slurm is configured; 0: no limit (a replay)."""
    switches: tuple[Shown, ...] = ()
    """The network switches above the node, or its blocks, the lowest first; empty where the network is not known."""
    windows: tuple[Window, ...] = ()
    """The times in which no job may run here, without those that are over, the earliest first."""
    shut: Window | None = None
    """The window that has begun, where it is the only reason why the node is not available."""
    boot_s: float = 0.0
    """Seconds that the node takes to boot, where it sleeps or boots now: a job started here waits for that. 0 for a
    node that is awake."""
    boots_since_s: float | None = None
    """Since when the node boots, Unix seconds; ``None`` while it sleeps, and for a node that is awake."""
    left_out: tuple[GpuOut, ...] = ()
    """The node's GPUs that get no new start, since they are not well. Jobs that run on them go on."""
    numbers: tuple[int, ...] = ()
    """Device file numbers of the node's GPUs by their places in masks; empty where they are 0, 1, 2 and so on."""

    @property
    def usable(self) -> int:
        """The GPUs that may get new starts, as a mask."""
        mask = (1 << self.gpus) - 1
        return mask & ~mask_of(out.bit for out in self.left_out) if self.left_out else mask

    def at(self, now_s: float) -> Node:
        """The node as it will be at ``now_s``, after its windows and a boot that has begun: the same object where
        they change nothing."""
        if self.boots_since_s is not None and self.delay_s(now_s) <= 0.0:
            return replace(self, boot_s=0.0, boots_since_s=None).at(now_s)
        if not self.windows or not (self.available or self.shut is not None):
            return self
        shut = next((w for w in self.windows if w.from_s <= now_s < w.end_s), None)
        if shut == self.shut:
            return self
        return replace(self, available=shut is None, out="" if shut is None else shut.why, shut=shut)

    def closes_s(self, now_s: float) -> float:
        """The time by which a job that starts here now must have ended, for the windows that begin after ``now_s``;
        infinite if none does."""
        return min((w.ends_by_s for w in self.windows if w.from_s > now_s), default=math.inf)

    def opens_s(self) -> float:
        """When a node that is not available will be available; infinite where that is not known."""
        opens_s = math.inf if self.shut is None else self.shut.end_s
        for window in self.windows:  # one may begin before another has ended
            if window.from_s <= opens_s < window.end_s:
                opens_s = window.end_s
        return opens_s

    def delay_s(self, now_s: float) -> float:
        """How long a job that is started here now waits for the node, seconds."""
        return self.boot_s if self.boots_since_s is None else max(self.boot_s - (now_s - self.boots_since_s), 0.0)

    def woken(self, now_s: float) -> Node:
        """The node once a job was started on it: now booting if it slept, else the same object."""
        return replace(self, boots_since_s=now_s) if self.boot_s and self.boots_since_s is None else self

    @property
    def cpus_left(self) -> int:
        """CPUs that jobs with GPUs may use."""
        return self.cpus - self.cpus_used

    @property
    def mem_left_mib(self) -> int:
        """Memory that jobs with GPUs may use, MiB."""
        return self.mem_mib - self.mem_used_mib


def next_edge_s(nodes: Iterable[Node], now_s: float) -> float:
    """When a window of one of these nodes next begins or ends; infinite if none does."""
    edges = (edge for node in nodes for w in node.windows for edge in (w.from_s, w.end_s))
    return min((edge for edge in edges if edge > now_s), default=math.inf)
