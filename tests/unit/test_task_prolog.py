"""What the task prolog tells a job whose size changes, as Slurm runs it: under a plain POSIX shell, as the user."""

from __future__ import annotations

import subprocess
from pathlib import Path

PROLOG = Path(__file__).resolve().parents[2] / "slurm/task_prolog"


def told(folder: Path, squeue: str, **more: str) -> list[str]:
    """What it prints. ``squeue``: what Slurm answers, as a shell script."""
    fake = folder / "squeue"
    fake.write_text(f"#!/bin/sh\necho asked >> {folder}/asked\n{squeue}\n")
    fake.chmod(0o755)
    env = {
        "PATH": f"{folder}:/usr/bin:/bin", "LUCID_ELASTIC": "1", "SLURM_JOB_ID": "7", "SLURM_GPUS_ON_NODE": "4",
        "SLURM_JOB_NUM_NODES": "2", **more,
    }  # fmt: skip
    done = subprocess.run(["sh", str(PROLOG)], capture_output=True, text=True, check=True, env=env, timeout=30)
    assert done.stderr == ""
    return [line for line in done.stdout.splitlines() if line.startswith("export LUCID_")]


def test_gpus_of_all_nodes_are_slurms_count(tmp_path: Path) -> None:
    lines = told(tmp_path, "echo 'cpu=5,mem=5000M,node=2,billing=5,gres/gpu=5,gres/gpu:a100=5   '")
    assert lines == [
        "export LUCID_GPUS_HERE=4", "export LUCID_NODES=2", "export LUCID_GPUS=5", "export LUCID_RESTART=0"
    ]  # fmt: skip


def test_where_slurm_does_not_answer_the_nodes_count_as_equal(tmp_path: Path) -> None:
    for squeue in ("exit 1", "echo", "echo 'gres/gpu=$(id)'"):
        assert "export LUCID_GPUS=8" in told(tmp_path, squeue), squeue


def test_slurm_is_asked_only_by_the_batch_script_of_a_job_on_several_nodes(tmp_path: Path) -> None:
    assert "export LUCID_GPUS=4" in told(tmp_path, "exit 1", SLURM_JOB_NUM_NODES="1")
    assert not any("LUCID_GPUS=" in line for line in told(tmp_path, "exit 1", SLURM_STEP_ID="0"))
    assert not (tmp_path / "asked").exists()
