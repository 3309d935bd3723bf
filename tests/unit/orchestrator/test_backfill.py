"""Which jobs go before a blocked one; nodes that close at times, and nodes that sleep."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from lucid.config.load import settings_from
from lucid.config.policy import BackfillSettings
from lucid.core.codec import from_json, to_json
from lucid.core.decision import Hold, PartitionPlan, Start
from lucid.core.job import Pending, Running
from lucid.core.ledger import Ledger
from lucid.core.node import Node, Window, next_edge_s
from lucid.core.reasons.queue import Backfill, Closes, NodesOut, Reserved, SlurmBars, SlurmPriority
from lucid.core.snapshot import Partition, Snapshot, opens_s
from lucid.orchestrator.capacity.placement import consolidated, emptiest
from lucid.orchestrator.forecast.plan_ahead import forecast
from lucid.orchestrator.policies.backfill import limits_s
from lucid.orchestrator.policies.queue import QueuePolicy
from lucid.orchestrator.registry import BUILT_IN, requirements_of
from lucid.orchestrator.safety.check import SafetyCheck
from lucid.simulator.scenario import Scenario, simulate
from scenes.jobs import VC, a_job, by, nodes, runs, waits
from scenes.plans import FixedPredictor, decide, guess, kinds, part, policy, reason, settings, snap
from scenes.replays import a_trace

HOUR = 3600.0
HELD = [runs("a", "n1:0-3", job={"time_limit_s": HOUR}), runs("b", "n2:0-1", job={"time_limit_s": 2 * HOUR})]


def starts(plan: PartitionPlan) -> dict[str, str]:
    return {job: " ".join(p.node for p in d.placement) for job, d in plan.decisions.items() if isinstance(d, Start)}


def blocked(*behind: object, closes: Window | None = None, **settings: object) -> PartitionPlan:
    """Two nodes of 4: one held for an hour by its limit, half of the other for two; a job of 8 is first in line."""
    machines = [replace(node, windows=() if closes is None else (closes,)).at(10.0) for node in nodes(2, 4)]
    head = waits("head", 8, 1.0, time_limit_s=HOUR)
    scene = snap(10.0, part(machines, [head, *behind], HELD))  # type: ignore[list-item]
    return decide("backfill", scene, backfill=settings)


REBOOT = Window(6 * HOUR, None, "reboot")


@pytest.mark.parametrize(("limit_h", "closes"), [(1.9, None), (2.1, None), (1.9, REBOOT), (2.5, REBOOT)])
def test_a_job_goes_first_that_ends_by_its_limit_before_the_head_starts(
    limit_h: float, closes: Window | None
) -> None:
    """Also before a head that has its room until the nodes close for good."""
    plan, goes = blocked(waits("next", 2, 2.0, time_limit_s=limit_h * HOUR), closes=closes), limit_h < 2.0
    assert starts(plan) == ({"next": "n2"} if goes else {})
    test = reason(plan.decisions["next"], Backfill)
    assert (test.ahead, test.limit_s, bool(test)) == (1, limit_h * HOUR, goes)
    assert closes or kinds(plan.decisions["head"]) == ["FairOrder", "FreeGpus"]


@pytest.mark.parametrize(("limit_h", "started"), [(1.9, {"short": "n2"}), (2.1, {})])
def test_an_order_of_ones_own_backfills_where_it_is_asked_to(limit_h: float, started: dict[str, str]) -> None:
    def fewest_last(entries: Sequence[Pending | Running], _known: object, _now_s: float) -> list[float]:
        return [-entry.job.gpus for entry in entries]

    pending = [waits("short", 2, 1.0, time_limit_s=limit_h * HOUR), waits("head", 8, 2.0, time_limit_s=HOUR)]
    scene = snap(10.0, part(nodes(2, 4), pending, HELD))
    policy = QueuePolicy("widest", "most GPUs first", fewest_last, backfill=True)
    assert starts(policy.plan(scene).partitions[VC]) == started
    assert starts(QueuePolicy("widest", "", fewest_last).plan(scene).partitions[VC]) == {}


def test_with_easy_only_the_first_is_protected() -> None:
    """Both 4 s wait for the node that comes free first; b's limit keeps n2 busy until the second of them is due."""
    second = waits("second", 4, 2.0, time_limit_s=0.9 * HOUR)
    third = waits("third", 2, 3.0, time_limit_s=1.95 * HOUR)
    head = waits("head", 4, 1.0, time_limit_s=5 * HOUR)
    running = [runs("a", "n1:0-3", job={"time_limit_s": HOUR}), runs("b", "n2:0-1", job={"time_limit_s": 1.5 * HOUR})]
    scene = snap(10.0, part(nodes(2, 4), [head, second, third], running))
    assert starts(decide("backfill", scene, backfill={"depth": 1})) == {"third": "n2"}
    assert starts(decide("backfill", scene, backfill={"depth": 2})) == {}


def test_cpus_count_as_gpus_do() -> None:
    """The GPUs are free, the CPUs are not until a job ends by its limit; 4 and 2 of the 8 go together once it has."""
    running = [runs("a", "n1:0", job={"cpus": 6, "time_limit_s": HOUR})]
    for cpus, hours, goes in ((4, 0.9, True), (4, 1.5, True), (8, 1.5, False)):
        behind = waits("next", 1, 2.0, cpus=2, time_limit_s=hours * HOUR)
        waiting = [waits("head", 1, 1.0, cpus=cpus, time_limit_s=HOUR), behind]
        made = decide("backfill", snap(10.0, part(nodes(1, 4, cpus=8), waiting, running)))
        assert starts(made) == ({"next": "n1"} if goes else {})


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


def test_the_limit_is_the_users_else_a_multiple_of_the_estimate_and_nothing_else_is_asked_of_users() -> None:
    assert requirements_of(policy("backfill")).text() == "time limits; code: unchanged"
    rules = BackfillSettings(limit_factor=3.0, least_limit_s=60.0)
    year_s = 365 * 86400.0
    for asked_s, said_s, limit_s in ((77.0, 1e3, 77.0), (None, 1e3, 3e3), (None, 1.0, 60.0), (None, None, year_s)):
        known = {} if said_s is None else {"a": guess(said_s)}
        assert limits_s([a_job("a", time_limit_s=asked_s)], known, rules) == [limit_s]


def test_a_job_past_a_made_up_limit_is_given_twice_as_long() -> None:
    """b has outlived 600 s: n1 is expected at 1,200 s, not now, so a job of 500 s may still use the other GPU."""
    room = part(nodes(1, 2), [waits("head", 2, 1.0), waits("short", 1, 2.0, time_limit_s=500.0)], [runs("b", "n1:0")])
    made = policy("backfill", FixedPredictor(otherwise_s=1.0), backfill={"limit_factor": 0.1})
    early, late = (made.plan(snap(now_s, room)).partitions[VC] for now_s in (650.0, 750.0))
    assert (starts(early), starts(late), late.wake_s) == ({"short": "n1"}, {}, 1200.0)


def test_more_ends_than_steps_are_rounded_up() -> None:
    """200 GPUs that come free one after the other: a job is never let in on the promise of an earlier end."""
    running = [runs(f"r{i}", f"n{i + 1}:0", job={"time_limit_s": 1000.0 + i}) for i in range(200)]
    for limit_s, started in ((1199.0, {"late": "n201"}), (1200.0, {})):
        waiting = [waits("head", 201, 1.0, time_limit_s=10.0), waits("late", 1, 2.0, time_limit_s=limit_s)]
        assert starts(decide("backfill", snap(0.0, part(nodes(201, 1), waiting, running)))) == started


def test_with_right_limits_the_head_never_starts_later_than_without_anybody_behind() -> None:
    """Conservative backfilling's promise, on a stream: nobody starts later than in order of submission."""
    jobs = [by(f"j{i}", 1 + (7 * i) % 4, 100.0 + 90.0 * ((5 * i) % 7), 20.0 * i) for i in range(40)]
    trace = a_trace(*jobs)
    exact = settings_from({"policy": {"backfill": {"limit_factor": 1.0, "least_limit_s": 1.0, "depth": 1000}}}, "t")
    scene = Scenario(trace, {"vc": 1}, settings=exact, predictor="oracle")
    plain, filled = ({o.job.id: o.start_s for o in simulate(scene, it).outcomes} for it in ("fifo", "backfill"))
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
    scene = snap(9e5, room, predictions=GUESSES | {"r": guess(9e5)})
    assert isinstance(decide("lucid", scene, profiling={"enabled": False}).decisions["first"], Start)


def test_a_job_without_room_is_told_of_nodes_that_are_reserved() -> None:
    away = Node("n1", 4, available=False, out="reserved")
    plan = decide("fifo", snap(0.0, part([away, *nodes(1, 1, "m")], [waits("first", 2)]), predictions=GUESSES))
    assert "FreeGpus" in kinds(plan.decisions["first"])
    assert reason(plan.decisions["first"], NodesOut, Hold) == NodesOut(4, "reserved")


# -- nodes that close at times, and nodes that sleep ----------------------------------------------------------------

NOW = 1000.0
MAINT = Window(NOW + 1200.0, NOW + 8400.0, "maintenance m1")
"""In 20 minutes, for two hours."""


def limited(name: str, gpus: int = 1, limit_s: float | None = 3600.0) -> Pending:
    return waits(name, gpus, time_limit_s=limit_s)


def closing(*windows: Window, count: int = 1, gpus: int = 4) -> tuple[Node, ...]:
    return tuple(Node(f"n{i}", gpus, windows=windows or (MAINT,)).at(NOW) for i in range(count))


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_no_policy_starts_what_would_run_into_a_window(name: str) -> None:
    entries = [limited("hour"), limited("short", limit_s=1200.0), limited("endless", limit_s=None)]
    snapshot, planner = snap(NOW, part(closing(), entries)), policy(name)
    made = planner.plan(snapshot)
    SafetyCheck(planner.rules, settings())(snapshot, made)
    begun = starts(made.partitions[VC]).keys()
    assert begun <= {"short"}
    assert begun or name not in ("lucid", "backfill"), "these pass over jobs that find no room"


def test_the_comparison_with_the_window_is_the_reason() -> None:
    made = decide("lucid", snap(NOW, part(closing(), [limited("hour"), limited("endless", limit_s=None)])))
    hour, endless = made.decisions["hour"], made.decisions["endless"]
    assert Closes(4, 3600.0, 1200.0, MAINT.from_s, MAINT.until_s, "maintenance m1") in hour.reasons
    assert Closes(4, None, 1200.0, MAINT.from_s, MAINT.until_s, "maintenance m1") in endless.reasons
    assert isinstance(hour, Hold)
    assert made.wake_s == MAINT.from_s


def test_a_window_that_has_begun_is_why_the_node_is_out_and_until_when() -> None:
    (node,) = closing(replace(MAINT, from_s=NOW - 60.0))
    made = decide("lucid", snap(NOW, part([node], [limited("hour")])))
    assert NodesOut(4, "maintenance m1", MAINT.until_s) in made.decisions["hour"].reasons
    assert node.at(MAINT.end_s).available
    assert not replace(node, available=False, shut=None).at(MAINT.end_s).available  # down for another reason, too


def test_windows_that_overlap_open_at_the_end_of_the_last() -> None:
    later = Window(MAINT.from_s + 60.0, MAINT.end_s + 600.0, "maintenance m2")
    (node,) = closing(replace(MAINT, from_s=NOW), later)
    assert node.opens_s() == later.end_s
    assert next_edge_s([node], NOW) == later.from_s
    assert from_json(Node, to_json(node)) == node


def test_jobs_are_foreseen_at_the_end_of_the_window_by_the_policy_itself() -> None:
    entries = [limited("hour"), limited("short", limit_s=600.0), limited("endless", limit_s=None)]
    snapshot, lucid = snap(NOW, part(closing(), entries)), policy("lucid")
    told = forecast(snapshot, lucid.plan(snapshot), lucid).starts_s
    assert told == pytest.approx({"short": 0.0, "hour": MAINT.end_s - NOW, "endless": MAINT.end_s - NOW})


def test_nodes_kept_for_a_large_job_are_those_it_can_use_before_the_window_or_after_it() -> None:
    predictions = {"r": guess(NOW + 100.0), "large": guess(500.0), "guest": guess(200.0)}
    for limit_s, until_s in ((600.0, NOW + 100.0), (3600.0, MAINT.end_s)):
        waiting = [limited("large", 8, limit_s), limited("guest", 1, 300.0)]
        room = part(closing(count=2), waiting, [runs("r", "n0:0-3")])
        made = decide("lucid", snap(NOW, room, predictions=predictions))
        assert reason(made.decisions["large"], Reserved).until_s == pytest.approx(until_s)
        assert isinstance(made.decisions["guest"], Start) == (until_s > NOW + 200.0)


def test_nodes_that_sleep_are_taken_last_never_beside_enough_awake_and_after_one_that_boots_already() -> None:
    def taken(ledger: Ledger, gpus: int) -> list[str]:
        return [part.node for part in consolidated(ledger, a_job("j", gpus)) or ()]

    asleep = nodes(2, 4, "s", boot_s=240.0)
    ledger = Ledger(part((*asleep, *nodes(2, 4, "a"))))
    assert [{*taken(ledger, gpus)} for gpus in (2, 8, 12)] == [{"a1"}, {"a1", "a2"}, {"a1", "a2", "s1"}]
    assert {part.node for part in emptiest(ledger, a_job("j", 6), 6) or ()} == {"a1", "a2"}
    boots = Node("b", 4, boot_s=240.0, boots_since_s=NOW - 10.0)
    ledger = Ledger(part((asleep[0], boots, asleep[1])))
    assert (taken(ledger, 2), {*taken(ledger, 8)}) == (["b"], {"b", "s1"})
    assert [part.node for part in emptiest(ledger, a_job("j", 6), 6) or ()] == ["b", "s1"]


def test_a_boot_counts_against_the_time_before_a_window_and_the_ledger_wants_to_know_what_time_it_is() -> None:
    node = Node("s", 4, windows=(MAINT,), boot_s=300.0)
    ledger = Ledger(part([node]), NOW)
    found = [consolidated(ledger, a_job("j", time_limit_s=limit_s)) for limit_s in (900.0, 901.0)]
    assert [*map(bool, found)] == [True, False]
    assert replace(node, boots_since_s=NOW - 200.0).delay_s(NOW) == pytest.approx(100.0)
    with pytest.raises(ValueError, match="what time it is"):
        Ledger(part([node]))


def test_a_job_opens_at_the_end_of_the_last_window_that_it_would_reach_into() -> None:
    later = Window(MAINT.end_s + 60.0, MAINT.end_s + 120.0, "w")
    room = part(closing(MAINT, later))
    found = [opens_s(room, limit_s, NOW) for limit_s in (1200.0, 1201.0, None)]
    assert found == [NOW, later.end_s, later.end_s]
    assert opens_s(part(closing(replace(MAINT, until_s=None))), None, NOW) == math.inf
    assert opens_s(part((*closing(), Node("free", 4))), None, NOW) == NOW
