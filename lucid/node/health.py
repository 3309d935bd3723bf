"""The sampler's watch over GPU health: it reads the driver every few seconds and writes down faults of all GPUs.

GPUs without a job are watched, too. The rules for what is a fault are in ``lucid.profiler.gpu_health``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lucid.core.gpu import GpuCondition
from lucid.core.ports import GpuMetrics
from lucid.errors import MetricsError
from lucid.node.reports import ALIVE_S, Evidence, health_folder, read_health, touch_health, write_health
from lucid.profiler.gpu_health import POLL_S, HealthWatch


def boot_id() -> str:
    """The kernel's name for this boot; empty where it has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


class HealthPolls:
    """Reads conditions every few seconds, and every second what the driver reports by itself."""

    def __init__(
        self,
        metrics: GpuMetrics,
        spool: Path,
        profiles: Path,
        node: str,
        log: Callable[[str], None],
        boot: str | None = None,
    ) -> None:
        self._metrics = metrics
        self._folder = health_folder(profiles)
        self._node = node
        self._log = log
        self._evidence = Evidence(spool / "gpu-health.jsonl")
        before = None
        with contextlib.suppress(MetricsError, FileNotFoundError):
            before = read_health(self._folder / f"{node}.json")
        self._watch = HealthWatch(node, boot_id() if boot is None else boot, before)
        self._due_s = self._alive_s = float("-inf")
        self._failing = False
        self._unwritten = True
        self._tells = True
        """Whether the source reports conditions at all."""

    def tick(self, now_s: float) -> None:
        """One round."""
        if not self._tells:
            return
        lines: list[dict[str, Any]] = []
        try:
            if now_s >= self._due_s or now_s < self._due_s - 2 * POLL_S:  # or the clock was put back
                self._due_s = now_s + POLL_S
                seen = self._metrics.conditions()
                if seen is None:
                    self._tells = False
                    return
                self._watch.observe(seen, now_s)
                told = ((one, _notable(one)) for one in seen)
                lines = [{"at": now_s, "gpu": one.index, "uuid": one.uuid, **said} for one, said in told if said]
                self._failing = False
            xids = self._metrics.xids()
            self._watch.events(xids, now_s)
            lines += [{"at": now_s, "gpu": index, "xids": list(found)} for index, found in xids.items()]
        except MetricsError as error:
            self._watch.silent(now_s)
            if not self._failing:
                lines = [{"at": now_s, "driver": str(error)}]
            self._failing = True
        try:
            self._evidence.add(lines)
            if self._watch.changed() or self._unwritten:
                self._unwritten = True
                write_health(self._folder, self._watch.report(now_s))
                self._unwritten, self._alive_s = False, now_s
            elif abs(now_s - self._alive_s) >= ALIVE_S:
                touch_health(self._folder, self._node)
                self._alive_s = now_s
        except MetricsError as error:
            self._log(str(error))


def _notable(one: GpuCondition) -> dict[str, Any]:
    """What of a GPU's condition belongs into the evidence."""
    told = {
        "lost": one.lost,
        "uncorrected": one.uncorrected,
        "remap_pending": one.remap_pending,
        "remap_failed": one.remap_failed,
        "throttle": list(one.throttle),
    }
    return {key: value for key, value in told.items() if value}
