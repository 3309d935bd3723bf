"""NVML and GPM readings of loads that were built to a known use, on a real GPU.

    pip install torch; python -m benchmarks.gpu_readings

Each load runs for some seconds in this process while ``NvmlMetrics`` reads once a second; a reading should lie within
10 % of what the load was built to use:

- kernels for a known share of each 40 ms (spinning, on one SM): GPU utilisation;
- such a kernel on a known number of SMs at once, without a pause: SM activity (GPM);
- copies within device memory, without a pause: DRAM utilisation (GPM), against bytes moved over the card's peak.

It also times one ``NvmlMetrics.read``: what the sampler pays on a real driver.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from lucid.core.gpu import GpuReading
from lucid.errors import MetricsError
from lucid.node.nvml import NvmlMetrics

__all__ = ["main"]

_SECONDS = 12.0
_SETTLE_S = 3.0
_PERIOD_S = 0.04
_WITHIN = 0.10
_WIDEST = 32
"""So many kernels run at once at the most: CUDA's hardware queues."""


def _read_during(metrics: NvmlMetrics, uuid: str, load: Callable[[float], None]) -> list[GpuReading]:
    """Readings at 1 Hz while the load runs, without its first seconds."""
    found: list[GpuReading] = []
    until = time.monotonic() + _SECONDS
    thread = threading.Thread(target=load, args=(until,))
    thread.start()
    time.sleep(_SETTLE_S)
    while time.monotonic() < until - 1:
        reading = metrics.read([uuid])[uuid]
        if isinstance(reading, GpuReading):
            found.append(reading)
        time.sleep(1)
    thread.join()
    return found


def _mean(readings: list[GpuReading], name: str) -> float | None:
    values = [value for value in (getattr(reading, name) for reading in readings) if value is not None]
    return sum(values) / len(values) if values else None


def main() -> int:
    """Measure and print; exit code 1 where a reading is off by more than a tenth, 2 without a GPU."""
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", str(_WIDEST))  # before CUDA starts; its default is 8
    try:
        import torch
    except ModuleNotFoundError:
        print("torch is not installed: pip install torch", file=sys.stderr)
        return 2
    metrics = NvmlMetrics()
    try:
        card = metrics.cards()[0]
    except (MetricsError, IndexError) as error:
        print(f"no GPU to measure on: {error}", file=sys.stderr)
        return 2
    if not torch.cuda.is_available():
        print("torch sees no GPU", file=sys.stderr)
        return 2
    results = [
        *(_duty(torch, metrics, card.uuid, share) for share in (0.25, 0.5, 0.75, 1.0)),
        *(_width(torch, metrics, card.uuid, wide) for wide in (_WIDEST // 2, _WIDEST)),
        _copies(torch, metrics, card.uuid),
        _cost(metrics, card.uuid),
    ]
    print(json.dumps({"card": card.name, "driver": metrics.driver, "results": results}, indent=1))
    return int(any(result.get("ok") is False for result in results))


def _verdict(what: str, built: float, read: float | None) -> dict[str, Any]:
    ok = None if read is None else abs(read - built) <= _WITHIN * built
    return {"what": what, "built_percent": round(built, 1), "read_percent": read, "ok": ok}


def _cycles_per_s(torch: Any) -> float:
    cycles = 50_000_000
    torch.cuda._sleep(cycles)
    torch.cuda.synchronize()
    began = time.perf_counter()
    torch.cuda._sleep(cycles)
    torch.cuda.synchronize()
    return cycles / (time.perf_counter() - began)


def _duty(torch: Any, metrics: NvmlMetrics, uuid: str, share: float) -> dict[str, Any]:
    pace = _cycles_per_s(torch)

    def load(until: float) -> None:
        while time.monotonic() < until:
            began = time.perf_counter()
            torch.cuda._sleep(int(pace * _PERIOD_S * share))
            torch.cuda.synchronize()
            time.sleep(max(_PERIOD_S - (time.perf_counter() - began), 0.0) if share < 1 else 0.0)

    read = _mean(_read_during(metrics, uuid, load), "gpu_util")
    return _verdict(f"a kernel for {share:.0%} of the time: gpu_util", 100 * share, read)


def _width(torch: Any, metrics: NvmlMetrics, uuid: str, wide: int) -> dict[str, Any]:
    units = torch.cuda.get_device_properties(0).multi_processor_count
    streams = [torch.cuda.Stream() for _ in range(wide)]
    pace = _cycles_per_s(torch)

    def load(until: float) -> None:
        while time.monotonic() < until:
            for stream in streams:  # each spins on one SM; two rounds are queued, so none falls idle
                with torch.cuda.stream(stream):
                    torch.cuda._sleep(int(pace * 0.2))
                    torch.cuda._sleep(int(pace * 0.2))
            torch.cuda.synchronize()

    read = _mean(_read_during(metrics, uuid, load), "sm_active")
    return _verdict(f"{wide} of {units} SMs at work: sm_active", 100 * wide / units, read)


def _copies(torch: Any, metrics: NvmlMetrics, uuid: str) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(0)
    clock, bus = getattr(properties, "memory_clock_rate", 0), getattr(properties, "memory_bus_width", 0)
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    moved = [0, 0.0]

    def load(until: float) -> None:
        began = time.perf_counter()
        while time.monotonic() < until:
            for _ in range(20):
                target.copy_(source)
            torch.cuda.synchronize()
            moved[0] += 40 << 30  # read and written
        moved[1] = time.perf_counter() - began

    read = _mean(_read_during(metrics, uuid, load), "dram_active")
    peak = 2 * clock * 1000 * bus / 8  # double data rate; kHz and bits
    built = 100 * moved[0] / moved[1] / peak if peak else 0.0
    return _verdict("copies within device memory: dram_active", built, read if peak else None)


def _cost(metrics: NvmlMetrics, uuid: str) -> dict[str, Any]:
    wall, cpu, rounds = time.perf_counter(), time.process_time(), 200
    for _ in range(rounds):
        metrics.read([uuid])
    return {
        "what": "one reading of one GPU",
        "wall_ms": 1000 * (time.perf_counter() - wall) / rounds,
        "cpu_ms": 1000 * (time.process_time() - cpu) / rounds,
    }


if __name__ == "__main__":
    sys.exit(main())
