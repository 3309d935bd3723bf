"""What ``scontrol show topology`` prints, and what becomes of a job of several nodes by it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fake_slurm import fake_node
from lucid.slurm.records.configuration import NO_NETWORK, Network, network_from, with_network
from scenes.slurm import MINE, Scene

TREE = """\
SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[1-2]
SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n3
SwitchName=root Level=1 LinkSpeed=1 Nodes=n[1-3] Switches=s[0-1]
"""  # 24.11.5
BLOCKS = """\
BlockName=b1 BlockIndex=0 Nodes=n[1-2] BlockSize=2
BlockName=b2 BlockIndex=1 Nodes=n[3-4] BlockSize=2
AggregatedBlock=b[1-2] BlockIndex=2 Nodes=n[1-4] BlockSize=4
"""


def test_a_tree_is_read_from_the_leaf_up() -> None:
    found = network_from(
        TREE, {"SchedulerParameters": "bf_interval=1,max_switch_wait=20", "TopologyPlugin": "topology/tree"}
    )
    assert found == Network({"n1": ("s0", "root"), "n2": ("s0", "root"), "n3": ("s1", "root")}, False, 20.0)


def test_among_blocks_slurm_chooses_the_nodes_of_a_job_of_several() -> None:
    found = network_from(BLOCKS)
    assert (found.above["n3"], found.slurms, found.max_wait_s) == (("b2", "b[1-2]"), True, 300.0)


@pytest.mark.parametrize(
    ("text", "plugin", "slurms"),
    [
        ("", "topology/default", False),
        ("", "", False),
        ("", "topology/3d_torus", True),
        ("", "topology/tree", True),
        ("SwitchName=s0 Level=0 Nodes=n[", "topology/tree", True),
        ("SwitchName=s0 Level=x", "", True),
    ],
)
def test_what_cannot_be_read_leaves_the_choice_to_slurm(text: str, plugin: str, slurms: bool) -> None:
    assert network_from(text, {"TopologyPlugin": plugin}) == Network({}, slurms)


def test_nodes_that_stand_as_before_stay_the_same() -> None:
    node = fake_node("n1", "vc")
    assert with_network([node], NO_NETWORK)[0] is node
    (made,) = with_network([node], network_from(TREE))
    assert made.switches == ("s0", "root")
    assert with_network([made], network_from(TREE))[0] is made


def several(network: Network, **job: object) -> Scene:
    stage = Scene()
    stage.slurm.switches = network
    stage.slurm.submit("wide", "vc", 8, mark=MINE, min_nodes=2, **job)
    return stage


def test_the_nodes_of_a_job_are_named_among_switches_and_not_among_blocks() -> None:
    for network, names in ((network_from(TREE), "n1,n2"), (network_from(BLOCKS), "")):
        stage = several(network)
        assert stage.start("wide", "n1:0-3 n2:0-3") is None
        assert stage.request("wide").req_nodes == names


def test_a_job_waits_for_switches_from_its_submission_as_long_as_its_user_and_slurm_allow() -> None:
    for said_s, until_s in ((0.0, 300.0), (120.0, 120.0), (900.0, 300.0)):
        stage = several(network_from(TREE), most_switches=1, switch_wait_s=said_s)
        (entry,) = stage.look().pending
        assert (entry.job.most_switches, entry.job.switches_until_s) == (1, entry.job.submit_s + until_s)
        assert stage.look().nodes[0].switches == ("s0", "root")


def test_slurm_does_not_wait_again_for_switches_that_lucid_has_waited_for() -> None:
    apart = replace(network_from(TREE), above={"n1": ("s0",), "n2": ("s1",)})
    for network, switches in ((apart, [1]), (network_from(TREE), [])):
        stage = several(network, most_switches=1)
        seen: list[int | None] = []
        update = stage.slurm.update
        stage.slurm.update = lambda job, changes, update=update, seen=seen: (  # type: ignore[method-assign]
            seen.append(changes.switches),
            update(job, changes),
        )[1]
        assert stage.start("wide", "n1:0-3 n2:0-3") is None
        assert [found for found in seen if found] == switches
