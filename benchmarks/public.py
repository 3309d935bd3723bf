"""Logs that others have published, in one pool: lucid as it is by default beside plain Slurm with backfilling.

The logs are not part of this repository. LUCID_PUBLIC names a folder that has them under the names that their
publishers gave them; what is absent is left out, and the table says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.figure import Absent, Figure
from lucid.simulator.engine import Run
from lucid.simulator.scenario import Scenario, simulate
from lucid.simulator.traces import read_trace
from lucid.simulator.traces.record import Trace

__all__ = ["figures", "pool", "window"]

_PER_NODE = 8
_LARGE = 8
"""Jobs of more GPUs are large."""
_POLICIES = ("backfill", "qssf", "lucid")


@dataclass(frozen=True, slots=True)
class _Log:
    """A published log: the name of its file, in how many windows it is replayed, and at which loads."""

    name: str
    file: str
    windows: int
    loads: Sequence[float]


_LOGS = (
    _Log("Helios", "helios_data_training.csv", 2, (0.95, 1.2)),
    _Log("Philly", "philly_data_training.csv", 3, (0.7, 0.9)),
    _Log("Blue Waters", "blue_waters_data_training.csv", 2, (0.57,)),
    _Log("openb", "openb_pod_list_default.csv", 2, (0.7, 0.9)),
)


def window(trace: Trace, at: int, of: int) -> Trace:
    """Part ``at`` (from 0) of ``of`` parts with as many jobs each. CPUs and host memory do not count."""
    size = len(trace.jobs)
    jobs = trace.jobs[at * size // of : (at + 1) * size // of]
    first_s = jobs[0].job.submit_s
    return replace(
        trace,
        jobs=tuple(
            replace(one, job=replace(one.job, submit_s=one.job.submit_s - first_s, rank=rank, cpus=0, mem_mib=0))
            for rank, one in enumerate(jobs)
        ),
    )


def pool(trace: Trace, load: float) -> int:
    """So many nodes that GPU-hours asked for, over those at hand until the last submission, come to ``load``; and
    enough for the largest job while three nodes profile."""
    asked = sum(one.job.gpus * one.duration_s for one in trace.jobs)
    nodes = round(asked / max(trace.jobs[-1].job.submit_s, 1.0) / _PER_NODE / load)
    return max(nodes, -(-max(one.job.gpus for one in trace.jobs) // _PER_NODE) + 3)


def figures(runs: int) -> Iterator[Figure]:
    """Average JCT, that of large jobs, and p99.9 of waiting, each beside plain backfilling on the same nodes.

    Raises:
        Absent: none of the logs is at hand.
    """
    del runs  # the same every time
    root = Path(os.environ.get("LUCID_PUBLIC", ""))
    at_hand = [log for log in _LOGS if os.environ.get("LUCID_PUBLIC") and (root / log.file).is_file()]
    if not at_hand:
        raise Absent(f"set LUCID_PUBLIC to a folder with one of {', '.join(log.file for log in _LOGS)}")
    for log in at_hand:
        whole = read_trace(root / log.file)
        for at in range(log.windows):
            trace = window(whole, at, log.windows)
            for load in log.loads:
                yield from _beside_backfill(f"{log.name} {at + 1}", trace, pool(trace, load))


def _beside_backfill(name: str, trace: Trace, nodes: int) -> Iterator[Figure]:
    scenario = Scenario(trace, {trace.jobs[0].job.vc: nodes})  # such a log has one VC
    found = {policy: _measures(simulate(scenario, policy)) for policy in _POLICIES}
    plain = found["backfill"]
    for policy in _POLICIES[1:]:
        for what, value in found[policy].items():
            if what in plain:
                yield Figure(
                    f"{name}, {nodes} nodes, {policy}, {what}", value, "h", 1, plain[what], "backfill",
                    detail={"jobs": len(trace.jobs)},
                )  # fmt: skip


def _measures(run: Run) -> dict[str, float]:
    """Hours."""
    ended = [one for one in run.outcomes if one.end_s >= 0]
    large = [one.jct_s for one in ended if one.job.gpus > _LARGE]
    waits = sorted(one.queue_s for one in ended)
    found = {
        "average JCT": sum(one.jct_s for one in ended) / len(ended),
        "p99.9 of waiting": waits[min(len(waits) - 1, int(0.999 * len(waits)))],
    }
    if large:
        found[f"JCT of jobs > {_LARGE} GPUs"] = sum(large) / len(large)
    return {what: value / 3600 for what, value in found.items()}
