"""Running the suite, alone and in pairs, and keeping every result at once so that a stop costs one measurement."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.calibrate.suite import Workload, pairs_of, workload_of
from benchmarks.calibrate.tables import Alone, Together
from lucid.core.codec import from_json, to_json
from lucid.core.gpu import GpuReading
from lucid.core.job import JobProfile
from lucid.core.ports import GpuMetrics
from lucid.errors import ConfigError, MetricsError
from lucid.profiler.samples import GpuSample, Sample
from lucid.profiler.summary import Series, mean_of, point_of, summarise

__all__ = ["Calibration", "Rates", "Task", "steps_between"]

_SPARE_S: Final = 120.0
"""A worker runs so much longer than it is needed, for slow imports; it is ended when its partner is measured."""
_LEAST_STEPS: Final = 5
_TOGETHER: Final = ("gpu_util", "mem_util", "mem_mib", "sm_active", "dram_active")
_OWN: Final = ("mem_mib", "sm_util", "mem_util")


@dataclass(frozen=True, slots=True)
class Rates:
    """How long things are run, in seconds: ``settle`` is left out once all workers step, ``measure`` counts."""

    settle_s: float = 10.0
    measure_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Task:
    """One thing to measure: a workload alone, or two at once."""

    workloads: tuple[Workload, ...]

    @property
    def key(self) -> str:
        """Under which its result is kept."""
        return " + ".join(workload.key for workload in self.workloads)


def steps_between(report: str, start: float, end: float) -> float | None:
    """Steps a second between two moments of a worker's report (lines 'time steps'); ``None`` where there are too
    few. Taken between its first and last line within, so that a long step is not cut in two."""
    points = []
    for line in report.splitlines():
        words = line.split()
        if len(words) == 2:
            with contextlib.suppress(ValueError):
                points.append((float(words[0]), float(words[1])))
    inside = [point for point in points if start <= point[0] <= end]
    if len(inside) < 2 or inside[-1][1] - inside[0][1] < _LEAST_STEPS:
        return None
    return (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])


class Calibration:
    """A folder of results that is filled task by task. ``environment`` is what workers are started with (the MPS
    daemon to talk to, the GPU to see), ``device`` as the worker's."""

    def __init__(
        self,
        out: Path,
        workloads: Sequence[Workload],
        metrics: GpuMetrics,
        gpu: str,
        rates: Rates,
        *,
        device: str = "cuda",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._path = out / "results.jsonl"
        self._workloads = list(workloads)
        self._metrics = metrics
        self._gpu = gpu
        self._rates = rates
        self._device = device
        self._environment = None if environment is None else dict(environment)
        self._results: dict[str, dict[str, Any]] = {}
        try:
            out.mkdir(parents=True, exist_ok=True)
            text = self._path.read_text(encoding="utf-8") if self._path.exists() else ""
            whole = text[: text.rfind("\n") + 1]
            if whole != text:  # a line torn by a stop: that task is measured again
                self._path.write_text(whole, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{out}: cannot be used ({error.strerror}); give --out a folder of yours") from None
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                result = json.loads(line)
                self._results[str(result["task"])] = result
            except (ValueError, KeyError, TypeError):
                raise ConfigError(f"{self._path}: line {number} is no result; delete the line") from None

    @property
    def tasks(self) -> list[Task]:
        """All: each workload alone, then all pairs."""
        return [
            *(Task((workload,)) for workload in self._workloads),
            *(Task(pair) for pair in pairs_of(self._workloads)),
        ]

    @property
    def open(self) -> list[Task]:
        """Those without a result yet."""
        return [task for task in self.tasks if task.key not in self._results]

    def run(self, say: Callable[[str], None] = lambda _: None) -> None:
        """Measure what is open. A task that fails (memory that does not fit, a crash) is kept as failed."""
        for task in self.open:
            result = self._measure(task)
            if "failed" in result:
                say(f"{task.key}: {result['failed']}")
            self._results[task.key] = result
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(result) + "\n")

    @property
    def failed(self) -> dict[str, str]:
        """Tasks that failed, and how."""
        return {key: str(r["failed"]) for key, r in self._results.items() if "failed" in r}

    @property
    def readings(self) -> dict[str, dict[str, Any]]:
        """Means of the card's readings by task, and what the driver told of each job's process."""
        return {key: r["readings"] for key, r in self._results.items() if "readings" in r}

    def alone(self) -> list[Alone]:
        """Results of workloads alone."""
        found = []
        for workload in self._workloads:
            result = self._results.get(workload.key, {})
            if "profile" in result:
                found.append(Alone(workload, float(result["speeds"][0]), from_json(JobProfile, result["profile"])))
        return found

    def together(self) -> list[Together]:
        """Results of pairs both of whose sides were measured alone, relative to that."""
        speed = {one.workload.key: one.speed for one in self.alone()}
        found = []
        for first, second in pairs_of(self._workloads):
            result = self._results.get(Task((first, second)).key, {})
            if "speeds" in result and first.key in speed and second.key in speed:
                one, two = (float(value) for value in result["speeds"])
                means = {**result, **result.get("readings", {})}  # results of before have the first three alone
                readings = [means.get(name) for name in _TOGETHER]
                found.append(Together(first, second, one / speed[first.key], two / speed[second.key], *readings))
        return found

    def _measure(self, task: Task) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as name:
            reports = [Path(name) / str(i) for i in range(len(task.workloads))]
            with _workers(task, reports, self._command, self._environment) as workers:
                try:
                    return self._watch(task, reports, workers)
                except (MetricsError, _WorkerFailed) as error:
                    return {"task": task.key, "failed": str(error)}

    def _command(self, workload: Workload, report: Path) -> list[str]:
        seconds = 2 * (self._rates.settle_s + self._rates.measure_s) + _SPARE_S
        options = ["--workload", workload.key, "--device", self._device, "--report", str(report)]
        return [sys.executable, "-m", "benchmarks.calibrate.worker", *options, "--seconds", str(seconds)]

    def _watch(self, task: Task, reports: Sequence[Path], workers: Sequence[_Worker]) -> dict[str, Any]:
        end = time.monotonic() + _SPARE_S
        while not all(report.exists() and report.stat().st_size for report in reports):
            _all_run(workers)
            if time.monotonic() > end:
                raise _WorkerFailed(f"no step within {_SPARE_S:.0f} s")
            time.sleep(0.05)
        time.sleep(self._rates.settle_s)
        series, samples = Series(), 0
        seen: list[GpuReading] = []
        start = time.monotonic()
        interval = min(1.0, self._rates.measure_s / 30)
        while time.monotonic() < start + self._rates.measure_s:
            _all_run(workers)
            reading = self._metrics.read([self._gpu])[self._gpu]
            if not isinstance(reading, GpuReading):
                raise MetricsError(f"{self._gpu}: {reading.why}")
            seen.append(reading)
            gpu = GpuSample(
                reading.gpu_util,
                reading.mem_util,
                reading.mem_mib,
                sm_active=reading.sm_active,
                sm_occupancy=reading.sm_occupancy,
                dram_active=reading.dram_active,
            )
            # start-up is over, so each reading may stand for a second, whatever the interval
            point = point_of(Sample(samples, float(samples), (gpu,)))
            samples += 1
            if point is not None:
                series.add(point)
            time.sleep(interval)
        speeds = [steps_between(report.read_text(), start, time.monotonic()) for report in reports]
        if any(speed is None for speed in speeds):
            raise _WorkerFailed(f"fewer than {_LEAST_STEPS} steps in {self._rates.measure_s:g} s; measure for longer")
        result: dict[str, Any] = {"task": task.key, "at": time.time(), "rates": asdict(self._rates), "speeds": speeds}
        result["readings"] = _means(seen, [worker.process.pid for worker in workers])
        if len(task.workloads) == 1:
            found = summarise(series, task.key, "", [self._gpu], samples, amp=task.workloads[0].amp).profile
            if found is None:
                raise _WorkerFailed("the GPU stayed idle: was the job on it?")
            return {**result, "profile": to_json(found)}
        points = series.points
        return {
            **result,
            "gpu_util": mean_of(point.card_util for point in points),
            "mem_util": mean_of(point.card_mem_util for point in points),
            "mem_mib": max((point.card_mib or 0.0 for point in points), default=None),
        }


def _means(seen: Sequence[GpuReading], pids: Sequence[int]) -> dict[str, Any]:
    """The card's means, and those of each worker's process where the driver tells: kept beside each result, so that
    rules that judge pairs by readings can be checked against measured speeds."""
    own = [[p for reading in seen for p in reading.processes or () if p.pid == pid] for pid in pids]
    card = ("gpu_util", "mem_util", "mem_mib", "sm_active", "sm_occupancy", "dram_active")
    return {
        **{name: mean_of(getattr(reading, name) for reading in seen) for name in card},
        "processes": [{name: mean_of(getattr(p, name) for p in ps) for name in _OWN} for ps in own],
        "processes_seen": sorted({p.pid for reading in seen for p in reading.processes or ()}),
    }


class _WorkerFailed(Exception):
    """A worker ended or did too little; the text says how."""


@dataclass(slots=True)
class _Worker:
    process: subprocess.Popen[bytes]
    words: Path


def _all_run(workers: Sequence[_Worker]) -> None:
    for worker in workers:
        code = worker.process.poll()
        if code is not None:
            words = worker.words.read_text(errors="replace").strip().splitlines()
            raise _WorkerFailed(f"a job ended with {code}: {words[-1] if words else 'no message'}")


@contextlib.contextmanager
def _workers(
    task: Task,
    reports: Sequence[Path],
    command: Callable[[Workload, Path], list[str]],
    environment: Mapping[str, str] | None,
) -> Iterator[list[_Worker]]:
    workers: list[_Worker] = []
    try:
        for workload, report in zip(task.workloads, reports, strict=True):
            words = report.with_suffix(".err")
            with words.open("wb") as err:
                process = subprocess.Popen(
                    command(workload_of(workload.key), report), stdout=err, stderr=err, env=environment
                )
            workers.append(_Worker(process, words))
        yield workers
    finally:
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.process.wait(10)
            worker.process.kill()
            worker.process.wait()
