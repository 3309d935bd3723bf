"""How Slurm is asked, and views that are kept."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from builders import LIGHT, at
from daemon_site import Site
from fake_slurm import FakeSampler, FakeSlurm
from lucid.cli.main import lucidctl
from lucid.config.load import Settings, settings_from
from lucid.core.snapshot import Snapshot
from lucid.daemon.build import Parts
from lucid.daemon.loop import STORED, Daemon, PollBudget
from lucid.daemon.modes import modes_from
from lucid.errors import ActionRefused, ConfigError
from lucid.models.history import HistoryPredictor
from lucid.places import Mode
from lucid.slurm import commands as slurm_cli
from lucid.slurm.changed_jobs import KnownJobs, listed_from
from lucid.slurm.client import Breaker
from lucid.slurm.cluster import SlurmCluster
from lucid.slurm.commands import CommandClient
from lucid.slurm.records.from_json import JOB_NEEDS
from lucid.slurm.records.job import SlurmJob, unread_job
from lucid.slurm.records.request import JobDefaults, Request
from lucid.store.port import JobNote
from lucid.store.sqlite import SqliteStore
from scenes.slurm import MINE, Scene

ASSETS = Path(__file__).parents[2] / "assets/slurm"
PYSLURM = {"client": "pyslurm"}


class Watch:
    """A clock that stands still between turns."""

    now = 1.8e9

    def now_s(self) -> float:
        return self.now


class Idle:
    """A Slurm of this release on which nothing waits; counts what leaves."""

    def __init__(self, release: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.release, self.asked = release, 0
        monkeypatch.setattr(slurm_cli.subprocess, "run", self.command)

    def document(self, folder: str, name: str) -> Any:
        found = json.loads((ASSETS / folder / f"{name}.json").read_text())
        if name == "jobs":
            found["jobs"] = [job for job in found["jobs"] if job["job_state"] == ["RUNNING"]]
        return found

    def command(self, words: Sequence[str], **_: Any) -> subprocess.CompletedProcess[str]:
        self.asked += 1
        if "--version" in words:
            return subprocess.CompletedProcess(words, 0, f"slurm {self.release}.5\n", "")
        newest = self.release == "26.05" and "--json" in words and words[0] == "squeue"
        folder = f"{self.release}-v0.0.45" if newest else self.release
        shown = "reservations" if "reservation" in words else "nodes"
        document = self.document(folder, "jobs" if words[0] == "squeue" else shown)
        return subprocess.CompletedProcess(words, 0, json.dumps(document), "")


@pytest.mark.parametrize("release", ["24.11", "26.05"])
def test_an_idle_cluster_is_asked_at_most_thirteen_times_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str
) -> None:
    idle, watch = Idle(release, monkeypatch), Watch()
    breaker = Breaker(watch.now_s)
    client = CommandClient([], breaker)
    state = {"state_dir": str(tmp_path), "heartbeat": str(tmp_path / "heartbeat")}
    settings = settings_from({"daemon": {"partitions": {"vc": "pack", "other": "observe"}, **state}}, "test")
    store = SqliteStore(tmp_path / "lucid.db")
    parts = Parts(settings, client, breaker, store, FakeSampler(FakeSlurm([]), {}), watch, HistoryPredictor(600.0))
    daemon = Daemon(parts, "me")
    times: list[float] = []
    while watch.now < 1.8e9 + 240:
        before = idle.asked
        wait_s = daemon.turn()
        times += [watch.now] * (idle.asked - before)
        watch.now += wait_s
    assert (tmp_path / "heartbeat").exists(), "its cycles are good ones"
    assert breaker.calls.reads <= idle.asked <= breaker.calls.reads + 4, "status tells what left, versions apart"
    steady = [at for at in times if at > 1.8e9]
    assert len(steady) >= 30
    assert max(sum(0 <= at - first < 60 for at in steady) for first in steady) <= 13
    store.close()


def over(**slurm: Any) -> Settings:
    return settings_from({"slurm": slurm, "daemon": {"partitions": {"a": "order", "b": "observe"}}}, "test")


def test_over_pyslurm_no_partition_is_packed() -> None:
    settings = over(**PYSLURM)
    assert modes_from(settings, {"mode.a": "pack", "mode.b": "pack"}) == {"a": Mode.ORDER, "b": Mode.ORDER}
    assert modes_from(settings, {"mode.b": "observe"})["b"] is Mode.OBSERVE
    assert modes_from(over(), {"mode.a": "pack"})["a"] is Mode.PACK
    with pytest.raises(ConfigError, match=r"partitions\.vc = 'pack'.*does not tell all.*slurm\.client = 'command'"):
        settings_from({"slurm": PYSLURM, "daemon": {"partitions": {"vc": "pack"}}}, "test")


def test_pack_is_refused_where_it_cannot_be_had(tmp_path: Path) -> None:
    path = tmp_path / "lucid.toml"
    site = f'[slurm]\nclient = "pyslurm"\n[daemon]\nstate_dir = "{tmp_path}"\n'
    path.write_text(f'{site}[daemon.partitions]\nvc = "order"\n')
    SqliteStore(tmp_path / "lucid.db").close()
    done = CliRunner().invoke(lucidctl, ["mode", "vc", "pack", "--config", str(path)])
    assert isinstance(done.exception, ConfigError)
    assert "slurm.client = 'command'" in str(done.exception)
    assert CliRunner().invoke(lucidctl, ["mode", "vc", "observe", "--config", str(path)]).exit_code == 0


def test_whatever_changes_is_seen_in_the_jobs_that_did_not_change() -> None:
    """Each change alters what is shown, and a lucidd that begins then shows the same."""
    stage = Scene()
    slurm, big = stage.slurm, frozenset({"big"})
    for name in ("n1", "n2"):
        slurm.node(name, features=big)
    tasks = Request(tres_per_node="gres/gpu:1", tasks=2)
    stage.jobs("1 2", mark=MINE, qos="high", features="big", time_limit_s=9000.0)
    stage.jobs("3", mark=MINE, request=tasks, time_limit_s=9000.0, time_min_s=60.0)
    stage.jobs("4", gpus=2, mark=MINE, state="RUNNING", held=False, placement=at("n1:0,1"), start_s=1.0)
    slurm._schedule = lambda backfill=False: None  # type: ignore[method-assign] # only what this test changes

    def put(**noted: Any) -> None:
        stage.cluster._writer.put(JobNote("1", submit_s=0.0, **noted))

    def change_job(name: str, **changes: Any) -> None:
        slurm.records[name] = replace(slurm.records[name], **changes)

    changes = {
        "nothing": lambda: None,
        "its user's limit": lambda: change_job("1", time_limit_s=7000.0),
        "the priority of its QOS": lambda: slurm.qos.update(high=5),
        "what its partition gives to a GPU": lambda: slurm.defaults.update(vc=JobDefaults(cpus=2)),
        "the features of a node": lambda: slurm.node("n1", features=frozenset()),
        "a note": lambda: put(alone=True),
        "another note": lambda: put(refusal="no", retry_s=slurm.now + 1000.0),
        "its profile": lambda: stage.cluster.known.set("4", LIGHT),
        "where it runs": lambda: change_job("4", placement=at("n2:0,1")),
        "the mode": lambda: stage.modes.update(vc=Mode.OBSERVE),
    }
    before: Any = None
    for what, change in changes.items():
        change()
        slurm.now += 700.0
        found = _told(stage.cluster.observe())
        assert found != before, what
        kept = stage.cluster
        anew = stage.restart()
        anew.known._own.update(kept.known._own)
        assert _told(anew.observe()) == found, what
        stage.cluster, before = kept, found


def _told(snapshot: Snapshot) -> list[tuple[Any, ...]]:
    return [(p.name, p.nodes, p.pending, p.running, p.acting, {**p.fitting}) for p in snapshot.partitions.values()]


def test_after_a_quiet_time_a_chain_of_jobs_is_looked_at_at_once_and_a_storm_once_a_second() -> None:
    """Of jobs one after the other, as of srun in a loop, each met a lucidd that had looked for the one before, and
    waited for the rest of the second: Slurm's test 39.10 took 37 s in place of 3."""
    looks, waits = PollBudget(1.0), []
    for n in range(STORED + 5):
        looks.spend(1000.0 + 0.1 * n)
        waits.append(looks.least_s)
    assert waits[:STORED] == [0.1] * STORED
    assert waits[-1] == 1.0
    looks.spend(1020.0)
    assert looks.least_s == 0.1
    for n in range(20):
        looks.spend(1020.1 + 0.01 * n)
    assert looks.least_s == 1.0, "what was earned in those seconds, and no more"


def test_a_slow_slurmctld_is_not_asked_sooner_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(tmp_path)
    site.daemon.turn()
    assert site.daemon.least_woken_s == 0.1
    monkeypatch.setattr(site.daemon.parts.breaker.calls, "last_s", 0.5)
    assert site.daemon.least_woken_s == 2.5


def test_gpus_that_come_free_for_a_job_are_looked_at_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(tmp_path)
    assert site.daemon.turn() >= site.daemon.least_wait_s
    monkeypatch.setattr(SlurmCluster, "emptying", True)
    assert site.daemon.turn() == 0.3


BARE = {**dict.fromkeys(JOB_NEEDS), "job_state": ["PENDING"], "name": ""}


def job(number: int, state: str = "PENDING", name: str = "a", **rest: Any) -> SlurmJob:
    made = unread_job({"job_id": number, "job_state": [state], "name": name}, "x")
    return replace(made, unread="", lost=False, **rest)


class Slurm:
    """Its jobs, the listing as scontrol prints it (names raw, as Slurm does), and what was read of it."""

    def __init__(self, *jobs: SlurmJob) -> None:
        self.jobs = {one.number: one for one in jobs}
        self.now = 0.0
        self.asked: list[list[int]] = []
        self.listings = 0
        self.between: dict[int, SlurmJob] = {}
        """Jobs that change right after the next listing."""
        self.known = KnownJobs(self.read, lambda: self.now)

    def listing(self) -> str:
        self.listings += 1
        lines = []
        for one in self.jobs.values():
            array = one.id.partition("_")[0] if "_" in one.id else ""
            head = f" ArrayJobId={array} ArrayTaskId=1" if array else f" HetJobId={one.het}" if one.het else ""
            lines.append(
                f"JobId={one.number}{head} JobName={one.name} Priority={0 if one.held else 7} JobState={one.state} "
                f"RunTime=00:00:{self.listings:02} AdminComment={one.admin_comment} Extra={one.extra} "
            )
        self.jobs.update(self.between)
        self.between = {}
        return "\n".join(lines) + "\n"

    def read(self, numbers: Sequence[int]) -> list[SlurmJob]:
        self.asked.append(list(numbers))
        wanted, jobs = set(numbers), self.jobs.values()
        return [one for one in jobs if {one.number, one.het, int(one.id.partition("_")[0] or 0)} & wanted]

    def look(self) -> list[SlurmJob]:
        self.asked = []
        return self.known.poll(self.listing)

    def numbered(self) -> dict[int, SlurmJob]:
        found = self.look()
        assert len(found) == len(self.jobs)
        return {one.number: one for one in found}


def test_only_what_changed_is_read_again() -> None:
    slurm = Slurm(*(job(number) for number in range(1, 2501)))
    assert len(slurm.look()) == 2500
    assert [len(some) for some in slurm.asked] == [1000, 1000, 500]
    slurm.jobs[7] = job(7, extra="lucid-gpus=1")
    slurm.jobs[3000] = job(3000)
    del slurm.jobs[9]
    assert slurm.look() == list(slurm.jobs.values())
    assert slurm.asked == [[7, 3000]]
    assert slurm.look() == list(slurm.jobs.values())
    assert slurm.asked == [], "the run time alone is no news"


def test_of_a_priority_only_whether_it_is_0_is_news() -> None:
    slurm = Slurm(job(1, held=False))
    slurm.look()
    before, after = (listed_from(f"JobId=1 JobName=a Priority={now} JobState=PENDING") for now in (7, 88))
    assert before.signs == after.signs
    slurm.jobs[1] = job(1, held=True)
    slurm.look()
    assert slurm.asked == [[1]]


def test_tasks_of_an_array_and_parts_of_a_heterogeneous_job_are_read_together() -> None:
    tasks = [job(n, id=f"10_{task}") for task, n in enumerate((10, 11, 15), 1)]
    slurm = Slurm(*tasks, job(20, het=20), job(21, het=20), job(30))
    assert {one.number for one in slurm.look()} == set(slurm.jobs)
    slurm.jobs[11] = job(11, id="10_2", extra="x")
    slurm.jobs[21] = job(21, het=20, extra="x")
    found = slurm.look()
    assert slurm.asked == [[10, 20]]
    assert {one.number: one for one in found} == slurm.jobs


def test_a_job_that_changes_between_the_listing_and_its_reading_is_listed_again() -> None:
    slurm = Slurm(job(1, "RUNNING"), job(2))
    slurm.look()
    slurm.jobs[2] = job(2, extra="changed")
    slurm.between = {1: job(1, "COMPLETED"), 2: job(2, "RUNNING")}
    assert [one.state for one in slurm.look()] == ["COMPLETED", "RUNNING"], "never both on the same GPUs"


def test_each_job_is_read_anew_within_ten_minutes() -> None:
    slurm = Slurm(*(job(number) for number in range(1, 101)))
    slurm.look()
    slurm.jobs[50] = replace(slurm.jobs[50], features="not in the listing")
    read: set[int] = set()
    for _ in range(60):
        slurm.now += 10.0
        found = slurm.look()
        read |= {number for some in slurm.asked for number in some}
    assert read == set(range(1, 101))
    assert found == list(slurm.jobs.values())


def test_a_record_that_could_not_be_read_is_read_at_every_look() -> None:
    slurm = Slurm(job(1), replace(job(2), unread="broken"))
    for _ in range(3):
        slurm.look()
        assert 2 in slurm.asked[0]


NAMES = ["plain", "x\nJobId=5 JobName=y", "x\nJobId=999 JobName=y", "x JobState=RUNNING", "x\nJobId="]
NAMES += ["\nJobId=999999999999 JobName=", "x\n", "JobId=5 "]
STATES, EXTRAS = ["PENDING", "RUNNING", "COMPLETED", None], ["", "lucid-gpus=1", "other"]
STEP = st.tuples(st.integers(1, 6), st.sampled_from(NAMES), st.sampled_from(STATES), st.sampled_from(EXTRAS))


@given(st.lists(STEP, max_size=12))
def test_whatever_happens_the_jobs_are_those_of_a_whole_reading(
    steps: list[tuple[int, str, str | None, str]],
) -> None:
    slurm = Slurm(*(job(number) for number in range(1, 4)))
    slurm.look()
    for number, name, state, extra in steps:
        if state is None:
            slurm.jobs.pop(number, None)
        else:
            slurm.jobs[number] = job(number, state, name, extra=extra)
        assert slurm.numbered() == slurm.jobs


class Commands(CommandClient):
    """Its commands are answered from a list of records."""

    def __init__(self, count: int, many: int) -> None:
        super().__init__([], Breaker(lambda: 0.0), clock_s=lambda: 0.0, many=many)
        self.records = {n: {**BARE, "job_id": n, "name": f"j{n}"} for n in range(1, count + 1)}
        self.ran: list[str] = []

    def _run(self, command: Sequence[str]) -> str:
        self.ran.append(" ".join(command))
        if command[0] == "scontrol":
            return "".join(f"JobId={n} JobName={r['name']} JobState=PENDING\n" for n, r in self.records.items())
        listed = re.search(r"--jobs=(\S+)", self.ran[-1])
        wanted = set(map(int, listed[1].split(","))) if listed else set(self.records)
        found = [record for n, record in self.records.items() if n in wanted]
        if listed and not found:
            raise ActionRefused("squeue: slurm_load_jobs error: Invalid job id specified")
        return json.dumps({"jobs": found})


def test_few_jobs_are_read_whole_in_one_command() -> None:
    slurm = Commands(5, many=10)
    for _ in range(3):
        assert len(slurm.jobs()) == 5
    assert slurm.ran[1:] == ["squeue --json --states=all"] * 3
    slurm.records |= {n: {**BARE, "job_id": n} for n in range(6, 30)}
    slurm.jobs()
    assert len(slurm.jobs()) == 29, "now there are many"
    slurm.ran = []
    assert len(slurm.jobs()) == 29
    assert slurm.ran == ["scontrol --oneliner show job"]
    slurm.records = {}
    assert slurm.jobs() == []
    slurm.records = {1: {**BARE, "job_id": 1}}
    assert [one.id for one in slurm.jobs()] == ["1"]
    assert slurm.ran[-1] == "squeue --json --states=all", "few again"


def test_jobs_that_are_gone_when_they_are_read_are_no_trouble() -> None:
    slurm = Commands(30, many=10)
    assert len(slurm.jobs()) == 30
    listing, slurm.records = slurm._listing(), {}
    slurm._known.forget()
    assert slurm._known.poll(lambda: listing) == []
