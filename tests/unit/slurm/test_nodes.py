"""Nodes that sleep and are woken; and those where a Prolog fails beside a pair, which drains the node: lucidd makes
no more pairs there, then none in the partition."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from builders import LIGHT, FixedPredictor, a_job, at, guess, nodes, part, settings
from fake_slurm import FakeSlurm, fake_node
from lucid.binder.binder import Binder
from lucid.core.decision import Requeue
from lucid.core.job import Pending
from lucid.core.ledger import Ledger
from lucid.setup.doctor_state import _failed_pairs
from lucid.slurm.heartbeat import WakeFile
from lucid.slurm.view.nodes import BOOTS_VIEW
from lucid.slurm.view.power_saving import Power, PowerRules
from scenes.slurm import WHY, Scene

WAKES = PowerRules(True, 300.0, 30.0)
NO_PROGRAM = PowerRules.from_config({})
NO_TIME = PowerRules.from_config({"ResumeProgram": "a", "SuspendProgram": "b", "SuspendTime": "INFINITE"})


def power(*states: str, rules: PowerRules = WAKES, now_s: float = 100.0, reason: str = "") -> object:
    one = Power()
    one.rules = rules
    node = fake_node("n1", "vc", states=frozenset(states), reason=reason)
    one.observe_nodes([node], {}, now_s, now_s - 1.0)
    return one.with_states([node], now_s)[0]


@pytest.fixture
def stage() -> Scene:
    made = Scene()
    made.slurm.now = 1000.0
    return made


def test_a_sleeping_node_is_available_after_its_boot(stage: Scene) -> None:
    stage.slurm.sleep("n1")
    node = stage.look().nodes[0]
    assert (node.name, node.available, node.boot_s, node.boots_since_s) == ("n1", True, 300.0, None)


@pytest.mark.parametrize(
    ("states", "rules", "words"),
    [
        ("IDLE POWERED_DOWN", NO_PROGRAM, "powered_down: Slurm has no ResumeProgram and does not wake it"),
        ("IDLE POWERED_DOWN", NO_TIME, "powered_down: SuspendTime is not set, so Slurm does not wake it"),
        ("IDLE POWERED_DOWN", PowerRules(), "powered_down: it is not known whether Slurm wakes it"),
        ("DOWN POWERED_DOWN NOT_RESPONDING", WAKES, "down"),
        ("IDLE DRAIN POWERING_DOWN", WAKES, "drain"),
        ("IDLE POWERING_DOWN NOT_RESPONDING", WAKES, "powers down"),
        ("IDLE NOT_RESPONDING", WAKES, "not_responding"),
        ("IDLE RESERVED", WAKES, "reserved"),
    ],
)
def test_where_slurm_will_not_wake_a_node_it_is_out(states: str, rules: PowerRules, words: str) -> None:
    node = power(*states.split(), rules=rules)
    assert (node.available, node.out) == (False, words)


def test_a_node_that_did_not_come_up_says_so() -> None:
    node = power("DOWN", "POWERED_DOWN", reason="ResumeTimeout reached [slurm@2026-11-25T02:00:00]")
    assert node.out == "down: it did not come up in time"


def test_a_node_that_a_job_waits_for_boots_before_slurm_says_so(stage: Scene) -> None:
    one = Power()
    one.rules = WAKES
    node = fake_node("n1", "vc", states=frozenset({"MIXED", "POWERED_DOWN"}))
    assert one.with_states([node], 101.0, {"n1": 100.0})[0].boots_since_s == 100.0


def test_a_node_on_its_way_down_opens_when_it_sleeps(stage: Scene) -> None:
    stage.slurm.node("n1", states=frozenset({"IDLE", "POWERING_DOWN"}))
    node = stage.look().nodes[0]
    assert (node.available, node.opens_s(), node.boot_s) == (False, stage.slurm.now + 30.0, 300.0)
    assert node.at(stage.slurm.now + 30.0).available
    stage.slurm.advance(60.0)
    assert not stage.look().nodes[0].available, "longer than SuspendTimeout: Slurm's state counts"


def test_a_start_on_a_sleeping_node_is_under_way_while_it_boots_and_no_run_time(stage: Scene) -> None:
    stage.slurm.sleep("n1", "n2")
    stage.jobs("1 2", 2)
    assert stage.start("1", "n1:0-1") is None
    assert [name for _, name in stage.slurm.woken] == ["n1"]
    stage.slurm.advance(1.0)
    entry = stage.look().running[0]
    assert (entry.job.id, entry.start_s, entry.elapsed_s(stage.slurm.now)) == ("1", 1300.0, 0.0)
    assert "boots" in (stage.do("1", Requeue(WHY)) or "")
    stage.turns(70)
    assert (stage.slurm.records["1"].state, stage.slurm.records["1"].start_s) == ("RUNNING", 1060.0)
    assert [verb for _, verb in stage.slurm.writes] == ["update", "release"]


def test_how_long_boots_take_is_learned_and_kept(stage: Scene) -> None:
    stage.slurm.sleep("n1", "n2")
    stage.jobs("1")
    stage.start("1", "n1:0")
    stage.turns(70)
    stage.slurm.sleep("n1")
    stage.restart()
    assert stage.store.view(BOOTS_VIEW) == {"n1": [pytest.approx(60.0, abs=1.0)]}
    assert [node.boot_s for node in stage.look().nodes] == [pytest.approx(60.0, abs=1.0)] * 2, "n2 by its partition"


def test_a_boot_of_unknown_beginning_is_not_learned() -> None:
    one = Power()
    one.rules = WAKES
    boots, up = (fake_node("n1", "vc", states=frozenset(s)) for s in ({"IDLE", "POWERING_UP"}, {"IDLE"}))
    assert not one.observe_nodes([boots], {}, 100.0, float("-inf"))
    assert not one.observe_nodes([up], {}, 101.0, 100.0)
    assert one.boots == {}


def test_a_node_that_is_woken_by_hand_tells_how_long_that_took() -> None:
    one = Power()
    states = ({"IDLE", "POWERED_DOWN"}, {"IDLE", "POWERING_UP"}, {"IDLE", "POWERING_UP"}, {"IDLE"})
    looks = [fake_node("n1", "vc", states=frozenset(s)) for s in states]
    steps = zip((98.0, 100.0, 138.0, 140.0), looks, strict=True)
    learned = [one.observe_nodes([node], {}, at, at - 2.0) for at, node in steps]
    assert (learned, one.boots) == ([False, False, False, True], {"n1": [39.0]})


def test_a_failed_boot_brings_the_job_back_into_order(stage: Scene) -> None:
    stage.slurm.sleep("n1")
    stage.slurm.boot_fails.add("n1")
    stage.jobs("1", light=True)
    stage.start("1", "n1:0")
    stage.turns(65)
    record = stage.slurm.records["1"]
    assert (record.pending, record.held) == (True, True)
    assert not stage.look().nodes[0].available
    assert record.comment == "", "the begin time that Slurm set stands in the update that gives its request back"
    stage.slurm.advance(125.0)
    assert [entry.job.id for entry in stage.look().pending] == ["1"]
    assert stage.start("1", "n2:0") is None
    assert stage.slurm.records["1"].running


def test_a_node_that_changed_is_seen_within_two_seconds_while_a_job_waits(stage: Scene) -> None:
    stage.jobs("1", 4)
    for _ in range(5):
        stage.look()
        stage.slurm.advance(1.0)
    reads = stage.slurm.reads
    stage.slurm.node("n1", states=frozenset({"DOWN"}))
    for _ in range(2):
        seen = stage.look().nodes[0].available
        stage.slurm.advance(1.0)
    assert not seen
    assert stage.slurm.reads - reads == 3, "the nodes were asked for once"


class Stop(threading.Event):
    """Counts what was waited for, and waits for none of it."""

    def __init__(self) -> None:
        super().__init__()
        self.waited: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waited.append(timeout or 0.0)
        return self.is_set() or len(self.waited) > 3


@pytest.fixture
def wake(tmp_path: Path) -> WakeFile:
    path = tmp_path / "wake"
    path.write_text("1\n")
    os.utime(path, (1, 1))
    return WakeFile(path)


def test_a_change_since_the_mark_ends_the_wait(wake: WakeFile) -> None:
    stop = Stop()
    os.utime(wake.path, (2, 2))
    wake.wait(stop, 0.0, 60.0)
    assert stop.waited == []
    wake.mark()
    wake.wait(stop, 0.0, 60.0)
    assert stop.waited == [0.1] * 4, "what was seen before is no news"


def test_a_wait_is_no_shorter_than_the_least_passes_without_the_file_and_stops_when_told(wake: WakeFile) -> None:
    least, without, told = Stop(), Stop(), Stop()
    os.utime(wake.path, (2, 2))
    wake.wait(least, 30.0, 60.0)
    assert least.waited[0] == pytest.approx(30.0, abs=1.0)
    wake.mark()
    told.set()
    wake.wait(told, 0.0, 60.0)
    assert len(told.waited) == 1
    WakeFile(wake.path.with_name("none")).wait(without, 0.0, 60.0)
    assert len(without.waited) == 4


DRAINED = frozenset({"MIXED", "DRAIN"})


def drains(s: Scene, node: str, *jobs: str, reason: str = "Prolog error") -> None:
    """Slurm drains the node; these jobs are held again."""
    s.slurm.node(node, states=DRAINED, reason=reason)
    for name in jobs:
        s.slurm._set(name, state="PENDING", placement=(), held=True, restarts=1, reason="launch failed requeued held")


def unshared(s: Scene) -> list[str]:
    s.look()
    s.slurm.advance(60.0)  # nodes are asked for less often than jobs
    return [node.name for node in s.look().nodes if node.slots == 1]


def pair(s: Scene, host: str, guest: str, where: str) -> None:
    s.jobs(f"{host} {guest}", light=True)
    assert s.start(host, where) is None
    s.slurm.advance(30.0)
    assert s.start(guest, where, beside=host) is None
    s.slurm.advance(1.0)


def site() -> Scene:
    return Scene(slurm=FakeSlurm([*(fake_node(f"n{i}", "vc") for i in (1, 2, 3)), fake_node("p1", "prof")]))


def test_no_more_pairs_on_the_node_and_after_a_second_one_none_in_the_partition() -> None:
    s = site()
    pair(s, "1", "2", "n1:0")
    assert unshared(s) == []
    drains(s, "n1", "2")
    assert unshared(s) == ["n1"]
    s.slurm.node("n1", states=frozenset({"IDLE"}), reason="")
    s.slurm.advance(1000.0)
    assert unshared(s) == ["n1"]
    s.restart()
    assert unshared(s) == ["n1"], "resumed, and by the next lucidd"
    pair(s, "3", "4", "n2:0")
    drains(s, "n2", "4")
    assert unshared(s) == ["n1", "n2", "n3"]
    [whole, first, second] = _failed_pairs(s.store.settings())
    assert "no more pairs are made in vc: Slurm drained several" in whole.what
    assert "on n1 since" in first.what
    assert "job 2 was to share GPUs there, and Slurm drained the node with 'Prolog error'" in first.what
    assert "NodeName=n2 State=RESUME, and lucidctl mode vc configured" in second.remedy


@pytest.mark.parametrize("how", ["alone", "other reason", "earlier", "runs"])
def test_what_was_no_pair_s_doing_ends_no_pairs(how: str) -> None:
    s = site()
    if how == "alone":
        s.jobs("1 2", light=True)
        assert s.start("1", "n1:0") is None
        assert s.start("2", "n1:1") is None
    else:
        pair(s, "1", "2", "n1:0")
    if how == "runs":
        s.look()
        s.jobs("3", light=True)
        assert s.start("3", "n1:3") is None
    drains(s, "n1", "3" if how == "runs" else "2", reason="bad disk" if how == "other reason" else "Prolog error")
    if how == "earlier":
        s.restart()
    assert unshared(s) == []
    assert not [*_failed_pairs(s.store.settings())]


def test_an_epilog_that_fails_after_a_pair_counts_as_well() -> None:
    s = site()
    pair(s, "1", "2", "n1:0")
    s.look()
    s.slurm.advance(1000.0)
    s.look()
    s.slurm._set("1", state="COMPLETED", end_s=s.slurm.now)
    drains(s, "n1", reason="Epilog error")
    assert unshared(s) == ["n1"]


def test_the_planner_lets_nobody_join_where_gpus_are_not_shared() -> None:
    def offered(slots: int) -> bool:
        entry, known = Pending(a_job("h", 1), 0.0, LIGHT), {"h": guess(1000.0, 0), "g": guess(1000.0, 0)}
        vc = part([replace(node, slots=slots) for node in nodes(1, 4)])
        binder = Binder(vc, Ledger(vc), known, FixedPredictor(), settings().packing, 0.0)
        binder.started(entry, at("n1:0"))
        return binder.offered_to(a_job("g", 1))

    assert (offered(2), offered(1)) == (True, False)
