"""Reservations and the windows before them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from lucid.core.decision import Action, Start
from lucid.core.node import Window
from lucid.errors import ClusterError
from lucid.left_out import LeftOut
from lucid.slurm.records.configuration import Reservation, reservations_from
from lucid.slurm.records.request import JobDefaults
from lucid.slurm.view.windows import Closings, times_of
from scenes.jobs import at
from scenes.slurm import WHY, Scene

NODES = ("n1", "n2", "p1")


def reserved(start_s: float, end_s: float, *flags: str, name: str = "w", **rest: Any) -> Reservation:
    return Reservation(**{"name": name, "nodes": NODES, "start_s": start_s, "end_s": end_s,
                          "flags": frozenset(flags), "node_list": "n[1-2],p1"} | rest)  # fmt: skip


def test_a_reservation_ahead_is_a_window_of_its_nodes(stage: Scene) -> None:
    stage.slurm.reserved = [reserved(1200.0, 8400.0, "MAINT", "IGNORE_JOBS")]
    window = Window(1200.0, 8400.0, "maintenance of n[1-2],p1 (w)", 10.0)
    assert {node.windows for node in stage.look().nodes} == {(window,)}
    assert all(node.available for node in stage.look().nodes)
    stage.slurm.advance(1200.0)
    (told,) = {(node.available, node.out, node.opens_s()) for node in stage.look().nodes}
    assert told == (False, window.why, 8400.0)
    stage.slurm.advance(7200.0)
    assert {(node.available, node.windows) for node in stage.look().nodes} == {(True, ())}


def test_what_a_node_says_of_a_reservation_that_is_known_is_told_by_the_window(stage: Scene) -> None:
    """Also after its end, until the node no longer says so: a start need not wait for that."""
    bare = stage.slurm.machines
    stated = [replace(n, states=frozenset(["IDLE", "MAINTENANCE"])) for n in bare]
    stage.slurm.machines = stated
    assert not any(node.available for node in stage.look().nodes), "nobody says until when"
    stage.slurm.reserved = [reserved(0.0, 70.0, "MAINT")]
    stage.slurm.advance(60.0)
    assert {node.opens_s() for node in stage.look().nodes} == {70.0}
    stage.slurm.advance(10.0)
    assert all(node.available for node in stage.look().nodes)
    stage.slurm.reserved = []
    stage.slurm.advance(60.0)
    assert all(node.available for node in stage.look().nodes), "it is read no more, and the nodes still say so"
    stage.slurm.machines = bare
    stage.slurm.advance(60.0)
    stage.look()
    stage.slurm.machines = stated
    stage.slurm.advance(60.0)
    assert not any(node.available for node in stage.look().nodes), "another one, which cannot be read"


def reads_of(stage: Scene) -> list[float]:
    """When reservations are read from now on, by the scene's clock."""
    reads: list[float] = []
    ask = stage.slurm.reservations
    stage.slurm.reservations = lambda: reads.append(stage.slurm.now) or ask()  # type: ignore[method-assign,func-returns-value]
    return reads


def look_for(stage: Scene, seconds: int) -> None:
    """A look each second."""
    for _ in range(seconds):
        stage.look()
        stage.slurm.advance(1.0)


def test_reservations_are_read_once_a_minute_and_when_something_speaks_of_one(stage: Scene) -> None:
    reads = reads_of(stage)
    look_for(stage, 90)
    assert reads == [0.0, 60.0]
    stage.jobs("j", held=False, dependent=True, reason="ReqNodeNotAvail, Reserved for maintenance")
    look_for(stage, 20)
    assert reads == [0.0, 60.0, 90.0], "once for each job that begins to speak of one"


def test_while_jobs_wait_and_something_is_reserved_they_are_read_every_three_seconds(stage: Scene) -> None:
    """Nothing tells that a window was moved or deleted, and jobs that it holds start at once on plain Slurm."""
    reads = reads_of(stage)
    stage.jobs("1", time_limit_s=3600.0)
    look_for(stage, 60)
    assert reads == [0.0], "nothing is reserved"
    stage.slurm.reserved = [reserved(1200.0, 8400.0, "MAINT")]
    look_for(stage, 12)
    assert reads == [0.0, 60.0, 63.0, 66.0, 69.0]
    stage.slurm.reserved = []
    look_for(stage, 3)
    assert not any(node.windows for node in stage.look().nodes)
    stage.slurm.reserved = [reserved(1200.0, 8400.0, "MAINT")]
    del stage.slurm.records["1"]
    reads.clear()
    look_for(stage, 60)
    assert len(reads) == 1, "nobody waits"


@pytest.mark.parametrize("flags", [("MAINT",), ("MAINT", "DAILY")])
def test_that_a_window_ended_when_it_was_to_is_no_reason_to_plan_again(stage: Scene, flags: tuple[str, ...]) -> None:
    window = reserved(100.0, 200.0, *flags)
    stage.slurm.reserved = [window]
    stage.jobs("1", time_limit_s=60.0)
    stage.slurm.advance(198.0)
    stage.look()
    stage.slurm.advance(2.0)
    later = replace(window, start_s=window.start_s + 86400.0, end_s=window.end_s + 86400.0)
    stage.slurm.reserved = [later] if "DAILY" in flags else []
    stage.look()
    stage.slurm.advance(1.5)
    (done,) = stage.cluster.apply([Action("1", "vc", Start(at("n1:0"), WHY))])
    assert done.refused is None


def test_what_was_reserved_since_is_read_before_anything_starts(stage: Scene) -> None:
    stage.jobs("1", time_limit_s=3600.0)
    stage.look()
    stage.slurm.advance(20.0)
    stage.look()
    stage.slurm.reserved = [reserved(1200.0, 8400.0)]
    (done,) = stage.cluster.apply([Action("1", "vc", Start(at("n1:0"), WHY))])
    assert done.refused is not None
    assert "planned again" in done.refused
    assert stage.slurm.writes == []
    assert all(node.windows for node in stage.look().nodes)


@pytest.mark.parametrize("reason", ["ReqNodeNotAvail, Reserved for maintenance", "Reservation",
                                    "ReqNodeNotAvail, May be reserved for other job"])  # fmt: skip
def test_a_job_that_slurm_keeps_from_reserved_nodes_waits_and_is_never_let_go(stage: Scene, reason: str) -> None:
    stage.jobs("1")
    stage.slurm.limits = lambda job: reason if job.id == "1" else ""
    for _ in range(5):
        stage.start("1", "n1:0")
        stage.mend()
        stage.slurm.advance(3600.0)
    assert stage.slurm.records["1"].held
    assert not stage.cluster.notes["1"].given_up


def test_where_reservations_cannot_be_read_the_last_reading_counts(stage: Scene) -> None:
    stage.slurm.reserved = [reserved(1200.0, 8400.0)]
    assert all(node.windows for node in stage.look().nodes)

    stage.slurm.reservations = MagicMock(side_effect=ClusterError("no answer that can be read"))  # type: ignore[method-assign]
    stage.slurm.advance(60.0)
    assert all(node.windows for node in stage.look().nodes)


def test_what_closes_nodes_and_what_does_not(stage: Scene) -> None:
    def windows(one: Reservation) -> int:
        stage.slurm.reserved = [one]
        closings = Closings(stage.slurm)
        closings.update((), (), 0.0)
        return sum(map(len, closings.windows(0.0).values()))

    assert windows(reserved(100.0, 200.0, nodes=(), node_list="")) == 0, "licences alone"
    assert windows(reserved(100.0, 200.0, cores=(("n1", 4),))) == 0, "some cores: the rest is free"
    assert windows(reserved(400 * 86400.0, 500 * 86400.0)) == 0, "a job without limit is taken to last a year"


def test_a_reservation_of_cores_takes_them_while_it_is_in_force(stage: Scene) -> None:
    stage.slurm.reserved = [reserved(100.0, 200.0, nodes=("n1",), cores=(("n1", 4),))]
    stage.slurm.machines = [replace(n, states=frozenset(["IDLE", "RESERVED"])) for n in stage.slurm.machines]
    stage.slurm.advance(100.0)
    assert [(node.available, node.cpus) for node in stage.look().nodes] == [(True, 12), (False, 16)]


def test_a_floating_one_keeps_off_what_would_reach_into_it_whenever_that_starts(stage: Scene) -> None:
    """Its start is half an hour ahead, always. It is read once a minute, and limits are whole minutes."""
    stage.slurm.reserved = [reserved(1800.0, 5400.0, "TIME_FLOAT")]
    stage.look()
    for seconds in (0.0, 29.0, 30.0):
        stage.slurm.advance(seconds)
        now_s = stage.slurm.now
        closes_s = {node.closes_s(now_s) for node in stage.look().nodes}
        assert all(now_s + 1800.0 <= at_s < now_s + 1860.0 for at_s in closes_s)
    assert {window.until_s for node in stage.look().nodes for window in node.windows} == {None}


def test_those_that_come_again_come_again_by_the_local_calendar(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    friday = time.mktime((2026, 3, 27, 18, 0, 0, 0, 0, -1))  # the clocks go forward on Sunday
    try:
        for flag, days in (("DAILY", [0, 1, 2, 3]), ("WEEKDAY", [0, 3, 4, 5]), ("WEEKEND", [0, 1, 2, 8]),
                           ("WEEKLY", [0, 7, 14])):  # fmt: skip
            found = times_of(reserved(friday, friday + 7200.0, flag), friday)[: len(days)]
            told = [(time.localtime(a).tm_yday, time.localtime(a).tm_hour, b - a) for a, b in found]
            assert told == [(86 + day, 18, 7200.0) for day in days], flag
        hourly = times_of(reserved(friday, friday + 60.0, "HOURLY"), friday + 120.0)
        assert [a - friday for a, _ in hourly[:2]] == [3600.0, 7200.0], "the one that is over is left out"
        assert len(hourly) == 12
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("users", "accounts", "admitted"),
    [(("ada",), (), True), (("bob",), (), False), (("-bob",), (), True), (("-ada",), (), False),
     (("bob",), ("lab",), True), ((), ("-lab",), False), ((), (), False)],
)  # fmt: skip
def test_who_may_use_it(users: tuple[str, ...], accounts: tuple[str, ...], admitted: bool) -> None:
    assert reserved(0.0, 1.0, users=users, accounts=accounts).admits("ada", "lab") == admitted


def test_a_job_that_a_magnetic_one_draws_is_slurms_while_it_is_in_force(stage: Scene) -> None:
    stage.slurm.reserved = [reserved(100.0, 200.0, "MAGNETIC", users=("ada",), nodes=("n1",))]
    stage.jobs("1")
    assert [entry.job.id for entry in stage.look().pending] == ["1"]
    stage.slurm.advance(100.0)
    (words,) = stage.mend()
    assert "let go as its user wrote it, Slurm may start it in reservation w" in words


def test_a_partition_that_is_down_bars_its_jobs_as_soon_as_slurm_says_so_of_one(stage: Scene) -> None:
    stage.jobs("1")
    assert [entry.barred for entry in stage.look().pending] == [""]
    stage.slurm.defaults = {"vc": JobDefaults(state="DOWN")}
    stage.slurm.advance(3.0)
    stage.jobs("plain", held=False, mark="-", dependent=True, reason="PartitionDown")
    assert {entry.barred for entry in stage.look().pending} == {"partition vc is DOWN"}
    del stage.slurm.records["plain"]
    stage.slurm.defaults = {"vc": JobDefaults(state="DRAIN")}
    stage.slurm.advance(10.0)
    assert [entry.barred for entry in stage.look().pending] == [""], "jobs that wait in it may start"


def test_jobs_that_a_window_keeps_waiting_are_not_taken_to_be_crowded_out(stage: Scene) -> None:
    stage.jobs("1", cpus=8, time_limit_s=3600.0)
    used = (("n1", 12, 0), ("n2", 12, 0))
    stage.jobs("cpu", 0, held=False, mark="-", state="RUNNING", hosts_used=used)
    stage.slurm.reserved = [reserved(1200.0, 8400.0)]
    for _ in range(10):
        assert stage.mend() == []
        stage.slurm.advance(60.0)


def test_a_job_with_a_least_time_is_planned_with_it_before_a_window_and_slurm_shortens_it(stage: Scene) -> None:
    """As plain Slurm's backfill does; Slurm's first look still refuses it."""
    stage.slurm.reserved = [reserved(1200.0, 8400.0, "MAINT")]
    limits = {"a": (600.0, 600.0), "b": (1500.0, 1500.0), "c": (0.0, 3600.0)}
    for name, (least_s, _) in limits.items():
        stage.jobs(name, time_limit_s=3600.0, time_min_s=least_s)
    stage.slurm.reserved.append(reserved(9e6, 9e6 + 60, name="later"))
    assert {e.job.id: e.job.time_limit_s for e in stage.look().pending} == {n: s for n, (_, s) in limits.items()}
    assert stage.start("a", "n1:0") is None
    assert stage.slurm.records["a"].reason.startswith("ReqNodeNotAvail")
    assert stage.mend() == []
    stage.slurm.advance(5.0)
    stage.look()
    assert (stage.slurm.records["a"].state, stage.slurm.records["a"].time_limit_s) == ("RUNNING", 1140.0)
    stage.slurm.reserved.clear()
    stage.slurm.advance(70.0)
    stage.jobs("d", time_limit_s=3600.0, time_min_s=600.0)
    assert {e.job.id: e.job.time_limit_s for e in stage.look().pending}["d"] == 3600.0


ASSETS = Path(__file__).parents[2] / "assets/slurm"
RECORDED = sorted(ASSETS.glob("*/reservations.json"))
KINDS = {
    "maint": "MAINT IGNORE_JOBS", "flex": "FLEX", "magnet": "MAGNETIC PURGE_COMP", "daily": "DAILY",
    "weekly": "WEEKLY", "weekday": "WEEKDAY", "weekend": "WEEKEND", "hourly": "HOURLY", "float": "TIME_FLOAT",
    "part": "PART_NODES",
}  # fmt: skip


def read(path: Path) -> dict[str, Reservation]:
    document = json.loads(path.read_text())
    left_out = LeftOut()
    found = {one.name: one for one in reservations_from(document, left_out)}
    assert left_out.summary() == {}
    return found


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.parent.name)
def test_every_release_tells_the_same(path: Path) -> None:
    found = read(path)
    assert found["maint"].nodes == tuple(f"n{i}" for i in range(1, 7))
    assert {one.end_s - one.start_s for one in found.values()} == {900.0}
    assert all(set(flags.split()) <= found[name].flags for name, flags in KINDS.items())
    who = (found["bobs"].users, found["others"].users, found["flex"].accounts)
    assert who == (("bob",), ("-bob",), ("research",))
    assert found["licence"].nodes == ()
    assert {name: one.cores for name, one in found.items() if one.cores} in ({"cores": (("n1", 4),)}, {})


def test_an_answer_that_is_none_is_an_error_and_one_without_reservations_is_not() -> None:
    with pytest.raises(ClusterError):
        reservations_from({"errors": []})
    assert reservations_from({"reservations": [], "errors": []}) == []
