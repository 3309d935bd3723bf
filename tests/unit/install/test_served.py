"""What of Slurm pack mode does not serve: doctor finds it, setup refuses it for those partitions, with a remedy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from test_doctor import found, settings, sound
from test_setup_merge import Site, refused
from test_setup_plan import plan_for, root, running

from fake_slurm import fake_node
from lucid.places import Mode
from lucid.setup.doctor_slurm import check_served
from lucid.setup.site import Look
from lucid.setup.site import Site as SlurmSite
from lucid.slurm.records.configuration import gpu_limits_from
from lucid.slurm.records.fields import partition_settings_from
from lucid.slurm.records.job import SlurmJob

__all__ = ["root"]

SHOWN = (
    "PartitionName=vc-a AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=YES QoS=N/A "
    "DefaultTime=NONE DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO MaxNodes=UNLIMITED MaxTime=UNLIMITED "
    "MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED Nodes=n[1-2] PriorityJobFactor=1 PriorityTier=1 RootOnly=NO "
    "ReqResv=NO OverSubscribe=NO OverTimeLimit=NONE PreemptMode=OFF State=UP TotalCPUs=32 TotalNodes=2 "
    "SelectTypeParameters=NONE JobDefaults=(null) DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED\n"
)
LIMITS = {"AccountingStorageEnforce": "associations,limits"}


def shown(**changes: str) -> dict[str, dict[str, str]]:
    """As ``scontrol -o show partition`` printed it, with vc-a changed."""
    read = partition_settings_from(SHOWN)
    return {**read, "vc-a": {**read["vc-a"], **changes}}


PARTITION = [
    ({"ExclusiveUser": "YES"}, "bad", "one user's at a time"),
    ({"Exclusive": "USER"}, "bad", "one user's at a time"),
    ({"Exclusive": "TOPO"}, "bad", "TOPO"),
    ({"MaxCPUsPerNode": "8"}, "bad", "MaxCPUsPerNode=8"),
    ({"MaxCPUsPerNode": "64"}, "", ""),
    ({"MaxCPUsPerSocket": "4"}, "bad", "MaxCPUsPerSocket=4"),
    ({"TRESBillingWeights": "cpu=1.0,gres/gpu=2.0"}, "bad", "bills a job in slots nothing for its GPUs"),
    ({"TRESBillingWeights": "cpu=1.0,GRES/gpu=2.0,GRES/shard=2.0"}, "", ""),
    ({"TRESBillingWeights": "CPU=1.0,Mem=0.25G"}, "", ""),
    ({"TRESBillingWeights": "GRES/gpu:a100=2.0,GRES/shard=1"}, "bad", "by their model"),
    ({"LLN": "YES"}, "warn", "LLN"),
    ({"ReqResv": "YES"}, "warn", "ReqResv"),
]
CONFIG = [
    ({"SchedulerType": "sched/builtin"}, "bad", "sched/builtin"),
    ({"MCSPlugin": "mcs/user", "MCSParameters": "enforced,select"}, "bad", "mcs/user"),
    ({"MCSPlugin": "mcs/user", "MCSParameters": "ondemand,noselect"}, "", ""),
    ({"BurstBufferType": "burst_buffer/lua"}, "warn", "burst buffer"),
    ({"AccountingStorageTRES": "cpu,gres/gpu,gres/gpu:a100,gres/shard"}, "warn", "gres/gpu:a100"),
    ({"JobContainerType": "job_container/tmpfs"}, "warn", "job_container/tmpfs"),
    ({"PriorityWeightAssoc": "10"}, "warn", "PriorityWeightAssoc"),
]


@pytest.mark.parametrize(("changes", "level", "words"), PARTITION, ids=lambda item: str(item)[:40])
def test_what_a_partition_has_that_packing_does_not_serve(changes: dict[str, str], level: str, words: str) -> None:
    site = replace(sound("24.11"), partition_settings=shown(**changes))
    told = found(site)
    assert [item.level for item in told] == [level] * bool(level)
    assert all(words in item.what and "vc-a" in item.what for item in told)
    assert not found(site, settings(partitions={"vc-a": "order"}, profiling_partition=""))


@pytest.mark.parametrize(("changes", "level", "words"), CONFIG, ids=lambda item: str(item)[:40])
def test_what_a_cluster_has_that_packing_does_not_serve(changes: dict[str, str], level: str, words: str) -> None:
    site = sound("24.11")
    told = found(replace(site, config={**(site.config or {}), **changes}))
    assert [item.level for item in told] == [level] * bool(level)
    assert all(words in item.what for item in told)


def test_jobs_of_a_federation_are_known_by_their_numbers() -> None:
    def told(mode: Mode, number: int) -> list[tuple[str, bool]]:
        seen = SlurmSite((24, 11), {}, (), (), [cast(SlurmJob, SimpleNamespace(number=number))])
        found = check_served(Look(settings(), {"vc-a": mode}, seen))
        return [(one.level, "federation" in one.what) for one in found]

    assert told(Mode.PACK, 67108865) == [("bad", True)]
    assert told(Mode.ORDER, 67108865) == told(Mode.PACK, 67043328) == []


QOS = """\
normal|||||||||
four|gres/gpu=4||||||||
both|gres/gpu=4,gres/shard=4||||||||
each|||||||gres/gpu=1||
job||||gres/gpu=8|||||
least|||||||||gres/gpu=1
model||||||||gres/gpu:a100=2,gres/shard=9|
memory|gres/gpumem=4G||||||||
"""
ASSOCS = """\
root|||||||
capped||gres/gpu=2|||||
capped|alice|cpu=9|gres/gpu=600||||
teaching|carol|gres/shard=2|||||
"""


def test_limits_on_gpus_that_slots_get_round_and_those_by_model() -> None:
    limits = gpu_limits_from(QOS, ASSOCS)
    assert limits.uncounted == (
        "QOS four (gres/gpu=4)",
        "QOS each (gres/gpu=1)",
        "QOS job (gres/gpu=8)",
        "account capped (gres/gpu=2)",
        "account capped for alice (gres/gpu=600)",
    )
    assert limits.by_model == ("QOS model (gres/gpu:a100=2)",)
    assert limits.least == ("QOS least (gres/gpu=1)",)
    site = sound("24.11")
    told = found(replace(site, gpu_limits=limits, config={**(site.config or {}), **LIMITS}))
    assert [item.level for item in told] == ["bad", "bad", "warn"]
    assert "QOS four (gres/gpu=4), QOS each" in told[0].what
    assert not found(replace(site, gpu_limits=limits, config={**(site.config or {}), "AccountingStorageEnforce": ""}))


def test_setup_refuses_it_for_these_partitions_alone_and_order_mode_goes(root: Path) -> None:
    odd = replace(running(), partition_settings=shown(ExclusiveUser="YES", OverSubscribe="FORCE:4"))
    refused = plan_for(root, "pack", odd).refused
    assert [("vc-a" in each.what, "order" in each.remedy) for each in refused] == [(True, True)] * 2
    assert not plan_for(root, "order", odd).refused
    other = replace(running(), partition_settings={"vc-b": {"ExclusiveUser": "YES"}})
    assert not plan_for(root, "pack", other).refused
    limited = replace(running(**LIMITS), gpu_limits=gpu_limits_from(QOS, ""))
    assert "QOS four" in plan_for(root, "pack", limited).refused[0].what
    whole = replace(running(), partition_settings=shown(OverSubscribe="EXCLUSIVE"))
    assert "EXCLUSIVE" in plan_for(root, "pack", whole).refused[0].what
    wide = replace(running(), partition_settings=shown(MaxCPUsPerNode="8"), nodes=[fake_node("n1", "vc-a", cpus=8)])
    assert not [each for each in plan_for(root, "pack", wide).refused if "MaxCPUs" in each.what]


CONF = """\
ClusterName=x
GresTypes=gpu
SelectType=select/cons_tres
PriorityType=priority/multifactor
NodeName=n[1-4] Gres=gpu:a100:4
PartitionName=DEFAULT TRESBillingWeights="CPU=1.0,Mem=0.25G,GRES/gpu=2.0"
PartitionName=vc-a Nodes=n[1-2] TRESBillingWeights=CPU=1.0,gres/gpu=8 # ours
PartitionName=vc-b Nodes=n[3-4] TRESBillingWeights=CPU=1.0
"""


def test_setup_bills_a_slot_as_the_gpu_that_it_stands_for(tmp_path: Path) -> None:
    site = Site(tmp_path, CONF, "NodeName=n[1-4] Name=gpu Type=a100 File=/dev/nvidia[0-3]\n")
    merged = site.merged(packed=("n1", "n2", "n3", "n4"))
    text = site.write(merged)["slurm.conf"]
    assert 'DEFAULT TRESBillingWeights="CPU=1.0,Mem=0.25G,GRES/gpu=2.0,GRES/shard=2.0"\n' in text
    assert "TRESBillingWeights=CPU=1.0,gres/gpu=8,GRES/shard=8 # ours\n" in text
    assert "TRESBillingWeights=CPU=1.0\n" in text
    assert any("billed" in note for note in merged.notes)
    assert not site.merged(packed=("n1", "n2", "n3", "n4")).files, "a second time nothing changes"


def test_setup_cannot_tell_what_a_gpu_costs_by_its_model(tmp_path: Path) -> None:
    site = Site(tmp_path, CONF.replace("gres/gpu=8", "gres/gpu:a100=8"))
    assert "gres/gpu:a100" in refused(site.merged())
