"""What it costs those who may be preempted, and whether owners wait: beside plain Slurm order and its own victims.

A third of the jobs are scavengers: they run on the nodes of all VCs, and the jobs of the VCs preempt them. They are
requeued and start over, or go on from a checkpoint that they write every hour. Nothing of Lucid was chosen on any of
these histories.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from benchmarks.figure import Absent, Figure
from benchmarks.packs import pack
from benchmarks.timeaware import synthetic
from lucid.simulator.metrics import run_metrics
from lucid.simulator.preemption import Group, Preemption
from lucid.simulator.scenario import Scenario, simulate

__all__ = ["figures"]

_HOUR = 3600.0
_SEEDS = (3, 4)
_VARIANTS: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
    ("backfill, Slurm's own choice", "backfill", {}),
    ("backfill, preempt_youngest_first", "backfill", {"youngest_first": True}),
    ("backfill, Lucid's choice", "backfill", {"slurm_under": frozenset()}),
    ("lucid", "lucid", {}),
)


def _scenes() -> Iterator[tuple[str, Scenario]]:
    for seed in _SEEDS:
        yield f"synthetic month, seed {seed}", synthetic("month-small", seed)
    with suppress(Absent):
        yield "P1", pack("P1", (("lucid", "P1_est_ebm.csv"),))


def _scavenged(scenario: Scenario, group: Group) -> Scenario:
    """A third of the jobs, drawn at random, are of partition ``scav`` over all nodes."""
    rng, trace = random.Random(7), scenario.trace
    jobs = [replace(item, job=replace(item.job, vc="scav")) if rng.random() < 1 / 3 else item for item in trace.jobs]
    nodes = tuple(node.name for nodes in scenario.layout().values() for node in nodes)
    rules = Preemption({"scav": replace(group, nodes=nodes)})
    return replace(scenario, trace=replace(trace, jobs=tuple(jobs)), preemption=rules)


def _alone(scene: str, history: Scenario) -> Iterator[Figure]:
    """How long owners wait where nobody else is there."""
    scavenged = _scavenged(history, Group())
    assert scavenged.preemption is not None
    scenario = replace(scavenged, trace=scavenged.preemption.residents(scavenged.trace), preemption=None)
    for policy in ("backfill", "lucid"):
        found = run_metrics(simulate(replace(scenario, as_live=policy == "lucid"), policy))
        note = f"p99.9 {found['p999_queue_s'] / _HOUR:.0f} h, JCT {found['avg_jct_s'] / _HOUR:.2f} h"
        yield Figure(f"{scene}, owners alone: {policy}, wait", found["avg_queue_s"] / _HOUR, "h", note=note)


def figures(runs: int) -> Iterator[Figure]:  # noqa: ARG001 - a replay is the same each time
    """GPU-hours that victims lost, with the owners' waits and the scavengers' JCT."""
    for scene, history in _scenes():
        yield from _alone(scene, history)
        for kind, group in (("", Group()), (", checkpoints every hour", Group(checkpoint_s=_HOUR))):
            scenario, plain = _scavenged(history, group), None
            for name, policy, traits in _VARIANTS:
                assert scenario.preemption is not None
                rules = replace(scenario.preemption, **traits)
                found = run_metrics(simulate(replace(scenario, preemption=rules, as_live=policy == "lucid"), policy))
                of = found["preempt"]
                plain = plain or of["lost_gpu_h"]
                note = (
                    f"{of['preempted']:,} runs of {of['jobs_preempted']} jobs; owners wait "
                    f"{of['owners_avg_queue_s'] / _HOUR:.2f} h, p99.9 {of['owners_p999_queue_s'] / _HOUR:.0f} h, JCT "
                    f"{of['owners_avg_jct_s'] / _HOUR:.2f} h; scavengers wait "
                    f"{of['scavengers_avg_queue_s'] / _HOUR:.2f} h, JCT {of['scavengers_avg_jct_s'] / _HOUR:.2f} h"
                )
                what = f"{scene}{kind}: {name}, lost by victims"
                yield Figure(what, of["lost_gpu_h"], "GPU h", 1, plain, "Slurm's own choice", note=note)
