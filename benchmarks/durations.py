"""Estimates of durations beside the user's running median, on every log at hand: what ``lucidctl models evaluate
duration`` finds. And what ``lucidctl`` costs before it does anything, beside an empty Python.
"""

from __future__ import annotations

import gzip
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figure import Absent, Figure
from benchmarks.packs import shared
from lucid.models.duration.evaluate import evaluate_duration
from lucid.models.duration.jobtable import JobTable, read_jobs
from lucid.simulator.traces.presets import preset
from lucid.simulator.traces.synth import synthesise
from lucid.simulator.traces.window import finished_jobs, read_finished

__all__ = ["figures", "light", "read_first"]

_REFITS = 3
_MOST = 30_000
"""Jobs of the largest logs that are looked at: their first."""
_LOGS = (
    ("sacct/eagle_sample.csv", 300),
    ("sacct/pozidriv.log", 3512),
    ("sacct/ubhpc_week_first70.csv", 2000),
    ("sacct/ubhpc_week_first70.csv", 9594),
    ("philly.csv", 12_000),
    ("waits/graham_first70.csv.gz", 12_000),
)


def figures(runs: int) -> Iterator[Figure]:  # noqa: ARG001 - comes out the same every time
    """Three figures of each log; the baseline is the running median's."""
    for name, row in _LOGS:
        try:
            path = shared(name)
        except Absent:
            continue
        yield from _log(path, row, read_first, f"{Path(name).name.partition('.')[0]} from {row}")
    for seed in range(1, 11):
        month = finished_jobs(synthesise(preset("month-small"), seed))
        yield from _log(Path(f"month {seed}"), len(month) // 4, lambda _, made=month: made, f"month {seed}")


def read_first(path: Path) -> JobTable:
    """The first 30,000 jobs of a log, unpacked where it is compressed."""
    if path.suffix != ".gz":
        jobs = read_finished(path)
    else:
        with tempfile.TemporaryDirectory() as folder:
            plain = Path(folder) / path.stem
            plain.write_bytes(gzip.decompress(path.read_bytes()))
            jobs = read_jobs(plain)
    return jobs.select(np.arange(min(len(jobs), _MOST)))


def _log(path: Path, row: int, read: Callable[[Path], JobTable], what: str) -> Iterator[Figure]:
    found = evaluate_duration(path, row, refits=_REFITS, read=read)
    median, note = found["running_median"], _note(found)
    error_s, median_s = found["mae_s"], median["mae_s"]
    yield Figure(
        f"{what}: mean error", round(error_s, 1), "s", baseline=round(median_s, 1), baseline_name="running median",
        at_most=round(1.01 * median_s, 1), note=note,
    )  # fmt: skip
    for key, words in (("within_2x", "within a factor of 2"), ("spearman", "Spearman")):
        yield Figure(
            f"{what}: {words}", round(found[key], 4), "", baseline=round(median[key], 4),
            baseline_name="running median", at_least=round(median[key] - 0.01, 4),
        )  # fmt: skip


def _note(found: dict[str, Any]) -> str:
    own, other = found["per_user"], found["running_median"]["per_user"]
    return (
        f"{found['jobs']:,} jobs, {found['users_tested']} {found['jobs_of']}s, {found['days_tested']} days; "
        f"over users {own['mae_s']:,.0f} / {other['mae_s']:,.0f} s, {own['within_2x']:.3f} / {other['within_2x']:.3f}"
    )


_EMPTY = "pass"
_STATUS = (
    "import sys; sys.argv = ['lucidctl', 'status', '--config', '/none']; from lucid.cli.main import main; main()"
)
_HELP = "import sys; sys.argv = ['lucidctl', '--help']; from lucid.cli.main import main; main()"


def light(runs: int) -> Iterator[Figure]:
    """CPU time of ``lucidctl --help`` and of what ``status`` loads, beside ``python -c pass``."""
    empty = _cpu_s(_EMPTY, max(runs, 3))
    for what, code, most_s in (("--help", _HELP, 0.3), ("status", _STATUS, 0.4)):
        yield Figure(
            f"lucidctl {what}: CPU", round(_cpu_s(code, max(runs, 3)), 3), "s", runs=max(runs, 3),
            baseline=round(empty, 3), baseline_name="python -c pass", at_most=most_s,
        )  # fmt: skip


def _cpu_s(code: str, runs: int) -> float:
    """The least of some runs: what other work on the machine adds is not the command's."""
    spent = []
    for _ in range(runs):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(spent)
