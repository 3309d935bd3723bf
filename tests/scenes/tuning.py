"""Histories to tune on."""

from __future__ import annotations

from dataclasses import replace

from lucid.simulator.scenario import Scenario
from lucid.simulator.traces.presets import preset
from lucid.simulator.traces.synth import synthesise


def sparse_week(jobs: int, nodes: int) -> Scenario:
    """So many jobs, spread over enough days to keep some for the judgement, so that a replay takes no time."""
    dense = synthesise(preset("month-small").resized(jobs, None), seed=5)
    longer = 7 * 86400.0 / dense.jobs[-1].job.submit_s
    spread = (replace(item, job=replace(item.job, submit_s=longer * item.job.submit_s)) for item in dense.jobs)
    trace = replace(dense, jobs=tuple(spread))
    return Scenario(trace, dict.fromkeys(trace.vcs, nodes))
