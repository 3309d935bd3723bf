"""The real AdaptDL under lucid-run: a script that knows nothing of Lucid, stopped with two replicas.

Needs AdaptDL and PyTorch, which are no dependency of Lucid: `make test-adaptdl` makes an environment of their own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

import pytest
from test_lucid_run import RUN, environ, two_nodes

from lucid.slurm.elastic.reports import said_in
from scenes.jobs import HOME

PYTHON = os.environ.get("LUCID_ADAPTDL_PYTHON", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="LUCID_ADAPTDL_PYTHON names no Python with AdaptDL: make test-adaptdl"),
]

TRAIN = Path(__file__).resolve().parents[2] / "adaptdl_train.py"


def launch(folder: Path, log: IO[str], epochs: int, step_s: float, **more: str) -> subprocess.Popen[str]:
    for name in ("checkpoints", "reports"):
        (folder / name).mkdir(exist_ok=True)
    words = [PYTHON, "-W", "ignore", str(TRAIN), str(epochs), str(step_s)]
    return subprocess.Popen(
        [sys.executable, "-B", str(RUN), "--adaptdl", "--checkpoints", str(folder / "checkpoints"), *words],
        stdout=log, stderr=subprocess.STDOUT, text=True, env=environ(LUCID_REPORTS=str(folder / "reports"), **more),
    )  # fmt: skip


def epochs_of(path: Path, world: int) -> list[int]:
    """Those that rank 0 has done."""
    lines = [line.split() for line in path.read_text().splitlines()]
    return [
        int(words[1]) for words in lines if words[:1] == ["EPOCH"] and words[2:6] == ["rank", "0", "of", str(world)]
    ]


def test_an_unmodified_job_reports_stops_and_goes_on_at_another_size(tmp_path: Path) -> None:
    first, second, report = tmp_path / "first.log", tmp_path / "second.log", tmp_path / "reports" / HOME / "7.json"
    with first.open("w") as log, launch(tmp_path, log, 1000, 0.03, SLURM_GPUS_ON_NODE="2") as process:
        until = time.monotonic() + 240
        while not report.exists() or not epochs_of(first, 2):
            assert process.poll() is None, first.read_text()
            assert time.monotonic() < until, f"no hints came: {first.read_text()}"
            time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143, first.read_text()
    progress = said_in(report.read_bytes()).progress
    assert len(progress.step_model) == 7
    assert progress.gradient[1] > 0
    assert '"batch_range": [64, 256], "atomic_range": [16, 128], "accumulation": false' in report.read_text()
    done = epochs_of(first, 2)
    with (
        second.open("w") as log,
        launch(tmp_path, log, done[-1] + 4, 0.001, SLURM_GPUS_ON_NODE="1", SLURM_RESTART_COUNT="1") as process,
    ):
        assert process.wait(240) == 0, second.read_text()
    assert done + epochs_of(second, 1) == list(range(done[-1] + 4)), "each epoch was done once"


def test_an_unmodified_job_over_two_nodes(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("w") as file, launch(tmp_path, file, 2, 0.001, **two_nodes(tmp_path)) as process:
        assert process.wait(240) == 0, log.read_text()
    assert epochs_of(log, 3) == [0, 1]
