"""Nodes of the cluster."""

from __future__ import annotations

from dataclasses import dataclass

from lucid.core.names import Shown

__all__ = ["Node"]


@dataclass(frozen=True, slots=True)
class Node:
    """One machine and all that it has. ``cpus`` or ``mem_mib`` of 0 means that there is no limit (a trace without
    host sizes).

    ``gpu_mem_mib`` is the memory of each of its GPUs, in MiB.
    """

    name: Shown
    gpus: int
    gpu_mem_mib: int = 24576
    cpus: int = 0
    mem_mib: int = 0
    available: bool = True
    """False while down or draining: nothing new is placed here."""
    out: Shown = ""
    """Why it is not available, in the cluster's own word: reserved, drained, down."""
    cpus_used: int = 0
    """Of these, held by jobs without GPUs, which are not planned."""
    mem_used_mib: int = 0
    """The same of its memory."""
    gpu_type: Shown = ""
    """Type of its GPUs, where that is known."""
    slots: int = 0
    """How many jobs may hold one of its GPUs at once, as Slurm is configured; 0: nothing limits that (a replay)."""

    @property
    def cpus_left(self) -> int:
        """For jobs with GPUs."""
        return self.cpus - self.cpus_used

    @property
    def mem_left_mib(self) -> int:
        """For jobs with GPUs."""
        return self.mem_mib - self.mem_used_mib
