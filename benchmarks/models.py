"""The learned models: what their estimates are worth to a schedule, and what training and predicting cost.

Also ``python -m benchmarks.models`` by itself.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np

from benchmarks.figure import Figure, markdown
from lucid.models.duration.fit import fit_durations
from lucid.models.duration.jobtable import JobTable
from lucid.simulator.metrics import run_metrics
from lucid.simulator.scenario import Scenario, simulate
from lucid.simulator.traces.presets import preset, vc_layout
from lucid.simulator.traces.synth import synthesise

__all__ = ["figures", "many_jobs"]

_MONTH = "month-small"
_HOUR_S = 3600.0
_JOBS = 100_000


def figures(runs: int) -> Iterator[Figure]:
    """Average JCT of a synthetic month by policy and predictor, then the cost of training and predicting."""
    yield from _month()
    yield from _training()
    yield from _predicting(max(runs, 3))


def _month() -> Iterator[Figure]:
    trace, vcs = synthesise(preset(_MONTH), 1), vc_layout(_MONTH)
    true_s = {"": {item.job.id: item.duration_s for item in trace.jobs}}
    plain, learned = Scenario(trace, vcs), Scenario(trace, vcs, predictor="learned")
    told = Scenario(trace, vcs, durations_s=true_s, estimates_name="true durations")
    found = {
        name: run_metrics(simulate(scenario, policy))
        for name, scenario, policy in (
            ("sjf, true durations", plain, "sjf"),
            ("qssf, history means", plain, "qssf"),
            ("qssf, learned", learned, "qssf"),
            ("lucid, history means", plain, "lucid"),
            ("lucid, learned", learned, "lucid"),
            ("lucid, true durations", told, "lucid"),
        )
    }
    qssf = found["qssf, history means"]["avg_jct_s"] / _HOUR_S
    for name, metrics in found.items():
        yield Figure(
            f"average JCT, {_MONTH}, seed 1: {name}",
            round(metrics["avg_jct_s"] / _HOUR_S, 3),
            "h",
            baseline=round(qssf, 3),
            baseline_name="qssf, history means",
            at_most=qssf if name == "lucid, learned" else None,
            note=f"queueing {metrics['avg_queue_s'] / _HOUR_S:.2f} h, replayed in {metrics['cpu_s']:.0f} s of CPU",
        )


def _training() -> Iterator[Figure]:
    """In a process of its own, so that its peak of memory is its own."""
    code = "from benchmarks.models import _train; _train()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    wall_s, cpu_s, mib = (float(word) for word in done.stdout.split())
    yield Figure(f"training durations on {_JOBS:,} finished jobs: wall", wall_s, "s", at_most=300.0)
    yield Figure(f"training durations on {_JOBS:,} finished jobs: CPU", cpu_s, "s")
    yield Figure(f"training durations on {_JOBS:,} finished jobs: peak memory", mib, "MiB", at_most=2048.0)


def _train() -> None:

    jobs = many_jobs(_JOBS)
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    fit_durations(jobs)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{time.perf_counter() - began_s:.1f} {time.process_time() - began_cpu_s:.1f} {peak_mib:.0f}",
    )


def _predicting(runs: int) -> Iterator[Figure]:
    from lucid.models.duration.history import DurationHistory

    jobs = many_jobs(12_000)
    model = fit_durations(jobs.select(np.arange(2_000)))
    history = DurationHistory.from_jobs(jobs.select(np.arange(2_000)))
    coming = jobs.select(np.arange(2_000, 12_000))
    times = []
    for _ in range(runs):
        began_s = time.process_time()
        model.predict(coming, history)
        times.append(1000 * (time.process_time() - began_s))
    yield Figure("predicting 10,000 jobs", round(float(np.median(times)), 1), "ms", runs=runs, at_most=100.0)


def many_jobs(count: int, seed: int = 0) -> JobTable:
    """A made-up log of `count` finished jobs of 300 users, who each have a few requests and names."""
    rng = np.random.default_rng(seed)
    user, kind = rng.zipf(1.5, count) % 300, rng.integers(0, 4, count)
    typical = 60.0 * 1.03**user * 3.0**kind
    submit = np.sort(rng.uniform(0, 90 * 86400.0, count))
    duration = np.round(typical * rng.lognormal(0.0, 1.0, count)) + 1
    return JobTable.from_columns(
        user=[f"user{number:03d}" for number in user],
        account=[f"account{number % 20}" for number in user],
        name=[
            f"{['train', 'eval', 'prep', 'tune'][k]}-net{u % 40}-v{i}"
            for i, (u, k) in enumerate(zip(user, kind, strict=True))
        ],
        partition=[f"vc{number % 8}" for number in user],
        gpus=2.0 ** (kind % 4),
        cpus=4 * 2.0 ** (kind % 4),
        nodes=np.ones(count),
        limit_s=86400.0 * (1 + kind),
        submit_s=submit,
        duration_s=duration,
        end_s=submit + duration + rng.exponential(600.0, count),
    )


if __name__ == "__main__":
    print(markdown(list(figures(3))))
