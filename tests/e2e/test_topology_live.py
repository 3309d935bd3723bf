"""Jobs of several nodes below a tree of switches (topology/tree), on a real Slurm."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from box import Box
from daemon_box import Lucidd
from testbeds import own_testbed

from testbed import cli, daemons

SWITCHES = "SwitchName=s0 Nodes=n[1-3]\nSwitchName=s1 Nodes=n[4-5]\nSwitchName=root Switches=s[0-1]\n"
WAIT_S = 20


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
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


@pytest.fixture
def lucidd(box: Box, tmp_path: Path) -> Iterator[Lucidd]:
    one = Lucidd(box, tmp_path / "lucidd")
    file = one.folder / "lucid.toml"
    file.write_text(file.read_text().replace('vc-b = "pack"\n', ""))
    one.start()
    yield one
    one.close()
    box.clear()


def wide(box: Box, nodes: int, *options: str, script: str = "sleep 600") -> str:
    return box.sbatch("-p", "vc-a", f"-N{nodes}", "--gres=gpu:4", "--mem=1000", *options, script=script)


def test_the_smallest_switch_with_room_then_the_wait_for_one(box: Box, lucidd: Lucidd) -> None:
    first = wide(box, 2)
    box.wait("the first runs", lambda: box.state(first) == "RUNNING")
    assert box.job(first)["nodes"] == "n[4-5]"
    story = lucidd.ctl("explain", first)
    assert "2 nodes below one switch" in story

    (one, two) = (box.sbatch("-p", "vc-a", "--gres=gpu:4", f"-w{node}", script="sleep 600") for node in ("n1", "n2"))
    box.wait("two more run", lambda: all(box.state(job) == "RUNNING" for job in (one, two)))
    box.run("scancel", first)
    third = wide(box, 1, "-wn4")
    box.wait("n4 is taken", lambda: box.state(third) == "RUNNING")

    began = time.monotonic()
    asks = wide(box, 2, f"--switches=1@0:{WAIT_S}")  # n3 and n5 are free, below two switches
    box.wait("a reason", lambda: "below at most 1 switch" in lucidd.ctl("explain", asks), 15)
    assert box.state(asks) == "PENDING"
    box.wait("it runs", lambda: box.state(asks) == "RUNNING", WAIT_S + 20)
    assert time.monotonic() - began >= WAIT_S - 2
    assert box.job(asks)["nodes"] == "n[3,5]"
    assert "2 nodes below 2 switches" in lucidd.ctl("explain", asks)
