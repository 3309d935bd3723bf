"""``NvmlMetrics``: readings through NVML, by the vendor's bindings ``nvidia-ml-py`` (extra ``node``).

It needs no root. Whatever fails, fails small: a reading that a card does not offer is ``None``, a card that fails is
``GpuLost``, and only a library or driver that does not answer is an error; the next call then opens it again, which
is how a restarted driver is survived."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lucid.core.gpu import GpuCard, GpuCondition, GpuLost, GpuProcess, GpuReading
from lucid.errors import MetricsError

_MIB: Final = 1 << 20
_GPM: Final = ("NVML_GPM_METRIC_SM_UTIL", "NVML_GPM_METRIC_SM_OCCUPANCY", "NVML_GPM_METRIC_DRAM_BW_UTIL")
_ABSENT: Final = frozenset({2, 3, 4, 6, 13, 20, 25})
"""NVML codes for 'this card or driver does not report that': invalid argument, not supported, no permission, not
found, function not found, memory, version mismatch of an argument."""
_DRIVER_GONE: Final = frozenset({1, 9, 18, 999})
"""Codes that mean 'open the library again': uninitialised, driver not loaded, version mismatch, unknown."""
_THERMAL: Final = 0x40
_BRAKE: Final = 0x80
"""Bits of the reasons for low clocks that are the hardware's own: heat, and the power supply. Its caps by software
(0x4, 0x20) are usual under load."""
_MOST_XIDS: Final = 64
"""Most Xids kept for one GPU until ``xids`` is called."""


@dataclass(slots=True)
class _Device:
    handle: Any
    card: GpuCard
    gpm: list[Any]
    """Two GPM samples, the older first; empty where the card has no GPM."""
    fresh: bool
    """True until the first GPM sample was taken."""
    seen_us: int = 0
    """Timestamp of the newest per-process sample."""


class NvmlMetrics:
    """``GpuMetrics`` of the machine this runs on. Without ``gpm`` the profiling counters are left alone."""

    name = "nvml"

    def __init__(self, *, gpm: bool = True) -> None:
        self._gpm_wanted = gpm
        self._nvml: Any = None
        self._devices: dict[str, _Device] = {}
        self._events: Any = None
        self._metrics: Any = None
        self._xids: dict[str, int] = {}
        self._untold: dict[int, list[int]] = {}
        """Xids by device number, until ``xids`` hands them out."""
        self._noted = False
        """Whether the driver's queue of Xids was read since they were handed out."""
        self._seen: dict[int, GpuCard] = {}
        """The card that was last seen at each place among the driver's (PCI order)."""
        self._failing: dict[GpuCard, str] = {}
        """Cards whose handles the driver does not give, with its words."""
        self.driver = ""
        """Version of the driver last spoken to."""

    def cards(self) -> Sequence[GpuCard]:
        """The GPUs that are there now, by index."""
        self._open()
        self._find()
        return sorted((device.card for device in self._devices.values()), key=lambda card: card.index)

    def read(self, uuids: Collection[str]) -> Mapping[str, GpuReading | GpuLost]:
        """One reading of each of these GPUs; ``GpuLost`` for one that is gone or fails."""
        self._open()
        if any(uuid not in self._devices for uuid in uuids):
            self._find()
        self._note_xids()
        found: dict[str, GpuReading | GpuLost] = {}
        for uuid in uuids:
            device = self._devices.get(uuid)
            if device is None:
                found[uuid] = GpuLost(uuid, "not there")
                continue
            try:
                found[uuid] = self._read(device)
            except self._nvml.NVMLError as error:
                code = getattr(error, "value", None)
                if code in _DRIVER_GONE:
                    self.close()
                    raise MetricsError(f"NVML: {error}; the driver was restarted or is gone") from None
                del self._devices[uuid]  # looked for again at the next reading
                found[uuid] = GpuLost(uuid, str(error))
        return found

    def conditions(self) -> Sequence[GpuCondition]:
        """The health of every GPU that the driver names. A card that fails as soon as its handle is asked for is
        reported as the one that stood at its place before."""
        self._open()
        if self._count() != len(self._devices):  # handles that are known tell by themselves that a card is lost
            self._find()
        self._note_xids()
        found = [GpuCondition(card.uuid, card.number, card.name, words) for card, words in self._failing.items()]
        for device in list(self._devices.values()):
            try:
                found.append(self._condition(device))
            except self._nvml.NVMLError as error:
                if getattr(error, "value", None) in _DRIVER_GONE:
                    self.close()
                    raise MetricsError(f"NVML: {error}; the driver was restarted or is gone") from None
                found.append(GpuCondition(device.card.uuid, device.card.number, device.card.name, str(error)))
        return found

    def _condition(self, device: _Device) -> GpuCondition:
        nvml, handle = self._nvml, device.handle
        nvml.nvmlDeviceGetMemoryInfo(handle)
        count = self._absent(
            nvml.nvmlDeviceGetTotalEccErrors,
            handle,
            nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            nvml.NVML_VOLATILE_ECC,
        )
        rows = self._absent(nvml.nvmlDeviceGetRemappedRows, handle)
        reasons = self._absent(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle) or 0
        return GpuCondition(
            device.card.uuid,
            device.card.number,
            device.card.name,
            "",
            None if count is None else int(count),
            None if rows is None else bool(rows[2]),
            None if rows is None else bool(rows[3]),
            tuple(name for bit, name in ((_THERMAL, "thermal"), (_BRAKE, "power")) if int(reasons) & bit),
        )

    def xids(self) -> Mapping[int, Sequence[int]]:
        """Xid errors since the last call, by device number; none while the driver does not answer."""
        if self._nvml is not None and not self._noted:  # else a reading has just taken them off the queue
            self._note_xids()
        found, self._untold, self._noted = self._untold, {}, False
        return found

    def close(self) -> None:
        """Release the driver."""
        if self._nvml is None:
            return
        for device in self._devices.values():
            for sample in device.gpm:
                self._quiet(self._nvml.nvmlGpmSampleFree, sample)
        if self._events is not None:
            self._quiet(self._nvml.nvmlEventSetFree, self._events)
        self._quiet(self._nvml.nvmlShutdown)
        self._devices, self._events, self._metrics, self._nvml = {}, None, None, None

    def _open(self) -> None:
        if self._nvml is not None:
            return
        try:
            nvml = importlib.import_module("pynvml")
        except ModuleNotFoundError:
            raise MetricsError(
                "NVML: the Python package nvidia-ml-py is missing; pip install 'lucid-scheduler[node]'"
            ) from None
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            raise MetricsError(f"NVML: {error}; is the NVIDIA driver loaded on this machine?") from None
        self._nvml = nvml
        self.driver = str(self._quiet(nvml.nvmlSystemGetDriverVersion) or "")
        self._events = self._quiet(nvml.nvmlEventSetCreate)
        metrics = nvml.c_nvmlGpmMetricsGet_t()
        metrics.version = nvml.NVML_GPM_METRICS_GET_VERSION
        metrics.numMetrics = len(_GPM)
        for i, metric in enumerate(_GPM):
            metrics.metrics[i].metricId = getattr(nvml, metric)
        self._metrics = metrics

    def _count(self) -> int:
        try:
            return int(self._nvml.nvmlDeviceGetCount())
        except self._nvml.NVMLError as error:
            self.close()
            raise MetricsError(f"NVML: {error}; the driver was restarted or is gone") from None

    def _find(self) -> None:
        """Find out which cards are there; known ones keep their state."""
        nvml, count = self._nvml, self._count()
        known, self._devices, self._failing = self._devices, {}, {}
        for index in range(count):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                uuid = str(nvml.nvmlDeviceGetUUID(handle))
                self._devices[uuid] = known.pop(uuid) if uuid in known else self._device(handle, uuid, index)
                self._seen[index] = self._devices[uuid].card
            except nvml.NVMLError as error:  # a card in trouble is no reason to lose the others
                if index in self._seen and count > max(self._seen):  # none is away, so it is the one that stood here
                    self._failing[self._seen[index]] = str(error)
        for device in known.values():
            for sample in device.gpm:
                self._quiet(nvml.nvmlGpmSampleFree, sample)

    def _device(self, handle: Any, uuid: str, index: int) -> _Device:
        nvml = self._nvml
        memory = self._absent(nvml.nvmlDeviceGetMemoryInfo, handle)
        mode = self._absent(nvml.nvmlDeviceGetMigMode, handle)
        support = self._absent(nvml.nvmlGpmQueryDeviceSupport, handle) if self._gpm_wanted else None
        samples = []
        if support is not None and support.isSupportedDevice:
            samples = [nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()]
        if self._events is not None:
            self._quiet(nvml.nvmlDeviceRegisterEvents, handle, nvml.nvmlEventTypeXidCriticalError, self._events)
        card = GpuCard(
            uuid,
            index,
            str(nvml.nvmlDeviceGetName(handle)),
            None if memory is None else memory.total / _MIB,
            bool(mode and mode[0]),
            self._absent(nvml.nvmlDeviceGetMinorNumber, handle),
        )
        return _Device(handle, card, samples, True)

    def _read(self, device: _Device) -> GpuReading:
        nvml, handle = self._nvml, device.handle
        # the one call that every card in order answers: it finds out whether this one is there at all
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        rates = self._absent(nvml.nvmlDeviceGetUtilizationRates, handle)
        sm_active, sm_occupancy, dram_active = self._gpm(device)
        energy_mj = self._absent(self._nvml.nvmlDeviceGetTotalEnergyConsumption, device.handle)
        return GpuReading(
            device.card.uuid,
            None if rates is None else float(rates.gpu),
            None if rates is None else float(rates.memory),
            memory.used / _MIB,
            sm_active,
            sm_occupancy,
            dram_active,
            self._processes(device),
            self._xids.pop(device.card.uuid, None),
            None if energy_mj is None else energy_mj / 1000.0,
        )

    def _gpm(self, device: _Device) -> tuple[float | None, float | None, float | None]:
        """SM utilisation, occupancy and DRAM utilisation between the last reading and this one."""
        none = (None, None, None)
        if not device.gpm:
            return none
        older, newer = device.gpm
        if self._absent(self._nvml.nvmlGpmSampleGet, device.handle, newer) is None:
            return none
        device.gpm = [newer, older]
        if device.fresh:
            device.fresh = False
            return none
        metrics = self._metrics
        metrics.sample1, metrics.sample2 = older, newer
        if self._absent(self._nvml.nvmlGpmMetricsGet, metrics) is None:
            return none
        values = [
            None if metrics.metrics[i].nvmlReturn else float(metrics.metrics[i].value) for i in range(len(_GPM))
        ]
        return values[0], values[1], values[2]

    def _processes(self, device: _Device) -> tuple[GpuProcess, ...] | None:
        nvml, handle = self._nvml, device.handle
        running = self._absent(nvml.nvmlDeviceGetComputeRunningProcesses, handle)
        if running is None:
            return None
        if not running:
            return ()
        # Raises 'not found' when nothing has run since the time given: an answer, not a fault.
        samples = self._absent(nvml.nvmlDeviceGetProcessUtilization, handle, device.seen_us) or ()
        sums: dict[int, tuple[int, int, int]] = {}
        for sample in samples:
            device.seen_us = max(device.seen_us, int(sample.timeStamp))
            if sample.smUtil <= 100 and sample.memUtil <= 100:  # the driver is known to hand out garbage
                count, sm, mem = sums.get(sample.pid, (0, 0, 0))
                sums[sample.pid] = (count + 1, sm + int(sample.smUtil), mem + int(sample.memUtil))
        found: dict[int, GpuProcess] = {}
        for process in running:
            pid = int(process.pid)
            count, sm, mem = sums.get(pid, (0, 0, 0))
            used = process.usedGpuMemory
            mem_mib = None if used is None else used / _MIB
            before = found.get(pid)
            if before is not None and before.mem_mib is not None and mem_mib is not None:
                mem_mib += before.mem_mib  # one process with several contexts
            found[pid] = GpuProcess(pid, mem_mib, sm / count if count else None, mem / count if count else None)
        return tuple(found.values())

    def _note_xids(self) -> None:
        """Take the Xid errors since the last reading off the driver's queue, without waiting."""
        nvml, self._noted = self._nvml, True
        for _ in range(64 if self._events is not None else 0):
            try:
                event = nvml.nvmlEventSetWait(self._events, 0)
            except nvml.NVMLError:
                return
            for uuid, device in self._devices.items():
                if _address(device.handle) == _address(event.device):
                    self._xids[uuid] = int(event.eventData)
                    waiting = self._untold.setdefault(device.card.number, [])
                    waiting[:] = [*waiting, int(event.eventData)][-_MOST_XIDS:]

    def _absent(self, call: Callable[..., Any], *given: Any) -> Any:
        """The result of the call, or ``None`` where this card or driver does not offer it."""
        try:
            return call(*given)
        except self._nvml.NVMLError as error:
            if getattr(error, "value", None) in _ABSENT:
                return None
            raise

    def _quiet(self, call: Callable[..., Any], *given: Any) -> Any:
        with contextlib.suppress(self._nvml.NVMLError):
            return call(*given)
        return None


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
