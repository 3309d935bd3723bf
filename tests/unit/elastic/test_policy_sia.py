"""Sia as a policy: rounds, growth, GPU types, moves that do not pay, jobs that are not elastic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from applications import MODEL
from builders import (
    FixedPredictor,
    a_cluster,
    a_trace,
    check_plan,
    decided,
    elastic,
    nodes,
    part,
    policy,
    reason,
    runs,
    snap,
)
from lucid.config import SiaSettings
from lucid.core.decision import Hold, PartitionPlan, Resize, Start
from lucid.core.node import Node
from lucid.core.reason import Allotted, NextRound
from lucid.core.snapshot import Partition
from lucid.errors import ConfigError
from lucid.orchestrator.policies.elastic import sia
from lucid.simulator.engine import run
from scenes.systems import AGENTS_LIMITS as LIMITS
from scenes.systems import RESIZES, gpus_given, holds, wants

T4, A100 = (Node(f"{kind}-{i}", size, gpu_type=kind) for i, (kind, size) in enumerate((("t4", 4), ("a100", 4))))
SPEEDS: Mapping[str, Any] = {"speeds": {"a100": 3.0}}


def plan(partition: Partition, now_s: float = 600.0, **settings: Any) -> PartitionPlan:
    made = policy("sia", sia=settings).plan(snap(now_s, partition)).partitions[partition.name]
    check_plan(partition, made, RESIZES)
    return made


def test_between_rounds_everybody_waits() -> None:
    made = plan(part(nodes(1, 4), [wants("a")]), 601.0)
    assert reason(made.decisions["a"], NextRound) is not None
    assert made.wake_s == 660.0
    assert plan(part(nodes(1, 4))).decisions == {}


def test_it_needs_agents() -> None:
    with pytest.raises(ConfigError):
        run(a_cluster(a_trace(elastic("a"))), policy("sia"), FixedPredictor())


def test_a_new_job_starts_on_one_gpu_and_at_most_doubles() -> None:
    first = plan(part(nodes(2, 4), [wants("a")]))
    assert isinstance(first.decisions["a"], Start)
    assert gpus_given(first, "a") == 1
    why = reason(first.decisions["a"], Allotted)
    assert (why.rule, why.gpus, why.most, why.value) == ("normalised goodput", 1, 1, 1.0)
    assert gpus_given(plan(part(nodes(2, 4), running=[holds("a", "n1:0")]), 60000.0), "a") == 2
    whole = decided(plan(part(nodes(3, 4), running=[holds("a", "n1:0-3", (4,))]), 60000.0), "a", Resize)
    assert [p.mask for p in whole.placement] == [15, 15], "beyond a node: whole nodes"


def test_a_move_that_costs_more_than_it_brings_is_not_made() -> None:
    young = holds("a", "n1:0", restarts=3)
    assert plan(part(nodes(2, 4), running=[young]), 60.0).decisions == {}


def test_gpus_of_two_types_are_never_mixed_and_the_faster_ones_are_taken() -> None:
    both = part((T4, A100), [wants("a")])
    decision = decided(plan(both, **SPEEDS), "a", Start)
    assert [p.node for p in decision.placement] == ["a100-1"]
    slow = decided(plan(both, speeds={"t4": 3.0}), "a", Start)
    assert [p.node for p in slow.placement] == ["t4-0"]
    wide = holds("a", "t4-0:0-3", (8,))
    moved = decided(plan(part((T4, A100), running=[wide]), 60000.0, **SPEEDS), "a", Resize)
    assert {p.node for p in moved.placement} == {"a100-1"}, "the other four are of another type"


def test_the_job_that_gains_most_from_the_fast_gpus_gets_them() -> None:
    two_each = (replace(T4, gpus=2), replace(A100, gpus=2))
    computes, sends = holds("c", "t4-0:0-1", (2,)), holds("s", "a100-1:0-1", (2,))
    slow_links = tuple(MODEL.perf._replace(alpha_c=0.001, beta_c=1e-5, alpha_r=5.0))
    assert sends.progress is not None
    sends = replace(sends, progress=replace(sends.progress, step_model=slow_links))
    made = decided(plan(part(two_each, running=[computes, sends]), 60000.0, restart_s=0.0, **SPEEDS), "c", Resize)
    assert {p.node for p in made.placement} == {"a100-1"}


def test_jobs_that_are_not_elastic_keep_their_gpus_and_split_nodes_fit() -> None:
    made = plan(part(nodes(1, 4), [wants("a"), wants("b")], [runs("r", "n1:1-3")]))
    kinds = sorted(type(d).__name__ for d in made.decisions.values())
    assert kinds == ["Hold", "Start"]
    held = next(d for d in made.decisions.values() if isinstance(d, Hold))
    assert not reason(held, Allotted)


def test_a_least_number_of_gpus_is_kept() -> None:
    limits = replace(LIMITS, min_gpus=2)
    entry = replace(wants("a"), job=replace(wants("a").job, elastic=limits))
    assert gpus_given(plan(part(nodes(1, 4), [entry])), "a") == 2


def test_without_a_solution_all_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sia, "choose", lambda *_, **__: None)
    made = plan(part(nodes(2, 4), [wants("b")], [holds("a", "n1:0")]), 60000.0)
    assert isinstance(made.decisions.pop("b"), Hold)
    assert made.decisions == {}


def test_a_power_of_zero_and_a_speed_of_zero_are_refused() -> None:
    with pytest.raises(ValueError, match="must not be 0"):
        SiaSettings(p=0.0)
    with pytest.raises(ValueError, match="above 0"):
        SiaSettings(speeds={"a100": 0.0})
