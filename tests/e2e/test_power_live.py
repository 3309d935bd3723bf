"""Nodes that sleep, on a real Slurm whose SuspendProgram and ResumeProgram stop and start real slurmds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from box import Box
from daemon_box import Lucidd
from own_testbed import own_testbed

from testbed import cli

pytestmark = pytest.mark.usefixtures("packs")
LATE_S = 5.0
"""So much later than on plain Slurm a job may start that has to wait for a boot."""


class Nodes:
    """The nodes of a testbed, and what powerd did with them."""

    def __init__(self, box: Box) -> None:
        self.box = box
        self.power = box.root / "run/power"

    def states(self) -> dict[str, str]:
        lines = self.box.run("sinfo", "-h", "-N", "-a", "-o", "%N %T").stdout.splitlines()
        return {node: state for node, _, state in (line.partition(" ") for line in lines)}

    def sleep(self, *names: str) -> None:
        """They are ``idle~`` when this returns."""
        awake = [name for name in names if self.states()[name] != "idle~"]
        if awake:
            self.box.run("scontrol", "update", f"nodename={','.join(awake)}", "state=power_down")
        self.box.wait("sleep", lambda: all(self.states()[name] == "idle~" for name in names), 30)

    def wake(self, *names: str) -> None:
        asleep = [name for name in names if self.states()[name] != "idle"]
        for name in asleep:
            verb = "power_up" if "~" in self.states()[name] else "resume"
            self.box.run("scontrol", "update", f"nodename={name}", f"state={verb}", check=False)
        self.box.wait("nodes awake", lambda: all(self.states()[name] == "idle" for name in names), 60)

    def woken(self) -> list[str]:
        """Nodes that Slurm woke since the last ``forget``, in order."""
        lines = (line.split() for line in (self.power / "log").read_text().splitlines())
        return [words[2] for words in lines if words[1] == "resume"]

    def forget(self) -> None:
        (self.power / "log").write_text("")

    def boots_take(self, seconds: float) -> None:
        (self.power / "boot_s").write_text(f"{seconds}\n")

    def fail(self, *names: str) -> None:
        (self.power / "fails").write_text("".join(f"{name}\n" for name in names))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    with own_testbed("power", LUCID_TESTBED_VARIANT="power") as layout:
        cli.up(layout, print)
        yield Nodes(Box(layout.root))


@pytest.fixture
def nodes(cluster: Nodes) -> Iterator[Nodes]:
    """All but the cloud's are awake, and no job is there."""
    cluster.box.clear()
    cluster.fail()
    cluster.boots_take(3)
    cluster.wake("n1", "n2", "n3", "n4")
    cluster.forget()
    yield cluster
    cluster.box.clear()


@pytest.fixture
def lucidd(nodes: Nodes, tmp_path: Path) -> Iterator[Lucidd]:
    one = Lucidd(nodes.box, tmp_path / "lucidd", restarts="")
    file = one.folder / "lucid.toml"
    file.write_text(file.read_text().replace("nodes_every_s = 5\n", "") + 'vc-c = "pack"\n')  # as sites have it
    one.start()
    yield one
    one.close()


def began(box: Box, number: str, limit_s: float = 60.0) -> float:
    """When its program began (Unix s): Slurm sets StartTime anew once its nodes have booted."""
    box.wait(f"job {number} runs", lambda: box.job(number)["job_state"] == ["RUNNING"], limit_s)
    return float(box.job(number)["start_time"]["number"])


def wait_s(box: Box, vc: str, *options: str, limit_s: float = 60.0) -> float:
    at_s = time.time()
    number = box.sbatch("-p", vc, *(options or ("--gres=gpu:1",)), script="sleep 2")
    waited_s = began(box, number, limit_s) - at_s
    box.wait_ended(number)
    return waited_s


def test_plain_slurm_wakes_a_node_for_a_job(nodes: Nodes) -> None:
    """What Lucid is held against."""
    nodes.sleep("n3")
    assert wait_s(nodes.box, "vc-b") < 45.0
    assert nodes.woken() == ["n3"]


@pytest.mark.parametrize("options", [("--gres=gpu:1",), ("--gres=gpu:4", "--comment=lucid:exclusive")])
def test_lucid_wakes_just_the_node_on_which_it_starts_a_job(
    nodes: Nodes, lucidd: Lucidd, options: tuple[str, ...]
) -> None:
    box = nodes.box
    nodes.sleep("n1", "n2", "n3")
    number = box.sbatch("-p", "vc-a", *options, script="sleep 2")
    box.wait("its node boots", lambda: "CONFIGURING" in box.job(number)["job_state"], 15)
    assert len(nodes.woken()) == 1
    box.wait_ended(number)
    assert box.state(number) == "COMPLETED"
    assert (len(nodes.woken()), box.job(number)["restart_cnt"]) == (1, 0)
    verbs = [item["verb"] for item in lucidd.story(number)["actions"]]
    assert verbs.count("start") == 1
    assert not {"take back", "let go", "hold"} & set(verbs)
