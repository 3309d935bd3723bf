"""When jobs are expected to start, and the site factors of order mode."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from builders import HEAVY, LIGHT, VC, guess, nodes, part, policy, runs, snap, waits
from lucid.core.decision import Plan, Start
from lucid.core.job import Stage
from lucid.core.snapshot import Snapshot
from lucid.orchestrator.forecast.plan_ahead import Forecast, forecast
from lucid.orchestrator.order.queue_order import factor_of, site_factors

BARE = {"profiling": {"enabled": False}}


def foreseen(snapshot: Snapshot, name: str = "lucid", most_looks: int = 10_000, **sections: object) -> Forecast:
    rules = {**BARE, **sections}
    return forecast(snapshot, policy(name, **rules).plan(snapshot), policy(name, **rules), most_looks, coarser=0.0)


def test_jobs_start_in_order_as_gpus_come_free() -> None:
    room = part(nodes(1, 4), [waits("a", 4), waits("b", 2), waits("huge", 9)], [runs("r", "n1:0-2")])
    known = {"a": guess(1000.0), "b": guess(100.0), "huge": guess(1.0), "r": guess(600.0)}
    found = foreseen(snap(200.0, room, predictions=known))
    assert found.starts_s == {"b": 400.0, "a": 500.0}
    assert found.ahead_s == inf


def test_a_pair_frees_its_gpus_when_the_last_of_both_ends() -> None:
    room = part(nodes(1, 4), [waits("a", 4)], [runs("r", "n1:0-3", partner="s"), runs("s", "n1:0-3", partner="r")])
    found = foreseen(snap(0.0, room, predictions={"a": guess(10.0), "r": guess(100.0), "s": guess(300.0)}))
    assert found.starts_s == {"a": 300.0}


def test_free_gpus_on_two_nodes_are_not_room_for_a_job_of_one_node() -> None:
    room = part(nodes(2, 4), [waits("a", 4)], [runs("r", "n1:0-1"), runs("s", "n2:0-1")])
    found = foreseen(snap(0.0, room, predictions={"a": guess(10.0), "r": guess(100.0), "s": guess(300.0)}))
    assert found.starts_s == {"a": 100.0}, "4 GPUs are free at once, 2 on each node"


def test_a_job_that_may_share_starts_as_soon_as_a_partner_does() -> None:
    entry = waits("guest", profile=LIGHT)
    room = part(nodes(1, 1), [entry], [runs("heavy", "n1:0", profile=HEAVY)])
    known = {"heavy": guess(50.0, 2), "guest": guess(10.0, 0)}
    assert foreseen(snap(0.0, room, predictions=known)).starts_s == {"guest": 50.0}
    room = part(nodes(1, 1), [waits("b", profile=LIGHT), entry], [runs("heavy", "n1:0", profile=HEAVY)])
    known |= {"b": guess(9000.0, 0), "guest": guess(9000.0, 0)}
    assert foreseen(snap(0.0, room, predictions=known)).starts_s == {"b": 50.0, "guest": 50.0}, "beside the first"


def test_a_third_job_waits_until_one_of_a_pair_ends() -> None:
    entries = [waits("first", profile=LIGHT), waits("second", profile=LIGHT)]
    room = part(nodes(1, 1), entries, [runs("host", "n1:0", profile=LIGHT)])
    known = {"host": guess(9000.0, 0), "first": guess(100.0, 0), "second": guess(200.0, 0)}
    assert foreseen(snap(0.0, room, predictions=known)).starts_s == {"first": 0.0, "second": 100.0}


def test_a_pair_stays_a_pair_when_something_happens_elsewhere() -> None:
    """The end of a job in another VC makes the policy plan again; it must not find the host free to be joined."""
    entries = [waits("first", profile=LIGHT), waits("second", profile=LIGHT)]
    room = part(nodes(1, 1), entries, [runs("host", "n1:0", profile=LIGHT)])
    elsewhere = part(nodes(1, 1, "o"), [], [runs("other", "o1:0", profile=HEAVY)], "elsewhere")
    known = {"host": guess(9000.0, 0), "first": guess(400.0, 0), "second": guess(800.0, 0), "other": guess(50.0, 2)}
    found = foreseen(snap(0.0, room, elsewhere, predictions=known))
    assert found.starts_s == {"first": 0.0, "second": 400.0}


def test_a_job_parted_from_its_partner_is_not_expected_beside_it_again() -> None:
    slow = replace(LIGHT, seen_speed=0.4, seen_beside="two")
    pair = [runs("one", "n1:0", profile=slow, partner="two"), runs("two", "n1:0", 1.0, profile=LIGHT, partner="one")]
    room = part(nodes(1, 1), [waits("other")], pair)
    known = {"one": guess(2000.0, 0), "two": guess(1500.0, 0), "other": guess(1e6)}
    found = foreseen(snap(700.0, room, predictions=known))
    assert found.starts_s == {"two": 1300.0, "other": 2800.0}


PROFILED_FIRST = {"carry_on_share": 0.0, "t_prof_s": 60.0, "home_if_room": False}


def test_a_job_released_from_profiling_starts_in_its_vc() -> None:
    running = [runs("now", "p1:0-1", 10.0, stage=Stage.PROFILE, job={"vc": VC})]
    prof = part(nodes(1, 2, prefix="p"), [waits("next", 2)], running, name="prof", profiling=True)
    found = foreseen(snap(30.0, part(nodes(1, 4)), prof), profiling=PROFILED_FIRST)
    assert found.starts_s["now"] == 41.0, "lucidd looks again a second after it was moved"


def test_a_job_that_was_not_started_in_slots_may_share_after_its_next_start() -> None:
    running = [runs("now", "p1:0", 10.0, stage=Stage.PROFILE, profile=LIGHT, alone=True, job={"vc": VC})]
    prof = part(nodes(1, 1, prefix="p"), [waits("next")], running, name="prof", profiling=True)
    room = part(nodes(1, 1), (), [runs("host", "n1:0", profile=LIGHT)])
    known = {"now": guess(500.0, 0), "host": guess(9000.0, 0), "next": guess(100.0)}
    found = foreseen(snap(30.0, room, prof, predictions=known), profiling=PROFILED_FIRST)
    assert found.starts_s["now"] == 41.0


def test_nobody_passes_the_head_where_the_policy_does_not_backfill() -> None:
    room = part(nodes(1, 4), [waits("head", 4), waits("small", 1)], [runs("r", "n1:0-2")])
    known = {"head": guess(1000.0), "small": guess(10.0), "r": guess(600.0)}
    assert foreseen(snap(0.0, room, predictions=known), "fifo").starts_s == {"head": 600.0, "small": 1600.0}
    assert foreseen(snap(0.0, room, predictions=known)).starts_s == {"small": 0.0, "head": 600.0}


def test_a_job_waits_for_its_profiling_run_and_those_before_it() -> None:
    entries = [waits("one", 2), waits("two", 2)]
    running = [runs("now", "p1:0-1", 10.0, stage=Stage.PROFILE, job={"vc": VC})]
    prof = part(nodes(1, 2, prefix="p"), entries, running, name="prof", profiling=True)
    snapshot = snap(30.0, part(nodes(1, 4)), prof)
    found = foreseen(snapshot, profiling=PROFILED_FIRST)
    assert found.starts_s["one"] == 40.0, "60 s after the job before it"
    assert 100.0 <= found.starts_s["two"] <= 102.0, "and as long again"


def test_a_job_that_slurm_bars_is_given_no_time() -> None:
    entry = waits("a")
    barred = type(entry)(entry.job, 0.0, barred="licences", retry_s=60.0)
    found = foreseen(snap(0.0, part(nodes(1), [barred])))
    assert found.starts_s == {}


def test_the_plan_in_force_comes_first_whatever_would_be_planned_now() -> None:
    snapshot = snap(0.0, part(nodes(1, 1), [waits("a"), waits("b")]), predictions={"a": guess(5.0), "b": guess(9.0)})
    plan = policy("lucid", **BARE).plan(snapshot)
    assert isinstance(plan.decision_of("a"), Start)
    held = Plan(0.0, {VC: type(plan.partitions[VC])(plan.partitions[VC].decisions, (), 20.0)})
    found = forecast(snapshot, held, policy("lucid", **BARE))
    assert found.starts_s == {"a": 20.0, "b": 25.0}


def test_how_far_it_was_planned_ahead_is_told() -> None:
    room = part(nodes(1, 1), [waits("a"), waits("b"), waits("c")], [runs("r", "n1:0")])
    found = foreseen(snap(0.0, room), most_looks=5)
    assert found.starts_s == {"a": 1000.0}
    assert found.ahead_s == 2000.0


@pytest.mark.parametrize(("position", "factor"), [(1, 1000), (2, 950), (3, 900), (4, 900), (5, 850), (2**30, 0)])
def test_the_site_factor_falls_with_the_place_by_powers_of_two(position: int, factor: int) -> None:
    assert factor_of(position) == factor


def test_a_queue_gets_its_site_factors_in_the_order_of_the_plan() -> None:
    room = part(nodes(1), [waits("a", 2), waits("b"), waits("c")], [runs("r", "n1:0-3")])
    plan = policy("fifo", **BARE).plan(snap(0.0, room)).partitions[VC]
    assert site_factors(plan) == {"a": 1000, "b": 950, "c": 900}


def test_a_start_on_a_node_that_sleeps_is_foreseen_after_its_boot() -> None:
    """ "a" wakes the node, "b" comes to it while it boots, and what waits for "a" waits for its end."""
    asleep = replace(nodes(1, 4)[0], boot_s=240.0)
    room = part((asleep,), [waits("a", 2), waits("b", 2), waits("c", 4)])
    found = foreseen(snap(0.0, room, predictions={"a": guess(100.0), "b": guess(300.0), "c": guess(1000.0)}))
    assert found.starts_s == {"a": 240.0, "b": 240.0, "c": 540.0}


def test_a_job_whose_node_boots_ends_later_by_that() -> None:
    boots = replace(nodes(1, 4)[0], boot_s=240.0, boots_since_s=-40.0)
    here = replace(runs("r", "n1:0-3"), start_s=200.0)
    room = part((boots,), [waits("a", 4)], [here])
    found = foreseen(snap(0.0, room, predictions={"a": guess(10.0), "r": guess(100.0)}))
    assert found.starts_s == {"a": 300.0}
