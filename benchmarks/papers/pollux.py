"""Pollux's own workloads (OSDI '21, Figure 8 and the results of its artifact): loads, intervals, interference.

Workload 6 at load 1.0 is in the shared data. Those of other loads, and workloads 1 to 8, take part where
``LUCID_POLLUX_WORKLOADS`` names the artifact's folder ``workloads``, with ``workloads-0.5`` and so on beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import lucid.simulator.scenario
from benchmarks.figure import Absent
from benchmarks.packs import shared
from benchmarks.papers.replays import columns, folder_of, hours, on_nodes, published_json
from benchmarks.papers.row import Row
from lucid.config.load import settings_from
from lucid.core.job import Running
from lucid.simulator.cluster.cluster import SimulatedCluster
from lucid.simulator.cluster.state import Semantics
from lucid.simulator.scenario import simulate

__all__ = ["interference", "intervals", "loads"]

_LOADS = ("0.5", "1.0", "1.5", "2.0")
_INTERVALS_S = {"30s": 30, "1m": 60, "2m": 120, "4m": 240, "8m": 480}
_WITHIN = {"pollux": 0.05, "tiresias": 0.05, "optimus": 0.05}
"""As far as the authors' own runs differ from one to the next."""
_WORKLOAD = "workload-6"


def loads() -> Iterator[Row]:
    """Average JCT by job load and policy."""
    for policy in ("tiresias", "optimus", "pollux"):
        for load in _LOADS:
            path = _workload(load)
            published = _published(f"jobload/{policy}-{load}")
            ours = {} if path is None else _replayed(path, policy)
            note = f"LUCID_POLLUX_WORKLOADS names no workload of load {load}" if path is None else ""
            yield Row(f"{policy}, load {load}", ours, published, within=_WITHIN[policy], note=note)


def intervals() -> Iterator[Row]:
    """Average JCT by how often Pollux plans."""
    for name, seconds in _INTERVALS_S.items():
        ours = _replayed(shared(f"pollux/{_WORKLOAD}.csv"), "pollux", interval_s=float(seconds))
        yield Row(f"every {name}", ours, _published(f"period/pollux-{name}"), within=_WITHIN["pollux"])


def interference() -> Iterator[Row]:
    """Average JCT where jobs on several nodes slow each other down, and nothing keeps them apart."""
    path = shared(f"pollux/{_WORKLOAD}.csv")
    for what, key, avoid, slower in (
        ("kept apart", "avoid", True, 0.0),
        ("not kept apart, none slowed", "noavoid", False, 0.0),
        ("not kept apart, slowed by 25 %", "inter25", False, 0.25),
        ("not kept apart, slowed by 50 %", "inter50", False, 0.5),
        ("kept apart, as if slowed by 50 %", "avoid", True, 0.5),
    ):
        ours = _replayed(path, "pollux", avoid=avoid, slower=slower)
        yield Row(what, ours, _published(f"inter/{key}"), within=_WITHIN["pollux"])


def _workload(load: str) -> Path | None:
    if load == "1.0":
        return shared(f"pollux/{_WORKLOAD}.csv")
    folder = folder_of("LUCID_POLLUX_WORKLOADS", "the artifact's workloads")
    if folder is None:
        return None
    path = folder.with_name(f"{folder.name}-{load}") / f"{_WORKLOAD}.csv"
    if not path.is_file():
        raise Absent(f"{path} is not there; the artifact has it beside {folder}")
    return path


def _published(key: str) -> dict[str, float]:
    return hours({"avg JCT, h": published_json("pollux")["results"][key]["avg_jct_by_workload"][_WORKLOAD]})


@cache
def _replayed(
    path: Path, policy: str, interval_s: float = 60.0, avoid: bool = True, slower: float = 0.0
) -> dict[str, float]:
    scenario = on_nodes(path, 16, 4, Semantics.HONEST, shared(f"pollux/{_WORKLOAD}.csv").parent)
    rules: dict[str, Any] = {"pollux": {"interval_s": interval_s, "avoid_interference": avoid}}
    if policy == "pollux":
        scenario = replace(scenario, settings=settings_from({"policy": rules}, "papers"))
    if not slower:
        return columns(simulate(scenario, policy))
    # No cluster that Lucid knows slows jobs down by a fixed share: the experiment brings its own.
    made = type("Slowing", (_Slowing,), {"slower": slower})
    with patch.object(lucid.simulator.scenario, "SimulatedCluster", made):
        return columns(simulate(scenario, policy))


class _Slowing(SimulatedCluster):
    """Jobs on several nodes run slower while another such job stands on one of their nodes; looked at whenever
    something was decided, as the authors' simulator does once a round."""

    slower = 0.0

    def apply(self, *args: Any, **kwargs: Any) -> Any:
        found = super().apply(*args, **kwargs)
        wide: dict[str, list[str]] = {}
        for job_id, live in self.jobs.live.items():
            view = live.view
            if isinstance(view, Running) and len(view.placement) > 1:
                for part in view.placement:
                    wide.setdefault(part.node, []).append(job_id)
        slowed = {job_id for members in wide.values() if len(members) > 1 for job_id in members}
        for job_id, live in self.jobs.live.items():
            speed = 1.0 - self.slower if job_id in slowed else 1.0
            if isinstance(live.view, Running) and live.speed != speed:
                self.jobs.catch_up(live)
                live.speed = speed
                self.jobs.schedule_end(live)
        return found
