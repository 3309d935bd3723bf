"""Helios' own logs (S-Lab-System-Group/HeliosData): one September of a cluster, in its VCs, with published estimates
where they are at hand. A folder for each cluster has what its publishers put there: ``cluster_log.csv`` and
``cluster_gpu_number.csv``; ``lucid.csv`` and ``qssf.csv`` beside them are estimates (``job_id,priority``).
"""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Final

from lucid.errors import TraceError
from lucid.simulator.predictors import read_estimates
from lucid.simulator.scenario import Scenario
from lucid.simulator.traces.read import read_trace
from lucid.simulator.traces.window import days_of

__all__ = ["CLUSTERS", "cluster_of", "nodes_on"]

CLUSTERS: Final = ("Venus", "Saturn", "Earth", "Uranus")
_FROM, _DAYS = "2020-09-01", 30.0
_PER_NODE: Final = 8


def cluster_of(folder: Path) -> Scenario:
    """September on the nodes that each VC had on its first day; jobs that their VC could not hold then are left out.

    Raises:
        TraceError: a file cannot be read.
        ConfigError: no job is of September.
    """
    trace = days_of(read_trace(folder / "cluster_log.csv", "helios"), _FROM, _DAYS)
    vcs = nodes_on(folder / "cluster_gpu_number.csv", _FROM)
    held = tuple(item for item in trace.jobs if item.job.gpus <= _PER_NODE * vcs.get(item.job.vc, 0))
    left_out = len(trace.jobs) - len(held)
    jobs = tuple(replace(item, job=replace(item.job, cpus=0, rank=rank)) for rank, item in enumerate(held))
    trace = replace(trace, jobs=jobs, skipped=(*trace.skipped, ("larger than their VC", left_out)))
    given = {
        policy: read_estimates(folder / f"{policy}.csv", trace, partial=True)
        for policy in ("lucid", "qssf")
        if (folder / f"{policy}.csv").is_file()
    }
    return Scenario(trace, vcs, durations_s=given, estimates_name="published estimates")


def nodes_on(path: Path, date: str) -> dict[str, int]:
    """Nodes by VC on a day, from the table of GPUs: a column for each VC, a row for each day.

    Raises:
        TraceError: the file cannot be read, or has no such day.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            row = next((row for row in csv.DictReader(file) if row.get("date") == date), None)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{path}: cannot be read: {error}; it is a file of HeliosData") from None
    if row is None:
        raise TraceError(f"{path}: column date: has no row of {date}; give the file of all six months")
    gpus = {vc: int(count or 0) for vc, count in row.items() if vc not in ("date", "total")}
    return {vc: count // _PER_NODE for vc, count in gpus.items() if count >= _PER_NODE}
