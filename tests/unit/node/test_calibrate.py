"""Calibration: its tables, and its mechanism on the emulated driver with stand-ins for training jobs."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.calibrate.__main__ import calibrate
from benchmarks.calibrate.measure import Calibration, Rates, steps_between
from benchmarks.calibrate.mps import sharing_environment
from benchmarks.calibrate.suite import MODELS, pairs_of, suite, workload_of
from benchmarks.calibrate.tables import Circumstances, tables
from benchmarks.calibrate.worker import train_step
from lucid.binder.contention import contention_speeds
from lucid.core.gpu import GpuCard, GpuLost, GpuReading
from lucid.core.job import JobProfile
from lucid.errors import ConfigError
from lucid.models.packing.measured import read_pairs, read_profiles, shipped
from lucid.simulator.cluster.truth import read_pairs as read_truth
from nvml_emulator import Board, Gpu, build, node_environment


class Steady:
    """A source that always says the same."""

    name = "steady"

    def __init__(self, reading: GpuReading | GpuLost) -> None:
        self.reading = reading

    def cards(self) -> Sequence[GpuCard]:
        return [GpuCard("GPU-a", 0, "card")]

    def read(self, uuids: Collection[str]) -> Mapping[str, GpuReading | GpuLost]:
        return dict.fromkeys(uuids, self.reading)

    def conditions(self) -> None:
        return None

    def xids(self) -> dict[int, list[int]]:
        return {}

    def close(self) -> None:
        pass


BUSY = GpuReading("GPU-a", 70, 30, 4000, sm_active=50, dram_active=20)


def run(
    tmp_path: Path, only: tuple[str, ...] = ("rl", "embedding"), reading: GpuReading | GpuLost = BUSY
) -> Calibration:
    workloads = [w for w in suite(quick=True) if w.model in only]
    return Calibration(tmp_path, workloads, Steady(reading), "GPU-a", Rates(0.0, 0.8), device="none")


def test_the_suite_covers_kinds_batches_and_amp() -> None:
    full = suite(quick=False)
    assert len(full) == 32 == len({w.key for w in full})
    assert {w.model for w in full} == set(MODELS)
    assert len(pairs_of(full)) == 32 * 33 // 2
    assert len(pairs_of(suite(quick=True))) == 21
    assert all(0 < w.nominal.gpu_util <= 100 and 0 < w.nominal.mem_util <= 100 for w in full)
    assert workload_of("rnn/tokens-64/128/1") in full
    with pytest.raises(ConfigError, match="models: cnn-wide"):
        workload_of("rnn")


def test_the_shipped_tables_are_what_the_command_makes_and_say_they_are_synthetic(tmp_path: Path) -> None:
    done = CliRunner().invoke(calibrate, ["--synthetic", "--out", str(tmp_path)])
    assert done.exit_code == 0
    assert done.output.count("(synthetic)") == 3
    assert shipped("share.json").read_text() == (tmp_path / "share.json").read_text()
    for name in ("profiles.csv", "pairs.csv"):
        assert shipped(name).read_text() == (tmp_path / name).read_text()
        with shipped(name).open() as file:
            assert all(row["source"] == "synthetic: contention model" for row in csv.DictReader(file))
    profiles = read_profiles(shipped("profiles.csv"))
    pairs = read_pairs(shipped("pairs.csv"), profiles)
    assert (len(profiles), len(pairs)) == (32, 526)
    assert len(read_truth(shipped("pairs.csv"))) == len(pairs)
    one = pairs[40]
    a, b = (JobProfile(u.gpu_util, u.gmem_util, u.gmem_mib) for u in (one.first, one.second))
    assert (one.speed_first, one.speed_second) == pytest.approx(contention_speeds(a, b), abs=1e-4)


def test_speed_is_read_between_whole_steps() -> None:
    report = "1.0 10\n2.0 20\n3.0 40\n4.0 60\n5.5 70\nbroken line\n6"
    assert steps_between(report, 1.5, 4.2) == 20.0
    assert steps_between(report, 4.5, 9.0) is None
    assert steps_between("1.0 1\n2.0 3\n", 0, 9) is None


def test_alone_then_pairs_relative_to_alone(tmp_path: Path) -> None:
    calibration = run(tmp_path)
    assert [task.key.count("+") for task in calibration.tasks] == [0, 0, 1, 1, 1]
    calibration.run()
    assert calibration.failed == {}
    assert calibration.open == []
    written = tables(
        calibration.alone(), calibration.together(), Circumstances("measured", "mps", "card", "550", "today")
    )
    for name, text in written.items():
        (tmp_path / name).write_text(text)
    profiles = read_profiles(tmp_path / "profiles.csv")
    assert [(u.gpu_util, u.gmem_mib) for u in profiles] == [(70, 4000)] * 2
    pairs = read_pairs(tmp_path / "pairs.csv", profiles)
    assert len(pairs) == 3
    assert all(0.1 < speed < 5 for pair in pairs for speed in (pair.speed_first, pair.speed_second))
    with (tmp_path / "pairs.csv").open() as file:
        row = next(csv.DictReader(file))
    assert (row["sharing"], row["card"], row["driver"], row["source"]) == ("mps", "card", "550", "measured")


def test_what_was_measured_is_not_measured_again_and_a_torn_line_is(tmp_path: Path) -> None:
    run(tmp_path, ("rl",)).run()
    path = tmp_path / "results.jsonl"
    lines = path.read_text().splitlines()
    assert len(lines) == 2
    assert run(tmp_path, ("rl",)).open == []
    path.write_text(lines[0] + "\n" + lines[1][:40])
    again = run(tmp_path, ("rl",))
    assert [task.key.count("+") for task in again.open] == [1]
    again.run()
    assert len(run(tmp_path, ("rl",)).together()) == 1
    path.write_text("nonsense\n" + lines[0] + "\n")
    with pytest.raises(ConfigError, match="line 1 is no result"):
        run(tmp_path)


def test_failures_are_kept_and_said(tmp_path: Path) -> None:
    calibration = run(tmp_path, ("rl",), GpuLost("GPU-a", "GPU is lost"))
    said: list[str] = []
    calibration.run(said.append)
    assert len(said) == 2
    assert all("GPU is lost" in text for text in calibration.failed.values())
    idle = run(tmp_path / "idle", ("rl",), GpuReading("GPU-a", 0, 0, 10))
    idle.run()
    assert "stayed idle" in next(iter(idle.failed.values()))
    assert idle.together() == []


def test_a_job_that_ends_is_told_with_its_last_words(tmp_path: Path) -> None:
    workloads = [w for w in suite(quick=True) if w.model == "rl"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    broken = tmp_path / "numpy.py"
    broken.write_text("raise ImportError('CUDA out of memory')\n")
    calibration = Calibration(
        tmp_path, workloads, Steady(BUSY), "GPU-a", Rates(0, 0.5), device="none",
        environment={**environment, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(__file__).parents[3])])},
    )  # fmt: skip
    calibration.run()
    assert all("a job ended with 1: ImportError: CUDA out of memory" in text for text in calibration.failed.values())


def test_mps_that_is_not_there_is_refused_and_a_foreign_daemon_is_not_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="take --sharing time-slicing"), sharing_environment("mps", "GPU-a"):
        pass
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
    with sharing_environment("time-slicing", "GPU-a") as environment:
        assert environment["CUDA_VISIBLE_DEVICES"] == "GPU-a"
        assert list(Path(environment["CUDA_MPS_PIPE_DIRECTORY"]).iterdir()) == []


def test_the_command_resumes_after_it_was_killed(tmp_path: Path) -> None:
    pytest.importorskip("pynvml")
    library = build(tmp_path / "lib")
    board = Board(tmp_path / "state", {0: Gpu(60, 20, 3000)})
    board.write()
    command = [sys.executable, "-m", "benchmarks.calibrate", "--out", str(tmp_path / "out"), "--quick"]
    command += ["--device", "none", "--sharing", "time-slicing", "--settle", "0", "--measure", "0.6"]
    command += ["--only", "rl", "--json"]
    environment = node_environment(library, board.path)
    results = tmp_path / "out" / "results.jsonl"
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, start_new_session=True) as first:
        end = time.monotonic() + 60
        while not (results.exists() and results.read_text().count("\n") >= 1):
            assert time.monotonic() < end
            time.sleep(0.1)
        os.killpg(first.pid, signal.SIGKILL)
    kept = results.read_text().splitlines()[:1]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True)
    said = json.loads(done.stdout)
    assert said["source"] == "mechanism only, jobs on none"
    assert (said["alone"], said["pairs"], said["failed"]) == (1, 1, {})
    assert results.read_text().splitlines()[:1] == kept
    tasks = [json.loads(line)["task"] for line in results.read_text().splitlines()]
    assert len(tasks) == len(set(tasks)) == 2


def test_without_a_gpu_only_the_synthetic_table_is_offered(tmp_path: Path) -> None:
    environment = {**os.environ, "LUCID_NVML_STATE": str(tmp_path / "none")}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.calibrate", "--out", str(tmp_path / "out")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 5
    assert "only --synthetic is possible" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("workload", [w for w in suite(quick=False) if w.batchsize == 64 or w.model in ("rnn", "rl")])
def test_every_kind_of_job_trains_on_the_cpu(workload: object) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from dataclasses import replace

    from benchmarks.calibrate.suite import Workload

    assert isinstance(workload, Workload)
    torch.set_num_threads(1)
    data = workload.dataset.replace("224", "32").replace("512", "16")
    train_step(replace(workload, batchsize=2, dataset=data), torch, "cpu")()


def test_share_scores_are_trained_on_the_synthetic_table_and_it_shows(tmp_path: Path) -> None:
    from lucid.cli.learn.models import models

    library = ["--library", str(tmp_path)]
    done = CliRunner().invoke(models, ["train", "share", "--synthetic", *library, "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)
    assert "synthetic" in "".join(path.read_text() for path in tmp_path.rglob("*.json*"))
    both = CliRunner().invoke(models, ["train", "--synthetic", "--pairs", "x.csv", *library])
    assert isinstance(both.exception, ConfigError)
