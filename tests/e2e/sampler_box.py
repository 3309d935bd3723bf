"""The real sampler beside a testbed's lucidd, on readings that a test makes up: nothing here has a GPU."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from box import Box

from lucid.core.gpu import GpuCard, GpuReading
from lucid.node.host_use import Host
from lucid.node.processes import JobSpec, Owners
from lucid.node.sampler import Sampler


class Emulated(ABC):
    """Readings by what jobs do."""

    name = "emulated"

    @abstractmethod
    def saw(self, running: Mapping[str, Mapping[str, Any]]) -> None:
        """Slurm's records of the jobs that run, by number; told about once a second."""

    @abstractmethod
    def specs(self) -> Mapping[str, JobSpec]:
        """The jobs that are to be measured, and their GPUs."""

    @abstractmethod
    def read(self, uuids: Collection[str]) -> Mapping[str, GpuReading]:
        """As of ``GpuMetrics``."""

    def cards(self) -> Sequence[GpuCard]:
        return []

    def conditions(self) -> None:
        return None

    def xids(self) -> dict[int, list[int]]:
        return {}

    def close(self) -> None:
        return None


class SamplerBeside:
    """The real sampler, twice a second: one for all nodes, which here are one machine."""

    def __init__(
        self,
        box: Box,
        folder: Path,
        profiles: Path,
        source: Emulated,
        owners: Owners | None = None,
        host: Host | None = None,
    ) -> None:
        self.box, self.source = box, source
        self.sampler = Sampler(source, folder / "spool", profiles, "n", interval_s=0.5, owners=owners, host=host)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        looked_s = 0.0
        while not self._stop.wait(0.5):
            now_s = time.time()
            if now_s - looked_s > 1.0:
                looked_s = now_s
                try:
                    jobs = self.box.jobs()
                except (AssertionError, OSError, ValueError):
                    continue
                self.source.saw({number: job for number, job in jobs.items() if job["job_state"] == ["RUNNING"]})
            self.sampler.tick(self.source.specs(), now_s)

    def close(self) -> None:
        self._stop.set()
        self._thread.join(10)
        self.sampler.close()
