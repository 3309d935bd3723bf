"""A month live, replays of what it kept, and the jobs of the account of GPU-hours."""

from __future__ import annotations

import gc
import gzip
import json
import random
import resource
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import BuiltinMethodType, CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

import pytest
from msgspec import structs

from builders import LIGHT, a_job, a_trace
from daemon_site import Site
from fake_slurm import FakeSampler, FakeSlurm, fake_node
from lucid.config.load import settings_from
from lucid.core.job import Ended
from lucid.daemon.build import Parts
from lucid.daemon.loop import Daemon
from lucid.daemon.policies import live_models
from lucid.daemon.reporting.limit_replay import recorded_s, replay_limits
from lucid.daemon.reporting.waste_inputs import job_accounts, job_uses
from lucid.explain.time_limits import held_back
from lucid.models.duration.history import DurationHistory
from lucid.models.packing.pair_memory import PairMemory
from lucid.node.reports import UseFolder, write_summary
from lucid.profiler.summary import Summary
from lucid.profiler.use import GpuUse
from lucid.profiler.waste import FittingLimit, JobUse, fitting_limits, round_limit_s
from lucid.simulator.cluster.state import JobOutcome
from lucid.simulator.traces.record import Trace
from lucid.slurm.client import Breaker
from lucid.slurm.records.request import EXCLUSIVE, NOT_TO_SHARE
from lucid.store.plan_records import record_files
from lucid.store.sqlite import SqliteStore
from scenes.limits import crowded, replayed

_OF_THE_CODE = (type, ModuleType, CodeType, FrameType)
_PLAIN = (str, bytes, int, float, complex, type(None))


def walk(root: object, *apart: object) -> Iterator[tuple[str, Any]]:
    """Each object that *root* keeps, once, with the types on the way to it; not what is reached through ``apart`` or
    the code alone: of functions only what their closures and defaults hold."""
    seen = {id(one) for one in apart}
    stack: list[tuple[str, Any]] = [(type(root).__name__, root)]
    while stack:
        way, one = stack.pop()
        if id(one) in seen or isinstance(one, _OF_THE_CODE):
            continue
        seen.add(id(one))
        yield way, one
        if not isinstance(one, _PLAIN):
            stack.extend((f"{way} > {type(kept).__name__}", kept) for kept in _kept(one))


def _kept(one: Any) -> list[Any]:
    if isinstance(one, FunctionType):
        return [*gc.get_referents(*(one.__closure__ or ())), one.__defaults__, one.__kwdefaults__]
    if isinstance(one, MethodType | BuiltinMethodType):
        return [one.__self__]
    kept = []
    for found in gc.get_referents(one):
        own = found is getattr(one, "__dict__", None)  # its attributes are its own
        kept += gc.get_referents(found) if own else [found]
    return kept


def ids_in(one: Any, is_id: Callable[[str], bool]) -> set[str]:
    """The ids among the keys or entries of a container, alone or as part of a tuple."""
    if not isinstance(one, Collection) or isinstance(one, _PLAIN) or not hasattr(one, "__iter__"):
        return set()
    parts = (part for key in tuple(one) for part in (key if isinstance(key, tuple) else (key,)))
    return {str(part) for part in parts if isinstance(part, str | int) and is_id(str(part))}


DAY_S = 86400.0
FIRST = 7_000_000
"""Number of the first job."""


@dataclass
class Slurm(FakeSlurm):
    """Forgets jobs as slurmctld does (MinJobAge), and starts none while it is down."""

    def _schedule(self, backfill: bool = False) -> None:
        if not self.down:
            super()._schedule(backfill)

    def forget(self, after_s: float) -> list[str]:
        """Those that ended so long ago go; returns which."""
        self.starts.clear()
        self.writes.clear()
        gone = [one.id for one in self.records.values() if one.ended and one.end_s < self.now - after_s]
        for job_id in gone:
            for kept in (self.records, self.run_s, self.factors, self._preempted_s):
                kept.pop(job_id, None)
        return gone

    def changed(self, job_id: str, gpus: int, limit_s: float | None) -> None:
        """``scontrol update`` by a job's user."""
        request = structs.replace(self.records[job_id].request, tres_per_node=f"gres/gpu:{gpus}")
        self._set(job_id, gpus=gpus, request=request, time_limit_s=limit_s)


@dataclass
class Kept:
    """What lucidd keeps at one time."""

    resident: int
    """Bytes of the process."""
    gone: dict[str, int] = field(default_factory=dict)
    """Jobs that Slurm does not know any more, by the way to the container that has them."""
    rows: dict[str, int] = field(default_factory=dict)
    """Of the store, by table."""


class Month:
    """``days`` in which ``jobs`` are submitted. A third of them is cancelled while it waits, others are changed by
    ``scontrol update``. slurmctld does not answer from day ``away[0]`` to day ``away[1]``, and nobody can submit.
    lucidd looks every ``every_s``, which is coarse: so a month takes minutes."""

    def __init__(self, folder: Path, days: float, jobs: int, away: Sequence[float], every_s: float = 300.0) -> None:
        self.every_s, self.begin_s = every_s, 1.7e9
        self.away_s = tuple(self.begin_s + day * DAY_S for day in away)
        self.jobs, self.per_look = jobs, jobs * every_s / ((days - away[1] + away[0]) * DAY_S)
        self.random = random.Random(1)
        self.submitted = 0
        self.cancels: deque[tuple[float, str]] = deque()
        self.cancelled = self.most = 0
        """Jobs that were cancelled while they waited, and the most that Slurm knew at once."""
        machines = [fake_node(f"{name}{n}", name) for name in ("pack", "order", "watch") for n in (1, 2)]
        self.slurm = slurm = Slurm([*machines, fake_node("p1", "prof")], now=self.begin_s)
        slurm.limits = lambda record: "AssocGrpGRES" * record.user.startswith("full")
        self.sampler = FakeSampler(slurm, {}, 30.0)
        modes = {"pack": "pack", "order": "order", "watch": "observe"}
        daemon = {"partitions": modes, "profiling_partition": "prof", "state_dir": str(folder), "keep_days": 1.0}
        settings = settings_from({"daemon": {**daemon, "heartbeat": str(folder / "run/heartbeat")}}, "test")
        breaker, memory = Breaker(slurm.now_s), PairMemory()
        models = live_models(settings, folder / "lucid.toml", memory, settings.policy.profiling.t_prof_s)
        self.store = SqliteStore(folder / "lucid.db")
        parts = Parts(settings, slurm, breaker, self.store, self.sampler, slurm, models, memory)
        self.daemon = Daemon(replace(parts, monotonic_s=slurm.now_s), "one")

    def run(self, until_day: float) -> Kept:
        """Live until that day, and say what is kept then."""
        slurm, until_s, pruned_s = self.slurm, self.begin_s + until_day * DAY_S, self.slurm.now
        while slurm.now < until_s:
            slurm.down = self.away_s[0] <= slurm.now < self.away_s[1]
            if not slurm.down:
                self.people()
            self.turn()
            if slurm.now - pruned_s >= 6 * 3600.0:
                pruned_s = slurm.now
                self.daemon.prune()
            slurm.advance(self.every_s)
        self.turn()
        return self.kept()

    def turn(self) -> None:
        self.daemon.turn()
        assert self.daemon._barrier.own == 0, f"a turn failed of itself: {self.daemon._barrier.last_error}"
        self.most = max(self.most, len(self.slurm.records))

    def people(self) -> None:
        """What users and slurmctld do until the next look."""
        for job_id in self.slurm.forget(2 * self.every_s):  # each is seen to have ended
            self.sampler.forget(job_id)
        while self.cancels and self.cancels[0][0] <= self.slurm.now:
            self.cancel(self.cancels.popleft()[1])
        waiting = [one for one in self.slurm.records.values() if one.pending]
        for one in self.random.sample(waiting, len(waiting) // 8):
            self.slurm.changed(one.id, self.random.choice((1, 2, 4, 8)), self.random.choice((None, 3600.0, 7200.0)))
        due = self.per_look + self.random.random()
        for _ in range(min(int(due), self.jobs - self.submitted)):
            self.submit()

    def cancel(self, job_id: str) -> None:
        record = self.slurm.records.get(job_id)
        if record is not None and not record.ended:
            self.cancelled += record.pending
            self.slurm.cancel(job_id)

    def submit(self) -> None:
        """Most jobs are short, since a look is coarse. Half of them have a name of their own. Those that are to be
        cancelled are of users who have all that they may have."""
        draw, number = self.random, FIRST + self.submitted
        job_id = f"{number}_{number % 7}" if number % 10 == 0 else f"{number}"
        self.submitted += 1
        ran_s = 150.0 if number % 10 else 1500.0
        user = f"{'full' if number % 3 == 0 else 'u'}{draw.randrange(20)}"
        if user.startswith("full"):
            self.cancels.append((self.slurm.now + 1.5 * self.every_s, job_id))
        if draw.random() < 0.5:
            self.sampler.profiles[job_id] = LIGHT
        vc, name = draw.choice(("pack", "order", "watch")), f"train{draw.randrange(5)}"
        self.slurm.submit(
            job_id, vc, draw.choice((1, 1, 2)), draw.expovariate(1 / ran_s), "" if vc == "pack" else "none",
            held=vc == "pack", number=number, user=user,
            name=f"{name}-{number}" if draw.random() < 0.5 else name, time_limit_s=draw.choice((None, 3600.0)),
        )  # fmt: skip

    def is_job(self, text: str) -> bool:
        number = text.partition("_")[0]
        return number.isdecimal() and FIRST <= int(number) < FIRST + self.submitted

    def kept(self) -> Kept:
        gc.collect()
        found = Kept(int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize())
        for way, one in walk(self.daemon, self.slurm, self.sampler):
            if gone := ids_in(one, self.is_job) - self.slurm.records.keys():
                found.gone[way] = max(len(gone), found.gone.get(way, 0))
        with self.store.reading() as db:
            for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                (found.rows[name],) = db.execute(f"SELECT count(*) FROM {name}").fetchone()
        return found

    def check(self, early: Kept, late: Kept) -> None:
        """Nothing has grown but by what Slurm knows."""
        assert self.submitted > 0.95 * self.jobs
        assert self.cancelled > 0.3 * self.jobs
        most = max(self.most, 60)  # the list of ours is written anew once 50 have left
        assert {way: jobs for way, jobs in late.gone.items() if jobs > most} == {}
        assert {table: rows for table, rows in late.rows.items() if rows > 2 * early.rows[table] + 10} == {}
        assert late.resident <= 1.2 * early.resident


def test_two_days_leave_no_more_than_slurm_knows(tmp_path: Path) -> None:
    month = Month(tmp_path, 2.0, 2000, (1.0, 1.2), 600.0)
    month.check(month.run(0.9), month.run(2.0))


def test_estimates_rest_on_twice_the_stores_jobs_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lucid.daemon.cycles._MOST_NEW", 20)
    month = Month(tmp_path, 0.3, 450, (1.0, 1.0))
    for day in (0.1, 0.2):
        month.run(day)
        month.store.prune(month.slurm.now)
    month.run(0.3)
    kept = len(month.store.ended())
    histories = [one for _, one in walk(month.daemon, month.slurm) if isinstance(one, DurationHistory)]
    assert [one._all[0] <= 2 * kept for one in histories] == [True]


H = 3600.0


def as_used(outcome: JobOutcome) -> JobUse:
    job = outcome.job
    ran = (job.id, job.user, "", "vc", job.name, job.gpus, outcome.start_s, outcome.end_s)
    return JobUse(*ran, state="COMPLETED", time_limit_s=job.time_limit_s)


def with_limit(trace: Trace, one: FittingLimit) -> Trace:
    """The same, as if the job had asked for that limit when it was submitted."""
    changed = {one.job.job_id: {"time_limit_s": one.limit_s}}
    return a_trace(*(replace(item, job=replace(item.job, **changed.get(item.job.id, {}))) for item in trace.jobs))


@pytest.mark.parametrize("name", ["backfill", "lucid"])
def test_what_is_told_is_what_a_replay_with_that_limit_does(name: str, tmp_path: Path) -> None:
    trace = crowded(3)
    before = replayed(name, trace, tmp_path)
    asked = fitting_limits(map(as_used, before.values()))
    found = replay_limits(record_files(tmp_path), asked)
    assert found.unlike == 0
    told = sorted(found.earlier.values(), key=lambda one: -one.earlier_s)[::4]
    assert len(told) >= 6
    for one in told:
        assert replayed(name, with_limit(trace, one.asked))[one.asked.job.job_id].start_s == pytest.approx(one.at_s)
    rest = [one for one in asked if one.job.job_id in found.waiting and one.job.job_id not in found.earlier]
    assert rest, "some would have started no sooner"
    for one in rest[:6]:
        assert replayed(name, with_limit(trace, one))[one.job.job_id].start_s >= one.job.begin_s
    assert ("window", "upgrade") in {held_back(one.held) for one in found.earlier.values()}


def test_a_record_that_says_something_else_is_left_out_and_so_is_one_that_cannot_be_read(tmp_path: Path) -> None:
    asked = fitting_limits(map(as_used, replayed("backfill", crowded(3), tmp_path).values()))
    files = record_files(tmp_path)
    files[40].write_bytes(b"no record")
    for file in files[41:]:
        data = json.loads(gzip.decompress(file.read_bytes()))
        data["code"] = "another"
        for name, text in data["plans"].items():
            data["plans"][name] = text.replace('"decisions":[[', '"decisions":[["x",null],[')
        file.write_bytes(gzip.compress(json.dumps(data).encode()))
    found = replay_limits(files, asked)
    assert found.unlike > 40
    assert all(one.at_s <= recorded_s(files[40]) for one in found.earlier.values())


def used(job_id: str, ran_h: float, limit_h: float | None, state: str = "COMPLETED", name: str = "train") -> JobUse:
    limit_s = None if limit_h is None else limit_h * H
    return JobUse(job_id, "ada", "", "vc", name, 1, 0.0, ran_h * H, state=state, time_limit_s=limit_s)


def test_a_limit_that_a_person_would_write_is_proposed_where_three_jobs_are_far_below_theirs() -> None:
    likes = [used("1", 1.0, 24.0), used("2", 2.1, 24.0), used("3", 0.5, None)]
    assert [round_limit_s(h * H) / H for h in (0.1, 0.25, 1.9, 2.1, 23.5, 25.0)] == [0.25, 0.25, 2.0, 3.0, 24.0, 30.0]
    assert [(one.job.job_id, one.limit_s / H) for one in fitting_limits(likes)] == [("1", 5), ("2", 5), ("3", 5)]
    assert fitting_limits(likes[:2]) == []
    assert fitting_limits([*likes, used("4", 4.0, 4.0, "TIMEOUT")]) == []
    assert fitting_limits([*likes, structs.replace(used("4", 9.0, 10.0), running=True)])
    assert [one.job.job_id for one in fitting_limits([*likes, used("4", 1.0, 6.0)])] == ["1", "2", "3"]
    assert fitting_limits([structs.replace(one, state="CANCELLED") for one in likes]) == []
    assert [one.job.job_id for one in fitting_limits(likes, 1.5 * H)] == ["1", "3"]


WEEK_S = 7 * 86400.0


def test_jobs_that_run_are_in_it_up_to_lucidds_last_look_and_those_that_wait_are_not(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.submit("1", 2, run_s=100.0, user="ada", account="lab", time_limit_s=7200.0)
    site.turns(400.0)
    for number in range(2, 8):
        site.submit(str(number), 4, run_s=5000.0)
    site.turns(600.0)
    found = {one.job_id: one for one in job_uses(site.store, {}, site.settings, 0.0)}
    picture = site.store.view("snapshot")
    running = {e["job"]["id"] for part in picture["partitions"].values() for e in part["running"]}
    assert set(found) == {"1", *running}
    assert set(map(str, range(2, 8))) > running > set()
    at_s = site.store.view("status")["at_s"]
    assert at_s > picture["now_s"], "a picture is drawn where something has changed"
    one = found.pop("1")
    assert (one.user, one.account, one.vc, one.gpus, one.time_limit_s) == ("ada", "lab", "vc", 2, 7200.0)
    assert (one.running, one.state, one.ran_s > 0) == (False, "COMPLETED", True)
    assert {(other.running, other.end_s) for other in found.values()} == {(True, at_s)}


def past(folder: Path, *ended: Ended) -> Site:
    """A site where these jobs have ended."""
    site = Site(folder)
    site.daemon.turn()
    site.store.put_ended(ended, site.store.lease().token)
    return site


def test_only_jobs_of_the_window_count(tmp_path: Path) -> None:
    now_s = 3 * WEEK_S
    jobs = [("old", now_s - WEEK_S - 1.0), ("new", now_s - WEEK_S + 1.0)]
    site = past(tmp_path, *[Ended(a_job(name, gpus=1), end_s, 60.0) for name, end_s in jobs])
    uses = UseFolder(tmp_path / "none")
    assert [one.job.job_id for one in job_accounts(site.store, uses, site.settings, now_s)] == ["new"]
    assert len(job_accounts(site.store, uses, site.settings, now_s, 30.0)) == 2


@pytest.mark.parametrize("why", ["", EXCLUSIVE, "it asks for 2 nodes", "its comment says lucid:exclusive"])
def test_whose_wish_it_was_not_to_share(tmp_path: Path, why: str) -> None:
    job = a_job("1", gpus=1, shareable=not why, whole_because=why)
    site = past(tmp_path, Ended(job, 5000.0, 60.0, profile=LIGHT))
    (found,) = job_uses(site.store, {}, site.settings, 0.0)
    assert (found.wants_alone, found.profile) == (why in (EXCLUSIVE, "its comment says lucid:exclusive"), LIGHT)
    assert len(NOT_TO_SHARE) == 3


def test_what_was_read_of_an_earlier_run_does_not_count_for_this_one(tmp_path: Path) -> None:
    site = past(tmp_path, Ended(a_job("1", gpus=1), 5000.0, 1000.0))
    folder = tmp_path / "profiles"
    folder.mkdir()
    for begin_s, end_s, known in ((2000.0, 3000.0, 0), (4000.0, 5000.0, 1)):
        use = (GpuUse("g", begin_s, end_s, end_s - begin_s, 10.0),)
        write_summary(folder, Summary("1", "n1", ("g",), begin_s, end_s, 1000, use=use))
        (found,) = job_uses(site.store, UseFolder(folder).uses(), site.settings, 0.0)
        assert len(found.use) == known
