"""Pairs from the driver's readings to Slurm: a sampler process on emulated NVML, its summaries, and lucidd."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon_site import Site
from lucid.core.job import JobProfile
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
