"""A GPU that is out, on real daemons: neither Lucid nor Slurm starts anything on it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from box import Box
from daemon_box import Lucidd, has_measured, with_constant

NAME = "lucid-gpu-out:"
OWN = "own"


@pytest.fixture
def lucidd(box: Box, tmp_path: Path) -> Iterator[Lucidd]:
    program = with_constant("lucid.slurm.cluster", "PLACEHOLDER_S", 60.0)
    one = Lucidd(box, tmp_path / "lucidd", restarts="", program=program)
    has_measured(one, "train")
    with one:
        yield one
    box.stop_beating()
    box.run("scancel", "--user=lucid")
    box.wait("placeholders gone", lambda: not holders(box))


@pytest.fixture
def own(box: Box) -> Iterator[str]:
    """A partition over n1 that Lucid does not look after."""
    box.run("scontrol", "create", f"PartitionName={OWN}", "Nodes=n1", "State=UP")
    yield OWN
    box.run("scancel", f"--partition={OWN}")
    box.wait("its jobs gone", lambda: not box.run("squeue", "-h", f"--partition={OWN}").stdout.strip())
    box.run("scontrol", "delete", f"PartitionName={OWN}")


def holders(box: Box) -> dict[str, str]:
    """Placeholders that run or wait: state by GPU."""
    lines = box.run("squeue", "-h", "-u", "lucid", "-o", "%j %T").stdout.splitlines()
    found = dict(line.split() for line in lines)
    return {name.removeprefix(NAME): state for name, state in found.items() if name.startswith(NAME)}


def gpus_of(box: Box, job: str) -> str:
    """``gpu:g0:1``, as Slurm says what it holds."""
    text = box.run("scontrol", "show", "job", "-d", job).stdout
    return " ".join(word for word in text.split() if "IDX:" in word or word.startswith("GRES="))


def index_of(box: Box, job: str) -> int | None:
    return next((i for i in range(4) if f"g{i}:1" in gpus_of(box, job)), None)


def test_neither_lucids_nor_slurms_own_jobs_get_it_until_it_is_returned(box: Box, lucidd: Lucidd, own: str) -> None:
    first = box.sbatch("-p", own, "-w", "n1", "--gres=gpu:4", script="sleep 25", user="bob")
    box.wait("runs", lambda: box.state(first) == "RUNNING")
    assert "n1:2 is out" in lucidd.ctl("gpu", "out", "n1:2", "--reason", "noisy fan")
    box.wait("out", lambda: holders(box) == {"n1:2": "PENDING"}, 20)
    slurms = [box.sbatch("-p", own, "-w", "n1", "--gres=gpu:1", script="sleep 600") for _ in range(4)]
    box.wait_ended(first)
    assert box.state(first) == "COMPLETED"
    box.wait("held", lambda: holders(box) == {"n1:2": "RUNNING"}, 15)
    box.wait("three run", lambda: sum(box.state(job) == "RUNNING" for job in slurms) == 3, 15)
    assert {index_of(box, job) for job in slurms} - {None} == {0, 1, 3}
    box.run("scancel", f"--partition={own}")
    packed = [box.sbatch("-p", "vc-a", "-J", "train", "--gres=gpu:1", script="sleep 600") for _ in range(9)]
    box.wait("seven start", lambda: sum(box.state(job) == "RUNNING" for job in packed) >= 7, 40)
    time.sleep(3)
    on_n1 = [gpus_of(box, job) for job in packed if box.state(job) == "RUNNING" and box.job(job)["nodes"] == "n1"]
    assert on_n1
    assert not any(f"{kind}:g2:1" in held for held in on_n1 for kind in ("gpu", "shard"))
    box.run("scancel", *packed)
    assert "n1:2 is back" in lucidd.ctl("gpu", "return", "n1:2")
    box.wait("returned", lambda: not holders(box), 20)


def test_without_lucidd_slurm_has_the_gpu_back(box: Box, lucidd: Lucidd) -> None:
    assert "n1:2 is out" in lucidd.ctl("gpu", "out", "n1:2", "--reason", "noisy fan")
    box.wait("out", lambda: holders(box) == {"n1:2": "RUNNING"}, 20)
    time.sleep(75)
    assert holders(box) == {"n1:2": "RUNNING"}, "renewed"
    lucidd.kill()
    box.wait("Slurm's again", lambda: not holders(box), 180)
    lucidd.start()
    box.wait("kept again by what was said before", lambda: holders(box) == {"n1:2": "RUNNING"}, 20)
