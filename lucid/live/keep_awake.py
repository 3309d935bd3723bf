"""Keeps free nodes from falling asleep, as many as the submissions forecast for the next boot may need.

Slurm is told by SuspendExcNodes, which only an administrator may change (AdminLevel=Admin, from Slurm 23.02). What
Lucid has put there stands in a file of the state folder before Slurm is told. It is taken back when lucidd stops, by
lucid-release where no lucidd runs any more, and by the next lucidd. slurmctld itself forgets it at its restart.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from lucid.atomic import write_atomic
from lucid.config import SleepSettings
from lucid.core.snapshot import Partition, Snapshot
from lucid.errors import ActionRefused
from lucid.orchestrator.capacity.ready_nodes import ready_nodes

__all__ = ["KEPT_AWAKE", "KeepAwake", "kept_in", "to_keep"]

KEPT_AWAKE = "kept_awake"
"""The file's name: a node a line."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_EVERY_S = 30.0
_REFUSED_S = 3600.0
"""Where Slurm declines, it is asked again so much later."""


def kept_in(folder: Path) -> list[str]:
    """Nodes that a lucidd keeps, or kept, awake."""
    try:
        text = (folder / KEPT_AWAKE).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return []
    return [line for line in text.splitlines()[:10_000] if _NAME.fullmatch(line)]


def to_keep(
    partition: Partition,
    gpus_per_hour: float,
    boot_s: float,
    settings: SleepSettings,
    kept: Sequence[str],
    excepted: Collection[str],
) -> list[str]:
    """The free nodes of a partition to keep awake: those kept already first, so that they stay the same. Nodes that
    the site itself has ``excepted`` count, and are the site's."""
    count = ready_nodes(partition, gpus_per_hour, boot_s, settings).nodes
    held = {part.node for entry in partition.running for part in entry.placement}
    free = [node.name for node in partition.nodes if node.available and not node.boot_s and node.name not in held]
    chosen = sorted(free, key=lambda name: (name not in excepted, name not in kept))[:count]
    return [name for name in chosen if name not in excepted]


class KeepAwake:
    """``tell`` adds nodes to SuspendExcNodes (``True``) or takes them out. Where nothing is ``wanted``, what an
    earlier lucidd kept is taken back."""

    def __init__(
        self,
        folder: Path,
        settings: SleepSettings,
        wanted: bool,
        tell: Callable[[Sequence[str], bool], None],
        excepted: Callable[[], Collection[str]],
    ) -> None:
        """``excepted``: which nodes are in SuspendExcNodes now. Both raise ``ActionRefused`` where Slurm declines."""
        self._excepted = excepted
        self._folder = folder
        self._settings = settings
        self._wanted = wanted
        self._tell = tell
        self._next_s = float("-inf")
        self.refused = ""
        """Slurm's words, where it declined."""

    def look(self, snapshot: Snapshot, boot_s: float) -> None:
        """Keep what this snapshot asks for, now and then. ``boot_s``: how long a boot takes."""
        if self._next_s - _REFUSED_S <= snapshot.now_s < self._next_s:
            return
        kept, self._next_s = kept_in(self._folder), snapshot.now_s + _EVERY_S
        if not (kept or self._wanted):
            return
        try:
            sites = {*self._excepted()} - {*kept}
        except ActionRefused as error:
            self.refused, self._next_s = str(error), snapshot.now_s + _REFUSED_S
            return
        wanted: list[str] = []
        for partition in snapshot.partitions.values() if self._wanted else ():
            if partition.acting and not partition.profiling:
                per_hour = snapshot.arrivals.of(*partition.vcs)
                wanted += to_keep(partition, per_hour, boot_s, self._settings, kept, sites)
        if {*wanted} != {*kept}:
            self._change(kept, wanted, snapshot.now_s)

    def take_back(self) -> None:
        """Nothing is kept awake any more."""
        kept = kept_in(self._folder)
        if kept:
            self._change(kept, [], self._next_s)

    def _change(self, kept: Sequence[str], wanted: Sequence[str], now_s: float) -> None:
        """The file names all nodes that Lucid may have put into SuspendExcNodes, at any moment."""
        more, fewer = [n for n in wanted if n not in kept], [n for n in kept if n not in wanted]
        self._write([*kept, *more])
        try:
            if more:
                self._tell(more, True)
            if fewer:
                self._tell(fewer, False)
        except ActionRefused as error:
            self.refused, self._next_s = str(error), now_s + _REFUSED_S
            if not fewer:  # nothing was added; what was to be taken out may be in still
                self._write(kept)
            return
        self.refused = ""
        self._write(wanted)

    def _write(self, names: Sequence[str]) -> None:
        path = self._folder / KEPT_AWAKE
        if names:
            write_atomic(path, "".join(f"{name}\n" for name in names).encode(), durable=True)
        else:
            path.unlink(missing_ok=True)
