"""Learned models in the daemon: which version answers, what stands in for it, and the children that train them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from daemon_site import Site
from lucid.cli.main import lucidctl
from lucid.config.load import settings_from
from lucid.core.job import Ended, Job, JobProfile
from lucid.daemon import process
from lucid.daemon.learning.child import Children
from lucid.daemon.learning.models import LiveModels
from lucid.daemon.learning.training import Upkeep, trained, write_job_log
from lucid.daemon.loop import Daemon
from lucid.errors import ModelError
from lucid.models.duration.jobtable import PROFILE_COLUMNS, read_jobs
from lucid.models.duration.model import DurationModel
from lucid.models.library import Library
from lucid.models.packing.share_score import Node, ShareTree
from lucid.models.predictor import ended_table
from lucid.setup.doctor_state import check_state
from lucid.slurm.heartbeat import WakeFile
from lucid.slurm.view.power_saving import Boots
from lucid.store.lease import IN_MEMORY
from lucid.store.sqlite import SqliteStore
from scenes.models import cluster, job_log

TINY, JUMBO = (ShareTree((Node(label, (1, 1, 1)),), 0.0) for label in (0, 2))

GUESSED = "history: a first guess, since it has no time limit; no job like it has ended yet"


def ended(n: int, user: str = "ada", ran_s: float = 300.0) -> Ended:
    job = Job(f"{n}", "vc", 1 + n % 2, 900.0 * n, n, user, "lab", f"train-{n % 3}")
    return Ended(job, 900.0 * n + 60.0 + ran_s, ran_s)


class LearnedSite(Site):
    """The same site, going by a library."""

    def lucidd(self, holder: str, store: SqliteStore | None = None, **parts: Any) -> Daemon:
        self.library = Library(self.folder / "models")
        models = LiveModels(self.library.root, first_guess_s=2000.0, profiled_s=60.0)
        return super().lucidd(holder, store, predictor=models, **parts)

    def serve(self, kind: str, model: Any) -> None:
        self.library.promote(kind, self.library.add(kind, model.to_json(), {}), "judged better")

    def models(self) -> Any:
        return json.loads(self.ctl("status", "--json"))["models"]

    def says(self, kind: str, version: str, why: str) -> bool:
        return bool(self.models()[kind] == {"version": version, "why": why, "trouble": False})

    def prediction(self, job_id: str) -> Any:
        return json.loads(self.ctl("explain", job_id, "--json"))["prediction"]


@pytest.fixture
def site(tmp_path: Path) -> LearnedSite:
    return LearnedSite(tmp_path)


def test_without_a_library_history_and_the_synthetic_tree_answer_and_say_so(site: LearnedSite) -> None:
    site.submit("1", run_s=900.0)
    site.turns(120.0)
    assert {kind: found["version"] for kind, found in site.models().items()} == {
        "duration": "history means", "share": "synthetic share tree", "pairs": "contention model",
        "throughput": "seasonal means",
    }  # fmt: skip
    assert "duration by history means, share by synthetic share tree" in site.ctl("status")
    found = site.prediction("1")
    assert (found["duration_source"], found["duration_s"]) == (GUESSED, 2000.0)
    assert "by synthetic share tree\n    GPU utilisation 10 % is at most 74 %" in site.ctl("explain", "1")


def test_a_version_promoted_by_another_process_serves_from_the_next_cycle_on(site: LearnedSite) -> None:
    site.submit("1", run_s=100.0)
    site.turns(10.0)
    site.serve("duration", DurationModel.untrained())
    site.serve("share", TINY)
    site.submit("2", run_s=100.0)
    site.turns(10.0)
    assert site.says("duration", "v1", "judged better")
    assert site.prediction("2")["duration_source"].startswith("learned v1: ")
    site.turns(300.0)
    site.submit("3", run_s=100.0)
    site.turns(100.0)
    told = site.ctl("explain", "3")
    assert "by learned v1: user median" in told
    assert "user ada, median of 2 jobs" in told, "jobs that ended before are its history"
    assert "share score 0 (Tiny) by share tree v1" in told
    site.serve("share", JUMBO)
    site.turns(10.0)
    assert site.says("share", "v2", "judged better")
    site.library.rollback("share", "it was worse")
    site.turns(10.0)
    assert site.says("share", "v1", "it was worse; was v2")
    assert site.slurm.records["2"].state == "COMPLETED"
    assert site.prediction("2")["duration_terms"]["terms"], "after its end, too, explain shows by what it was decided"
    site.library.suspend("duration", "its error drifted")
    site.turns(10.0)
    assert site.says("duration", "history means", "v1 is suspended: its error drifted")


def test_a_damaged_version_is_passed_over_and_told(site: LearnedSite) -> None:
    site.serve("duration", DurationModel.untrained())
    site.serve("share", TINY)
    path = site.library.root / "duration/v0001.json"
    path.write_text(path.read_text().replace('"trained_jobs": 0', '"trained_jobs": 9'))
    site.submit("1", run_s=900.0)
    site.turns(60.0)
    found = site.models()
    assert (found["duration"]["version"], found["duration"]["trouble"]) == ("history means", True)
    assert found["share"]["version"] == "v1"
    assert "the duration model in service cannot be used" in site.ctl("status")
    (finding,) = [f for f in check_state(site.settings, 1e9) if "duration model" in f.what]
    assert (finding.level, "rollback duration" in finding.remedy) == ("warn", True)
    assert site.slurm.starts, "and jobs go on"


def test_the_log_of_finished_jobs_reads_back_as_what_it_was_made_of(tmp_path: Path) -> None:
    names = ["a,b", 'q"q', "two\nlines", "ü☃", "", "'; DROP", "|" * 25, " x "]
    jobs = []
    for n, name in enumerate(names):
        job = Job(f"{n}", "vc", n % 3, 1.6e9 + n, n, "ada", "", name, 2 * n, 100 * n, 600.0 if n % 2 else None)
        profile = JobProfile(40.5 + n, 20.0, 3000.0) if n % 2 else None
        jobs.append(Ended(job, 1.6e9 + 100.25 * (n + 1), 10.125 * (n + 1), profile=profile))
    write_job_log(tmp_path / "sub/jobs.csv", jobs)
    read, made = read_jobs(tmp_path / "sub/jobs.csv"), ended_table(jobs).by_submit()
    for column in ("job_id", "user", "account", "partition", "name"):
        assert getattr(read, column).tolist() == getattr(made, column).tolist(), column
    for column in ("gpus", "cpus", "memory_mib", "limit_s", "submit_s", "end_s", "duration_s"):
        np.testing.assert_allclose(getattr(read, column), getattr(made, column), rtol=0, atol=1e-3, err_msg=column)
    for column in PROFILE_COLUMNS:
        np.testing.assert_array_equal(read.profile[column], made.profile[column])
    write_job_log(tmp_path / "jobs.csv", [Ended(Job("1", "vc", 1, 0.0, name="half \ud800 of one"), 5.0, 1.0)])
    assert "half" in read_jobs(tmp_path / "jobs.csv").name[0]


def upkeep(folder: Path, jobs: int, trains: Any = None, /, **models: Any) -> tuple[Upkeep, list[int]]:
    """An upkeep over so many finished jobs, and how often it has trained."""
    store = SqliteStore(IN_MEMORY)
    ran: list[int] = []
    lease = store.take_lease("me", 0.0, 1e9)
    store.put_ended([ended(n) for n in range(jobs)], lease.token)

    def train() -> list[dict[str, Any]]:
        ran.append(jobs)
        return [{"kind": "duration"}]

    data = {"daemon": {"partitions": {"vc": "pack"}, "state_dir": str(folder)}, "models": models}
    return Upkeep(settings_from(data, "test"), store, trains or train), ran


def test_finished_jobs_are_written_out_and_a_child_trains_once_there_are_enough(tmp_path: Path) -> None:
    measured = {"profiles": "p.csv", "pairs": "q.csv"}  # which need no finished job
    for jobs, more, times in ((49, {}, 0), (50, {}, 1), (0, measured, 1)):
        due, ran = upkeep(tmp_path, jobs, **more)
        assert (due(), ran) == ([{"kind": "duration"}] * times, [jobs] * times)
        assert len(read_jobs(tmp_path / "jobs.csv")) == jobs or more


@pytest.mark.parametrize(("every_h", "times"), [(0.0, 0), (6.0, 1)])
def test_the_daemon_trains_beside_its_turns(site: LearnedSite, tmp_path: Path, every_h: float, times: int) -> None:
    stop, trained = threading.Event(), threading.Event()
    site.daemon.parts.settings = site.settings.changed({"models.every_h": every_h})
    turn = site.daemon.turn

    def once() -> float:
        trained.wait(5.0 if times else 0.1)
        stop.set()
        return turn()

    site.daemon.turn = once  # type: ignore[method-assign]
    assert process.turn_until(site.daemon, stop, WakeFile(tmp_path / "wake"), False, trained.set) == 0
    assert trained.is_set() is bool(times)


def test_lucidctl_trains_from_the_daemons_log_into_the_daemons_library(site: LearnedSite) -> None:
    write_job_log(site.folder / "jobs.csv", [ended(n, "ada" if n % 2 else "bob", 100.0 + n) for n in range(120)])
    done = json.loads(site.ctl("models", "train", "--due", "--json"))
    assert (done[0]["kind"], done[0]["promoted"]) == ("duration", True)
    site.turns(5.0)
    assert site.models()["duration"]["version"] == "v1"
    with pytest.raises(ModelError, match="no earlier version"):
        site.ctl("models", "rollback", "duration")


def test_a_configuration_that_names_a_library_means_that_one(tmp_path: Path) -> None:
    config = tmp_path / "plain.toml"
    config.write_text("[models]\nlibrary = 'mine'\n[daemon.partitions]\nvc = 'observe'\n")
    said = CliRunner().invoke(lucidctl, ["models", "list", "--config", str(config)]).output
    assert said.startswith(f"{tmp_path / 'mine'}: no versions yet")


def test_what_did_not_run_has_no_run_time_in_the_log(tmp_path: Path) -> None:
    job, path = Job("1", "vc", 1, 0.0), tmp_path / "jobs.csv"
    past = ((40.0, "BOOT_FAIL"), (0.0, "FAILED"), (4.0, "FAILED"))
    write_job_log(path, [Ended(job, 50.0, ran_s, state) for ran_s, state in past])
    assert [*map(str, read_jobs(path).duration_s)] == ["nan", "nan", "4.0"]


def test_a_job_that_fails_while_it_is_set_up_did_not_run(site: LearnedSite) -> None:
    site.submit("1", run_s=65.0)
    site.turns(20.0)
    site.slurm._set("1", flags=frozenset({"CONFIGURING"}))
    site.turns(40.0)
    site.slurm._set("1", state="FAILED", end_s=site.slurm.now, flags=frozenset(), placement=())
    site.turns(20.0)
    assert [one.ran for one in site.store.ended()] == [False]


def test_boot_and_prolog_are_not_run_time(site: LearnedSite) -> None:
    site.submit("1", run_s=65.0)
    boots, job = Boots(), replace(site.slurm.records["1"], state="RUNNING", start_s=100.0)
    booting = replace(job, flags=frozenset({"CONFIGURING"}))
    for record, at_s in ((booting, 120.0), (booting, 150.0), (job, 180.0)):
        boots.observe([record], at_s)
    ended = replace(job, state="FAILED", end_s=300.0)
    boots.observe([ended], 310.0)
    assert boots.ran_s(ended) == 150.0
    boots.observe([], 320.0)
    assert boots.ran_s(ended) == 200.0, "what was seen of a job is forgotten with it"
    boots.observe([booting], 150.0)
    assert boots.ran_s(replace(ended, state="COMPLETED")) == 150.0, "it began and ended between two looks"


def until(true: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("error", [ModelError("no data"), RuntimeError("a bug")])
def test_a_training_that_fails_is_logged(error: Exception, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def train() -> list[dict[str, Any]]:
        raise error

    assert upkeep(tmp_path, 0, train, jobs="x.log")[0]() == []
    assert str(error) in caplog.text


def test_a_child_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"status 2: .*nothing to train from"):
        trained(Children(), ["--library", str(tmp_path / "library")])
    with pytest.raises(ModelError, match="longer than 0 s"):
        trained(Children(), ["--library", str(tmp_path)], timedelta(seconds=0.01))


_STUCK = """
import sys, time
from pathlib import Path
from lucid.models.library import Library
with Library(Path(sys.argv[1])).training():
    Path(sys.argv[2]).write_text("training")
    time.sleep(60)
"""


def test_a_child_decides_and_says_so_after_one_killed_with_sigkill(tmp_path: Path) -> None:
    log = job_log(tmp_path / "jobs.csv", cluster(120))
    library, sign = Library(tmp_path / "library"), tmp_path / "sign"
    tick = partial(trained, Children(), ["--jobs", str(log), "--library", str(library.root)])
    victim = subprocess.Popen([sys.executable, "-c", _STUCK, str(library.root), str(sign)], env=dict(os.environ))
    try:
        until(sign.exists)
        found, *_ = tick()
        assert f"process {victim.pid}" in found["reasons"][-1]
        assert "version" not in found
    finally:
        victim.send_signal(signal.SIGKILL)
        victim.wait()
    found, *_ = tick()
    assert (found["kind"], found["action"]) == ("duration", "train")
    assert found["promoted"]  # of so few jobs nothing is fitted: the running median, as a version
    assert library.serving("duration") == 1


_CHILD = """
import threading, time
from datetime import timedelta
import lucid.daemon.learning.child as child
children = child.Children()
def work():
    children.run("trace synth month-small --jobs 9000000 --out /dev/null".split(), timedelta(minutes=5))
"""
_PARENT = """
child.os.nice = lambda _: open({path!r}, "w").write(str(__import__("os").getpid()))
work()
"""


def _running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_child_ends_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    with subprocess.Popen([sys.executable, "-c", _CHILD + _PARENT.format(path=str(told))]) as parent:
        until(lambda: told.exists() and told.read_text())
        child = int(told.read_text())
        assert _running(child)
        os.kill(parent.pid, signal.SIGKILL)
    try:
        until(lambda: not _running(child))
    except AssertionError:
        os.kill(child, signal.SIGKILL)
        raise


_ENDS = """
def told():
    try:
        work()
    except TimeoutError as error:
        print(error, flush=True)
thread = threading.Thread(target=told)
thread.start()
while not children._running:
    time.sleep(0.05)
children.end()
thread.join()
told()
"""


def test_a_process_that_ends_waits_for_no_child() -> None:
    """A training of an hour kept lucidd from ending after SIGTERM: its thread waited for the child."""
    said = subprocess.check_output([sys.executable, "-c", _CHILD + _ENDS], text=True, timeout=120)
    assert said.splitlines() == ["was stopped, because lucidd ends", "was not begun, because lucidd ends"]
