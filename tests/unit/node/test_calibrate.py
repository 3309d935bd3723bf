"""Calibration: its tables, and its mechanism on the emulated driver with stand-ins for training jobs."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.calibrate.__main__ import calibrate
from benchmarks.calibrate.measure import steps_between
from lucid.binder.contention import contention_speeds
from lucid.core.job import JobProfile
from lucid.errors import ConfigError
from lucid.models.packing.measured import read_pairs, read_profiles, shipped
from lucid.simulator.cluster.truth import read_pairs as read_truth
from nvml_emulator import Board, Gpu, build, node_environment


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


def test_share_scores_are_trained_on_the_synthetic_table_and_it_shows(tmp_path: Path) -> None:
    from lucid.cli.learn.models import models

    library = ["--library", str(tmp_path)]
    done = CliRunner().invoke(models, ["train", "share", "--synthetic", *library, "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)
    assert "synthetic" in "".join(path.read_text() for path in tmp_path.rglob("*.json*"))
    both = CliRunner().invoke(models, ["train", "--synthetic", "--pairs", "x.csv", *library])
    assert isinstance(both.exception, ConfigError)
