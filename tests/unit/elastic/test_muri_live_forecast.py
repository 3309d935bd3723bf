"""Forecasts of starts under Muri on a real cluster: members of a group are slower, by what the plan reckons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from test_muri_live_policy import TWO, shares, slots

from builders import VC, policy, snap, waits
from lucid.core.job import Pending, Running
from lucid.core.node import Node
from lucid.core.prediction import StageTimes
from lucid.orchestrator.forecast.plan_ahead import forecast
from lucid.orchestrator.policies.muri.live import TurnsSeen
from scenes.systems import FOUR, guesses, room
from scenes.systems import runs_in_turns as running
from scenes.systems import waits_for_turns as waiting


def _starts(
    entries: Sequence[Pending | Running],
    lasts: Mapping[str, float],
    machines: Sequence[Node],
    stages: Mapping[str, StageTimes] | None = None,
) -> dict[str, float]:
    known = guesses(entries, {**FOUR, **(stages or {})}, lasts)
    snapshot = snap(0.0, room(machines, entries), predictions=known)
    planner = policy("muri-l")
    return dict(forecast(snapshot, planner.plan(snapshot), planner, coarser=0.0).starts_s)


def test_the_forecast_knows_that_members_are_slower() -> None:
    """A round of two whose long stages differ is as long as one iteration, times the overhead of two (M8)."""
    both = [running(name, "n1:0", ("a", "b")) for name in "ab"]
    whole = waits("whole", 1)
    found = _starts([*both, whole], {"a": 1000.0, "b": 1000.0, "whole": 10.0}, slots(2))
    assert found == {"whole": pytest.approx(1000.0 * TWO)}
    alone = _starts([running("a", "n1:0"), whole], {"a": 1000.0, "whole": 10.0}, slots(2))
    assert alone == {"whole": pytest.approx(1000.0)}


def test_the_forecast_lets_those_who_are_left_run_faster() -> None:
    both = [running(name, "n1:0", ("a", "b")) for name in "ab"]
    found = _starts([*both, waits("whole", 1)], {"a": 100.0, "b": 1000.0, "whole": 10.0}, slots(2))
    assert found == {"whole": pytest.approx(100.0 * TWO + 900.0)}


def test_the_forecast_lets_a_joined_job_run_slower() -> None:
    """Who starts in a group now slows the one that runs."""
    entries = [running("a", "n1:0"), waiting("b"), waits("whole", 1)]
    found = _starts(entries, {"a": 1000.0, "b": 1000.0, "whole": 10.0}, slots(2))
    assert found["b"] == 0.0
    assert found["whole"] == pytest.approx(1000.0 * TWO)


def test_a_group_whose_times_nobody_knows_is_taken_to_run_as_if_alone() -> None:
    both = [running(name, "n1:0", ("a", "y")) for name in "ay"]
    found = _starts([*both, waits("whole", 1)], {"a": 100.0, "y": 100.0, "whole": 10.0}, slots(2))
    assert found == {"whole": pytest.approx(100.0)}


def test_the_forecast_of_a_pair_that_takes_no_turns_is_what_the_plan_promises() -> None:
    loads, trains = shares(0.7, 0.2, 0.1), shares(0.1, 0.3, 0.6)
    chance = 0.7 * 0.1 + 0.2 * 0.3 + 0.1 * 0.6
    both = [running(name, "n1:0", ("x", "y")) for name in "xy"]
    lasts = {"x": 1000.0, "y": 1000.0, "whole": 10.0}
    found = _starts([*both, waits("whole", 1)], lasts, slots(2), {"x": loads, "y": trains})
    assert found == {"whole": pytest.approx(1000.0 * (1 + chance))}


def test_the_forecast_goes_by_what_members_reported() -> None:
    both = [running(name, "n1:0", ("a", "b")) for name in "ab"]
    seen = TurnsSeen(tuple(("ada", entry.job.name, 1) for entry in both), 1.5, 0.0)
    whole = waits("whole", 1)
    known = guesses([*both, whole], FOUR, {"a": 1000.0, "b": 1000.0, "whole": 10.0})
    snapshot = replace(snap(0.0, room(slots(2), [*both, whole]), predictions=known), memory={VC: (seen,)})
    planner = policy("muri-l")
    found = forecast(snapshot, planner.plan(snapshot), planner, coarser=0.0).starts_s
    assert found == {"whole": pytest.approx(1500.0)}
