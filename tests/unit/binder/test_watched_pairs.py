"""Pairs that are watched, whether jobs share where it is calm, and who may."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from builders import LIGHT, FixedPredictor, decide, guess, nodes, part, policy, reason, runs, snap, waits
from daemon_site import Site
from lucid.binder.candidates import CalmSince, calm_since
from lucid.binder.contention import memory_limit_mib
from lucid.core.decision import Decision, Hold, Start
from lucid.core.job import JobProfile, Pending
from lucid.core.reasons.queue import Borrows
from lucid.core.reasons.sharing import Calm, PairSpeed
from lucid.daemon.build import Parts
from lucid.daemon.learning.models import WithContention
from lucid.daemon.loop import Daemon
from lucid.models.history import HistoryPredictor
from lucid.models.packing.pair_memory import PairMemoryFile, WithMemory
from lucid.slurm.client import Breaker
from lucid.slurm.view.profiles import ProfileFolder
from lucid.store.sqlite import SqliteStore
from nvml_emulator import Board, Gpu, Proc, build, node_environment, uuid_of

SAMPLER = """
import json, sys
from pathlib import Path
from lucid.node.nvml import NvmlMetrics
from lucid.node.processes import JobSpec
from lucid.node.sampler import Sampler
sampler = Sampler(NvmlMetrics(), Path(sys.argv[1]), Path(sys.argv[2]), "node")
for line in sys.stdin:
    told = json.loads(line)
    specs = {job: JobSpec(job, (gpu,), pids=(pid,)) for job, (gpu, pid) in told["jobs"].items()}
    for second in range(told["seconds"]):
        sampler.tick(specs, told["from_s"] + second)
    print("sampled", flush=True)
"""
PLACES = ("p1", "n1", "n2")


class Watched(Site):
    """The site with a sampler process whose seconds are the site's; a job alone keeps ``ALONE`` percent of its
    card's SMs at work, a pair ``both`` percent together."""

    ALONE = 30.0

    def __init__(self, folder: Path, library: Path, both: float) -> None:
        self.both = both
        self.memory_path, self.summaries = folder / "pairs.json", folder / "summaries"
        self.board = Board(folder / "state", {i: Gpu() for i in range(12)})
        self.board.write()
        self.works: dict[str, subprocess.Popen[bytes]] = {}
        super().__init__(folder)
        self.summaries.mkdir()
        self.process = subprocess.Popen(
            [sys.executable, "-c", SAMPLER, str(folder / "spool"), str(self.summaries)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=node_environment(library, self.board.path),
        )  # fmt: skip

    def start(self, holder: str = "one") -> Daemon:
        self.store = SqliteStore(self.folder / "lucid.db")
        self.memory = PairMemoryFile(self.memory_path)
        self.predictor = WithMemory(WithContention(HistoryPredictor(2000.0)), self.memory)
        parts = Parts(
            self.settings, self.slurm, Breaker(lambda: self.slurm.now), self.store,
            ProfileFolder(self.summaries), self.slurm, self.predictor,
            memory=self.memory, monotonic_s=lambda: self.slurm.now,
        )  # fmt: skip
        self.daemon = Daemon(parts, holder)
        return self.daemon

    def live(self, seconds: int) -> None:
        """Turn and sample, ten seconds at a time."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        for _ in range(seconds // 10):
            self.daemon.turn()
            where: dict[int, list[str]] = {}
            for job, record in self.slurm.records.items():
                if record.state == "RUNNING" and not record.completing:
                    (part,) = record.placement
                    where.setdefault(PLACES.index(part.node) * 4 + part.gpus[0], []).append(job)
                    if job not in self.works:
                        self.works[job] = subprocess.Popen(["sleep", "600"])
            for index in self.board.gpus:
                jobs = where.get(index, [])
                moved = {0: 0.0, 1: self.ALONE}.get(len(jobs), self.both)
                procs = [Proc(self.works[job].pid, 3000.0, 40.0 / len(jobs), 20.0 / len(jobs)) for job in jobs]
                busy = 40.0 if jobs else 0.0
                self.board.gpus[index] = Gpu(busy, busy / 2, 3000.0 * len(jobs), gpm=(moved, busy, 10.0), procs=procs)
            self.board.write()
            told = {job: (uuid_of(index), self.works[job].pid) for index, jobs in where.items() for job in jobs}
            self.process.stdin.write(json.dumps({"jobs": told, "from_s": self.slurm.now, "seconds": 10}) + "\n")
            self.process.stdin.flush()
            assert self.process.stdout.readline() == "sampled\n"
            self.slurm.advance(10.0)

    def pair(self) -> frozenset[str]:
        entries = self.daemon.cluster.observe().partitions["vc"].running
        return frozenset(entry.job.id for entry in entries if entry.partner)

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()
        for work in self.works.values():
            work.kill()
            work.wait()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("pynvml")
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def watched(tmp_path: Path, library: Path, request: pytest.FixtureRequest) -> Iterator[Watched]:
    site = Watched(tmp_path, library, request.param)
    yield site
    site.end()


@pytest.mark.parametrize("watched", [24.0], indirect=True)
def test_a_pair_seen_at_less_than_half_speed_is_parted_and_remembered(watched: Watched) -> None:
    """From the driver's readings by sampler and summaries to what Slurm is told; a daemon is killed on the way."""
    for job in ("1", "2"):
        watched.slurm.submit(job, "vc", 1, name=f"job{job}")
    watched.live(100)
    assert watched.pair() == {"1", "2"}, "profiled by the sampler, and packed by the contention model"
    assert watched.slurm.records["2"].request.shards
    watched.live(30)
    watched.store.close()
    watched.slurm.advance(20.0)  # the lease of the one killed runs out
    watched.start("another")
    watched.live(90)
    story = json.loads(watched.ctl("explain", "2", "--json"))
    (parting,) = [d for d in story["decisions"] if d["verb"] == "part"]
    assert parting["reasons"][0]["kind"] == "SeenSpeed"
    assert parting["reasons"][0]["seen"] == pytest.approx(0.4, abs=0.02)
    assert watched.pair() == frozenset()
    assert not watched.slurm.records["2"].request.shards, "it runs on GPUs of its own"
    assert PairMemoryFile(watched.memory_path).speeds("ada/job1", "ada/job2") == pytest.approx((0.4, 0.4), abs=0.02)
    one, two = (JobProfile(40.0, 20.0, 3000.0, workload=f"ada/job{n}") for n in (1, 2))
    assert min(watched.predictor.pair_speed(one, two) or ()) < 0.5, "the next such pair is not made"


@pytest.mark.parametrize("watched", [57.0], indirect=True)
def test_a_pair_that_keeps_its_speed_stays_together(watched: Watched) -> None:
    for job in ("1", "2"):
        watched.slurm.submit(job, "vc", 1, name=f"job{job}")
    watched.live(220)
    assert watched.pair() == {"1", "2"}
    assert PairMemoryFile(watched.memory_path).speeds("ada/job1", "ada/job2") == pytest.approx((0.95, 0.95), abs=0.02)


DAY_S = 86400.0
ESTIMATE_S = 2 * DAY_S


def test_a_vc_is_calm_from_when_the_last_job_that_waited_has_started() -> None:
    calm = calm_since(None, 0, 10, 50.0)
    assert calm == CalmSince(50.0), "nothing is known of the time before"
    assert calm_since(calm, 0, 10, 99.0) == CalmSince(50.0)
    assert calm_since(calm, 1, 10, 99.0) == CalmSince(None)
    assert calm_since(CalmSince(None), 0, 10, 120.0) == CalmSince(120.0)


def test_one_waiting_job_in_a_hundred_is_calm() -> None:
    assert calm_since(CalmSince(50.0), 1, 100, 99.0) == CalmSince(50.0)
    assert calm_since(CalmSince(50.0), 2, 100, 99.0) == CalmSince(None)


def decided(
    calm_s: float | None, *, idle: bool = True, speed: float = 0.9, estimate_s: float = ESTIMATE_S, **packing: object
) -> Decision:
    """On a job that may join a running one, in a VC that has been calm for so long."""
    machines = nodes(2, 4) if idle else nodes(1, 1)
    vc = part(machines, [waits("new", profile=LIGHT)], [runs("old", "n1:0", profile=LIGHT)])
    found = snap(9000.0, vc, predictions={"new": guess(estimate_s, 0), "old": guess(9e9, 0)})
    found = replace(found, memory={"vc": CalmSince(None if calm_s is None else 9000.0 - calm_s)})
    predictor = FixedPredictor(speed=lambda a, b: (speed, 1.0))
    return decide("lucid", found, predictor, profiling={"enabled": False}, packing=packing).decisions["new"]


def beside(decision: Decision) -> str | None:
    assert isinstance(decision, Start)
    return decision.beside


def test_L17_a_job_has_gpus_of_its_own_where_it_has_been_calm_for_a_day_and_as_long_as_the_job_runs() -> None:
    alone = decided(ESTIMATE_S)
    assert beside(alone) is None
    assert reason(alone, Calm) == Calm("vc", ESTIMATE_S, ESTIMATE_S)
    assert beside(decided(ESTIMATE_S - 1.0)) == "old"
    assert beside(decided(None)) == "old"
    assert [beside(decided(calm_s, estimate_s=60.0)) for calm_s in (DAY_S - 1.0, DAY_S)] == ["old", None]
    assert beside(decided(ESTIMATE_S, when_calm=True)) == "old"


@pytest.mark.parametrize(("speed", "joins"), [(1.0, "old"), (0.99, None)])
def test_a_pair_that_slows_nobody_is_made_even_then(speed: float, joins: str | None) -> None:
    decision = decided(ESTIMATE_S, speed=speed)
    assert beside(decision) == joins
    assert reason(decision, PairSpeed).floor == 1.0


def test_who_would_wait_shares_however_calm_it_is() -> None:
    decision = decided(ESTIMATE_S, idle=False)
    assert beside(decision) == "old"
    assert reason(decision, PairSpeed).floor == 0.5


def test_who_waits_ends_the_calm_and_who_starts_does_not() -> None:
    vc = part(nodes(1, 2), [waits("small"), waits("large", gpus=2)])
    calm = {"vc": CalmSince(0.0)}
    lucid = policy("lucid", profiling={"enabled": False})
    plan = lucid.plan(replace(snap(60.0, vc), memory=calm))
    assert [type(plan.partitions["vc"].decisions[name]) for name in ("small", "large")] == [Start, Hold]
    assert plan.memory == {"vc": CalmSince(None)}
    started = part(nodes(1, 2), [waits("small")])
    assert lucid.plan(replace(snap(70.0, started), memory=calm)).memory == calm


def test_an_empty_queue_keeps_the_calm_and_no_sharing_keeps_none() -> None:
    vc = part(nodes(1, 2), (), [runs("old", "n1:0")])
    assert policy("lucid").plan(snap(60.0, vc)).memory == {"vc": CalmSince(60.0)}
    assert policy("lucid").plan(replace(snap(60.0, vc), memory={"vc": CalmSince(5.0)})).memory == {
        "vc": CalmSince(5.0)
    }
    assert policy("lucid", packing={"gss": 0}).plan(snap(60.0, vc)).memory == {}


def test_in_a_calm_pool_a_job_borrows_rather_than_slow_another() -> None:
    """Without the calm it looks for a partner before it borrows."""

    def of(name: str) -> Pending:
        entry = waits(name, profile=LIGHT)
        return replace(entry, job=replace(entry.job, vc="a"))

    host = runs("old", "n1:0", profile=LIGHT)
    host = replace(host, job=replace(host.job, vc="a"))
    pool = replace(part(nodes(1, 2), [of("new")], [host]), quotas={"a": 1, "b": 1})
    found = snap(9000.0, pool, predictions={"new": guess(ESTIMATE_S, 0), "old": guess(9e9, 0)})
    predictor = FixedPredictor(speed=lambda a, b: (0.9, 0.9))
    rules = {"profiling": {"enabled": False}, "lending": {"mode": "borrow"}}
    for since_s, joins in ((9000.0 - ESTIMATE_S, None), (8000.0, "old")):
        calm = replace(found, memory={pool.name: CalmSince(since_s)})
        decision = decide("lucid", calm, predictor, **rules).decisions["new"]
        assert beside(decision) == joins
        if joins is None:
            assert reason(decision, Borrows)


def test_the_memory_limit_is_a_tenth_and_a_context_above_the_peak() -> None:
    assert memory_limit_mib(JobProfile(50, 20, 8000), 24576) == 9312


def test_an_unmeasured_job_and_one_that_fills_the_card_have_no_memory_limit() -> None:
    assert memory_limit_mib(None, 24576) is None
    assert memory_limit_mib(JobProfile(50, 20, 22000), 24576) is None
    assert memory_limit_mib(JobProfile(50, 20, 0), 24576) is None
