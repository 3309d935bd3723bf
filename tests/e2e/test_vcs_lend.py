"""VCs that lend GPUs to each other on a real Slurm, over common nodes with quotas of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from box import Box
from daemon_box import Lucidd
from test_fail_open import release

ALONE = "--comment=lucid:exclusive"
POOL = 'pool = { partition = "overflow", quotas = { vc-a = %d, vc-b = %d } }'


@contextmanager
def lends(box: Box, folder: Path, a: int, b: int) -> Iterator[Lucidd]:
    """A lucidd that runs, whose VCs have these quotas, and may borrow."""
    one = Lucidd(box, folder, restarts="", more="lease_s = 6\n" + POOL % (a, b))
    toml = one.folder / "lucid.toml"
    toml.write_text('[policy.lending]\nmode = "borrow"\n' + toml.read_text())
    with one:
        yield one


def quota(box: Box, name: str, gpus: int) -> None:
    limit = f"GrpTRES=gres/gpu={gpus},gres/shard={2 * gpus}"
    box.run("sacctmgr", "-i", "add", "qos", name, check=False)
    box.run("sacctmgr", "-i", "modify", "qos", name, "set", limit)


@pytest.fixture
def overflow(box: Box) -> Iterator[Box]:
    """A partition over all nodes of both VCs; partitions are as they were afterwards."""
    box.run("scontrol", "create", "PartitionName=overflow", "Nodes=n[1-3]")
    try:
        yield box
    finally:
        box.clear()
        box.run("scontrol", "delete", "PartitionName=overflow", check=False)
        box.run("scontrol", "reconfigure")


@pytest.fixture
def common(overflow: Box) -> Box:
    """Both VCs over the same nodes: 4 GPUs for vc-a, 8 for vc-b, by the QOS of their partitions."""
    for vc, gpus in (("vc-a", 4), ("vc-b", 8)):
        quota(overflow, f"{vc}-quota", gpus)
        overflow.run("scontrol", "update", f"PartitionName={vc}", "Nodes=n[1-3]", f"QOS={vc}-quota")
    return overflow


def sleeps(box: Box, vc: str, gpus: int, seconds: float, name: str = "") -> str:
    return box.sbatch("-p", vc, f"--gres=gpu:{gpus}", ALONE, "-J", name or f"{vc}-{gpus}", script=f"sleep {seconds}")


def where(box: Box, number: str) -> tuple[str, str]:
    job = box.job(number)
    return str(job["partition"]), str(job["nodes"])


def test_slurms_quotas_hold_for_all_but_who_borrows(common: Box, tmp_path: Path) -> None:
    """VCs over common nodes: a job starts in its own partition within the quota, in the pool's beyond it."""
    box = common
    with lends(box, tmp_path / "lucidd", 4, 8) as one:
        first = sleeps(box, "vc-a", 4, 30)
        box.wait("it runs", lambda: box.runs(first))
        second = sleeps(box, "vc-a", 4, 12)
        box.wait("it borrows", lambda: box.runs(second))
        assert (where(box, first)[0], where(box, second)[0]) == ("vc-a", "overflow")
        third = sleeps(box, "vc-b", 4, 30)
        box.wait("it runs", lambda: box.runs(third))
        assert where(box, third)[0] == "vc-b"
        fourth = sleeps(box, "vc-b", 4, 1)
        box.wait_ended(fourth)
        assert where(box, fourth)[0] == "vc-b"
        assert box.job(fourth)["start_time"]["number"] >= box.job(second)["end_time"]["number"]
        verbs = [action["verb"] for job in (first, second, third, fourth) for action in one.story(job)["actions"]]
        assert verbs == ["start"] * 4, "Slurm took each as it was asked"


def test_users_do_not_submit_to_the_pools_partition(overflow: Box) -> None:
    overflow.beat({"vc-a": "pack"}, extra="pool overflow\n")
    theirs = "for jobs that borrow GPUs of other VCs"
    assert theirs in overflow.refused("sbatch", "-D", "/tmp", "-p", "overflow", "--gres=gpu:1", "--wrap=true")
    number = overflow.sbatch("-p", "vc-a", "--gres=gpu:1")
    assert theirs in overflow.refused("scontrol", "update", f"job={number}", "partition=overflow")
    overflow.scontrol("update", f"job={number}", "partition=overflow")
    overflow.run("scontrol", "release", number, user="alice", check=False)
    time.sleep(3)
    assert overflow.state(number) == "PENDING", "parked, it queues as in its VC, and releases are nothing to it"
    overflow.beat({"vc-a": "pack"}, age_s=400, extra="profiling prof\npool overflow\n")
    assert release(overflow).returncode == 0
    overflow.wait_ended(number)
    assert where(overflow, number)[0] == "vc-a", "without lucidd it runs where its user sent it"


def test_quotas_of_accounts_are_gone_beyond_by_the_qos_of_the_pools_partition(overflow: Box, tmp_path: Path) -> None:
    """alice's account may have 4 GPUs. Without a QOS that goes before it, her job waits, and is not lost."""
    box = overflow
    box.run("scontrol", "update", "PartitionName=vc-a", "Nodes=n[1-3]")
    box.run("sacctmgr", "-i", "modify", "account", "research", "set", "GrpTRES=gres/gpu=4,gres/shard=8")
    quota(box, "lucid-borrow", 12)
    try:
        with lends(box, tmp_path / "lucidd", 4, 4) as one:
            first = sleeps(box, "vc-a", 4, 20)
            box.wait("it runs", lambda: box.runs(first))
            second = sleeps(box, "vc-a", 4, 1)
            box.wait("Slurm's word", lambda: "AssocGrpGRES" in one.ctl("explain", second))
            told = "\n".join(found["what"] for found in one.json("doctor")["findings"])
            assert "accounts keep VCs to their quotas, and partition 'overflow' has no QOS with GrpTRES" in told
            box.run("scontrol", "update", "PartitionName=overflow", "QOS=lucid-borrow")
            third = sleeps(box, "vc-a", 2, 1, "other")
            box.wait_ended(third, second, first)
            assert {box.state(number) for number in (first, second, third)} == {"COMPLETED"}
            told = "\n".join(found["what"] for found in one.json("doctor")["findings"])
            assert "has no QOS with GrpTRES" not in told
            assert "these do not hold for jobs that borrow" in told
    finally:
        box.run("sacctmgr", "-i", "modify", "account", "research", "set", "GrpTRES=gres/gpu=-1,gres/shard=-1")
