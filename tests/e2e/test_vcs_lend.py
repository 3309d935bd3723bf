"""VCs that lend GPUs to each other on a real Slurm: on nodes of their own, and over common nodes with quotas."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from box import Box
from daemon_box import Lucidd
from test_fail_open import release

ALONE = "--comment=lucid:exclusive"
POOL = 'pool = { partition = "overflow", quotas = { vc-a = %d, vc-b = %d } }'


def lends(box: Box, folder: Path, a: int, b: int) -> Lucidd:
    one = Lucidd(box, folder, restarts="", more="lease_s = 6\n" + POOL % (a, b))
    allow(one, "borrow")
    return one


def allow(one: Lucidd, mode: str) -> None:
    """Write ``policy.lending`` into its file, for its next start."""
    file = one.folder / "lucid.toml"
    rest = file.read_text().partition("# end\n")[2] or file.read_text()
    file.write_text(f'[policy.lending]\nmode = "{mode}"\n# end\n{rest}')


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


def waits_for(box: Box, vc: str, gpus: int, gate: Path) -> str:
    """A job that runs for as long as the file is there, however slow the machine."""
    gate.touch()
    script = f"while test -e /tmp/{gate.name}; do sleep 0.2; done"
    return box.sbatch("-p", vc, f"--gres=gpu:{gpus}", ALONE, "-J", f"{vc}-{gate.name}", script=script)


def runs(box: Box, *numbers: str) -> bool:
    return all(box.state(number) == "RUNNING" for number in numbers)


def where(box: Box, number: str) -> tuple[str, str]:
    job = box.job(number)
    return str(job["partition"]), str(job["nodes"])


def figures(one: Lucidd) -> Any:
    return one.json("status").get("partitions", {}).get("overflow", {}).get("vcs", {})


def test_idle_gpus_are_lent_and_the_lender_gets_them_back_in_order(overflow: Box, tmp_path: Path) -> None:
    """VCs on nodes of their own. lucidd is killed while GPUs are lent, and comes back without its store."""
    box, one = overflow, lends(overflow, tmp_path / "lucidd", 8, 4)
    lent, own = (box.root / "tmp" / name for name in ("lending-lent", "lending-own"))
    one.start()
    try:
        mine = [waits_for(box, "vc-a", 4, own) for _ in range(2)]
        box.wait("vc-a is full", lambda: runs(box, *mine))
        borrower = waits_for(box, "vc-a", 3, lent)
        box.wait("it borrows", lambda: runs(box, borrower))
        assert where(box, borrower) == ("overflow", "n3")
        assert [where(box, number)[0] for number in mine] == ["vc-a"] * 2
        assert "borrows 3 GPUs of VC vc-b until it ends" in one.ctl("explain", borrower)
        one.kill()
        for path in (tmp_path / "lucidd").glob("lucid.db*"):
            path.unlink()
        lender = sleeps(box, "vc-b", 2, 1, "lender")
        allow(one, "quota")  # from now on nobody borrows
        one.start()
        late = sleeps(box, "vc-a", 1, 1, "long")
        box.wait("its figures", lambda: figures(one).get("vc-a", {}).get("borrowed") == 3)
        assert figures(one)["vc-a"]["held"] == 11
        assert "VC vc-a holds its quota of 8 GPUs and borrows 3" in one.ctl("status")
        box.wait("why it waits", lambda: "no room for the 1 of this job" in one.ctl("explain", late))
        assert not runs(box, lender), "nobody is stopped for it"
        lent.unlink()
        box.wait_ended(lender, borrower)
        assert (box.state(borrower), box.job(borrower)["restart_cnt"]) == ("COMPLETED", 0)
        assert where(box, lender) == ("vc-b", "n3")
        assert box.job(lender)["start_time"]["number"] >= box.job(borrower)["end_time"]["number"]
        own.unlink()
        box.wait_ended(late, *mine)
        assert where(box, late)[0] == "vc-a"
    finally:
        for gate in (lent, own):
            gate.unlink(missing_ok=True)
        one.close()


def test_slurms_quotas_hold_for_all_but_who_borrows(common: Box, tmp_path: Path) -> None:
    """VCs over common nodes: a job starts in its own partition within the quota, in the pool's beyond it."""
    box, one = common, lends(common, tmp_path / "lucidd", 4, 8)
    one.start()
    try:
        first = sleeps(box, "vc-a", 4, 30)
        box.wait("it runs", lambda: runs(box, first))
        second = sleeps(box, "vc-a", 4, 12)
        box.wait("it borrows", lambda: runs(box, second))
        assert (where(box, first)[0], where(box, second)[0]) == ("vc-a", "overflow")
        third = sleeps(box, "vc-b", 4, 30)
        box.wait("it runs", lambda: runs(box, third))
        assert where(box, third)[0] == "vc-b"
        fourth = sleeps(box, "vc-b", 4, 1)
        box.wait_ended(fourth)
        assert where(box, fourth)[0] == "vc-b"
        assert box.job(fourth)["start_time"]["number"] >= box.job(second)["end_time"]["number"]
        verbs = [
            action["verb"] for number in (first, second, third, fourth) for action in one.story(number)["actions"]
        ]
        assert verbs == ["start"] * 4, "Slurm took each as it was asked"
    finally:
        one.close()


def test_users_do_not_submit_to_the_pools_partition(overflow: Box) -> None:
    overflow.beat({"vc-a": "pack"}, extra="pool overflow\n")
    done = overflow.run(
        "sbatch", "-D", "/tmp", "-p", "overflow", "--gres=gpu:1", "--wrap=true", user="alice", check=False
    )
    assert "for jobs that borrow GPUs of other VCs" in done.stderr
    number = overflow.sbatch("-p", "vc-a", "--gres=gpu:1")
    moved = overflow.run("scontrol", "update", f"job={number}", "partition=overflow", user="alice", check=False)
    assert "for jobs that borrow GPUs of other VCs" in moved.stderr
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
    one = lends(box, tmp_path / "lucidd", 4, 4)
    one.start()
    try:
        first = sleeps(box, "vc-a", 4, 20)
        box.wait("it runs", lambda: runs(box, first))
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
        one.close()
        box.run("sacctmgr", "-i", "modify", "account", "research", "set", "GrpTRES=gres/gpu=-1,gres/shard=-1")
