"""Programs written for AdaptDL, unchanged, on a real Slurm under Pollux: the real AdaptDL and PyTorch, on CPUs.

LUCID_ADAPTDL_PYTHON names a Python that has them (`make test-adaptdl` makes one). It is mounted into the testbed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from box import Box
from daemon_box import REPO, Lucidd
from elastic_box import REPORTS, elastic_lucidd
from testbeds import copy, python_in

PYTHON = os.environ.get("LUCID_ADAPTDL_PYTHON", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="LUCID_ADAPTDL_PYTHON names no Python with AdaptDL: make test-adaptdl"),
]
HOME, CHECKPOINTS = "opt/adaptdl", "tmp/lucid-checkpoints"
SHIPPED = [REPO / "slurm" / name for name in ("lucid_job", "lucid_run.py", "lucid_report.py")]
EPOCHS = 90


@pytest.fixture
def script(box: Box) -> Iterator[str]:
    """How a batch script starts the user's program; its arguments are to follow."""
    for folder in (CHECKPOINTS, REPORTS):
        box.open_folder(folder)
    with python_in(box, PYTHON, HOME) as python:
        (box.root / HOME / "lucid").mkdir(exist_ok=True)
        for path in (*SHIPPED, REPO / "tests/adaptdl_train.py"):
            copy(path, box.root / HOME / "lucid")
        yield (
            f"export LUCID_REPORTS=/{REPORTS} {python.environment}; "
            f"exec {python.program} /{HOME}/lucid/lucid_run.py --adaptdl --checkpoints /{CHECKPOINTS} "
            f"{python.program} -W ignore /{HOME}/lucid/adaptdl_train.py"
        )


@pytest.fixture
def lucidd(box: Box, tmp_path: Path) -> Iterator[Lucidd]:
    daemon = elastic_lucidd(box, tmp_path / "state", "pollux", every_s=10.0, round_s=10.0)
    with box.configured(KillWait=30):
        daemon.start()
        yield daemon
        daemon.close()


def epochs_done(box: Box, number: str) -> list[tuple[int, int, int]]:
    """As rank 0 says: epoch, number of ranks, total batch."""
    lines = [line.split() for line in box.output(number).splitlines() if line.startswith("EPOCH ")]
    return [(int(w[1]), int(w[5]), int(w[7])) for w in lines if w[3] == "0"]


def test_an_unchanged_job_grows_and_its_agent_chooses_the_batch(box: Box, lucidd: Lucidd, script: str) -> None:
    number = box.sbatch(
        "-p", "vc-a", "--gres=gpu:1", "--requeue", "--open-mode=append",
        f"--comment=lucid:elastic=1-2,epochs={EPOCHS}", script=f"{script} {EPOCHS} 0.05",
    )  # fmt: skip
    rigid = box.sbatch("-p", "vc-a", "--gres=gpu:1", script="sleep 40")
    box.wait("it has grown", lambda: box.job(number)["restart_cnt"] > 0 or box.state(number) == "FAILED", 120)
    told = lucidd.ctl("explain", number)
    box.wait_ended(number, rigid, limit_s=240)
    assert (box.state(number), box.state(rigid)) == ("COMPLETED", "COMPLETED"), box.output(number)
    done = epochs_done(box, number)
    report = json.loads(next((box.root / REPORTS).glob(f"u*/{number}.json")).read_text())
    sizes = [ranks for _, ranks, _ in done]
    batches, restarts = sorted({batch for *_, batch in done}), box.job(number)["restart_cnt"]
    print(told, report)
    print("restarts", restarts, "ranks", sorted(set(sizes)), "batches", batches)
    assert [epoch for epoch, *_ in done] == list(range(EPOCHS)), "each epoch was done once"
    assert sizes[0] == 1
    assert sizes[-1] == 2
    assert restarts == 1
    assert box.job(rigid)["restart_cnt"] == 0
    assert "resize" in told
    assert batches[-1] > 64, "the agent chose a larger batch"
    assert len(report["step_model"]) == 7
