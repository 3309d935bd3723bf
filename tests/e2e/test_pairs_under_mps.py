"""A pair that lucidd starts on a real Slurm runs under one MPS daemon, with a stand-in for NVIDIA's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from box import Box
from daemon_box import Lucidd

SHOW = "echo PIPE=$CUDA_MPS_PIPE_DIRECTORY; echo FENCE=$CUDA_MPS_PINNED_DEVICE_MEM_LIMIT; sleep 25"


def daemons(folder: Path) -> list[list[str]]:
    """The GPU sets of the daemons that run."""
    return [json.loads(path.read_text())["gpus"] for path in sorted(folder.glob("daemon-*"))]


def test_a_pair_has_one_mps_daemon_with_a_memory_fence_for_each(box: Box, mps: Path, lucidd: Lucidd) -> None:
    first, second = (box.sbatch("--gres=gpu:2", "-J", name, script=SHOW) for name in ("one", "two"))
    box.wait(
        "the pair",
        lambda: all(box.state(n) == "RUNNING" and "shard" in box.job(n)["tres_per_node"] for n in (first, second)),
    )
    gpus = box.job(first)["tres_per_node"].replace("gres/shard:g", "").replace(":1", "")
    fence = 4000 * 11 // 10 + 512
    # whose requeue Slurm finishes first has nobody to promise a speed beside; the other has
    host, guest = sorted((box.job(n)["extra"].partition(";lucid-seal=MUNGE:")[0] for n in (first, second)), key=len)
    assert host == f"lucid-gpus={gpus};lucid-mem={fence}"
    assert guest.startswith(f"{host};lucid-speed=0.")
    for number in (first, second):
        out = box.root / f"tmp/{number}_4294967294.out"
        box.wait("its script", lambda out=out: out.exists() and "FENCE" in out.read_text())
    at_work = daemons(mps)
    box.wait_ended(first, second)
    seen = {}
    for number in (first, second):
        lines = dict(line.split("=", 1) for line in box.output(number).splitlines() if "=" in line)
        assert lines["FENCE"] == f"0={fence}M,1={fence}M"
        seen[number] = lines["PIPE"]
    assert seen[first] == seen[second] != ""
    assert at_work == [[f"GPU-aa{i}" for i in gpus.split(",")]], "one daemon over both GPUs, and no other"
    assert not (mps / "violations").exists()
    told = lucidd.ctl("explain", first) + lucidd.ctl("explain", second)
    assert "by MPS, where the node has it" in told
    box.wait("the daemon's end", lambda: not list((box.root / "run/lucid-mps/sets").glob("*")))


@pytest.mark.slow
def test_a_user_who_keeps_extra_to_himself_has_it_untouched(box: Box, mps: Path, lucidd: Lucidd) -> None:
    first, second = (
        box.sbatch("--gres=gpu:1", "-J", name, "--extra=my rack", script=SHOW) for name in ("one", "two")
    )
    box.wait(
        "the pair",
        lambda: all(box.state(n) == "RUNNING" and "shard" in box.job(n)["tres_per_node"] for n in (first, second)),
    )
    assert {box.job(n)["extra"] for n in (first, second)} == {"my rack"}
    assert "because the user has set the job's Extra field" in lucidd.ctl("explain", second)
    assert daemons(mps) == []
