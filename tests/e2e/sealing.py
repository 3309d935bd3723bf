"""Seals as lucidd makes them, for jobs that a test changes itself."""

from __future__ import annotations

from box import Box

from lucid.slurm.act.prolog_extra import Items
from lucid.slurm.commands import MUNGE, credential


def seal(
    box: Box,
    job: str,
    gpus: tuple[int, ...],
    mem_mib: int | None = None,
    speed: float | None = None,
    *,
    node: str = "n1",
    restarts: int = 0,
    user: str = "lucid",
    numbers: tuple[int, ...] = (),
) -> str:
    """The Extra of a job's start on these GPUs, sealed by ``user``."""
    items = Items(node, gpus, mem_mib, speed, numbers=numbers)
    prefix = ["chroot", f"--userspec={user}", str(box.root)]
    return f"{items.plain()};lucid-seal={credential([*prefix, *MUNGE, items.payload(int(job), restarts)])}"
