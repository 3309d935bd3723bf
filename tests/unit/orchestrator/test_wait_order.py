"""Where most jobs that wait are large: who has waited for longest for its estimate goes first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from builders import a_job, guess, nodes, part, runs, snap, waits
from lucid.config.policy import ReservationSettings
from lucid.core.decision import PartitionPlan, Start
from lucid.core.job import Pending
from lucid.core.reasons.queue import PlainOrder, Unranked, WaitOrder
from lucid.orchestrator.order.starvation_bound import Turn
from lucid.orchestrator.policies.lucid.plain import WaitQueue, mostly_large
from scenes.plans import decide

DAY_S = 86400.0


def order(now_s: float, *pending: Pending, due: dict[str, Turn] | None = None, **estimates_s: float) -> list[str]:
    guesses = {entry.job.id: guess(estimates_s.get(entry.job.id, 3600.0)) for entry in pending}
    room = part(nodes(2, 4), pending)
    queue = WaitQueue(1.0).of(room, snap(now_s, room, predictions=guesses), due or {}, ReservationSettings(), 4)
    return [row.id for row in queue]


def test_several_large_jobs_and_half_as_many_others_are_not_mostly_large() -> None:
    large, small = [waits(f"l{i}", 8) for i in range(3)], [waits(f"s{i}", 4) for i in range(3)]
    assert mostly_large([*large, *small[:1]], 4)
    assert not mostly_large([*large, *small[:2]], 4)
    assert not mostly_large(large[:1], 4)
    assert not mostly_large((), 4)


def test_the_longest_wait_for_its_estimate_goes_first_and_the_larger_of_equals() -> None:
    jobs = (waits("long", 8), waits("short", 8), waits("late", 8, submit_s=900.0), waits("small", 4))
    assert order(1000.0, *jobs, long=7200.0, short=600.0, late=600.0) == ["short", "small", "late", "long"]
    assert order(1000.0, waits("small", 5), waits("large", 8)) == ["large", "small"]


def test_after_two_days_the_oldest_goes_first_and_before_it_whose_turn_has_come() -> None:
    jobs = (waits("old", 8), waits("older", 8, submit_s=-10.0), waits("quick", 8, submit_s=10.0))
    estimates = {"old": 9e5, "older": 9e6, "quick": 60.0}
    assert order(2 * DAY_S - 20.0, *jobs, **estimates)[0] == "quick"
    assert order(2 * DAY_S, *jobs, **estimates) == ["older", "old", "quick"]
    due = {"quick": Turn(jobs[2], PlainOrder(0.0, 2 * DAY_S, DAY_S, DAY_S))}
    assert order(2 * DAY_S, *jobs, due=due, **estimates) == ["quick", "older", "old"]


def plan(*pending: Pending, gain: float | None = 0.5, **sections: Any) -> PartitionPlan:
    held = [runs("r0", "n1:0-3")]
    room = part(nodes(2, 4), pending, held)
    estimates = {entry.job.id: guess(600.0 if entry.job.gpus == 1 else 3600.0) for entry in (*pending, *held)}
    trust = {} if gain is None else {"": Unranked("", 100, gain, 0.25)}
    return decide("lucid", replace(snap(1000.0, room, predictions=estimates), trust=trust), **sections)


LARGE = [Pending(a_job(f"l{i}", 8, 0.0, time_limit_s=7200.0), 0.0) for i in range(3)]
SMALL = Pending(a_job("small", 1, 900.0, time_limit_s=90000.0), 900.0)


def test_nobody_takes_the_nodes_of_several_large_jobs_for_longer_than_its_limit_allows() -> None:
    """By estimate the small job is first, and starts."""
    held = plan(*LARGE, SMALL).decisions["small"]
    assert not isinstance(held, Start)
    assert WaitOrder(4, 600.0, 1, "test", 2 * DAY_S) in held.reasons
    assert isinstance(plan(LARGE[0], SMALL).decisions["small"], Start)


@pytest.mark.parametrize(
    ("gain", "sections"),
    [
        (None, {}),
        (0.9, {}),
        (0.5, {"fairness": {"estimates": "always"}}),
        (0.5, {"reservation": {"enabled": False}}),
    ],
)
def test_estimates_that_are_all_but_right_or_unknown_order_the_same_queue(
    gain: float | None, sections: dict[str, Any]
) -> None:
    assert isinstance(plan(*LARGE, SMALL, gain=gain, **sections).decisions["small"], Start)
