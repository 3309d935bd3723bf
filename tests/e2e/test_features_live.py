"""What sites configure beside GPUs, on a real Slurm: nodes of two kinds, QOS that are urgent, weights of nodes, GPUs
that are billed. Pack mode is not to be worse than plain Slurm, which the partition vc-b is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from box import Box
from daemon_box import Lucidd, has_measured
from testbeds import own_testbed

from testbed import cli

KIND = "gpus=4,cpus=16,mem=64000"
NODES = f"n1:{KIND},type=a100 n2:{KIND},type=h100 n3:{KIND},type=a100 n4:{KIND},type=h100"
ALONE = "--comment=lucid:exclusive"


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    more = {"LUCID_TESTBED_NODES": NODES, "LUCID_TESTBED_PARTITIONS": "vc-a=n[1-2] vc-b=n[3-4]"}
    with own_testbed("features", **more, LUCID_TESTBED_PROFILING="") as layout:
        cli.up(layout, print)
        made = Box(layout.root)
        for words in ("add qos urgent set Priority=10000", "modify user bob set qos+=urgent"):
            made.run("sacctmgr", "-i", *words.split())
        yield made


@pytest.fixture
def lucidd(box: Box, tmp_path: Path) -> Iterator[Lucidd]:
    one = Lucidd(box, tmp_path / "lucidd", restarts="")
    file = one.folder / "lucid.toml"
    text = file.read_text().replace('vc-b = "pack"\n', "").replace('profiling_partition = "prof"\n', "")
    file.write_text(text.replace("start_grace_s = 10", "start_grace_s = 30"))
    has_measured(one, "known")
    one.start()
    yield one
    one.close()
    box.clear()


def whole(box: Box, partition: str, *options: str, user: str = "alice", script: str = "sleep 300") -> str:
    """A job of all GPUs of a node."""
    given = ("-p", partition, "--gres=gpu:4", "--mem=1000", "--time=1:00:00", ALONE, *options)
    return box.sbatch(*given, script=script, user=user)


def runs(box: Box, *numbers: str, limit_s: float = 15) -> None:
    box.wait(f"{numbers} run", lambda: all(box.state(number) == "RUNNING" for number in numbers), limit_s)


def test_a_job_for_gpus_that_are_taken_keeps_no_others_from_anybody(box: Box, lucidd: Lucidd) -> None:
    first = whole(box, "vc-a", "-C", "h100")
    runs(box, first)
    assert box.job(first)["nodes"] == "n2"
    waits = box.sbatch("-p", "vc-a", "--gres=gpu:h100:4", "--mem=1000", script="sleep 300", user="bob")
    box.wait("a reason", lambda: "nodes that its user did not ask for" in lucidd.ctl("explain", waits), 15)
    other = box.sbatch("-p", "vc-a", "--gres=gpu:a100:4", "--mem=1000", script="sleep 300", user="carol")
    runs(box, other, limit_s=5)
    assert box.job(other)["nodes"] == "n1"
    assert not [row for row in lucidd.story(waits)["actions"] if row["verb"] == "start"], "it was not tried in vain"


def test_an_urgent_qos_goes_first_and_nice_orders_a_users_own(box: Box, lucidd: Lucidd) -> None:
    runs(box, whole(box, "vc-a"), ends := whole(box, "vc-a"))
    nice = whole(box, "vc-a", "--nice=5000")
    time.sleep(1.1)
    plain = whole(box, "vc-a")
    time.sleep(1.1)
    urgent = whole(box, "vc-a", "--qos=urgent", user="bob", script="sleep 3")
    box.wait("they wait for Lucid", lambda: "needs 4 GPUs" in lucidd.ctl("explain", urgent), 15)
    box.run("scancel", ends)
    box.wait_ended(urgent, limit_s=30)
    runs(box, plain)
    assert box.state(nice) == "PENDING"
    started = next(one for one in lucidd.story(urgent)["decisions"] if one["verb"] == "start")
    assert [why["tier"] for why in started["reasons"] if why["kind"] == "Priority"] == [10000], started


def test_of_equal_nodes_the_lighter_one(box: Box, lucidd: Lucidd) -> None:
    box.run("scontrol", "update", "nodename=n1", "weight=100")
    try:
        lucidd.kill()
        lucidd.start()  # it would look at nodes again in nodes_every_s
        job = box.sbatch("-p", "vc-a", "--gres=gpu:1", "--mem=1000", script="sleep 300")
        runs(box, job)
        assert box.job(job)["nodes"] == "n2"
    finally:
        box.run("scontrol", "update", "nodename=n1", "weight=1")


def test_doctor_finds_what_is_not_served_and_gpus_that_cost_nothing(box: Box, lucidd: Lucidd) -> None:
    conf = box.root / "etc/slurm/lucid.slurm.conf"
    before = conf.read_text()
    try:
        conf.write_text(
            before.replace(
                "PartitionName=vc-a ", "PartitionName=vc-a ExclusiveUser=YES TRESBillingWeights=GRES/gpu=2 "
            )
        )
        box.run("scontrol", "reconfigure")
        box.wait("it is in force", lambda: "ExclusiveUser=YES" in box.run("scontrol", "show", "part", "vc-a").stdout)
        said = lucidd.ctl("doctor")
        assert "each node is one user's at a time" in said
        assert "bills a job in slots nothing" in said
        conf.write_text(
            before.replace("PartitionName=vc-a ", "PartitionName=vc-a TRESBillingWeights=GRES/gpu=2,GRES/shard=2 ")
        )
        box.run("scontrol", "reconfigure")
        box.wait("it is mended", lambda: "bills a job in slots" not in lucidd.ctl("doctor"))
        billed = {}
        for partition in ("vc-a", "vc-b"):
            job = box.sbatch("-p", partition, "-J", "known", "--gres=gpu:2", "--mem=1000", script="sleep 60")
            runs(box, job)
            billed[partition] = (
                box.job(job)["billable_tres"]["number"],
                "gres/shard=2" in box.job(job)["tres_alloc_str"],
            )
        assert billed["vc-a"] == (4.0, True)
    finally:
        conf.write_text(before)
        box.run("scontrol", "reconfigure")
