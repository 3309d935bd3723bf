"""Reservations: for whom, on which nodes, and who may start there meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from builders import LIGHT, decide, guess, nodes, part, reason, runs, snap, waits
from lucid.config.policy import ReservationSettings
from lucid.core.decision import Hold, PartitionPlan, Start
from lucid.core.job import Pending, Running
from lucid.core.ledger import Ledger
from lucid.core.node import Node
from lucid.core.prediction import Prediction
from lucid.core.reasons.queue import LargeShare, Reserved
from lucid.orchestrator.capacity.reservations import keep, large_share, next_holder
from lucid.orchestrator.capacity.timeline import Timeline, expected_ends

MACHINES = nodes(3, 4)
HELD = [runs("r1", "n1:0-3"), runs("r2", "n2:0-3"), runs("r3", "n3:0-1")]
ENDS = {"r1": guess(500.0), "r2": guess(900.0), "r3": guess(700.0)}


def plan(
    *waiting: Pending,
    now_s: float = 0.0,
    held: list[Running] = HELD,
    machines: tuple[Node, ...] = MACHINES,
    estimates: Mapping[str, Prediction] | None = None,
    **reservation: object,
) -> PartitionPlan:
    snapshot = snap(now_s, part(machines, waiting, held), predictions={**ENDS, **(estimates or {})})
    return decide("lucid", snapshot, reservation=reservation)


def test_the_holder_gets_the_nodes_that_drain_soonest() -> None:
    assert reason(plan(waits("big", 8)).decisions["big"], Reserved) == Reserved("big", 700.0, 700.0, 2)


def test_kept_nodes_are_looked_at_again_after_five_minutes() -> None:
    """Time alone moves what is expected of them: a job there may outlive its estimate. Where nobody else could have
    them they are looked at when they were to have room."""
    assert plan(waits("big", 8), waits("small"), now_s=100.0).wake_s == 400.0
    assert plan(waits("big", 8), waits("wide", 4), now_s=100.0).wake_s == 700.0


def test_the_nodes_are_those_of_the_right_size_that_are_up() -> None:
    machines = (Node("n1", 4), Node("n2", 4, available=False), Node("n3", 4), Node("n4", 2), Node("n5", 4))
    held = [runs("r1", "n1:0-3")]
    ends = expected_ends(held, {"r1": guess(500.0)}, 0.0)
    ledger = Ledger(part(machines, (), held))
    found = keep(waits("big", 8).job, ledger, 0.0, Timeline(ledger, 0.0, ends), frozenset())
    assert found.names == ("n3", "n5")


@pytest.mark.parametrize(
    ("waited_s", "estimate_s", "starts"),
    [
        (0.0, 700.0, True),
        (0.0, 701.0, False),
        (100.0, 600.0, True),
        (200.0, 250.0, True),
        (200.0, 251.0, False),
        (400.0, 75.0, True),
        (400.0, 76.0, False),
    ],
)
def test_the_longer_the_holder_has_waited_the_surer_a_job_must_be_to_end_in_time(
    waited_s: float, estimate_s: float, starts: bool
) -> None:
    """Needed at 700 s, patience 100 s: after 400 s a job must end in time even if it takes four times as long."""
    small = waits("small", submit_s=waited_s)
    made = plan(waits("big", 8), small, now_s=waited_s, estimates={"small": guess(estimate_s)}, patience_s=100.0)
    decision = made.decisions["small"]
    assert isinstance(decision, Start) == starts
    if not starts:
        found = reason(decision, Reserved)
        assert (found.holder, found.times) == ("big", max(waited_s / 100.0, 1.0))


def test_where_other_jobs_have_waited_for_longer_the_holder_is_as_patient_as_they() -> None:
    """Needed at 700 s, patience 100 s: after 400 s a job must end in time even if it takes four times as long; where
    the others have waited for 200 s on average, twice as long."""
    for others_s, times in (((0.0, 0.0), 4.0), ((350.0, 50.0), 2.0), ((400.0, 400.0), 1.0)):
        others = [waits(f"small{i}", submit_s=400.0 - s) for i, s in enumerate(others_s)]
        estimates = {entry.job.id: guess(301.0) for entry in others}
        made = plan(waits("big", 8), *others, now_s=400.0, estimates=estimates, patience_s=100.0)
        assert reason(made.decisions["small0"], Reserved).times == pytest.approx(times)


def test_a_long_job_starts_on_nodes_that_are_not_kept() -> None:
    held = [runs("r1", "n1:0-3"), runs("r2", "n2:0-1"), runs("r3", "n3:0-3")]
    decision = plan(waits("big", 8), waits("small"), held=held, estimates={"small": guess(9e9)}).decisions["small"]
    assert isinstance(decision, Start)
    assert decision.placement[0].node == "n2"


def test_a_long_job_does_not_join_a_job_on_nodes_that_are_kept() -> None:
    held = [runs("r1", "n1:0-3", profile=LIGHT), runs("r2", "n2:0-3"), runs("r3", "n3:0-3")]
    for estimate_s, starts in ((600.0, True), (9e9, False)):
        estimates = {"guest": guess(estimate_s, 0), "r1": guess(500.0, 0)}
        guest = waits("guest", 4, profile=LIGHT)
        made = plan(waits("big", 8), guest, held=held, estimates=estimates)
        assert isinstance(made.decisions["guest"], Start) == starts


def test_the_holder_starts_before_anybody_else() -> None:
    made = plan(waits("small"), waits("big", 8), held=[], machines=nodes(2, 4), estimates={"small": guess(1.0)})
    assert [a.job_id for a in made.actions] == ["big"]
    assert isinstance(made.decisions["small"], Hold)


def test_the_holder_is_the_job_that_was_submitted_first() -> None:
    room = part(MACHINES, [waits("b", 8, 5.0), waits("c", 12, 3.0, rank=2), waits("a", 8, 3.0, rank=1)])
    holder, _ = next_holder(room, 4, 10.0, ReservationSettings())
    assert holder.job.id == "a"


@pytest.mark.parametrize(("now_s", "holder"), [(100.0, "short"), (200.0, "short"), (300.0, "long")])
def test_the_holder_has_waited_longest_for_its_estimate_until_the_oldest_has_waited_too_long(
    now_s: float, holder: str
) -> None:
    room = part(MACHINES, [waits("long", 8, 0.0), waits("short", 8, 50.0)])
    rules = ReservationSettings(oldest_after_s=300.0)
    found, _ = next_holder(room, 4, now_s, rules, {"long": guess(9000.0), "short": guess(90.0)})
    assert found.job.id == holder


def test_a_reservation_waits_for_its_time() -> None:
    room = part(MACHINES, [waits("big", 8, 5.0)])
    rules = ReservationSettings(after_wait_s=100.0)
    assert next_holder(room, 4, 104.0, rules) == (None, 105.0)
    assert next_holder(room, 4, 105.0, rules) == (room.pending[0], None)


@pytest.mark.parametrize(("above", "gpus", "holds"), [(None, 4, False), (None, 5, True), (2, 3, True), (2, 2, False)])
def test_only_large_jobs_hold_reservations(above: int | None, gpus: int, holds: bool) -> None:
    room = part(MACHINES, [waits("j", gpus)])
    holder, _ = next_holder(room, 4, 0.0, ReservationSettings(above_gpus=above))
    assert (holder is not None) == holds


def test_reservations_may_be_off() -> None:
    assert next_holder(part(MACHINES, [waits("j", 8)]), 4, 0.0, ReservationSettings(enabled=False)) == (None, None)


def test_no_nodes_stand_idle_for_a_job_that_cannot_come() -> None:
    one_down = (Node("n1", 4), Node("n2", 4, available=False))
    made = plan(waits("big", 8), waits("small"), held=[], machines=one_down, now_s=1e6)
    assert isinstance(made.decisions["small"], Start)


@pytest.mark.parametrize(("now_s", "names"), [(650.0, ("n1", "n3")), (700.1, ("n2", "n3"))])
def test_a_job_that_outlives_its_estimate_is_expected_ever_later(now_s: float, names: tuple[str, ...]) -> None:
    """One job on each of three nodes: r1 has outlived its estimate, and from 700 s on is expected after r2."""
    held = [
        runs(name, f"{name.replace('r', 'n')}:0-3", at_s) for name, at_s in (("r1", 100), ("r2", 400), ("r3", 400))
    ]
    ledger = Ledger(part(nodes(3, 4), (), held))
    room = Timeline(ledger, now_s, expected_ends(held, ENDS, now_s))
    kept = keep(waits("big", 8).job, ledger, now_s, room, frozenset())
    assert set(kept.names) == set(names)


# -- large jobs keep to their share ----------------------------------------------------------------------------------

FIVE = nodes(5, 4)
LARGE_RUNS = [runs("L", "n1:0-3 n2:0-3")]
SHORT = {"L": guess(900.0), "big": guess(900.0), "small": guess(9e9), "tiny": guess(9e9)}


def crowded(big_s: float, small_s: float, now_s: float = 100.0, **reservation: object) -> PartitionPlan:
    """8 of 20 GPUs held by a large job, 12 by small ones; another large one waits, and one that needs a GPU."""
    held = [*LARGE_RUNS, runs("s3", "n3:0-3"), runs("s4", "n4:0-3"), runs("s5", "n5:0-3")]
    waiting = [waits("big", 8, big_s), waits("small", 1, small_s)]
    snapshot = snap(
        now_s, part(FIVE, waiting, held), predictions={**SHORT, **{f"s{i}": guess(500.0) for i in (3, 4, 5)}}
    )
    return decide("lucid", snapshot, reservation=reservation)


def test_beyond_their_share_large_jobs_give_way_to_a_smaller_one_that_has_waited_half_as_long() -> None:
    decision = crowded(0.0, 50.0).decisions["big"]
    assert reason(decision, LargeShare) == LargeShare(8, 8, 20, 0.5, "small", 50.0, 100.0)
    assert isinstance(decision, Hold)
    assert not any(isinstance(why, Reserved) for why in decision.reasons)


def test_until_then_nodes_are_kept_and_the_plan_is_looked_at_again_at_that_very_time() -> None:
    made = crowded(0.0, 60.0)
    assert reason(made.decisions["big"], Reserved).holder == "big"
    assert made.wake_s == 120.0
    assert reason(crowded(0.0, 60.0, now_s=120.0).decisions["big"], LargeShare).other_waited_s == 60.0


@pytest.mark.parametrize("rules", [{"most_share": 1.0}, {"most_share": 0.8}])
def test_within_their_share_they_need_not(rules: dict[str, float]) -> None:
    assert reason(crowded(0.0, 0.0, **rules).decisions["big"], Reserved).holder == "big"


def test_a_job_that_gives_way_still_starts_where_there_is_room() -> None:
    waiting = [waits("big", 8, 0.0), waits("small", 1, 0.0, rank=1)]
    snapshot = snap(100.0, part(FIVE, waiting, LARGE_RUNS), predictions=SHORT)
    made = decide("lucid", snapshot)
    assert {a.job_id for a in made.actions} == {"big", "small"}


def test_one_large_job_at_least_is_always_served() -> None:
    room = part(FIVE, [waits("big", 20), waits("small", 1)], [runs("s", "n1:0-3")])
    assert large_share(room.pending[0], room, 4, 50.0, ReservationSettings()) == (None, None)


def test_who_can_never_start_makes_nobody_give_way() -> None:
    down = (*FIVE[:4], Node("n5", 4, available=False, cpus=64))
    machines = tuple(replace(node, cpus=node.cpus or 8) for node in down)
    hopeless = waits("small", 1, cpus=32)
    room = part(machines, [waits("big", 8), hopeless], LARGE_RUNS)
    assert large_share(room.pending[0], room, 4, 50.0, ReservationSettings()) == (None, None)
    willing = part(machines, [waits("big", 8), waits("small", 1)], LARGE_RUNS)
    share, _ = large_share(willing.pending[0], willing, 4, 50.0, ReservationSettings())
    assert share.total_gpus == 16  # a node that is down counts for nobody
    assert not share
