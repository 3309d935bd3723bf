"""What a scrape costs: CPU time, size and series, on a store of 10,000 waiting jobs and 1,000 pairs."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.figure import Figure
from lucid.config.load import settings_from
from lucid.config.policy import PolicySettings
from lucid.core.job import Ended, Job
from lucid.daemon.policies import LivePolicy
from lucid.daemon.reporting.metrics import render
from lucid.daemon.reporting.waste_inputs import MetricsSource
from lucid.errors import Refusal
from lucid.store.sqlite import SqliteStore

__all__ = ["big_store", "figures"]

_MOST_SERIES = 2000.0


def figures(runs: int) -> Iterator[Figure]:
    """With 100 VCs, the first scrape and the later ones, beside reading the store's picture alone."""
    with tempfile.TemporaryDirectory() as folder:
        source = big_store(Path(folder), 100, pending=10_000, running=1000)
        took, text = [], b""
        for _ in range(runs + 1):
            began_s = time.process_time()
            text = render(source)
            took.append(time.process_time() - began_s)
        store = source.store()
        began_s = time.process_time()
        store.view("snapshot")
        bare_s = time.process_time() - began_s
        store.close()
    series = float(sum(not line.startswith(b"#") for line in text.splitlines()))
    yield Figure("metrics: series at 10,000 waiting jobs, 100 VCs", series, "", at_most=_MOST_SERIES)
    yield Figure("metrics: first scrape, CPU", took[0], "s", 1, bare_s, "reading the picture")
    yield Figure("metrics: later scrapes, CPU", median(took[1:]), "s", runs, bare_s, "reading the picture")


def big_store(folder: Path, vcs: int, pending: int, running: int) -> MetricsSource:
    """A store as lucidd leaves it: this many VCs, jobs that wait and jobs that run in pairs."""
    store = SqliteStore(folder / "lucid.db")
    lease = store.take_lease("test:1", 0.0, 1e9)
    assert lease is not None

    def job(number: int, vc: str) -> dict[str, Any]:
        return {
            "id": str(number),
            "vc": vc,
            "gpus": 4,
            "submit_s": 1.0 * number,
            "user": f"user{number}",
            "name": "x",
        }

    hold = {"verb": "hold", "reasons": [{"kind": "FreeGpus", "needed": 4, "largest": 0, "free": 0, "found": False}]}
    partitions: dict[str, Any] = {}
    plan: dict[str, Any] = {}
    promises: dict[str, Any] = {}
    for at in range(vcs):
        vc = f"vc{at}"
        ids = range(at, pending, vcs)
        entries = []
        for n in range(at, running, vcs):
            first, second = 10**6 + 2 * n, 10**6 + 2 * n + 1
            for one, other in ((first, second), (second, first)):
                profile = {"gpu_util": 30, "mem_util": 10, "gpu_mem_mib": 4000}
                profile |= {"seen_speed": 0.9, "seen_beside": str(other)}
                place = [[f"n{n}", 15]]
                entries.append(
                    {
                        "job": job(one, vc),
                        "start_s": 5.0,
                        "placement": place,
                        "profile": profile,
                        "partner": str(other),
                    }
                )
                promises[str(one)] = [str(other), 0.95, 1.0]
        partitions[vc] = {
            "nodes": [{"name": f"{vc}-{i}", "gpus": 8} for i in range(1000 // vcs)],
            "pending": [{"job": job(n, vc), "since_s": 1.0 * n} for n in ids],
            "running": entries,
            "profiling": at == 0,
        }
        plan[vc] = {str(n): hold for n in ids}
    drawn = {"predictions": {}, "wake_s": None, "policy": LivePolicy("lucid", PolicySettings()).to_dict()}
    store.put_view("snapshot", {"now_s": 20_000.0, "partitions": partitions, "plan": plan, **drawn})
    bound = {"bound_s": 7200.0, "margin_s": 5.0, "started": 7, "past": 0, "worst_s": 0.0}
    counts: dict[str, Any] = {
        "cycle_s": {"counts": [1] * 13, "sum_s": 3.0},
        "plan_s": {"counts": [1] * 13, "sum_s": 2.0},
        "failed": 0,
        "done": dict.fromkeys(("start", "hold", "requeue", "part", "release", "keep"), 5),
        "refused": dict.fromkeys(Refusal, 1),
        "restarts": {},
        "promises": promises,
        "starvation": {f"vc{at}": bound for at in range(vcs)},
    }
    modes = {f"vc{at}": "pack" for at in range(vcs)}
    store.put_view("status", {"at_s": 20_000.0, "cycles": 13, "modes": modes, "counts": counts})
    jobs = [Job(f"e{n}", f"vc{n % vcs}", 4, 0.0, user=f"user{n}") for n in range(5000)]
    store.put_ended([Ended(one, 19_000.0 + n / 10, 900.0) for n, one in enumerate(jobs)], lease.token)
    settings = settings_from({"daemon": {"partitions": modes, "state_dir": str(folder)}}, "test")
    return MetricsSource(settings, now_s=lambda: 20_000.0)
