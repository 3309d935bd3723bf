"""The sampler's rounds, on readings made up here; then the real process on the emulated driver."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from examples import examples
from lucid.core.gpu import GpuCard, GpuLost, GpuProcess, GpuReading
from lucid.core.ports import GpuMetrics
from lucid.errors import ConfigError, MetricsError
from lucid.node.processes import JobSpec, Owners, read_job_specs, write_job_spec
from lucid.node.reports import read_profile_files
from lucid.node.sampler import Sampler
from lucid.node.service import NodePaths, metrics_from, running_pid
from lucid.node.spool import read_run
from lucid.profiler.samples import Sample
from nvml_emulator import Board, Gpu, node_environment, uuid_of


class Readings:
    """A source whose answers the test sets."""

    name = "test"

    def __init__(self) -> None:
        self.now: dict[str, GpuReading | GpuLost] = {}
        self.fail = False

    def tell(self, *reading: float, **more: Any) -> None:
        """Of the one GPU there is."""
        self.now = {"GPU-0": GpuReading("GPU-0", *reading, **more)}

    def cards(self) -> Sequence[GpuCard]:
        return [GpuCard(uuid, i, "card") for i, uuid in enumerate(sorted(self.now))]

    def read(self, uuids: Collection[str]) -> Mapping[str, GpuReading | GpuLost]:
        if self.fail:
            raise MetricsError("the driver is gone")
        return {uuid: self.now.get(uuid, GpuLost(uuid, "not there")) for uuid in uuids}

    def conditions(self) -> None:
        return None

    def xids(self) -> dict[int, list[int]]:
        return {}

    def close(self) -> None:
        pass


class Given(Owners):
    """Processes 100-199 are job a's, 200-299 job b's."""

    def job_of(self, pid: int, given: Mapping[int, str]) -> str | None:
        return {1: "a", 2: "b"}.get(pid // 100)


@pytest.fixture
def source() -> Readings:
    return Readings()


def a_sampler(folder: Path, source: GpuMetrics, owners: Owners | None = None, **more: Any) -> Sampler:
    (folder / "profiles").mkdir(exist_ok=True)
    return Sampler(source, folder / "spool", folder / "profiles", "n1", owners=owners or Given(), **more)


@pytest.fixture
def sampler(source: Readings, tmp_path: Path) -> Sampler:
    return a_sampler(tmp_path, source)


def ticks(sampler: Sampler, jobs: list[JobSpec], start: int, count: int) -> None:
    for second in range(start, start + count):
        sampler.tick({job.job: job for job in jobs}, float(second))


A, B, ON_0 = JobSpec("a", ("GPU-0", "GPU-1")), JobSpec("b", ("GPU-0", "GPU-1")), JobSpec("a", ("GPU-0",))


def test_two_jobs_of_a_pair_are_told_apart(sampler: Sampler, source: Readings, tmp_path: Path) -> None:
    alone = (GpuProcess(101, 3000, 60, 30),)
    source.now = {gpu: GpuReading(gpu, 60, 30, 3200, processes=alone) for gpu in A.gpus}
    ticks(sampler, [A], 0, 60)
    both = (GpuProcess(101, 3000, 45, 20), GpuProcess(201, 5000, 40, 15), GpuProcess(202, 1000, 10, 5))
    source.now = {gpu: GpuReading(gpu, 95, 50, 9300, processes=both) for gpu in A.gpus}
    ticks(sampler, [A, B], 60, 60)
    a, b = sampler.summary("a"), sampler.summary("b")
    assert (a.partner, b.partner) == ("b", "a")
    assert (a.profile.gpu_util, a.profile.gpu_mem_mib) == (60, 3200)
    assert (a.together.gpu_util, a.together.mem_util, a.together.mem_mib) == (45, 20, 3000)
    assert (b.together.gpu_util, b.together.mem_util, b.together.mem_mib) == (50, 20, 6000)
    assert (b.together.card_util, b.profile) == (95, None)
    samples = {run.name[0]: [sample.gpus[0] for _, sample in read_run(run)] for run in (tmp_path / "spool").iterdir()}
    assert (len(samples["a"]), len(samples["b"]), samples["b"][0].own_util) == (120, 60, 50)
    assert [one.shared for one in samples["a"]] == [False] * 60 + [True] * 60


def test_in_a_group_of_three_nobody_knows_how_fast_each_runs(sampler: Sampler, source: Readings) -> None:
    """What three do together on a card is not the work of two."""
    jobs = [JobSpec(name, ("GPU-0",)) for name in "abc"]
    source.tell(30, 20, 900, sm_active=20.0)
    for at, job in enumerate(jobs):  # each alone at first
        ticks(sampler, [job], 100 * at, 60)
        ticks(sampler, [], 100 * at + 60, 1)
    source.tell(90, 60, 2700, sm_active=54.0)
    ticks(sampler, jobs, 300, 90)
    assert sampler.summary("a").profile.seen_speed is None
    source.tell(60, 40, 1800, sm_active=36.0)
    ticks(sampler, jobs[:2], 390, 50)
    assert sampler.summary("a").profile.seen_speed is None, "not for long enough"
    ticks(sampler, jobs[:2], 440, 30)
    found = sampler.summary("a").profile
    assert (found.seen_speed, found.seen_beside) == (pytest.approx(0.9), "b")


def test_beside_a_busy_partner_a_process_that_is_not_listed_did_nothing(sampler: Sampler, source: Readings) -> None:
    source.tell(90, 40, 900, processes=(GpuProcess(101, 400), GpuProcess(201, 400, 90, 40)))
    ticks(sampler, [ON_0, JobSpec("b", ("GPU-0",))], 0, 3)
    assert sampler.summary("a").together.gpu_util == 0


def test_indices_are_resolved_and_unknown_gpus_found_by_processes(sampler: Sampler, source: Readings) -> None:
    source.now = {f"GPU-{i}": GpuReading(f"GPU-{i}", 50, 10, 100, processes=()) for i in range(3)}
    source.now["GPU-2"] = GpuReading("GPU-2", 70, 10, 900, processes=(GpuProcess(201, 800, 70),))
    ticks(sampler, [JobSpec("a", ("1",)), JobSpec("b")], 0, 2)
    assert [sampler.summary(job).gpus for job in "ab"] == [("GPU-1",), ("GPU-2",)]


def test_lost_gpus_an_xid_and_a_silent_driver_are_noted_and_survived(sampler: Sampler, source: Readings) -> None:
    source.now = {gpu: GpuReading(gpu, 60, 30, 3200, processes=()) for gpu in A.gpus}
    well = source.now["GPU-0"]
    ticks(sampler, [A], 0, 10)
    source.now["GPU-0"] = GpuReading("GPU-0", 60, 30, 3200, processes=(), xid=79)
    ticks(sampler, [A], 10, 1)
    source.now["GPU-0"] = GpuLost("GPU-0", "GPU is lost")
    ticks(sampler, [A], 11, 5)
    source.fail = True
    ticks(sampler, [A], 16, 5)
    source.fail = False
    source.now["GPU-0"] = well
    ticks(sampler, [A], 21, 40)
    found = sampler.summary("a")
    assert found.samples == 61
    assert found.notes[:2] == ("Xid 79 (fallen off the bus) on GPU-0", "GPU-0 was lost: GPU is lost")
    assert "the driver is gone" in found.notes[2]
    assert found.profile.gpu_util == 60


def test_a_pair_that_is_not_under_mps_says_why(source: Readings, tmp_path: Path) -> None:
    slicing = tmp_path / "mps/slicing"
    slicing.mkdir(parents=True)
    (slicing / "75").write_text("GPU-0\ncross-user: the daemon of these GPUs is user 7's\n")
    sampler = a_sampler(tmp_path, source, mps=tmp_path / "mps")
    source.now = {uuid: GpuReading(uuid, 50, 20, 2000) for uuid in ("GPU-0", "GPU-1")}
    ticks(sampler, [JobSpec("70_3", ("GPU-0",), slurm_id="75"), JobSpec("76", ("GPU-1",))], 0, 3)
    (note,) = sampler.summary("70_3").notes
    assert note == "shares by time-slicing: cross-user: the daemon of these GPUs is user 7's"
    assert sampler.summary("76").notes == ()


def test_a_summary_comes_every_ten_seconds_and_at_the_end(sampler: Sampler, source: Readings, tmp_path: Path) -> None:
    source.tell(60, 30, 3200, processes=())
    job = JobSpec("a", ("GPU-0",), amp=True, workload="u/train")
    path = tmp_path / "profiles" / "a.json"
    seen = []
    for second in range(40):
        ticks(sampler, [job], second, 1)
        seen.append(json.loads(path.read_bytes())["samples"])
    assert sorted(set(seen)) == [1, 11, 21, 31]
    ticks(sampler, [], 40, 1)
    summary = read_profile_files(tmp_path / "profiles").summaries["a"][0]
    assert summary.samples == 40
    assert (summary.profile.amp, summary.profile.workload) == (True, "u/train")


def test_a_new_sampler_takes_up_where_a_killed_one_left(source: Readings, tmp_path: Path) -> None:
    source.tell(60, 30, 3200, processes=())
    for start in (0, 30):
        fresh = a_sampler(tmp_path, source)
        ticks(fresh, [ON_0], start, 30)  # and is never closed
    found = fresh.summary("a")
    assert (found.samples, found.start_s) == (60, 0)
    assert found.notes == ("sampling was interrupted after sample 29",)
    assert found.profile is not None


def test_files_that_announce_nothing_are_passed_over(tmp_path: Path) -> None:
    write_job_spec(tmp_path, JobSpec("7", ("0",), pids=(5,)))
    for name, text in (("8", "{"), ("9", "[1]"), ("a", '{"job": "../x"}')):
        (tmp_path / f"{name}.json").write_text(text)
    assert list(read_job_specs(tmp_path)) == [JobSpec("7", ("0",), pids=(5,))]
    assert list(read_job_specs(tmp_path / "none")) == []
    for name in ("", "a/b", ".x", "a@b"):
        with pytest.raises(ConfigError, match="cannot name a file"):
            JobSpec(name)


def test_an_unknown_source_lists_the_known() -> None:
    with pytest.raises(ConfigError, match="known are nvml and"):
        metrics_from("rocm")
    assert metrics_from("http://localhost:9400/metrics").name == "dcgm-exporter+nvml"


class Node:
    """A node of its own: folders, emulated GPUs, and the command line of the sampler."""

    def __init__(self, tmp_path: Path, library: Path) -> None:
        self.paths = NodePaths(tmp_path / "run", tmp_path / "spool", tmp_path / "profiles")
        self.board = Board(tmp_path / "state", {0: Gpu(), 1: Gpu()})
        self.board.write()
        self.env = node_environment(library, self.board.path)

    def command(self, *arguments: str, interval: float = 0.02) -> list[str]:
        paths = self.paths
        options = ["--run-dir", paths.run, "--spool", paths.spool, "--profiles", paths.profiles]
        options += ["--interval", interval, "--node", "n1"]
        return [sys.executable, "-m", "lucid.node", *map(str, options), *arguments]

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = self.command(*arguments)
        return subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=60, check=False)

    def samples(self) -> list[Sample]:
        return [sample for run in sorted(self.paths.spool.glob("*@*")) for _, sample in read_run(run)]

    def wait_for_sampler(self) -> int:
        until(lambda: running_pid(self.paths))
        return running_pid(self.paths) or 0

    def end(self) -> None:
        pid = running_pid(self.paths)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def node(tmp_path: Path, library: Path) -> Iterator[Node]:
    node = Node(tmp_path, library)
    yield node
    node.end()


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 30.0
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def test_samples_go_with_the_job_where_no_sampler_is_left(node: Node) -> None:
    node.call("start", "--job", "7", "--gpus", "0")
    pid = node.wait_for_sampler()
    until(node.samples)
    os.kill(pid, signal.SIGKILL)
    until(lambda: running_pid(node.paths) is None)
    assert node.call("stop", "--job", "7").returncode == 0
    assert list(node.paths.spool.iterdir()) == []


def test_only_one_sampler_runs_and_one_without_a_folder_says_so(node: Node, tmp_path: Path) -> None:
    with subprocess.Popen(node.command("run", "--stay"), env=node.env) as service:
        node.wait_for_sampler()
        assert node.call("run", "--stay").returncode == 1
        service.terminate()
        assert service.wait(20) == 0
    (tmp_path / "file").write_text("")
    node.paths = NodePaths(tmp_path / "file", tmp_path / "spool", tmp_path / "profiles")
    refused = node.call("run")
    assert refused.returncode == 2
    assert "cannot be created" in refused.stderr


TOTAL = examples(10_000)


def test_of_all_samples_none_is_lost_and_none_doubled_over_killed_samplers(node: Node, tmp_path: Path) -> None:
    """The sampler is killed (SIGKILL) at random moments and started again; in the end every number is there once, and
    the driver was asked hardly oftener than that."""
    chance = random.Random(7)
    count = tmp_path / "count"
    node.env["LUCID_NVML_COUNT"] = str(count)
    node.paths.make()
    write_job_spec(node.paths.jobs, JobSpec("7", (uuid_of(0),)))
    kills = 0
    count.touch()
    while count.stat().st_size < TOTAL:
        enough = count.stat().st_size + chance.randint(10, TOTAL // 4)
        with subprocess.Popen(node.command("run", "--stay", interval=0.002), env=node.env) as process:
            until(lambda enough=enough: count.stat().st_size >= enough)
            time.sleep(chance.uniform(0.0, 0.005))
            process.kill()
            kills += 1
    samples = node.samples()
    assert [sample.seq for sample in samples] == list(range(len(samples)))
    assert kills > 3
    # a reading in hand when the sampler is killed was never a sample; there is at most one at each kill
    assert len(samples) <= count.stat().st_size <= len(samples) + kills
    times = [sample.at_s for sample in samples]
    assert times == sorted(times)
    assert sum(path.stat().st_size for path in node.paths.spool.rglob("*.seg")) < 30 * len(samples)


class Mps(Given):
    """Process 900 is an MPS server."""

    def serves_mps(self, pid: int) -> bool:
        return pid == 900


def test_under_mps_a_jobs_own_share_of_time_is_unknown_not_nothing(source: Readings, tmp_path: Path) -> None:
    """As one H100 told of a pair under MPS: all work is charged to the server, memory to the jobs."""
    sampler = a_sampler(tmp_path, source, Mps())
    other, a, b = JobSpec("b", ("GPU-0",)), GpuProcess(101, 1682), GpuProcess(201, 1682)
    source.tell(90, 30, 2300, sm_active=50, processes=(GpuProcess(900, 66, 90, 30), b))
    ticks(sampler, [other], 0, 60)
    ticks(sampler, [], 60, 1)
    source.tell(90, 30, 2300, sm_active=50, processes=(GpuProcess(900, 66, 90, 30), a))
    ticks(sampler, [ON_0], 100, 60)
    source.tell(97, 38, 3900, sm_active=70, processes=(GpuProcess(900, 66, 97, 38), a, b))
    ticks(sampler, [ON_0, other], 160, 90)
    found = read_profile_files(tmp_path / "profiles")
    (summary,) = found.summaries["a"]
    assert (summary.together.gpu_util, summary.together.mem_util, summary.together.mem_mib) == (None, None, 1682)
    assert (summary.together.card_util, summary.seen_by) == (97, "SM activity")
    assert found.profiles["a"].seen_speed == pytest.approx(0.7)


def test_an_mps_server_is_known_by_its_name(tmp_path: Path) -> None:
    for pid, name in ((900, "nvidia-cuda-mps-server"), (901, "python3")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "comm").write_text(name[:15] + "\n")
    owners = Owners(proc=tmp_path)
    assert [owners.serves_mps(pid) for pid in (900, 901, 902)] == [True, False, False]


def test_the_sampler_loads_nothing_large() -> None:
    """A process on every node must stay small: no libraries of arithmetic, settings or learning."""
    names = "{name.partition('.')[0] for name in sys.modules}"
    code = f"import lucid.node.command, lucid.node.service, sys; print(*{names})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"numpy", "scipy", "pandas", "sklearn", "interpret", "matplotlib", "click", "rich", "jinja2"}
    heavy |= {"ssl", "http"}
    assert heavy & set(done.stdout.split()) == set()
