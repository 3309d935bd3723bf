"""A GPU that is not well, on real daemons: the sampler sees it on the emulated driver, and neither Lucid nor Slurm
starts anything on it. The sampler is the real process, and stands for that of node n1."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from box import Box
from daemon_box import REPO, Lucidd, has_measured, with_constant

from nvml_emulator import GPU_IS_LOST, Board, Gpu, build, node_environment

NAME = "lucid-gpu-out:"
OWN = "own"


class Node:
    """The GPUs of n1, and their sampler."""

    def __init__(self, folder: Path, profiles: Path) -> None:
        self.board = Board(folder / "state")
        self.heal()
        command = [sys.executable, "-m", "lucid.node", "--run-dir", folder / "run", "--spool", folder / "spool"]
        command += ["--profiles", profiles, "--node", "n1", "run", "--stay"]
        self.sampler = subprocess.Popen(
            [*map(str, command)], cwd=REPO, env=node_environment(build(folder / "nvml"), folder / "state")
        )

    def heal(self) -> None:
        self.board.gpus, self.board.fail = {i: Gpu() for i in range(4)}, {}
        self.board.write()

    def close(self) -> None:
        self.sampler.terminate()
        self.sampler.wait(10)


@pytest.fixture
def lucidd(box: Box, tmp_path: Path) -> Iterator[Lucidd]:
    more = "lease_s = 6\n[daemon.gpu_health]\nmost_share = 0.2"
    program = with_constant("lucid.slurm.cluster", "PLACEHOLDER_S", 60.0)
    one = Lucidd(box, tmp_path / "lucidd", restarts="", more=more, program=program)
    has_measured(one, "train")
    with one:
        yield one
    box.stop_beating()
    box.run("scancel", "--user=lucid")
    box.wait("placeholders gone", lambda: not holders(box))


@pytest.fixture
def node(lucidd: Lucidd, tmp_path: Path) -> Iterator[Node]:
    (tmp_path / "n1").mkdir()
    made = Node(tmp_path / "n1", lucidd.profiles)
    yield made
    made.close()


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


def lose(board: Board) -> None:
    board.fail["nvmlDeviceGetMemoryInfo", 2] = GPU_IS_LOST


INJECT: dict[str, Callable[[Board], None]] = {
    "Xid 79": lambda board: setattr(board.gpus[2], "xid", 79),
    "uncorrected memory error": lambda board: setattr(board.gpus[2], "ecc", 1),
    "a row of its memory": lambda board: setattr(board.gpus[2], "remap_failed", True),
    "the driver does not reach it": lose,
}


def test_each_fault_takes_that_gpu_out_within_ten_seconds_and_a_person_returns_it(
    box: Box, lucidd: Lucidd, node: Node
) -> None:
    time.sleep(8)
    for words, inject in INJECT.items():
        began_s = time.monotonic()
        inject(node.board)
        node.board.write()
        box.wait(words, lambda: holders(box) == {"n1:2": "RUNNING"}, 30)
        took_s = time.monotonic() - began_s
        print(f"{words}: out after {took_s:.1f} s")
        assert took_s <= 10.0
        assert words in lucidd.ctl("gpu", "health")
        (out,) = lucidd.json("gpu", "health")["out"]
        assert (out["node"], out["index"]) == ("n1", 2)
        node.heal()
        time.sleep(4)
        assert holders(box) == {"n1:2": "RUNNING"}, "a fault that is over stays told"
        assert "n1:2 is back" in lucidd.ctl("gpu", "return", "n1:2")
        box.wait("returned", lambda: not holders(box), 20)


def test_neither_lucids_nor_slurms_own_jobs_get_it_and_who_runs_there_goes_on(
    box: Box, lucidd: Lucidd, node: Node, own: str
) -> None:
    first = box.sbatch("-p", own, "-w", "n1", "--gres=gpu:4", script="sleep 25", user="bob")
    box.wait("runs", lambda: box.state(first) == "RUNNING")
    time.sleep(8)
    INJECT["Xid 79"](node.board)
    node.board.write()
    box.wait("out", lambda: holders(box) == {"n1:2": "PENDING"}, 10)
    assert "not well, and goes on: GPU 2 of n1: Xid 79, fallen off the bus" in lucidd.ctl("explain", first)
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


def test_without_lucidd_slurm_has_the_gpu_back(box: Box, lucidd: Lucidd) -> None:
    assert "n1:2 is out" in lucidd.ctl("gpu", "out", "n1:2", "--reason", "noisy fan")
    box.wait("out", lambda: holders(box) == {"n1:2": "RUNNING"}, 20)
    time.sleep(75)
    assert holders(box) == {"n1:2": "RUNNING"}, "renewed"
    lucidd.kill()
    box.wait("Slurm's again", lambda: not holders(box), 180)
    lucidd.start()
    box.wait("kept again by what was said before", lambda: holders(box) == {"n1:2": "RUNNING"}, 20)
