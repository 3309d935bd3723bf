"""What the generator's months have in common with published logs: the table of docs/traces.md. ``python -m
benchmarks.log_shapes`` prints it; the logs are read from LUCID_PUBLIC, and of each preset the median of seeds 1 to 5
is shown.
"""

from __future__ import annotations

import heapq
import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np

from lucid.simulator.traces.presets import preset
from lucid.simulator.traces.read import read_trace
from lucid.simulator.traces.record import Trace
from lucid.simulator.traces.synth import synthesise

__all__ = ["shape", "spearman"]

_LOGS: Final = {
    "Helios": "helios_data_training.csv",
    "Philly": "philly_data_training.csv",
    "Blue Waters": "blue_waters_data_training.csv",
    "openb": "openb_pod_list_default.csv",
}
_PRESETS: Final = ("month-small", "month-logs")
_LARGE, _LONG_S, _SERIES_GAP_S, _SERIES, _LATEST = 8, 3 * 86400.0, 300.0, 10, 20


def shape(trace: Trace) -> dict[str, float]:
    """Figures by name, as the table names them; shares in per cent."""
    jobs = trace.jobs
    gpus = np.array([item.job.gpus for item in jobs])
    seconds = np.array([item.duration_s for item in jobs])
    work, large = gpus * seconds, gpus > _LARGE
    largest = np.sort(work)[-max(1, len(work) // 100) :]
    hours = np.bincount([int((item.job.submit_s - jobs[0].job.submit_s) // 3600) for item in jobs])
    by_mean, by_median = _estimates(trace)
    return {
        "jobs of one GPU, %": 100 * float(np.mean(gpus == 1)),
        "jobs > 8 GPUs, %": 100 * float(np.mean(large)),
        "of the GPU-hours, %": 100 * float(work[large].sum() / work.sum()),
        "their median run time, h": float(np.median(seconds[large])) / 3600 if large.any() else float("nan"),
        "median run time, min": float(np.median(seconds)) / 60,
        "longest run time, days": float(seconds.max()) / 86400,
        "GPU-hours of runs of 3 days and more, %": 100 * float(work[seconds >= _LONG_S].sum() / work.sum()),
        "GPU-hours of the largest 1 % of jobs, %": 100 * float(largest.sum() / work.sum()),
        "jobs in series of 10 and more, %": _in_series(trace),
        "submissions an hour: standard deviation / mean": float(hours.std() / hours.mean()),
        "jobs of the busiest user, %": 100 * Counter(item.job.user for item in jobs).most_common(1)[0][1] / len(jobs),
        "Spearman, mean of the user's past": by_mean,
        "Spearman, median of the user's last 20": by_median,
    }  # fmt: skip


def _in_series(trace: Trace) -> float:
    """Jobs that follow one of the same user on as many GPUs within 5 minutes make a series."""
    last: dict[str, tuple[float, int]] = {}
    series: dict[str, int] = {}
    lengths: list[int] = []
    for item in trace.jobs:
        user, now = item.job.user, (item.job.submit_s, item.job.gpus)
        before = last.get(user)
        if before is not None and now[0] - before[0] <= _SERIES_GAP_S and now[1] == before[1]:
            series[user] += 1
        else:
            lengths.append(series.get(user, 0))
            series[user] = 1
        last[user] = now
    lengths += series.values()
    return 100 * sum(length for length in lengths if length >= _SERIES) / len(trace.jobs)


def _estimates(trace: Trace) -> tuple[float, float]:
    """How well the mean of all that a user's earlier jobs took, and the median of the last 20, rank run times. A job
    is known once it has ended, had it begun at its submission."""
    running: list[tuple[float, int, str, float]] = []
    past: dict[str, list[float]] = defaultdict(list)
    means, medians, truth = [], [], []
    for rank, item in enumerate(trace.jobs):
        while running and running[0][0] <= item.job.submit_s:
            _, _, user, took_s = heapq.heappop(running)
            past[user].append(took_s)
        known = past[item.job.user]
        if known:
            means.append(sum(known) / len(known))
            medians.append(median(known[-_LATEST:]))
            truth.append(item.duration_s)
        heapq.heappush(running, (item.job.submit_s + item.duration_s, rank, item.job.user, item.duration_s))
    return spearman(means, truth), spearman(medians, truth)


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Correlation of ranks; equal values share the mean of their ranks. 0 where all of one are equal."""
    if len(set(a)) < 2 or len(set(b)) < 2:
        return 0.0

    def ranks(values: Sequence[float]) -> np.ndarray:
        _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
        return (np.cumsum(counts) - (counts - 1) / 2)[place]

    return float(np.corrcoef(ranks(a), ranks(b))[0, 1])


def _table(columns: Mapping[str, Mapping[str, float]]) -> str:
    lines = [f"| | {' | '.join(columns)} |", f"|{'---|' * (len(columns) + 1)}"]
    for what in next(iter(columns.values())):
        cells = [
            f"{value:.2f}" if abs(value) < 10 else f"{value:.0f}" for value in (c[what] for c in columns.values())
        ]
        lines.append(f"| {what} | {' | '.join(cells)} |".replace("nan", "-"))
    return "\n".join(lines)


def main() -> None:
    root = Path(os.environ.get("LUCID_PUBLIC", "."))
    columns = {name: shape(read_trace(root / file)) for name, file in _LOGS.items() if (root / file).is_file()}
    for name in _PRESETS:
        found = [shape(synthesise(preset(name), seed)) for seed in range(1, 6)]
        columns[name] = {what: median(one[what] for one in found) for what in found[0]}
    print(_table(columns))


if __name__ == "__main__":
    main()
