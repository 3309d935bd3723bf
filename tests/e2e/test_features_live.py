"""What sites configure beside GPUs, on a real Slurm: GPUs that are billed and limited, switches."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from box import Box, rewritten
from daemon_box import Lucidd, has_measured
from testbeds import own_testbed

from testbed import cli, daemons


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


def test_slots_are_billed_as_gpus(box: Box, lucidd: Lucidd) -> None:
    conf = box.root / "etc/slurm/lucid.slurm.conf"
    billed = "PartitionName=vc-a TRESBillingWeights=GRES/gpu=2,GRES/shard=2 "
    try:
        with rewritten(conf, conf.read_text().replace("PartitionName=vc-a ", billed)):
            box.run("scontrol", "reconfigure")
            weighs, ask = "tresbillingweights=gres/gpu=2", ("scontrol", "show", "partition", "vc-a")
            box.wait("it is in force", lambda: weighs in box.run(*ask).stdout.lower())
            box.wait(
                "nodes are known again",
                lambda: not box.refused("sbatch", "--test-only", "--gres=gpu:2", "-p", "vc-a", "--wrap=true"),
            )
            number = box.sbatch("-p", "vc-a", "-J", "known", "--gres=gpu:2", "--mem=1000", script="sleep 60")
            runs(box, number)
            job = box.job(number)
            assert (job["billable_tres"]["number"], "gres/shard=2" in job["tres_alloc_str"]) == (4.0, True)
    finally:
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
