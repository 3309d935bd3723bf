"""Nodes that close at times, and nodes that sleep: who may start there, what is told, and what is expected."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from examples import tried
from lucid.core.codec import from_json, to_json
from lucid.core.decision import Hold, Start
from lucid.core.job import Pending, Running
from lucid.core.ledger import Ledger
from lucid.core.node import Node, Window, next_edge_s
from lucid.core.placement import NodeGpus
from lucid.core.reasons.queue import Closes, NodesOut
from lucid.core.snapshot import Partition, opens_s
from lucid.orchestrator.capacity.placement import consolidated, emptiest
from lucid.orchestrator.capacity.timeline import Timeline
from lucid.orchestrator.forecast.plan_ahead import forecast
from lucid.orchestrator.registry import BUILT_IN
from lucid.orchestrator.safety.check import SafetyCheck
from scenes.jobs import a_job
from scenes.plans import FixedPredictor, decide, guess, part, policy, settings, snap

NOW = 1000.0
MAINT = Window(NOW + 1200.0, NOW + 8400.0, "maintenance m1")
"""In 20 minutes, for two hours."""


def waits(name: str, gpus: int = 1, limit_s: float | None = 3600.0) -> Pending:
    return Pending(a_job(name, gpus, 0.0, time_limit_s=limit_s), 0.0)


def closing(*windows: Window, count: int = 1, gpus: int = 4) -> tuple[Node, ...]:
    return tuple(Node(f"n{i}", gpus, windows=windows or (MAINT,)).at(NOW) for i in range(count))


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_no_policy_starts_what_would_run_into_a_window(name: str) -> None:
    entries = [waits("hour"), waits("short", limit_s=1200.0), waits("endless", limit_s=None)]
    snapshot = snap(NOW, part(closing(), entries))
    planner = policy(name)
    made = planner.plan(snapshot)
    SafetyCheck(planner.rules, settings())(snapshot, made)
    starts = {action.job_id for action in made.actions if isinstance(action.decision, Start)}
    assert starts <= {"short"}
    if name in ("lucid", "backfill"):  # which pass over jobs that find no room
        assert starts == {"short"}


def test_the_comparison_with_the_window_is_the_reason() -> None:
    made = decide("lucid", snap(NOW, part(closing(), [waits("hour"), waits("endless", limit_s=None)])))
    hour, endless = made.decisions["hour"], made.decisions["endless"]
    assert Closes(4, 3600.0, 1200.0, MAINT.from_s, MAINT.until_s, "maintenance m1") in hour.reasons
    assert Closes(4, None, 1200.0, MAINT.from_s, MAINT.until_s, "maintenance m1") in endless.reasons
    assert isinstance(hour, Hold)
    assert made.wake_s == MAINT.from_s


def test_a_window_that_has_begun_is_why_the_node_is_out_and_until_when() -> None:
    (node,) = closing(replace(MAINT, from_s=NOW - 60.0))
    made = decide("lucid", snap(NOW, part([node], [waits("hour")])))
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
    snapshot = snap(
        NOW, part(closing(), [waits("hour"), waits("short", limit_s=600.0), waits("endless", limit_s=None)])
    )
    lucid = policy("lucid")
    told = forecast(snapshot, lucid.plan(snapshot), lucid)
    assert told.starts_s["short"] == 0.0
    assert told.starts_s["hour"] == told.starts_s["endless"] == pytest.approx(MAINT.end_s - NOW)


def test_nodes_kept_for_a_large_job_are_those_it_can_use_before_the_window_or_after_it() -> None:
    nodes = closing(count=2)
    busy = Running(a_job("r", 4), 0.0, (NodeGpus("n0", 0b1111),))
    for limit_s, until_s in ((600.0, NOW + 100.0), (3600.0, MAINT.end_s)):
        entries = [waits("large", 8, limit_s), waits("guest", 1, 300.0)]
        predictions = {"r": guess(NOW + 100.0), "large": guess(500.0), "guest": guess(200.0)}
        snapshot = snap(NOW, part(nodes, entries, [busy]), predictions=predictions)
        made = policy("lucid", FixedPredictor()).plan(snapshot).partitions["vc"]
        kept = next(why for why in made.decisions["large"].reasons if type(why).__name__ == "Reserved")
        assert kept.until_s == pytest.approx(until_s)  # type: ignore[attr-defined]
        assert isinstance(made.decisions["guest"], Start) == (until_s > NOW + 200.0)


def test_nodes_that_sleep_are_taken_last_and_never_beside_enough_that_are_awake() -> None:
    asleep = [Node(f"s{i}", 4, boot_s=240.0) for i in range(2)]
    awake = [Node("a0", 4), Node("a1", 4)]
    ledger = Ledger(Partition("vc", (*asleep, *awake)))
    assert consolidated(ledger, a_job("j", 2)) == (NodeGpus("a0", 0b11),)
    assert {part.node for part in consolidated(ledger, a_job("j", 8)) or ()} == {"a0", "a1"}
    assert {part.node for part in consolidated(ledger, a_job("j", 12)) or ()} == {"a0", "a1", "s0"}
    assert {part.node for part in emptiest(ledger, a_job("j", 6), 6) or ()} == {"a0", "a1"}


def test_a_node_that_boots_already_is_taken_before_one_that_sleeps() -> None:
    boots = Node("b", 4, boot_s=240.0, boots_since_s=NOW - 10.0)
    ledger = Ledger(Partition("vc", (Node("s", 4, boot_s=240.0), boots, Node("s2", 4, boot_s=240.0))))
    assert consolidated(ledger, a_job("j", 2)) == (NodeGpus("b", 0b11),)
    assert {part.node for part in consolidated(ledger, a_job("j", 8)) or ()} == {"b", "s"}
    assert [part.node for part in emptiest(ledger, a_job("j", 6), 6) or ()] == ["b", "s"]


def test_a_boot_counts_against_the_time_before_a_window() -> None:
    node = Node("s", 4, windows=(MAINT,), boot_s=300.0)
    for limit_s, fits in ((900.0, True), (901.0, False)):
        found = consolidated(Ledger(Partition("vc", (node,)), NOW), a_job("j", 1, time_limit_s=limit_s))
        assert (found is not None) == fits
    assert replace(node, boots_since_s=NOW - 200.0).delay_s(NOW) == pytest.approx(100.0)


def test_a_ledger_of_closing_nodes_wants_to_know_the_time() -> None:
    with pytest.raises(ValueError, match="what time it is"):
        Ledger(part(closing()))


@tried(60)
def test_a_slot_of_the_timeline_lies_in_no_window_and_none_comes_earlier(rng: random.Random) -> None:
    """Against each second looked at by itself, on nodes of one GPU."""
    nodes, running, ends = [], [], []
    for i in range(rng.randint(1, 3)):
        begins = sorted(rng.sample(range(1, 30), rng.choice([0, 1, 2])))
        windows = tuple(Window(NOW + at, NOW + at + rng.randint(1, 6), "w") for at in begins)
        if rng.random() < 0.3:
            windows = (Window(NOW - 5, NOW + rng.randint(1, 5), "w"), *windows)
        nodes.append(Node(f"n{i}", 1, windows=windows).at(NOW))
        if rng.random() < 0.5:
            running.append(Running(a_job(f"r{i}"), 0.0, (NodeGpus(f"n{i}", 1),)))
            ends.append((NOW + rng.randint(1, 20), running[-1].job, running[-1].placement))
    ledger = Ledger(part(nodes, (), running), NOW)
    limit = rng.randint(1, 8)
    slot = Timeline(ledger, NOW, ends).find(a_job("j"), float(limit))
    held = {entry[2][0].node: entry[0] for entry in ends}

    def free(node: Node, at: float) -> bool:
        return at >= held.get(node.name, NOW) and not any(w.from_s <= at < w.end_s for w in node.windows)

    expected = next(
        at for at in range(60) if any(all(free(n, NOW + at + s) for s in range(limit)) for n in nodes)
    )  # fmt: skip
    assert slot is not None
    assert slot.start_s == NOW + expected


def test_a_job_opens_at_the_end_of_the_last_window_that_it_would_reach_into() -> None:
    later = Window(MAINT.end_s + 60.0, MAINT.end_s + 120.0, "w")
    room = part(closing(MAINT, later))
    assert opens_s(room, 1200.0, NOW) == NOW
    assert opens_s(room, 1201.0, NOW) == later.end_s
    assert opens_s(room, None, NOW) == later.end_s
    assert opens_s(part(closing(replace(MAINT, until_s=None))), None, NOW) == math.inf
    assert opens_s(part((*closing(), Node("free", 4))), None, NOW) == NOW
