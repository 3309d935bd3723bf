"""Where the past of a cluster comes from on the command line: a log, or the daemon's own store."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from lucid.adapters.store.snapshot_json import snapshot_from_dict
from lucid.cli.live.status import live_settings, live_store
from lucid.cli.replay.replay_options import read_scenario
from lucid.core.snapshot import Partition
from lucid.simulator.scenario import Scenario
from lucid.tuner.past import floorplan, stored_trace

__all__ = ["default_config", "scenario_of_log", "scenario_of_store"]


def default_config() -> Path:
    """lucidd's configuration, where none is named."""
    return Path(os.environ.get("LUCID_CONFIG", "/etc/lucid/lucid.toml"))


def scenario_of_log(log: Path, options: dict[str, Any]) -> tuple[Scenario, list[str]]:
    """As ``read_scenario``, from a log of the past.

    Raises:
        TraceError: it cannot be read.
        ConfigError: options that contradict each other.
    """
    return read_scenario(log, **options, muris_own=False)


def scenario_of_store(days: float, options: dict[str, Any]) -> tuple[Scenario, list[str]]:
    """The jobs that ended in the last ``days``, on the nodes that lucidd last saw, unless --vcs or --nodes say
    otherwise, under lucidd's settings.

    Raises:
        ConfigError: the configuration cannot be read, or names no partition.
        StoreError: there is no store.
        TraceError: nothing ended in that time.
    """
    config = options["config"] or default_config()
    store = live_store(live_settings(config))
    trace = stored_trace(store, time.time() - days * 86400.0)
    scenario, notes = read_scenario(trace, **{**options, "config": config}, muris_own=False)
    if options["vcs"] is not None or options["nodes"] is not None:
        return scenario, notes
    plan = floorplan(_partitions(store.view("snapshot")))
    lacking = sorted(set(trace.vcs) - set(plan.vcs)) if plan is not None else []
    if plan is None or lacking:
        return scenario, notes
    notes = [note for note in notes if not note.startswith("no --vcs or --nodes")]
    if not plan.alike:
        notes.append(f"nodes differ; all are replayed as the most common: {plan.shape.gpus} GPUs each")
    own = scenario.profiling_nodes
    return replace(
        scenario, vcs=plan.vcs, shape=plan.shape, profiling_nodes=plan.profiling_nodes if own is None else own
    ), notes


def _partitions(view: Any) -> tuple[Partition, ...]:
    return () if view is None else tuple(snapshot_from_dict(view).partitions.values())
