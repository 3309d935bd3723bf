"""Samples taken in by the daemon: each once whoever is killed, bounded, and made into profiles and partings."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from test_daemon import Site

from lucid.adapters.estimates import WithContention
from lucid.adapters.gpu.profiles import ProfileFolder
from lucid.adapters.gpu.spool import SampleWriter
from lucid.adapters.slurm.client import Breaker
from lucid.adapters.store.pair_memory import PairMemoryFile
from lucid.adapters.store.port import LeaseLost
from lucid.adapters.store.sqlite import SqliteStore
from lucid.core.job import Job, JobProfile, Running
from lucid.core.placement import NodeGpus
from lucid.daemon import Daemon, Parts
from lucid.live import samples as live_samples
from lucid.live.samples import SampleIntake, WithSamples
from lucid.models.history import HistoryPredictor
from lucid.models.packing.pair_memory import WithMemory
from lucid.profiler.samples import GpuSample
from nvml_emulator import Board, Gpu, Proc, build, node_environment, uuid_of

WRITER = """
import sys
from pathlib import Path
from lucid.adapters.gpu.spool import SampleWriter
from lucid.profiler.samples import GpuSample
writer = SampleWriter(Path(sys.argv[1]), "7", "n1", 5.0, segment_records=1000)
while writer.next_seq < int(sys.argv[2]):
    writer.write(100.0 + writer.next_seq, ("GPU-a",), [GpuSample(1.0)])
writer.end()
"""
READER = """
import sys
from pathlib import Path
from lucid.adapters.clock import SystemClock
from lucid.adapters.store.sqlite import SqliteStore
from lucid.live.samples import SampleIntake
store = SqliteStore(Path(sys.argv[2]))
token = store.take_lease("me", 0.0, 1e12, takeover=True).token
intake = SampleIntake(Path(sys.argv[1]), store, SystemClock(), every_s=0.0)
while True:
    intake.take(token)
"""


class Clock:
    now = 1000.0

    def now_s(self) -> float:
        return self.now


class Desk:
    """A daemon's half: a store on disk and an intake, either of which may be lost at any time."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.spool, self.settings, self.clock = folder / "spool", {"every_s": 1.0, **settings}, Clock()
        self.path = folder / "lucid.db"
        self.restart()

    def restart(self) -> SampleIntake:
        """As after kill -9: only what was committed is there."""
        self.store = SqliteStore(self.path)
        lease = self.store.take_lease("me", 0.0, 1e9, takeover=True)
        assert lease is not None
        self.token = lease.token
        self.intake = SampleIntake(self.spool, self.store, self.clock, **self.settings)
        return self.intake

    def take(self) -> None:
        self.clock.now += 10.0
        self.intake.take(self.token)

    def numbers(self) -> list[tuple[str, int]]:
        return [(part.folder, sample.seq) for part in self.store.samples() for sample in part.samples]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def write(writer: SampleWriter, count: int, start_s: float = 1000.0, **gpu: Any) -> None:
    reading = GpuSample(**{"gpu_util": 40.0, "mem_util": 20.0, "mem_mib": 3000.0, **gpu})
    for _ in range(count):
        writer.write(start_s + writer.next_seq, ("GPU-a",), [reading])


class Killed(BaseException):
    pass


def killed(*_: Any) -> None:
    raise Killed


def _in_release(after: int) -> Callable[[pytest.MonkeyPatch], None]:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        unlink, done = Path.unlink, []

        def dies(path: Path, missing_ok: bool = False) -> None:
            if len(done) >= after:
                raise Killed
            done.append(path)
            unlink(path, missing_ok=missing_ok)

        monkeypatch.setattr(Path, "unlink", dies)

    return patch


MOMENTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "before it stores": lambda m: m.setattr(SqliteStore, "put_samples", killed),
    "within the transaction": lambda m: m.setattr("lucid.adapters.store.samples.pack", killed),
    "before it releases": lambda m: m.setattr(live_samples, "release", killed),
    "while it releases": _in_release(1),
    "later while it releases": _in_release(2),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_daemon_killed_at_any_moment_takes_each_sample_in_once(
    desk: Desk, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writers = {job: SampleWriter(desk.spool, job, "n1", 5.0, segment_records=10) for job in ("7", "8")}
    for round_ in range(4):
        for writer in writers.values():
            write(writer, 25)
        if round_ == 3:
            for writer in writers.values():
                writer.end()
        with monkeypatch.context() as patched:
            MOMENTS[moment](patched)
            with suppress(Killed):
                desk.take()
        desk.restart()
        if round_ % 2:
            desk.take()
    desk.take()
    desk.take()
    assert desk.numbers() == [(f"{job}@n1~5000", n) for job in ("7", "8") for n in range(100)]
    assert list(desk.spool.iterdir()) == [], "all of it was released"


@pytest.mark.slow
def test_processes_of_both_sides_killed_again_and_again_lose_and_double_nothing(tmp_path: Path) -> None:
    spool, path, total = tmp_path / "spool", tmp_path / "lucid.db", 40_000
    chance = random.Random(7)
    SqliteStore(path).close()
    watcher = SqliteStore(path, read_only=True)
    scripts = {"writer": (WRITER, str(spool), str(total)), "reader": (READER, str(spool), str(path))}
    alive: dict[str, subprocess.Popen[bytes]] = {}
    kills = taken = 0
    deadline = time.monotonic() + 900
    while taken < total:
        for name, words in scripts.items():
            if name not in alive or (name == "reader" and alive[name].poll() is not None):
                alive[name] = subprocess.Popen([sys.executable, "-c", *words], cwd=Path(__file__).parents[2])
        time.sleep(chance.uniform(0.2, 0.6) * (1 + kills / 10))  # a slow machine takes as long to start them
        taken = sum(watcher.sample_cursors().values())
        name = chance.choice(["writer", "reader"])
        if taken < total and (name == "reader" or alive[name].poll() is None):
            alive[name].kill()
            alive.pop(name).wait()
            kills += 1
        assert time.monotonic() < deadline
    for process in alive.values():
        process.kill()
        process.wait()
    numbers = [sample.seq for part in watcher.samples() for sample in part.samples]
    assert numbers == list(range(total))
    assert kills > 0


def test_a_sampler_killed_in_the_middle_of_a_record_costs_and_doubles_nothing(desk: Desk) -> None:
    for life in range(5):
        writer = SampleWriter(desk.spool, "7", "n1", 5.0 + life, segment_records=10)
        write(writer, 7)
        newest = max(desk.spool.glob("*/*.seg"))
        with newest.open("ab") as file:
            file.write(b"torn")
        if life % 2:
            desk.take()
    desk.take()
    assert desk.numbers() == [("7@n1~5000", n) for n in range(35)]


def test_a_second_daemon_takes_nothing_and_releases_nothing(desk: Desk) -> None:
    write(SampleWriter(desk.spool, "7", "n1", 5.0), 5)
    other = desk.store.take_lease("other", 1e9 + 1, 1e9)
    assert other is not None
    with pytest.raises(LeaseLost):
        desk.take()
    desk.clock.now += 10.0
    desk.intake.take(other.token)
    assert [seq for _, seq in desk.numbers()] == [0, 1, 2, 3, 4]


def test_what_is_kept_is_bounded_and_cursors_outlive_it(tmp_path: Path) -> None:
    desk = Desk(tmp_path, keep_s=900.0, most_bytes=24 * 30)
    writer = SampleWriter(desk.spool, "7", "n1", 5.0)
    write(writer, 20)
    desk.take()
    assert len(desk.numbers()) == 20
    for _ in range(3):
        write(writer, 20)
        desk.clock.now += 700.0  # looked at every ten minutes
        desk.take()
    assert [seq for _, seq in desk.numbers()] == list(range(60, 80)), "at most 30 records fit"
    desk.clock.now += 5000.0
    desk.take()
    assert desk.numbers() == [], "and none is kept for ever"
    desk.restart()
    write(writer, 3)
    desk.take()
    assert [seq for _, seq in desk.numbers()] == [80, 81, 82]


def test_a_clock_that_was_an_hour_ahead_stops_nothing(desk: Desk) -> None:
    writer = SampleWriter(desk.spool, "7", "n1", 5.0)
    for ahead_s in (3600.0, 0.0):
        write(writer, 5)
        desk.clock.now = 1000.0 + ahead_s
        desk.take()
    assert len(desk.numbers()) == 10


def test_what_samplers_gave_up_is_counted(desk: Desk) -> None:
    writer = SampleWriter(desk.spool, "7", "n1", 5.0, segment_records=10, most_segments=2)
    write(writer, 45)
    desk.take()
    assert (desk.intake.taken, desk.intake.missing) == (15, 30)
    desk.restart()
    desk.take()
    assert desk.intake.missing == 30


def test_a_folder_that_cannot_be_read_is_told_and_the_others_are_taken(desk: Desk) -> None:
    write(SampleWriter(desk.spool, "8", "n1", 5.0), 3)
    bad = desk.spool / "7@n1~5000"
    bad.mkdir()
    (bad / "0000000000.seg").write_text("nonsense\n")
    desk.take()
    assert len(desk.numbers()) == 3
    assert ["not a segment" in words for words in desk.intake.bad.values()] == [True]


def profiles(desk: Desk) -> dict[str, JobProfile]:
    return {reading.job_id: reading.profile for reading in desk.intake.new()}


def running(job: str, start_s: float, partner: str | None = None) -> Running:
    return Running(Job(job, "vc", 1, 0.0), start_s, (NodeGpus("n1", 1),), partner=partner)


def test_a_profile_comes_of_samples_and_goes_on_over_a_restart(desk: Desk) -> None:
    writer = SampleWriter(desk.spool, "7", "n1", 5.0)
    write(writer, 15)
    desk.take()
    assert profiles(desk) == {}, "twenty seconds of work are needed"
    desk.restart()
    write(writer, 15)
    desk.take()
    (found,) = profiles(desk).values()
    assert (found.gpu_util, found.mem_util, found.gpu_mem_mib, found.unstable) == (40.0, 20.0, 3000.0, False)
    write(writer, 1)
    desk.take()
    assert profiles(desk) == {}, "nothing much is new"


def test_a_pair_is_watched_by_who_stands_beside_whom_in_slurm(desk: Desk) -> None:
    writers = {job: SampleWriter(desk.spool, job, "n1", 5.0) for job in ("7", "8")}
    for writer in writers.values():
        write(writer, 60, dram_active=30.0)
    desk.take()
    desk.intake.watch([running("7", 1000.0, "8"), running("8", 1060.0, "7")])
    for writer in writers.values():
        write(writer, 90, dram_active=24.0, shared=True, own_util=20.0)
    desk.take()
    found = profiles(desk)
    assert {job: (p.seen_beside, p.seen_speed) for job, p in found.items()} == {"7": ("8", 0.4), "8": ("7", 0.4)}
    assert found["7"].gpu_util == 40.0, "its profile is of itself alone"
    desk.intake.watch([running("7", 1000.0)])
    write(writers["7"], 90, dram_active=30.0)
    desk.take()
    assert profiles(desk)["7"].seen_speed is None


def test_summaries_count_for_jobs_without_samples_only(desk: Desk, tmp_path: Path) -> None:
    from lucid.adapters.gpu.profile_files import write_summary
    from lucid.profiler.summary import Summary

    other = JobProfile(77.0, 7.0, 700.0)
    source = WithSamples(ProfileFolder(tmp_path / "profiles"), desk.intake)
    write(SampleWriter(desk.spool, "7", "n1", 5.0), 40)
    desk.take()
    (tmp_path / "profiles").mkdir()
    for job in ("7", "9"):
        write_summary(tmp_path / "profiles", Summary(job, "n1", ("GPU-a",), 0.0, 40.0, 40, other))
    assert {item.job_id: item.profile.gpu_util for item in source.new()} == {"7": 40.0, "9": 77.0}


# -- a sampler process on emulated NVML, through the spool, to a decision ------------------------------------------

SAMPLER = """
import json, sys
from pathlib import Path
from lucid.adapters.gpu.nvml import NvmlMetrics
from lucid.node.jobs import JobSpec
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
    """The site with a sampler process whose seconds are the site's; a job alone moves ``ALONE`` percent of its
    card's bandwidth, a pair ``both`` percent together."""

    ALONE = 30.0

    def __init__(self, folder: Path, library: Path, both: float) -> None:
        self.both = both
        self.spool, self.memory_path = folder / "spool", folder / "pairs.json"
        self.board = Board(folder / "state", {i: Gpu() for i in range(12)})
        self.board.write()
        self.works: dict[str, subprocess.Popen[bytes]] = {}
        super().__init__(folder)
        (folder / "none").mkdir()
        self.process = subprocess.Popen(
            [sys.executable, "-c", SAMPLER, str(self.spool), str(folder / "summaries")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=node_environment(library, self.board.path),
        )  # fmt: skip

    def start(self, holder: str = "one") -> Daemon:
        self.store = SqliteStore(self.folder / "lucid.db")
        intake = SampleIntake(self.spool, self.store, self.slurm, every_s=5.0)
        self.memory = PairMemoryFile(self.memory_path)
        self.predictor = WithMemory(WithContention(HistoryPredictor(2000.0)), self.memory)
        parts = Parts(
            self.settings, self.slurm, Breaker(lambda: self.slurm.now), self.store,
            WithSamples(ProfileFolder(self.folder / "none"), intake), self.slurm, self.predictor,
            memory=self.memory, samples=intake, monotonic_s=lambda: self.slurm.now,
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
                self.board.gpus[index] = Gpu(busy, busy / 2, 3000.0 * len(jobs), gpm=(busy, busy, moved), procs=procs)
            self.board.write()
            told = {job: (uuid_of(index), self.works[job].pid) for index, jobs in where.items() for job in jobs}
            self.process.stdin.write(json.dumps({"jobs": told, "from_s": self.slurm.now, "seconds": 10}) + "\n")
            self.process.stdin.flush()
            assert self.process.stdout.readline() == "sampled\n"
            self.slurm.advance(10.0)

    def pair(self) -> frozenset[str]:
        assert self.daemon.cluster is not None
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
    """From the driver's readings by sampler, spool and store to what Slurm is told; a daemon is killed on the way."""
    for job in ("1", "2"):
        watched.slurm.submit(job, "vc", 1, name=f"job{job}")
    watched.live(100)
    assert watched.pair() == {"1", "2"}, "profiled from samples, and packed by the contention model"
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
