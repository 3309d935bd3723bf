"""How jobs used their GPUs, from the summaries of samplers: read once each, and again when they change."""

from __future__ import annotations

import threading
from pathlib import Path

from lucid.adapters.gpu.profile_files import read_summary
from lucid.errors import MetricsError
from lucid.profiler.use import GpuUse

__all__ = ["UseFolder"]


class UseFolder:
    """The summaries below one folder. It may be asked from several threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[int, str, tuple[GpuUse, ...]]] = {}
        """By file name: version, job, use."""

    def uses(self) -> dict[str, tuple[GpuUse, ...]]:
        """By job id, of all its nodes. Files that are no summaries, or of samplers that did not tell it yet, have
        none: lucidd and ``lucidctl doctor`` tell of files that cannot be read."""
        with self._lock:
            self._look()
            found: dict[str, tuple[GpuUse, ...]] = {}
            for _, job, use in self._seen.values():
                found[job] = found.get(job, ()) + use
            return found

    def _look(self) -> None:
        known, self._seen = self._seen, {}
        for path in self._folder.glob("[!.]*.json") if self._folder.is_dir() else ():
            try:
                version = path.stat().st_mtime_ns
                before = known.get(path.name)
                if before is None or before[0] != version:
                    summary = read_summary(path)
                    before = version, summary.job, summary.use
            except (MetricsError, OSError):
                continue
            self._seen[path.name] = before
