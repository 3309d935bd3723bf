"""Jobs that take turns (slurm/lucid_turns.py): iterations beside the formula's round, and what a turn costs.

The jobs are real processes that sleep in their stages, so that the figures are of the turns and not of a machine that
shares. The plain locks that they are held against are one flock a resource.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figure import Figure
from lucid.orchestrator.policies.muri.interleave import best_ordering

__all__ = ["figures"]

SLURM = Path(__file__).resolve().parents[1] / "slurm"
GROUPS: dict[str, tuple[tuple[float, ...], ...]] = {
    "two jobs": ((0.05, 0.01, 0.05, 0.01), (0.01, 0.05, 0.01, 0.05)),
    "three jobs": ((0.04, 0.02, 0.03, 0.01), (0.03, 0.01, 0.04, 0.02), (0.02, 0.03, 0.01, 0.04)),
    "four jobs, each bound by another resource": (
        (0.05, 0.01, 0.01, 0.01),
        (0.01, 0.05, 0.01, 0.01),
        (0.01, 0.01, 0.05, 0.01),
        (0.01, 0.01, 0.01, 0.05),
    ),
    "four jobs of mixed stages": (
        (0.04, 0.02, 0.03, 0.01),
        (0.01, 0.04, 0.02, 0.03),
        (0.03, 0.01, 0.04, 0.02),
        (0.02, 0.03, 0.01, 0.04),
    ),
}
"""Seconds in storage, CPU, GPU and network of each job of a group."""
_FREE, _ITERATIONS = 12, 60
_PROGRAM = """
import contextlib, fcntl, json, os, sys, time
sys.path.insert(0, sys.argv[1])
import lucid_turns

how, stages, free, iterations = sys.argv[2], *json.loads(sys.argv[3])
names = ("storage", "cpu", "gpu", "network")
turns = lucid_turns.Turns()


@contextlib.contextmanager
def plain(fd):
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)


if how == "turns":
    made = [getattr(turns, name) for name in names]
elif how == "locks":
    folder = os.environ["LUCID_TURNS"]
    fds = [os.open(os.path.join(folder, "lock." + name), os.O_RDWR | os.O_CREAT) for name in names]
    made = [lambda fd=fd: plain(fd) for fd in fds]
else:
    made = [contextlib.nullcontext] * 4
ends, cpu = [], 0.0
for iteration in range(free + iterations):
    if iteration == free:
        cpu = time.process_time()
    for seconds, stage in zip(stages, made):
        if seconds is not None:
            with stage():
                time.sleep(seconds) if seconds else None
    if how == "turns":
        turns.step()
    ends.append(time.monotonic())
print(json.dumps([ends, time.process_time() - cpu]))
"""


def _run(how: str, group: tuple[tuple[float | None, ...], ...], free: int, iterations: int) -> tuple[float, float]:
    """Seconds of an iteration while all are there, median over the jobs; and CPU seconds of one, the same."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o1777)
        env = {"PATH": os.environ["PATH"], "LUCID_TURNS": folder}
        jobs = [
            subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, str(SLURM), how, json.dumps([stages, free, iterations])],
                stdout=subprocess.PIPE, text=True, env=env,
            )
            for stages in group
        ]  # fmt: skip
        told = [json.loads(job.communicate()[0]) for job in jobs]
    began = max(ends[free - 1] for ends, _ in told)
    ended = min(ends[-1] for ends, _ in told)
    inside = [[end for end in ends if began <= end <= ended] for ends, _ in told]
    each = [(ends[-1] - ends[0]) / (len(ends) - 1) for ends in inside]
    return statistics.median(each), statistics.median(cpu / iterations for _, cpu in told)


def _cost(how: str) -> float:
    """Microseconds of a stage that does nothing, in a job alone."""
    _, cpu_s = _run(how, ((0.0, 0.0, 0.0, 0.0),), 16, 4000)
    return cpu_s / 4 * 1e6


def figures(runs: int) -> Iterator[Figure]:
    """Rounds of groups beside the formula's, the same with plain locks; the cost of a turn."""
    for name, group in GROUPS.items():
        period_s = best_ordering(group, 4)[0]
        alone_s = max(sum(stages) for stages in group)
        by_turns = [_run("turns", group, _FREE, _ITERATIONS) for _ in range(runs)]
        by_locks = [_run("locks", group, _FREE, _ITERATIONS)[0] for _ in range(runs)]
        turns_s = statistics.median(seconds for seconds, _ in by_turns)
        detail = {"longest_alone_s": alone_s, "turns_s": [seconds for seconds, _ in by_turns], "locks_s": by_locks}
        yield Figure(
            f"{name}: an iteration in turns", 1e3 * turns_s, "ms", runs, 1e3 * period_s, "the formula",
            ratio_within=0.1, detail=detail,
        )  # fmt: skip
        locks_s = statistics.median(by_locks)
        yield Figure(f"{name}: with plain locks", 1e3 * locks_s, "ms", runs, 1e3 * period_s, "the formula")
        cpu_s = statistics.median(seconds for _, seconds in by_turns)
        yield Figure(
            f"{name}: CPU time of an iteration", 1e3 * cpu_s, "ms", runs, 1e3 * turns_s, "its wall time", at_most=5.0
        )
    locks_us = statistics.median(_cost("locks") for _ in range(runs))
    for how, note in (("turns", "alone in a folder"), ("nothing", "the loop itself")):
        cost_us = statistics.median(_cost(how) for _ in range(runs))
        yield Figure(f"a stage of {how}, CPU", cost_us, "us", runs, locks_us, "a bare flock", note=note)
