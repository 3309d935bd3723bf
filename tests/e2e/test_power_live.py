"""Nodes that sleep, on a real Slurm whose SuspendProgram and ResumeProgram stop and start real slurmds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from box import Box
from daemon_box import Lucidd
from testbeds import running


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


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    with running("power", LUCID_TESTBED_VARIANT="power") as box:
        yield Nodes(box)


@pytest.fixture
def nodes(cluster: Nodes) -> Iterator[Nodes]:
    """All but the cloud's are awake, and no job is there."""
    cluster.box.clear()
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
    with one:
        yield one


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
