"""Nodes that sleep, on a real Slurm whose SuspendProgram and ResumeProgram stop and start real slurmds."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from box import Box
from daemon_box import Lucidd
from testbeds import own_testbed

from testbed import cli

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
    box.wait("slurmctld has called ResumeProgram", lambda: nodes.woken(), 15)
    box.wait_ended(number)
    assert box.state(number) == "COMPLETED"
    assert (len(nodes.woken()), box.job(number)["restart_cnt"]) == (1, 0)
    verbs = [item["verb"] for item in lucidd.story(number)["actions"]]
    assert verbs.count("start") == 1
    assert not {"take back", "let go", "hold"} & set(verbs)


def test_a_start_comes_as_soon_as_on_plain_slurm(nodes: Nodes, lucidd: Lucidd) -> None:
    """From submission until Slurm wakes the node: what comes after is Slurm's own, and up to half a minute."""

    def woken_after_s(vc: str) -> float:
        nodes.forget()
        at_s = time.time()
        number = nodes.box.sbatch("-p", vc, "--gres=gpu:1", script="true")
        nodes.box.wait("a node is woken", lambda: bool(nodes.woken()), 15)
        took_s = float((nodes.power / "log").read_text().split()[0]) - at_s
        nodes.box.wait_ended(number)
        nodes.sleep(*nodes.woken())
        return took_s

    nodes.sleep("n1", "n2", "n3")
    lucid_s = [woken_after_s("vc-a") for _ in range(2)]
    lucidd.kill()
    nodes.box.stop_beating()
    plain_s = woken_after_s("vc-b")
    print(f"woken after: plain Slurm {plain_s:.1f} s, Lucid {', '.join(f'{s:.1f}' for s in lucid_s)} s")
    assert max(lucid_s) <= plain_s + LATE_S


def test_jobs_are_put_together_on_nodes_that_are_awake(nodes: Nodes, lucidd: Lucidd) -> None:
    nodes.sleep("n1")
    box = nodes.box
    numbers = [box.sbatch("-p", "vc-a", "--gres=gpu:2", "--comment=lucid:exclusive", script="sleep 8") for _ in "ab"]
    box.wait("both run", lambda: all(box.state(number) == "RUNNING" for number in numbers))
    assert {box.job(number)["nodes"] for number in numbers} == {"n2"}
    assert nodes.woken() == []
    third = box.sbatch("-p", "vc-a", "--gres=gpu:1", "--comment=lucid:exclusive", script="sleep 2")
    box.wait("the next wakes n1", lambda: nodes.woken() == ["n1"], 15)
    assert "n1 sleeps; a boot takes about" in lucidd.ctl("explain", third)
    box.wait_ended(third, *numbers)


def test_a_boot_that_fails_brings_the_job_back_into_order(nodes: Nodes, lucidd: Lucidd) -> None:
    """ResumeTimeout is 40 s here. The job starts on the other node once its begin time, Slurm's own, has come."""
    box = nodes.box
    nodes.sleep("n1", "n2")
    nodes.fail("n1", "n2")
    number = box.sbatch("-p", "vc-a", "--gres=gpu:1", script="sleep 2")
    box.wait("its boot fails", lambda: box.job(number)["restart_cnt"] == 1, 60)
    first = nodes.woken()
    nodes.fail()
    box.wait_ended(number, limit_s=100)
    assert (box.state(number), box.job(number)["restart_cnt"]) == ("COMPLETED", 1)
    assert len(first) == 1
    assert set(nodes.woken()) == {"n1", "n2"}
    actions = lucidd.story(number)["actions"]
    assert [item["verb"] for item in actions].count("start") == 2, actions
    assert not [item for item in actions if item["verb"] == "let go"], actions


def test_nodes_of_a_cloud_come_and_go(nodes: Nodes, lucidd: Lucidd) -> None:
    """Slurm is told another address at each boot; the slurmd then registers from that of this machine."""
    box, seen = nodes.box, set()
    for _ in range(2):
        nodes.forget()
        number = box.sbatch("-p", "vc-c", "--gres=gpu:1", script="sleep 1")
        box.wait_ended(number)
        assert box.state(number) == "COMPLETED", lucidd.ctl("explain", number)
        (name,) = nodes.woken()
        seen |= {line for line in (nodes.power / "log").read_text().splitlines() if " address " in line}
        nodes.sleep(name)
    assert len({line.split()[-1] for line in seen}) == 2


def test_no_node_is_woken_on_which_then_nothing_starts(nodes: Nodes, lucidd: Lucidd) -> None:
    """A few random scenes: nodes that sleep, jobs of several sizes, one that is cancelled before it is decided."""
    box, rng = nodes.box, random.Random(39)
    for _ in range(3):
        asleep = rng.sample(["n1", "n2", "n3"], rng.randint(1, 3))
        nodes.sleep(*asleep)
        nodes.forget()
        numbers = []
        for _ in range(rng.randint(2, 5)):
            vc, gpus = rng.choice([("vc-a", 1), ("vc-a", 2), ("vc-a", 4), ("vc-b", 1), ("vc-b", 4)])
            alone = rng.choice(["", "lucid:exclusive"])
            numbers.append(box.sbatch("-p", vc, f"--gres=gpu:{gpus}", f"--comment={alone}", script="sleep 1"))
        box.wait_ended(*numbers, limit_s=90)
        assert {box.state(number) for number in numbers} == {"COMPLETED"}
        used = {box.job(number)["nodes"] for number in numbers}
        assert set(nodes.woken()) <= used, "each node that was woken ran a job"
        assert set(nodes.woken()) <= set(asleep)
        assert all(box.job(number)["restart_cnt"] == 0 for number in numbers)
        nodes.wake("n1", "n2", "n3")
