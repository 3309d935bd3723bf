from __future__ import annotations

import pytest
from click.testing import CliRunner

from lucid.cli.main import lucidctl
from lucid.errors import ConfigError
from lucid.setup.nodes import NodeSpec, PartitionSpec, parse_node, parse_partition
from lucid.setup.render import plugin_conf, render


def test_nodes_are_read_with_every_key() -> None:
    node = parse_node("n[1-2]:gpus=4,cpus=16,mem=64000,type=a100,features=nvlink+ib,devices=/dev/fake{}")
    assert node == NodeSpec("n[1-2]", 4, 16, 64000, "a100", ("nvlink", "ib"), "/dev/fake{}")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("n1", "no gpus"),
        ("n 1:gpus=1", "host list"),
        ("n1;rm:gpus=1", "host list"),
        ("n[2-1]:gpus=1", "range"),
        ("n1:gpus=x", "whole number"),
        ("n1:gpus=0", "between 1 and 64"),
        ("n1:gpu=4", "gpus=…"),
        ("n1:gpus=1,gpus=2", "twice"),
        ("n1:gpus=1,type=a b", "feature"),
        ("n1:gpus=1,devices=/dev/nvidia", "path with {}"),
    ],
)
def test_a_wrong_node_is_refused_and_says_why(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_node(text)


def test_partitions_are_read_with_options() -> None:
    assert parse_partition("prof=n3:MaxTime=60,State=UP", profiling=True) == PartitionSpec(
        "prof", "n3", profiling=True, options={"MaxTime": "60", "State": "UP"}
    )
    for wrong in ("prof", "=n1", "p=", "p q=n1", "p=n1:MaxTime", "p=n1:A=b c"):
        with pytest.raises(ConfigError):
            parse_partition(wrong)


@pytest.mark.parametrize("node", ["n1:gpus=2,type=a100", "n1:gpus=2"])
def test_the_plugin_is_told_that_srun_maps_its_steps_where_the_filter_is_configured(node: str) -> None:
    written = render([parse_node(node)])
    assert {"CliFilterPlugins=lua", "JobSubmitPlugins=lua"} <= set(written.slurm_conf.splitlines())
    assert "steps mapped" in written.plugin_conf.splitlines()
    assert "steps" not in plugin_conf(["a100"], "/run/lucid/heartbeat", filtered=False)


def test_each_gpu_gets_an_address_and_two_slots() -> None:
    written = render(
        [parse_node("n[1-2]:gpus=2,cpus=8,mem=9000,type=a100")],
        [parse_partition("vc=n1", default=True), parse_partition("prof=n2:MaxTime=60")],
        node_extra={"n[1-2]": "Port=[1-2]"},
    )
    assert written.gres_conf.splitlines()[-4:] == [
        "NodeName=n[1-2] Name=gpu Type=g0 File=/dev/nvidia0",
        "NodeName=n[1-2] Name=gpu Type=g1 File=/dev/nvidia1",
        "NodeName=n[1-2] Name=shard Type=g0 Count=2 File=/dev/nvidia0",
        "NodeName=n[1-2] Name=shard Type=g1 Count=2 File=/dev/nvidia1",
    ]
    assert written.slurm_conf.splitlines()[-3:] == [
        "NodeName=n[1-2] CPUs=8 RealMemory=9000 Feature=a100 Gres=gpu:g0:1,gpu:g1:1,shard:g0:2,shard:g1:2 Port=[1-2]",
        "PartitionName=vc Nodes=n1 Default=YES",
        "PartitionName=prof Nodes=n2 MaxTime=60",
    ]
    assert "type a100" in written.plugin_conf
    assert "heartbeat /run/lucid/heartbeat" in written.plugin_conf
    assert "shards lucid" in written.plugin_conf


@pytest.mark.parametrize(
    ("nodes", "partitions", "says"),
    [(["n[1-2]:gpus=1", "n2:gpus=2"], [], "n2 is given twice"), (["n1:gpus=1"], ["p=n[1-2]"], "names host n2")],
)
def test_nodes_and_partitions_must_agree(nodes: list[str], partitions: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        render([parse_node(text) for text in nodes], [parse_partition(text) for text in partitions])


def test_two_default_partitions_are_refused() -> None:
    both = [parse_partition("a=n1", default=True), parse_partition("b=n1", default=True)]
    with pytest.raises(ConfigError, match="default"):
        render([parse_node("n1:gpus=1")], both)


def test_what_else_a_node_line_says_is_kept() -> None:
    words = ["slurm", "render", "--nodes", "n[1-2]:gpus=2", "--node-extra", "n[1-2]=Sockets=2 CoresPerSocket=16"]
    done = CliRunner().invoke(lucidctl, words)
    (line,) = [line for line in done.output.splitlines() if line.startswith("NodeName=n[1-2] Gres")]
    assert line.endswith(" Sockets=2 CoresPerSocket=16")
    wrong = CliRunner().invoke(lucidctl, [*words[:-1], "n3=Weight=1"])
    assert isinstance(wrong.exception, ConfigError)
    assert "n[1-2]" in str(wrong.exception)
