"""Schedules of 40 replays, equal to the byte: one digest over what became of every job.

A replay is the same in another process and under another PYTHONHASHSEED. ``make golden`` tries all of them, in four
minutes of CPU; those of P0 and P1 need LUCID_SHARED.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from kept import HERE
from lucid.simulator.cluster.state import Semantics
from lucid.simulator.cluster.truth import read_pairs
from lucid.simulator.layout import read_vcs
from lucid.simulator.scenario import Scenario, simulate
from lucid.simulator.traces.presets import preset, vc_layout
from lucid.simulator.traces.read import read_trace
from lucid.simulator.traces.synth import synthesise

DATA = Path(os.environ.get("LUCID_SHARED", "../shared")) / "data"
FILE = HERE / "schedules.json"
WAYS: dict[str, dict[str, Any]] = {"": {}, " lending": {"lends": True}, " as live": {"semantics": Semantics.AS_LIVE}}
MONTHS = [(seed, way, "lucid") for seed in (21, 22, 31, 32, 33, 34) for way in WAYS]
MONTHS += [(seed, "", "backfill") for seed in (21, 22, 31, 32, 33, 34)]
PACKS = list(product(("P0", "P1"), (Semantics.PUBLISHED, Semantics.HONEST), ("fifo", "srtf", "tiresias", "lucid")))


@cache
def _month(seed: int) -> Scenario:
    return Scenario(synthesise(preset("month-small"), seed), vc_layout("month-small"))


def _pack(name: str, semantics: Semantics) -> Scenario:
    if not DATA.is_dir():
        pytest.skip(f"no shared data at {DATA}")
    trace, vcs = read_trace(DATA / f"packs/{name}.csv"), read_vcs(DATA / f"packs/{name}_vc_config.csv")
    return Scenario(trace, vcs, interference=read_pairs(DATA / "pairs.csv"), semantics=semantics)


def _same(name: str, scenario: Scenario, policy: str) -> None:
    jobs = simulate(scenario, policy).outcomes
    lines = (f"{o.job.id},{o.start_s!r},{o.end_s!r},{o.queue_s!r},{o.placement}" for o in jobs)
    found = {
        "jobs": len(jobs),
        "average_jct_h": round(sum(o.end_s - o.job.submit_s for o in jobs) / len(jobs) / 3600, 4),
        "sha256": hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16],
    }
    if os.environ.get("LUCID_WRITE_GOLDEN"):
        kept = json.loads(FILE.read_text()) if FILE.exists() else {}
        rows = (f" {json.dumps(key)}: {json.dumps(row)}" for key, row in (kept | {name: found}).items())
        FILE.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    assert found == json.loads(FILE.read_text())[name]


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "way", "policy"), MONTHS)
def test_a_month_gives_the_same_schedule(seed: int, way: str, policy: str) -> None:
    _same(f"month {seed}{way}, {policy}", replace(_month(seed), **WAYS[way]), policy)


@pytest.mark.slow
@pytest.mark.parametrize(("pack", "semantics", "policy"), PACKS)
def test_a_published_log_gives_the_same_schedule(pack: str, semantics: Semantics, policy: str) -> None:
    _same(f"{pack} {semantics.value}, {policy}", _pack(pack, semantics), policy)
