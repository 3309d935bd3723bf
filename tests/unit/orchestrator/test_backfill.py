"""Which jobs go before a blocked one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from builders import (
    VC,
    FixedPredictor,
    a_trace,
    by,
    decide,
    guess,
    kinds,
    nodes,
    part,
    policy,
    reason,
    runs,
    snap,
    waits,
)
from lucid.config.load import settings_from
from lucid.config.policy import BackfillSettings
from lucid.core.decision import Hold, PartitionPlan, Start
from lucid.core.job import Pending, Running
from lucid.core.node import Node, Window
from lucid.core.reasons.queue import Backfill, NodesOut, SlurmBars, SlurmPriority
from lucid.core.snapshot import Partition, Snapshot
from lucid.orchestrator.policies.backfill import BackfillPolicy, limits_s
from lucid.orchestrator.policies.queue import QueuePolicy
from lucid.orchestrator.registry import ESTIMATES, Estimates, requirements_of
from lucid.simulator.scenario import Scenario, simulate

HOUR = 3600.0


def starts(plan: PartitionPlan) -> dict[str, str]:
    return {job: " ".join(p.node for p in d.placement) for job, d in plan.decisions.items() if isinstance(d, Start)}


def blocked(*behind: object, closes: Window | None = None, **settings: object) -> PartitionPlan:
    """Two nodes of 4: one held for an hour by its limit, half of the other for two; a job of 8 is first in line."""
    machines = [replace(node, windows=() if closes is None else (closes,)).at(10.0) for node in nodes(2, 4)]
    running = [runs("a", "n1:0-3", job={"time_limit_s": HOUR}), runs("b", "n2:0-1", job={"time_limit_s": 2 * HOUR})]
    head = waits("head", 8, 1.0, time_limit_s=HOUR)
    scene = snap(10.0, part(machines, [head, *behind], running))  # type: ignore[list-item]
    return decide("backfill", scene, backfill=settings)


def test_a_job_that_ends_by_its_limit_before_the_head_starts_goes_first() -> None:
    plan = blocked(waits("short", 2, 2.0, time_limit_s=1.9 * HOUR))
    assert starts(plan) == {"short": "n2"}
    test = reason(plan.decisions["short"], Backfill)
    assert (test.ahead, test.limit_s, bool(test)) == (1, 1.9 * HOUR, True)
    assert kinds(plan.decisions["head"]) == ["FairOrder", "FreeGpus"]


def test_nobody_goes_before_a_head_that_has_its_room_until_the_nodes_close_for_good() -> None:
    reboot = Window(6 * HOUR, None, "reboot")
    plan = blocked(waits("long", 2, 2.0, time_limit_s=2.5 * HOUR), closes=reboot)
    assert starts(plan) == {}
    assert reason(plan.decisions["long"], Backfill).ahead == 1
    assert starts(blocked(waits("short", 2, 2.0, time_limit_s=1.9 * HOUR), closes=reboot)) == {"short": "n2"}


@pytest.mark.parametrize(("limit_h", "started"), [(1.9, {"short": "n2"}), (2.1, {})])
def test_an_order_of_ones_own_backfills_where_it_is_asked_to(limit_h: float, started: dict[str, str]) -> None:
    def fewest_last(entries: Sequence[Pending | Running], _known: object, _now_s: float) -> list[float]:
        return [-entry.job.gpus for entry in entries]

    running = [runs("a", "n1:0-3", job={"time_limit_s": HOUR}), runs("b", "n2:0-1", job={"time_limit_s": 2 * HOUR})]
    pending = [waits("short", 2, 1.0, time_limit_s=limit_h * HOUR), waits("head", 8, 2.0, time_limit_s=HOUR)]
    scene = snap(10.0, part(nodes(2, 4), pending, running))
    policy = QueuePolicy("widest", "most GPUs first", fewest_last, backfill=True)
    assert starts(policy.plan(scene).partitions[VC]) == started
    assert starts(QueuePolicy("widest", "", fewest_last).plan(scene).partitions[VC]) == {}


def test_a_job_that_would_delay_the_head_waits() -> None:
    plan = blocked(waits("long", 2, 2.0, time_limit_s=2.1 * HOUR))
    assert starts(plan) == {}
    assert not reason(plan.decisions["long"], Backfill)


def test_with_easy_only_the_first_is_protected() -> None:
    """Both 4 s wait for the node that comes free first; b's limit keeps n2 busy until the second of them is due."""
    second = waits("second", 4, 2.0, time_limit_s=0.9 * HOUR)
    third = waits("third", 2, 3.0, time_limit_s=1.95 * HOUR)
    head = waits("head", 4, 1.0, time_limit_s=5 * HOUR)
    running = [runs("a", "n1:0-3", job={"time_limit_s": HOUR}), runs("b", "n2:0-1", job={"time_limit_s": 1.5 * HOUR})]
    scene = snap(10.0, part(nodes(2, 4), [head, second, third], running))
    assert starts(decide("backfill", scene, backfill={"depth": 1})) == {"third": "n2"}
    assert starts(decide("backfill", scene, backfill={"depth": 2})) == {}


def test_the_job_in_front_starts_though_a_later_one_would_fit_better() -> None:
    plan = decide("backfill", snap(0.0, part(nodes(1, 2), [waits("b", 1, 2.0), waits("a", 2, 1.0)])))
    assert starts(plan) == {"a": "n1"}


def test_one_that_waits_for_a_node_that_is_down_holds_nobody_up() -> None:
    up, down = nodes(2, 2)
    room = part([up, replace(down, available=False)], [waits("wide", 4, 1.0), waits("a", 2, 2.0)])
    assert starts(decide("backfill", snap(0.0, room))) == {"a": "n1"}


def test_cpus_count_as_gpus_do() -> None:
    """The GPUs are free, the CPUs are not until a job ends by its limit."""
    running = [runs("a", "n1:0", job={"cpus": 6, "time_limit_s": HOUR})]
    head = waits("head", 1, 1.0, cpus=4, time_limit_s=HOUR)
    fits = waits("fits", 1, 2.0, cpus=2, time_limit_s=0.9 * HOUR)
    takes = waits("takes", 1, 2.0, cpus=2, time_limit_s=1.5 * HOUR)
    room = part(nodes(1, 4, cpus=8), [head, fits], running)
    assert starts(decide("backfill", snap(10.0, room))) == {"fits": "n1"}
    # 8 CPUs: the head's 4 and 2 of the other go together once a is gone
    assert starts(decide("backfill", snap(10.0, replace(room, pending=(head, takes))))) == {"takes": "n1"}
    takes = waits("takes", 1, 2.0, cpus=2, time_limit_s=1.5 * HOUR)
    head = waits("head", 1, 1.0, cpus=8, time_limit_s=HOUR)
    assert starts(decide("backfill", snap(10.0, replace(room, pending=(head, takes))))) == {}


def test_age_and_size_weigh_as_in_slurm() -> None:
    room = part(nodes(1, 4), [waits("old", 1, 0.0), waits("wide", 4, 500.0)])
    weights = {"weight_age": 1000.0, "weight_size": 1000.0, "max_age_s": 1200.0}
    plan = decide("backfill", snap(600.0, room), backfill=weights)
    assert starts(plan) == {"wide": "n1"}
    found = reason(plan.decisions["wide"], SlurmPriority)
    assert (found.age, found.size) == pytest.approx((100 / 1200, 1.0))
    assert found.value == pytest.approx(1000 * 100 / 1200 + 1000)
    assert reason(plan.decisions["old"], SlurmPriority).value == pytest.approx(500 + 250)
    # between two times of working priorities out the ages stand still
    again = decide("backfill", snap(899.0, room), backfill=weights)
    assert reason(again.decisions["wide"], SlurmPriority) == found


def test_the_limit_is_the_users_else_a_multiple_of_the_estimate() -> None:
    rules = BackfillSettings(limit_factor=3.0, least_limit_s=60.0)
    asked, silent = waits("a", time_limit_s=77.0).job, waits("b").job
    assert limits_s([asked], {asked.id: guess(1000.0)}, rules) == [77.0]
    assert limits_s([silent], {silent.id: guess(1000.0)}, rules) == [3000.0]
    assert limits_s([silent], {silent.id: guess(1.0)}, rules) == [60.0]
    assert limits_s([silent], {}, rules) == [365 * 86400.0]


def test_a_job_past_a_made_up_limit_is_given_twice_as_long() -> None:
    """b has outlived 600 s: n1 is expected at 1,200 s, not now, so a job of 500 s may still use the other GPU."""
    room = part(nodes(1, 2), [waits("head", 2, 1.0), waits("short", 1, 2.0, time_limit_s=500.0)], [runs("b", "n1:0")])
    plan = decide("backfill", snap(650.0, room), FixedPredictor(otherwise_s=1.0), backfill={"limit_factor": 0.1})
    assert starts(plan) == {"short": "n1"}
    late = decide("backfill", snap(750.0, room), FixedPredictor(otherwise_s=1.0), backfill={"limit_factor": 0.1})
    assert isinstance(late.decisions["short"], Hold)
    assert late.wake_s == 1200.0


def test_more_ends_than_steps_are_rounded_up() -> None:
    """200 GPUs that come free one after the other: a job is never let in on the promise of an earlier end."""
    running = [runs(f"r{i}", f"n{i + 1}:0", job={"time_limit_s": 1000.0 + i}) for i in range(200)]
    waiting = [waits("head", 201, 1.0, time_limit_s=10.0), waits("late", 1, 2.0, time_limit_s=1199.0)]
    room = part(nodes(201, 1), waiting, running)
    assert starts(decide("backfill", snap(0.0, room))) == {"late": "n201"}
    longer = [waiting[0], waits("late", 1, 2.0, time_limit_s=1200.0)]
    assert starts(decide("backfill", snap(0.0, replace(room, pending=tuple(longer))))) == {}


def test_it_is_told_estimates_unless_the_oracle_is_asked_for() -> None:
    trace = a_trace(by("a"), by("b"))
    assert ESTIMATES["backfill"] is Estimates.LIMITS
    assert Scenario(trace, {"vc": 1}).predictor_for("backfill").name == "history"
    assert Scenario(trace, {"vc": 1}, predictor="oracle").predictor_for("backfill").name == "oracle"
    assert requirements_of(BackfillPolicy(BackfillSettings())).text() == "time limits; code: unchanged"


def test_with_right_limits_the_head_never_starts_later_than_without_anybody_behind() -> None:
    """Conservative backfilling's promise, on a stream: nobody starts later than in order of submission."""
    jobs = [by(f"j{i}", 1 + (7 * i) % 4, 100.0 + 90.0 * ((5 * i) % 7), 20.0 * i) for i in range(40)]
    trace = a_trace(*jobs)
    exact = settings_from({"policy": {"backfill": {"limit_factor": 1.0, "least_limit_s": 1.0, "depth": 1000}}}, "t")
    scene = Scenario(trace, {"vc": 1}, settings=exact, predictor="oracle")
    plain = {o.job.id: o.start_s for o in simulate(scene, "fifo").outcomes}
    filled = {o.job.id: o.start_s for o in simulate(scene, "backfill").outcomes}
    assert all(filled[job] <= plain[job] + 1e-6 for job in plain)
    assert any(filled[job] < plain[job] - 1 for job in plain)


NAMES = ["fifo", "sjf", "qssf", "srtf", "tiresias", "backfill", "lucid"]
GUESSES = {name: guess(100.0) for name in ("first", "second", "wide")}


@pytest.mark.parametrize("name", NAMES)
def test_a_barred_job_waits_with_slurms_words_and_stands_in_nobodys_way(name: str) -> None:
    barred = replace(waits("first", 4, 0.0), barred="QOSMaxJobsPerUserLimit", retry_s=90.0)
    room = part(nodes(1, 4), [barred, waits("second", 4, 1.0)])
    made = policy(name, profiling={"enabled": False})
    plan = made.plan(snap(60.0, room, predictions=GUESSES))
    assert plan.decision_of("first") == Hold((SlurmBars("QOSMaxJobsPerUserLimit", 90.0),))
    assert isinstance(plan.decision_of("second"), Start)
    assert [action.job_id for action in plan.actions] == ["second"]


@pytest.mark.parametrize("name", NAMES)
def test_once_it_is_let_start_it_is_planned_again(name: str) -> None:
    barred = replace(waits("first", 4, 0.0), barred="Licenses", retry_s=90.0)
    made = policy(name, profiling={"enabled": False})
    made.plan(snap(60.0, part(nodes(1, 4), [barred]), predictions=GUESSES))
    later = made.plan(snap(120.0, part(nodes(1, 4), [replace(barred, barred="")]), predictions=GUESSES))
    assert isinstance(later.decision_of("first"), Start)


@pytest.mark.parametrize("change", [{"barred": "Licenses"}, {"home_only": True}])
def test_profiling_nodes_take_in_nobody_whom_slurm_would_not_start_there(change: dict[str, Any]) -> None:
    home = part(nodes(1, 1), [replace(waits("first"), **change), waits("second")], [runs("r", "n1:0")])
    spare = Partition("prof", nodes(1, 4, "p"), profiling=True)
    snapshot = Snapshot(60.0, {VC: home, "prof": spare}, predictions=GUESSES | {"r": guess(9e5)})
    plan = policy("lucid", profiling={"restarts": "asked"}).plan(snapshot)
    assert isinstance(plan.decision_of("first"), Hold)
    assert [(action.job_id, action.partition) for action in plan.actions] == [("second", "prof")]


def test_no_nodes_are_kept_for_a_large_job_that_slurm_bars() -> None:
    wide = replace(waits("wide", 8, 0.0), barred="AssocGrpGRES")
    room = part(nodes(2, 4), [wide, waits("first", 4, 1.0)], [runs("r", "n1:0")])
    plan = policy("lucid", profiling={"enabled": False}).plan(
        snap(9e5, room, predictions=GUESSES | {"r": guess(9e5)})
    )
    assert isinstance(plan.decision_of("first"), Start)


def test_a_job_without_room_is_told_of_nodes_that_are_reserved() -> None:
    away = Node("n1", 4, available=False, out="reserved")
    plan = policy("fifo").plan(snap(0.0, part([away, *nodes(1, 1, "m")], [waits("first", 2)]), predictions=GUESSES))
    decision = plan.decision_of("first")
    assert isinstance(decision, Hold)
    assert "FreeGpus" in kinds(decision)
    assert NodesOut(4, "reserved") in decision.reasons
