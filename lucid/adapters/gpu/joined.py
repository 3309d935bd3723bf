"""DCGM's profiling fields and NVML's processes as one source."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from lucid.core.ports import GpuMetrics
from lucid.core.readings import GpuCard, GpuCondition, GpuLost, GpuReading
from lucid.errors import MetricsError

__all__ = ["JoinedMetrics"]


class JoinedMetrics:
    """Everything from ``main``, and from ``beside`` what ``main`` does not know. Either may fail alone."""

    def __init__(self, main: GpuMetrics, beside: GpuMetrics) -> None:
        self._main = main
        self._beside = beside
        self.name = f"{main.name}+{beside.name}"

    def cards(self) -> Sequence[GpuCard]:
        """The cards of whichever source answers; of both, those of ``beside`` (NVML knows the memory)."""
        try:
            return self._beside.cards()
        except MetricsError:
            return self._main.cards()

    def read(self, uuids: Collection[str]) -> Mapping[str, GpuReading | GpuLost]:
        """As the port says; an error only where both sources fail."""
        try:
            main = self._main.read(uuids)
        except MetricsError:
            return self._beside.read(uuids)
        try:
            beside = self._beside.read(uuids)
        except MetricsError:
            return main
        return {uuid: _joined(main[uuid], beside[uuid]) for uuid in uuids}

    def conditions(self) -> Sequence[GpuCondition] | None:
        """Those of ``beside``: NVML tells of faults, DCGM's page of a GPU that is away says nothing."""
        return self._beside.conditions()

    def xids(self) -> Mapping[int, Sequence[int]]:
        """Those of ``beside``."""
        return self._beside.xids()

    def close(self) -> None:
        """Close both."""
        self._main.close()
        self._beside.close()


def _joined(main: GpuReading | GpuLost, beside: GpuReading | GpuLost) -> GpuReading | GpuLost:
    if isinstance(main, GpuLost) or isinstance(beside, GpuLost):
        return beside if isinstance(main, GpuLost) else main
    names = ("gpu_util", "mem_util", "mem_mib", "sm_active", "sm_occupancy", "dram_active", "processes", "xid",
             "energy_j")  # fmt: skip
    absent = {name: getattr(beside, name) for name in names if getattr(main, name) is None}
    return replace(main, **absent)
