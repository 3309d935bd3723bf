"""What doctor finds where VCs lend, with one thing put wrong at a time; and what lucidctl slurm lending prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from fake_slurm import fake_node
from lucid.config.load import Settings, settings_from
from lucid.places import Mode
from lucid.setup.doctor_slurm import check_lending
from lucid.setup.render import lending_text
from lucid.setup.site import Look, Site
from lucid.slurm.records.configuration import GroupLimit, Partition, group_limits_from
from lucid.slurm.records.job import SlurmNode
from lucid.slurm.records.request import NO_DEFAULTS, JobDefaults

ENFORCED = {"AccountingStorageEnforce": "associations,limits,qos"}
PACK = {"a": Mode.PACK, "b": Mode.PACK}
LIMITS = {"QOS qa": GroupLimit(4, 8), "QOS qb": GroupLimit(4, 8)}


def settings(mode: str = "borrow", a: int = 4, **daemon: Any) -> Settings:
    pool = {"partition": "over", "quotas": {"a": a, "b": 4}}
    data = {"daemon": {"pool": pool, **daemon}, "policy": {"lending": {"mode": mode}}}
    return settings_from(data, "test")


def partition(name: str, qos: str = "") -> Partition:
    return Partition(name, "UP", False, False, (), 1000, None, False, qos)


NODES = [fake_node(name, "", partitions=frozenset({"a", "b", "over"})) for name in ("n1", "n2")]
PARTITIONS = [partition("a", "qa"), partition("b", "qb"), partition("over")]


def told(
    given: Settings,
    partitions: Sequence[Partition] = PARTITIONS,
    nodes: Sequence[SlurmNode] = NODES,
    limits: Mapping[str, GroupLimit] | None = LIMITS,
    config: Mapping[str, str] = ENFORCED,
    modes: Mapping[str, Mode] = PACK,
    defaults: Mapping[str, JobDefaults] = MappingProxyType({}),
) -> list[str]:
    site = Site((24, 11), config, nodes, partitions, (), group_limits=limits, defaults=defaults)
    found = [*check_lending(Look(given, modes, site))]
    assert all(item.remedy and item.level in ("bad", "warn") for item in found)
    return [item.what for item in found]


def test_where_all_is_right_and_where_nothing_is_lent_nothing_is_told() -> None:
    assert told(settings()) == []
    assert told(settings("off"), [], [], {}, {}) == []
    own = [fake_node(f"n{vc}", "", partitions=frozenset({vc, "over"})) for vc in "ab"]
    assert told(settings(), [replace(p, qos="") for p in PARTITIONS], own, {}, {}) == [], (
        "nodes of its own need no QOS"
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"partitions": PARTITIONS[:2]}, "partition 'over' (daemon.pool.partition) does not exist"),
        ({"nodes": [NODES[0], replace(NODES[1], partitions=frozenset({"a", "b"}))]}, "partition 'over' lacks n2"),
        ({"nodes": NODES[:1]}, "quotas are 8 GPUs together, and the VCs have 4: they cannot all be met"),
        ({"given": settings(a=3)}, "quotas are 7 GPUs together, and the VCs have 8: the rest is only borrowed"),
        ({"given": settings(a=3)}, "gres/gpu=4, gres/shard=8, and daemon.pool.quotas.a is 3"),
        ({"limits": {**LIMITS, "QOS qa": GroupLimit(4)}}, "of partition 'a' has GrpTRES gres/gpu=4, gres/shard=none"),
        ({"limits": {"QOS qb": GroupLimit(4, 8)}}, "Slurm keeps 'a' to no quota"),
        ({"limits": None}, "it cannot be told which GrpTRES"),
        ({"config": {"AccountingStorageEnforce": "associations"}}, "AccountingStorageEnforce has no limits"),
        ({"partitions": [*PARTITIONS[:2], partition("over", "qa")]}, "'over' has the QOS of a VC (qa)"),
        ({"modes": {"a": Mode.PACK, "b": Mode.OBSERVE}}, "are in different modes (a pack, b observe)"),
        ({"defaults": {"a": JobDefaults(2), "b": NO_DEFAULTS, "over": NO_DEFAULTS}}, "each GPU than a (JobDef"),
        (
            {"given": settings(gpu_mem_mib_by_feature={"big": 80000}),
             "nodes": [NODES[0], replace(NODES[1], features=frozenset({"big"}))]},
            "have 24576 to 80000 MiB",
        ),
    ],
)  # fmt: skip
def test_each_wrong_or_missing_limit_is_told(change: dict[str, Any], words: str) -> None:
    assert words in "\n".join(told(**{"given": settings(), **change}))


def test_quotas_of_accounts_need_a_qos_of_the_pools_partition_that_goes_before_them() -> None:
    bare = [partition("a"), partition("b"), partition("over")]
    accounts = {"account ml": GroupLimit(4, 8)}
    assert "no QOS with GrpTRES: a job that is to borrow waits" in "\n".join(told(settings(), bare, NODES, accounts))
    lent = {**accounts, "QOS lent": GroupLimit(8, 16)}
    assert told(settings(), [*bare[:2], partition("over", "lent")], NODES, lent) == []
    stranger = {**lent, "QOS six": GroupLimit(6, 12)}
    (found,) = told(settings(), [*bare[:2], partition("over", "lent")], NODES, stranger)
    assert "the GrpTRES of QOS lent goes before those of QOS six" in found


def test_limits_are_read_of_what_sacctmgr_prints() -> None:
    qos = "normal|||||||||\nqa|cpu=4,gres/gpu=4,gres/shard=8||||||||\n"
    assocs = "root|||||||\nml||gres/gpu=2|||||\nml|ada|gres/gpu=1|||||\n"
    assert group_limits_from(qos, assocs) == {"QOS qa": GroupLimit(4, 8), "account ml": GroupLimit(2)}


def test_what_is_to_be_typed() -> None:
    own = lending_text("over", {"a": 4, "b": 4}, {"a": ["n1"], "b": ["n2"]}, frozenset(), 8)
    assert "PartitionName=over Nodes=n1,n2 " in own
    assert "sacctmgr" not in own
    both = {"a": ["n1", "n2"], "b": ["n1", "n2"]}
    typed = lending_text("over", {"a": 4, "b": 4}, both, frozenset("ab"), 8)
    assert "sacctmgr -i add qos a-quota set GrpTRES=gres/gpu=4,gres/shard=8\n" in typed
    assert "PartitionName=b … QOS=b-quota\n" in typed
    accounts = lending_text("over", {"a": 4, "b": 4}, both, frozenset("ab"), 8, by_account=True)
    assert "sacctmgr -i add qos lucid-borrow set GrpTRES=gres/gpu=8,gres/shard=16\n" in accounts
    assert "MaxTime=UNLIMITED State=UP QOS=lucid-borrow\n" in accounts
