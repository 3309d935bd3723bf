"""The sampler beside two real jobs on a real GPU: profiles, and the speeds that it sees against those of the steps.

Runs on a machine with an NVIDIA GPU and torch, without Slurm. The jobs are those of the calibration suite; the
sampler is the process that a node runs. What the sampler cost is printed, too.

    python -m benchmarks.gpu_pair [--sharing mps] [--first WORKLOAD --second WORKLOAD]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.calibrate.measure import steps_between
from benchmarks.calibrate.mps import sharing_environment
from lucid.errors import LucidError
from lucid.node.nvml import NvmlMetrics
from lucid.node.processes import JobSpec, remove_job_spec, write_job_spec
from lucid.node.reports import read_profile_files
from lucid.node.service import NodePaths

__all__ = ["main"]

_ALONE_S, _TOGETHER_S = 40.0, 80.0
_TICKS = os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def _job(name: str, workload: str, paths: NodePaths, gpu: str, environment: Mapping[str, str]) -> Iterator[Path]:
    """A training job. The sampler hears of its processes after the job's first step."""
    report = paths.run / f"{name}.steps"
    report.unlink(missing_ok=True)
    words = ["--workload", workload, "--seconds", "300", "--report", str(report)]
    with subprocess.Popen([sys.executable, "-m", "benchmarks.calibrate.worker", *words], env=environment) as process:
        try:
            while process.poll() is None and not (report.exists() and report.stat().st_size):
                time.sleep(0.1)
            write_job_spec(paths.jobs, JobSpec(name, (gpu,), pids=(process.pid,)))
            yield report
        finally:
            remove_job_spec(paths.jobs, name)
            process.kill()


def _rate(report: Path, seconds: float) -> float | None:
    at = time.monotonic()
    time.sleep(seconds)
    return steps_between(report.read_text(), at, at + seconds)


def _cpu_s(pid: int) -> float:
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(stat[11]) + int(stat[12])) / _TICKS


def _measured(paths: NodePaths, gpu: str, first: str, second: str, environment: Mapping[str, str]) -> dict[str, Any]:
    with _job("2", second, paths, gpu, environment) as report:
        rate2 = _rate(report, _ALONE_S)
    time.sleep(2)
    with _job("1", first, paths, gpu, environment) as report:
        rate1 = _rate(report, _ALONE_S)
        with _job("2", second, paths, gpu, environment) as other:
            time.sleep(_TOGETHER_S - 30)
            at = time.monotonic()
            time.sleep(30)
            both = [steps_between(path.read_text(), at, at + 30) for path in (report, other)]
            found = read_profile_files(paths.profiles)
    speeds = [now / alone if now and alone else None for now, alone in zip(both, (rate1, rate2), strict=True)]
    told = {}
    for name, workload, speed in zip(("1", "2"), (first, second), speeds, strict=True):
        profile, summaries = found.profiles.get(name), found.summaries.get(name, ())
        told[workload if first != second else f"{workload} ({name})"] = {
            "speed by steps": speed,
            "speed by sampler": None if profile is None else profile.seen_speed,
            "by": [summary.seen_by for summary in summaries],
            "profile": None
            if profile is None
            else [profile.gpu_util, profile.mem_util, profile.gpu_mem_mib, profile.sm_active],
            "together": [str(summary.together) for summary in summaries],
        }
    return told


def main() -> int:
    """Measure and print; exit code 2 without a GPU."""
    parser = argparse.ArgumentParser(prog="benchmarks.gpu_pair")
    parser.add_argument("--sharing", choices=("mps", "time-slicing"), default="mps")
    parser.add_argument("--first", default="transformer/tokens-512/4/0")
    parser.add_argument("--second", default="cnn-deep/images-224/16/0")
    given = parser.parse_args()
    try:
        card = NvmlMetrics().cards()[0]
    except (LucidError, IndexError) as error:
        print(f"no GPU to measure on: {error}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as name, sharing_environment(given.sharing, card.uuid) as environment:
        folder = Path(name)
        paths = NodePaths(folder / "run", folder / "spool", folder / "profiles")
        paths.make()
        words = ["--run-dir", paths.run, "--spool", paths.spool, "--profiles", paths.profiles, "run", "--stay"]
        with subprocess.Popen([sys.executable, "-m", "lucid.node", *map(str, words)]) as sampler:
            time.sleep(3)
            cpu, began = _cpu_s(sampler.pid), time.monotonic()
            told = _measured(paths, card.uuid, given.first, given.second, environment)
            cost = (_cpu_s(sampler.pid) - cpu) / (time.monotonic() - began)
            sampler.terminate()
    print(json.dumps({"card": card.name, "sharing": given.sharing, **told, "sampler's CPU": f"{cost:.2%}"}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
