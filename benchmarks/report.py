"""``report.html`` of 10,000 jobs: its size, whose stories are in it, and what writing it costs beside the replay."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figure import Figure
from lucid.explain.replayed_story import story_teller
from lucid.simulator.metrics import run_metrics
from lucid.simulator.record import DecisionLog
from lucid.simulator.report.page import write_report
from lucid.simulator.report.tables import pack_jobs
from lucid.simulator.scenario import Scenario, simulate
from lucid.simulator.traces.presets import preset, vc_layout
from lucid.simulator.traces.synth import synthesise

__all__ = ["figures"]

_PRESET, _JOBS = "month-small", 10_000
_POLICIES = ("fifo", "lucid")
_MOST_MIB = 5.0


def figures(runs: int) -> Iterator[Figure]:  # noqa: ARG001 - a size is the same every time
    """A synthetic month of 10,000 jobs, under fifo and lucid."""
    trace = synthesise(preset(_PRESET).resized(_JOBS, None), 1)
    scenario = Scenario(trace, vc_layout(_PRESET))
    logs = {policy: DecisionLog() for policy in _POLICIES}
    began_s = time.process_time()
    made = [simulate(scenario, policy, logs[policy]) for policy in _POLICIES]
    replayed_s = time.process_time() - began_s
    metrics = {run.policy: run_metrics(run) for run in made}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        began_s = time.process_time()
        write_report(path, trace.name, made, metrics, (), (), logs, story_teller(logs))
        written_s = time.process_time() - began_s
        size = path.stat().st_size
    pack = pack_jobs(made, [0, 1], logs, story_teller(logs), "lucid")
    note = f"{len(trace.jobs):,} jobs, {len(made)} policies, stories of {', '.join(pack.stories) or 'none'}"
    yield Figure("report.html", size / 2**20, "MiB", at_most=_MOST_MIB, note=note)
    yield Figure("writing it, CPU", written_s, "s", baseline=replayed_s, baseline_name="both replays")
