"""What sites configure beside GPUs, on a real Slurm: urgent QOS, GPUs that are billed, switches."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from box import Box
from daemon_box import Lucidd, has_measured
from testbeds import own_testbed

from testbed import cli, daemons

WHOLE = ("-p", "vc-a", "--gres=gpu:4", "--mem=1000", "--time=1:00:00", "--comment=lucid:exclusive")


@pytest.fixture
def lucidd(box: Box, tmp_path: Path) -> Iterator[Lucidd]:
    """It looks after vc-a alone, and profiles nowhere: vc-b is plain Slurm's."""
    one = Lucidd(box, tmp_path / "lucidd", restarts="")
    file = one.folder / "lucid.toml"
    text = file.read_text().replace('vc-b = "pack"\n', "").replace('profiling_partition = "prof"\n', "")
    file.write_text(text.replace("start_grace_s = 10", "start_grace_s = 30"))
    has_measured(one, "known")
    with one:
        yield one


def runs(box: Box, *numbers: str, limit_s: float = 15) -> None:
    box.wait(f"{numbers} run", lambda: box.runs(*numbers), limit_s)


@pytest.fixture
def urgent(box: Box) -> Iterator[str]:
    for words in ("add qos urgent set Priority=10000", "modify user bob set qos+=urgent"):
        box.run("sacctmgr", "-i", *words.split())
    yield "urgent"
    box.clear()
    for words in ("modify user bob set qos-=urgent", "delete qos urgent"):
        box.run("sacctmgr", "-i", *words.split())


def test_an_urgent_qos_goes_first_and_nice_orders_a_users_own(box: Box, urgent: str, lucidd: Lucidd) -> None:
    runs(box, *(first := [box.sbatch(*WHOLE, script="sleep 300") for _ in range(2)]))
    nice = box.sbatch(*WHOLE, "--nice=5000", script="sleep 300")
    time.sleep(1.1)
    plain = box.sbatch(*WHOLE, script="sleep 300")
    time.sleep(1.1)
    soon = box.sbatch(*WHOLE, f"--qos={urgent}", user="bob", script="sleep 3")
    box.wait("they wait for Lucid", lambda: "needs 4 GPUs" in lucidd.ctl("explain", soon), 15)
    box.run("scancel", first[1])
    box.wait_ended(soon, limit_s=30)
    runs(box, plain)
    assert box.state(nice) == "PENDING"
    started = next(one for one in lucidd.story(soon)["decisions"] if one["verb"] == "start")
    assert [why["tier"] for why in started["reasons"] if why["kind"] == "Priority"] == [10000], started


def test_doctor_finds_gpus_that_cost_nothing_and_slots_are_billed_as_gpus(box: Box, lucidd: Lucidd) -> None:
    conf = box.root / "etc/slurm/lucid.slurm.conf"
    before = conf.read_text()

    def configured(words: str) -> None:
        conf.write_text(before.replace("PartitionName=vc-a ", f"PartitionName=vc-a {words} "))
        box.run("scontrol", "reconfigure")

    try:
        configured("ExclusiveUser=YES TRESBillingWeights=GRES/gpu=2")
        shown = re.compile("ExclusiveUser=YES|Exclusive=USER")  # the second is 26.05's
        box.wait("it is in force", lambda: bool(shown.search(box.run("scontrol", "show", "part", "vc-a").stdout)))
        said = lucidd.ctl("doctor")
        assert "each node is one user's at a time" in said
        assert "bills a job in slots nothing" in said
        configured("TRESBillingWeights=GRES/gpu=2,GRES/shard=2")
        box.wait("it is mended", lambda: "bills a job in slots" not in lucidd.ctl("doctor"))
        number = box.sbatch("-p", "vc-a", "-J", "known", "--gres=gpu:2", "--mem=1000", script="sleep 60")
        runs(box, number)
        job = box.job(number)
        assert (job["billable_tres"]["number"], "gres/shard=2" in job["tres_alloc_str"]) == (4.0, True)
    finally:
        conf.write_text(before)
        box.run("scontrol", "reconfigure")


def test_slots_count_against_a_limit_of_their_own_only(box: Box) -> None:
    """QOS four-gpus has limits on both."""
    slots = ",".join(f"shard:g{number}:2" for number in range(4))
    with box.unrefused("alice"):
        first = box.sbatch("--qos=four-gpus", "-w", "n1", f"--gres={slots}", script="sleep 60")
        waiting = box.sbatch("--qos=four-gpus", "-p", "vc-b", "--gres=shard:g0:1")
    whole = box.sbatch("--qos=four-gpus", "-w", "n2", "--gres=gpu:4", script="sleep 60")
    runs(box, first, whole, limit_s=60)
    box.wait("Slurm's word", lambda: box.reason(waiting) == "QOSGrpGRES", 20)


SWITCHES = "SwitchName=s0 Nodes=n[1-3]\nSwitchName=s1 Nodes=n[4-5]\nSwitchName=root Switches=s[0-1]\n"
WAIT_S = 20


@pytest.fixture
def net() -> Iterator[Box]:
    nodes = {"LUCID_TESTBED_NODES": "n[1-6]:gpus=4,cpus=16,mem=64000,type=a100"}
    with own_testbed("net", **nodes, LUCID_TESTBED_PARTITIONS="vc-a=n[1-5] prof=n6") as layout:
        cli.up(layout, print)
        conf = layout.root / "etc/slurm"
        (conf / "topology.conf").write_text(SWITCHES)
        with (conf / "slurm.conf").open("a") as file:
            file.write("TopologyPlugin=topology/tree\n")
        made = Box(layout.root)
        made.run("scontrol", "shutdown", "slurmctld")
        time.sleep(2)
        daemons.start_slurmctld(layout)
        idle = ("sinfo", "-h", "-N", "-p", "vc-a", "-t", "idle", "-o", "%N")
        made.wait("nodes that have registered", lambda: len(made.run(*idle).stdout.split()) == 5)
        time.sleep(2)
        yield made


def test_the_smallest_switch_with_room_then_the_wait_for_one(net: Box, tmp_path: Path) -> None:
    box = net

    def wide(nodes: int, *options: str) -> str:
        return box.sbatch("-p", "vc-a", f"-N{nodes}", "--gres=gpu:4", "--mem=1000", *options, script="sleep 600")

    lucidd = Lucidd(box, tmp_path / "lucidd")
    file = lucidd.folder / "lucid.toml"
    file.write_text(file.read_text().replace('vc-b = "pack"\n', ""))
    with lucidd:
        first = wide(2)
        runs(box, first)
        assert box.job(first)["nodes"] == "n[4-5]"
        assert "2 nodes below one switch" in lucidd.ctl("explain", first)
        runs(box, *(wide(1, f"-w{node}") for node in ("n1", "n2")))
        box.run("scancel", first)
        runs(box, wide(1, "-wn4"))
        began = time.monotonic()
        asks = wide(2, f"--switches=1@0:{WAIT_S}")  # n3 and n5 are free, below two switches
        box.wait("a reason", lambda: "below at most 1 switch" in lucidd.ctl("explain", asks), 15)
        assert box.state(asks) == "PENDING"
        runs(box, asks, limit_s=WAIT_S + 20)
        assert time.monotonic() - began >= WAIT_S - 2
        assert box.job(asks)["nodes"] == "n[3,5]"
        assert "2 nodes below 2 switches" in lucidd.ctl("explain", asks)
