"""Nothing that happens in a turn, beside it, or before it ends lucidd; who must not be fed is not; and a lucidd that
cannot go on says so in a file."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from builders import FixedPredictor, nodes, part, policy, snap, waits
from daemon_site import Site
from lucid.core.decision import Start
from lucid.core.job import Ended, Job, JobProfile
from lucid.core.prediction import Prediction
from lucid.daemon import barrier as trouble
from lucid.daemon.barrier import OWN_TURNS, FailureBarrier, behind_barrier, lives_in_trouble, persistently
from lucid.daemon.process import JsonLines
from lucid.errors import ClusterError, ClusterUnavailable, ClusterUnreadable, ConfigError, StoreError
from lucid.left_out import LeftOut
from lucid.orchestrator.planner import PolicyHost, Predictions
from lucid.orchestrator.policies.lucid.plan import LucidMemory
from lucid.orchestrator.policies.shadow import Kept, Shadow
from lucid.setup.doctor_state import check_state
from lucid.slurm.heartbeat import read_heartbeat
from lucid.slurm.records.request import Request
from lucid.store.sqlite import SqliteStore

KINDS = [
    OverflowError("Python int too large"), ValueError("x"), MemoryError(), RecursionError("deep"), OSError(28, "x"),
    KeyError("a"), UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates"), ZeroDivisionError(), AssertionError(),
    StopIteration(), ClusterError("no answer"), StoreError("locked"), ClusterUnavailable("silent"),
]  # fmt: skip


@pytest.fixture
def fed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    words: list[str] = []
    monkeypatch.setattr("lucid.daemon.barrier.tell_systemd", words.append)
    return words


@pytest.fixture
def site(tmp_path: Path, fed: list[str]) -> Site:
    return Site(tmp_path)


def beat(site: Site) -> Any:
    return read_heartbeat(site.folder / "run/heartbeat")


def test_no_exception_ends_the_daemon_and_the_next_good_turn_goes_on(site: Site) -> None:
    """One daemon goes through them all."""
    site.submit("1")
    site.daemon.turn()
    for error in KINDS:
        before, site.slurm.down = beat(site), error
        site.slurm.advance(5.0)
        waits = [site.daemon.turn() for _ in range(3)]
        assert all(0 < wait_s <= 30.0 for wait_s in waits), error
        assert beat(site) == before, "no heartbeat by a turn that failed"
        shown = json.loads(site.ctl("status", "--json"))
        assert (str(error) or type(error).__name__) in shown["last_error"]
        assert shown["failed_turns"] == 3
        site.slurm.down = False
        site.slurm.advance(30.0)
        site.daemon.turn()
        assert (site.daemon._barrier.failed, site.store.view("status")["last_error"]) == (0, ""), error
        assert beat(site) != before, error
    site.turns(200.0)
    assert site.slurm.records["1"].state == "RUNNING"


def test_a_slurm_of_another_form_is_told_by_name_and_nobody_is_let_go_for_it(site: Site, fed: list[str]) -> None:
    """Held jobs, tasks of an array and a job with a begin time stay as they are. lucidd beats no more, so they fall
    back as after its end, and it goes on with them where the form is known again."""
    words = "Slurm 27.05 answers in a form that ...: of its jobs it tells no field 'admin_comment'"
    for job_id in ("8", "9", "1", "2_0", "2_1"):
        site.submit(job_id, 4, run_s=200.0)
    site.slurm.submit("3", "vc", 1, held=False, eligible_s=site.slurm.now + 400.0)
    site.turns(60.0)
    site.slurm.down = ClusterUnreadable(words)
    assert [n for n, job in site.slurm.records.items() if job.held] == ["2_0", "2_1", "3"]
    records, before, well = dict(site.slurm.records), (list(site.slurm.writes), beat(site)), len(fed)
    for _ in range(20):
        site.slurm.now += site.daemon.turn()
    assert (site.slurm.writes, beat(site)) == before, "Slurm was told nothing, nor that lucidd goes on"
    assert {n: site.slurm.records[n].held for n in records} == {n: job.held for n, job in records.items()}
    assert len(fed) == well + 20, "to start it anew would not help"
    assert any(words in item.what for item in check_state(site.settings, site.slurm.now))
    site.slurm.down = False
    site.turns(600.0)
    assert {job.state for job in site.slurm.records.values()} == {"COMPLETED", "RUNNING"}


def test_an_interrupt_is_no_trouble(site: Site) -> None:
    site.slurm.down = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        site.daemon.turn()


def test_one_that_fails_of_itself_is_fed_no_more_and_one_that_cannot_reach_slurm_is_well(fed: list[str]) -> None:
    turns = FailureBarrier(1.0)
    waits = [turns.bad("cycle failed", ValueError("x")) for _ in range(10)]
    assert waits == [1, 2, 4, 8, 16, 30, 30, 30, 30, 30]
    assert fed == ["WATCHDOG=1"] * (OWN_TURNS - 1)
    turns.good()
    assert len(fed) == OWN_TURNS
    turns.bad("cycle failed", ValueError("x"))
    assert len(fed) == OWN_TURNS + 1
    fed.clear()
    turns = FailureBarrier(1.0)
    assert [turns.bad("cycle not finished", ClusterUnavailable(f"in {n} s")) for n in range(50)] == [1.0] * 50
    assert len(fed) == 50
    for n in range(2 * OWN_TURNS):
        turns.bad("cycle failed", ClusterUnavailable("x") if n % 2 else ValueError("x"))
    assert len(fed) < 50 + 2 * OWN_TURNS, "silence in between makes its own trouble no better"


def test_each_kind_is_told_once_with_its_traceback(caplog: pytest.LogCaptureFixture, fed: list[str]) -> None:
    now = [0.0]
    turns = FailureBarrier(1.0, lambda: now[0])

    def fails(error: Exception) -> None:
        try:
            raise error
        except Exception as raised:
            turns.bad("cycle failed", raised)

    with caplog.at_level(logging.INFO):
        for n in range(20):
            fails(ValueError(f"number {n}"))
            fails(StoreError(f"job {n} is locked"))
        assert [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR] == [
            "cycle failed", "cycle failed",
            "systemd's watchdog is no longer fed, because cycles fail again and again",
        ]  # fmt: skip
        line = json.loads(JsonLines().format(caplog.records[0]))
        assert "ValueError: number 0" in line["traceback"]
        assert "in fails" in line["traceback"]
        assert line["why"] == "ValueError: number 0"
        now[0] = 3601.0
        caplog.clear()
        fails(ValueError("again"))
        assert len(caplog.records) == 1
        for n in range(1000):
            fails(StoreError("x" * n))
    assert len(turns._reported) <= 200


def test_what_is_beside_the_turns_ends_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OverflowError("date")

    site.daemon.turn()
    monkeypatch.setattr("lucid.daemon.loop.prune_records", fails)
    site.daemon.prune()
    monkeypatch.setattr(site.store, "drop_lease", fails)
    monkeypatch.setattr(site.daemon._policy_memory, "keep", fails)
    site.daemon.stop()
    assert not behind_barrier("x", lambda: 1 // 0)


def test_a_start_that_fails_is_tried_again_unless_an_administrator_must_mend_it() -> None:
    tries: list[int] = []

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            tries.append(int(timeout or 0))
            return len(tries) > 7 and bool(self.set() or True)

    def fails(error: Exception) -> int:
        if len(tries) < 3:
            raise error
        return 7

    full = partial(fails, OSError("full"))
    assert persistently(full, Stop(), "start failed") == 7
    assert tries == [1, 2, 4]
    tries.clear()
    with pytest.raises(ConfigError):
        persistently(partial(fails, ConfigError("x")), Stop(), "start failed")
    with pytest.raises(OSError, match="full"):
        persistently(full, Stop(), "start failed", once=True)
    stop = Stop()
    assert persistently(lambda: 1 // 0, stop, "start failed") is None
    assert stop.is_set()


def test_a_line_of_the_log_is_json_whatever_it_holds() -> None:
    facts = {"why": object(), "bytes": b"\xff"}
    json.loads(JsonLines().format(logging.makeLogRecord({"msg": "x", "levelno": logging.ERROR, "facts": facts})))


class Brittle:
    """A predictor that cannot take some jobs."""

    name = "brittle"

    def __init__(self) -> None:
        self.learned: list[str] = []

    def predict(self, job: Job, profile: JobProfile | None, now_s: float) -> Prediction:
        if job.name == "bad":
            raise ZeroDivisionError
        return Prediction(5.0, "brittle")

    def pair_speed(self, a: JobProfile, b: JobProfile) -> tuple[float, float] | None:
        raise MemoryError

    def learn(self, ended: Sequence[Ended]) -> None:
        if any(one.job.name == "bad" for one in ended):
            raise ValueError("bad")
        self.learned += [one.job.id for one in ended]


def test_a_job_that_the_models_cannot_take_has_a_first_guess() -> None:
    brittle, left_out = Brittle(), LeftOut()
    guarded = Predictions(brittle, left_out, 60.0)
    good, bad = Job("1", "vc", 1, 0.0), Job("2", "vc", 1, 0.0, name="bad")
    assert [guarded.predict(job, None, 0.0).duration_s for job in (good, bad)] == [5.0, 60.0]
    assert guarded.pair_speed(JobProfile(1, 1, 1), JobProfile(1, 1, 1)) == "failed"
    guarded.learn([Ended(bad, 1.0, 1.0), Ended(good, 1.0, 1.0)])
    assert brittle.learned == ["1"]
    assert set(left_out.summary()["predictions of the models"]["first"]) == {"job 2", "a pair"}


def test_a_plan_that_fails_by_what_earlier_plans_left_is_made_without_it() -> None:
    inner = policy("lucid", fairness={"beyond_plain_s": 7200.0}, profiling={"enabled": False})
    scene = snap(10.0, part(nodes(1), [waits("a"), waits("b")]))
    spoilt = Shadow(5.0, ("n1",), Kept(7200.0), running={"a": None})  # type: ignore[dict-item]
    with_memory = replace(scene, memory={"vc": LucidMemory(spoilt)})
    with pytest.raises(AttributeError):
        inner.plan(with_memory)
    forgotten: list[str] = []
    guarded = PolicyHost(lambda _: inner, FixedPredictor(), forgot=lambda memory, _: forgotten.extend(memory))
    plan = guarded.plan(with_memory)
    assert [type(plan.partitions["vc"].decisions[job]) for job in "ab"] == [Start, Start]
    assert (guarded.name, guarded.rules) == ("lucid", inner.rules)
    assert forgotten == ["vc"]
    assert guarded.plan(replace(scene, memory=plan.memory)).memory.keys() == {"vc"}
    with pytest.raises(AttributeError):
        guarded.plan(replace(scene, partitions={"vc": None}))  # type: ignore[dict-item]


def test_a_held_job_that_cannot_be_read_is_let_go_and_its_note_is_kept(site: Site) -> None:
    """Nothing is held for ever because its record cannot be read; nothing is forgotten of it either, nor of one
    that a look did not name."""
    site.submit("1")
    site.turns(10.0)
    assert "1" in site.store.notes()
    whole = site.slurm.records["1"]
    site.submit("2")
    unread = {key: replace(site.slurm.records[key], unread="TypeError: x", request=Request()) for key in ("1", "2")}
    site.slurm.records.update(unread)
    site.turns(5.0)
    assert "1" in site.store.notes()
    assert not site.slurm.records["2"].held
    assert site.daemon._barrier.failed == 0
    del site.slurm.records["1"]
    site.slurm.run_s[""] = 1e9
    site.slurm.records["?"] = replace(whole, id="", number=0, unread="TypeError: x", lost=True, placement=())
    site.turns(10.0)
    assert "1" in site.store.notes()
    del site.slurm.records["?"]
    site.turns(10.0)
    assert "1" not in site.store.notes()


def test_an_unreadable_job_that_slurm_holds_itself_is_let_go_once(site: Site) -> None:
    """After a request that nothing can fill slurmctld sets the priority to 0 itself (seen on 24.11)."""
    site.daemon.turn()
    site.submit("1")
    site.slurm._set("1", unread="ValueError: x", request=Request())
    release = site.slurm.release

    def held_again(job_id: str) -> None:
        release(job_id)
        site.slurm._set(job_id, state="PENDING", held=True, reason="BadConstraints", placement=(), start_s=0.0)

    site.slurm.release = held_again  # type: ignore[method-assign]
    site.turns(60.0)
    assert [action.verb for action in site.store.actions("1")] == ["let go"]
    assert "1" in json.loads(site.ctl("status", "--json"))["aside"]


FULL = "lucid.db: cannot be written (database or disk is full)"
HERE = socket.gethostname()


def told(site: Site) -> list[str]:
    return [f"{item.what} → {item.remedy}" for item in check_state(site.settings, site.slurm.now) if item.remedy]


def test_doctor_tells_the_cause_of_a_lucidd_that_lives_and_cannot_write_its_store(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise StoreError(FULL)

    site.turns(5.0)
    with monkeypatch.context() as broken:
        for name in ("take_lease", "put_view", "put_notes", "set_setting"):
            broken.setattr(SqliteStore, name, refuse)
        site.turns(120.0)
        broken.setattr("lucid.cli.jobs.queue.time.time", lambda: site.slurm.now)
        doctor, status = "; ".join(told(site)), " ".join(site.ctl("status").split())
        cause = f"lucidd runs on {HERE} (pid {os.getpid()}) and decides nothing: {FULL}"
        assert (f"{cause} → mend that" in doctor, cause in status) == (True, True)
        assert not [words for words in ("is down", "systemctl start", "DOWN") if words in doctor + status]
    site.turns(60.0)
    assert not list((site.folder / "run").glob("trouble.*")), "a good turn ends it"
    assert not [words for words in told(site) if "decides nothing" in words or "is down" in words]


def test_where_nobody_says_so_doctor_claims_what_it_sees(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.turns(5.0)
    site.slurm.now += 3600.0
    site.store.take_lease(f"{HERE}:{os.getpid()}:1", site.slurm.now - 600.0, 1.0)
    assert "lives, and has not renewed its lease" in "; ".join(told(site))
    site.store.take_lease("elsewhere:1:1", site.slurm.now - 300.0, 1.0)
    assert "lucidd is down" in "; ".join(told(site))
    space = SimpleNamespace(f_bavail=3, f_frsize=4096, f_files=100, f_favail=50, f_blocks=9, f_bfree=3)
    monkeypatch.setattr(trouble.os, "statvfs", lambda _: space)
    words = "; ".join(told(site))
    assert "is down" not in words
    assert f"{site.folder} is full: a lucidd that runs cannot take it → make room there" in words


def test_one_that_has_ended_is_no_longer_in_trouble(tmp_path: Path) -> None:
    said = {"host": HERE, "pid": 2**31 - 1, "at_s": 1000.0, "why": FULL}
    (tmp_path / f"trouble.{HERE}").write_text(json.dumps(said))
    assert lives_in_trouble(tmp_path / "heartbeat", 1001.0) == []
    (tmp_path / f"trouble.{HERE}").write_text(json.dumps({**said, "host": "elsewhere"}))
    assert len(lives_in_trouble(tmp_path / "heartbeat", 1001.0)) == 1, "of another host nobody can tell"
