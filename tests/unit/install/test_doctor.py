"""What doctor finds in Slurm's answers: those that real, sound clusters gave, with one thing put wrong at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fake_slurm import FakeSlurm, fake_node
from lucid.config.load import Settings, settings_from
from lucid.core.gpu import NodeHealth
from lucid.daemon.modes import modes_from
from lucid.errors import ClusterError, ClusterUnavailable, Finding
from lucid.node.reports import health_folder, write_health
from lucid.places import Mode
from lucid.setup.doctor import check_site
from lucid.setup.doctor_slurm import check_lending, check_served
from lucid.setup.render import lending_text
from lucid.setup.site import Look, Site, see_site
from lucid.slurm.records import configuration
from lucid.slurm.records.configuration import GroupLimit, Limits, Partition, config_from_text, partitions_from
from lucid.slurm.records.fields import partition_settings_from
from lucid.slurm.records.from_json import nodes_from
from lucid.slurm.records.job import SlurmJob
from lucid.slurm.records.request import NO_DEFAULTS, JobDefaults

ASSETS = Path(__file__).parents[2] / "assets/slurm"
RELEASES = ("24.11", "26.05")


def partitions_of(release: str) -> dict[str, Partition]:
    read = partitions_from(json.loads((ASSETS / release / "partitions.json").read_text()))
    return {partition.name: partition for partition in read}


def sound(release: str) -> Site:
    """As the daemons of the testbed answered; ``vc-b``, which was made odd in the recording, is as ``vc-a``."""
    config = config_from_text((ASSETS / release / "config.txt").read_text())
    partitions = partitions_of(release)
    partitions["vc-b"] = replace(partitions["vc-a"], name="vc-b")
    major, minor = map(int, release.split("."))
    nodes = nodes_from(json.loads((ASSETS / release / "site_nodes.json").read_text()))
    return Site((major, minor), config, nodes, [*partitions.values()], [], 1e9, ("lucid", "operator"), 1e9)


def having(site: Site, config: Mapping[str, str], **more: Any) -> Site:
    return replace(site, config={**site.config, **config}, **more)


def settings(**daemon: Any) -> Settings:
    partitions = {"vc-a": "pack", "vc-b": "pack"}
    data = {"partitions": partitions, "profiling_partition": "prof", "heartbeat": "/nowhere", **daemon}
    return settings_from({"daemon": data}, "test")


def found(site: Site, given: Settings | None = None) -> list[Finding]:
    """All that is not as it should be."""
    given = given or settings()
    findings = [item for item in check_site(given, modes_from(given, {}), site) if item.level != "ok"]
    assert all(item.remedy and item.remedy != item.what for item in findings)
    return findings


@pytest.fixture(params=RELEASES)
def site(request: pytest.FixtureRequest) -> Site:
    return sound(request.param)


ORDER = {"partitions": {"vc-a": "order"}, "profiling_partition": ""}
WATCH = {**ORDER, "partitions": {"vc-a": "observe"}}
NO_MEMORY = {"DefMemPerCPU": "0"}
SOUND: list[tuple[dict[str, str], dict[str, Any]]] = [
    ({}, {}),
    ({}, ORDER),
    ({}, WATCH),
    ({"GresTypes": "gpu", "TaskProlog": "", "SelectTypeParameters": ""}, ORDER),
    ({"AccountingStorageType": ""}, {"catch_up_days": 0}),
    ({"SchedulerParameters": "extra_constraints"}, {"mps": False}),
    ({"Prolog": ""}, {"mps": False}),
    ({**NO_MEMORY, "DefMemPerNode": "100"}, {}),
    ({**NO_MEMORY, "JobDefaults": "DefMemPerGPU=1000"}, {}),
]


@pytest.mark.parametrize(("config", "daemon"), SOUND, ids=lambda item: str(item)[:40])
def test_what_is_sound_or_not_needed_has_no_findings(site: Site, config: dict[str, str], daemon: Any) -> None:
    assert found(having(site, config), settings(**daemon)) == []


@pytest.mark.parametrize(
    ("order", "constrained", "says"),
    [((0, 1, 2, 3), "no", False), ((2, 3, 0, 1), "no", True), ((2, 3, 0, 1), "yes", False), ((0, 1, 3), "no", False),
     ((0, 1, 2, 3, 4), "no", False), ((4, 0, 1, 2, 3), "no", True)],
)  # fmt: skip
def test_where_cuda_counts_otherwise_jobs_have_to_be_kept_to_their_devices(
    site: Site, tmp_path: Path, order: tuple[int, ...], constrained: str, says: bool
) -> None:
    (tmp_path / "profiles").mkdir()
    write_health(health_folder(tmp_path / "profiles"), NodeHealth("n1", 1.0, "boot", 1.0, order=order))
    told = found(having(site, {"ConstrainDevices": constrained}), settings(profiles_dir=str(tmp_path / "profiles")))
    assert ["CUDA counts the GPUs of n1 in another order" in one.what for one in told] == [True] * says


CONFIG = [
    ({"SelectType": "select/linear"}, "bad", "one by one"),
    ({"SelectTypeParameters": ""}, "warn", "SelectTypeParameters is not set"),
    ({"SelectTypeParameters": "CR_CORE"}, "warn", "memory is not shared out"),
    ({"SelectTypeParameters": "CR_SOCKET_MEMORY"}, "bad", "whole sockets"),
    ({"GresTypes": "gpu"}, "bad", "GresTypes lacks shard"),
    ({"GresTypes": "gpu,shard,mps"}, "bad", "mps and shard"),
    ({"AccountingStorageTRES": "cpu,mem,gres/gpu"}, "warn", "lacks gres/shard"),
    ({"AccountingStorageTRES": "cpu,mem,gres/shard"}, "warn", "lacks gres/gpu"),
    ({"AccountingStorageType": "accounting_storage/none"}, "warn", "no accounting by slurmdbd"),
    ({"JobRequeue": "0"}, "warn", "none is profiled"),
    ({"JobSubmitPlugins": ""}, "bad", "job_submit.lua is not loaded"),
    ({"TaskProlog": ""}, "warn", "no TaskProlog"),
    ({"Prolog": ""}, "warn", "nothing starts MPS"),
    ({"Epilog": "/site/epilog.sh"}, "warn", "Epilog=/site/epilog.sh is told only the last GPU"),
    ({"PrologFlags": "Alloc,Contain,RunInJob"}, "warn", "RunInJob"),
    ({"SchedulerParameters": "bf_continue,extra_constraints"}, "bad", "extra_constraints"),
    ({"MinJobAge": "5 sec"}, "bad", "Slurm forgets a job"),
    ({"MinJobAge": "60 sec"}, "warn", "missing from its history"),
    ({"RequeueExit": "75"}, "warn", "RequeueExit=75"),
    ({"RequeueExitHold": "76"}, "warn", "RequeueExitHold=76"),
    ({"PrivateData": "jobs,usage"}, "warn", "lucidd shows everybody"),
    ({"SlurmctldParameters": "rl_enable,rl_bucket_size=10"}, "warn", "rate limit"),
    ({"PriorityType": "priority/basic"}, "warn", "no site factors"),
    ({"SchedulerType": "sched/builtin"}, "bad", "sched/builtin"),
    ({"MCSPlugin": "mcs/user", "MCSParameters": "enforced,select"}, "bad", "mcs/user"),
    ({"MCSPlugin": "mcs/user", "MCSParameters": "ondemand,noselect"}, "", ""),
    ({"BurstBufferType": "burst_buffer/lua"}, "warn", "burst buffer"),
    ({"AccountingStorageTRES": "cpu,gres/gpu,gres/gpu:a100,gres/shard"}, "warn", "gres/gpu:a100"),
    ({"PriorityWeightAssoc": "10"}, "warn", "PriorityWeightAssoc"),
]


@pytest.mark.parametrize(("wrong", "level", "words"), CONFIG, ids=lambda item: str(item)[:40])
def test_a_setting_that_is_wrong_is_found(site: Site, wrong: dict[str, str], level: str, words: str) -> None:
    assert wrong.keys() <= site.config.keys(), "as Slurm names it"
    findings = found(having(site, wrong))
    assert [item.level for item in findings if words in item.what] == [level] * bool(level)
    assert len(findings) <= 1 or wrong.keys() & {"JobSubmitPlugins"}


def test_jobs_with_a_shm_of_their_own_are_found_by_either_name_of_the_setting(site: Site) -> None:
    (name,) = site.config.keys() & {"JobContainerType", "NamespaceType"}
    (finding,) = found(having(site, {name: "namespace/tmpfs"}))
    assert (finding.level, "namespace/tmpfs: where a job has a /dev/shm" in finding.what) == ("warn", True)


@pytest.mark.parametrize(
    ("setting", "plugin", "said"),
    [("no", "cgroup/v2", True), ("yes", "cgroup/v2", False), ("no", "cgroup/v1", False), (None, "cgroup/v2", False)],
)
def test_control_groups_without_job_numbers_are_told(setting: str | None, plugin: str, said: bool) -> None:
    here = having(sound("26.05"), {"CgroupPlugin": plugin} | ({"CgroupJobIdPaths": setting} if setting else {}))
    told = [one for one in check_site(settings(), modes_from(settings(), {}), here) if "SLUID" in one.what]
    assert [(one.level, one.remedy.split()[0]) for one in told] == [("ok", "CgroupJobIdPaths=yes")] * said


AGE_ALONE = {"PriorityWeightAge": "10", "PriorityWeightQOS": "0"}
NO_SHARE = {"PriorityWeightFairShare": "0", "PriorityWeightFairshare": "0"}
FACTORS = [
    ({"PriorityType": "priority/basic"}, "no site factors"),
    ({"PrioritySiteFactorPlugin": "site_factor/own"}, "writes over the site factors"),
    (AGE_ALONE, None),
    ({**AGE_ALONE, **NO_SHARE}, "outweighs age, fair-share and QOS"),
]


@pytest.mark.parametrize(("wrong", "words"), FACTORS, ids=lambda item: str(item)[:40])
def test_order_mode_needs_site_factors_that_count_and_do_not_rule(site: Site, wrong: Any, words: str | None) -> None:
    told = found(having(site, wrong), settings(**ORDER))
    assert [words is not None and words in item.what for item in told] == ([True] if words else [])


def with_partition(name: str, /, **changes: Any) -> Callable[[Site], Site]:
    return lambda site: replace(
        site, partitions=[replace(part, **changes) if part.name == name else part for part in site.partitions]
    )


def with_nodes(name: str, /, **changes: Any) -> Callable[[Site], Site]:
    return lambda site: replace(site, nodes=[replace(n, **changes) if n.name == name else n for n in site.nodes])


def asleep(site: Site, config: dict[str, str], name: str) -> Site:
    return having(with_nodes(name, states=frozenset({"IDLE", "POWERED_DOWN"}))(site), config)


POWER = {"SuspendProgram": "/s", "ResumeProgram": "/r", "SuspendTime": "600 sec", "ResumeTimeout": "300 sec"}
DOWN = with_nodes("n1", states=frozenset({"DOWN", "POWERED_DOWN"}), reason="ResumeTimeout reached [slurm@now]")
WAKES_NONE = {**POWER, "SuspendTime": "INFINITE"}
PROF_IS_NAMED = "'prof' does not exist; did you mean 'profiling'? (there are: profiling, vc-a, vc-b)"


CLUSTER: list[tuple[Callable[[Site], Site], str, str]] = [
    (with_partition("vc-a", exclusive=True), "bad", "none shares"),
    (with_partition("prof", exclusive=True), "bad", "none shares"),
    (with_partition("vc-a", oversubscribe=True), "warn", "same CPUs"),
    (with_partition("vc-b", state="DRAIN"), "warn", "is DRAIN"),
    (with_partition("prof", root_only=True), "bad", "RootOnly"),
    (with_partition("prof", allowed=(("groups", "ml"),)), "bad", "allows groups ml"),
    (with_partition("prof", allowed=(("no accounts", "guests"),)), "bad", "allows no accounts guests"),
    (with_partition("prof", max_time_s=600.0), "bad", "MaxTime 10 min"),
    (with_partition("prof", name="profiling"), "bad", PROF_IS_NAMED),
    (lambda site: having(site, NO_MEMORY), "bad", "no default memory"),
    (lambda s: having(s, NO_MEMORY, partitions=[replace(p, def_mem_mib=1) for p in s.partitions]), "", "memory"),
    (lambda site: asleep(site, WAKES_NONE, "n1"), "warn", "n1: asleep, and SuspendTime is not set, so Slurm"),
    (lambda site: asleep(site, POWER, "n4"), "warn", "all nodes of prof sleep: new jobs are not profiled"),
    (lambda site: having(DOWN(site), POWER), "warn", "n1: did not come up within ResumeTimeout (300 s)"),
    (lambda site: replace(site, accounting="Slurmdb query failed"), "warn", "accounting"),
    (with_nodes("n1", gpu_types=("a100", "a100")), "bad", "have no address"),
    (with_nodes("n1", shard_types=frozenset()), "bad", "have no address"),
    (with_nodes("n1", slots=frozenset({2, 4})), "bad", "do not have 2 to 8 slots each"),
    (with_nodes("n3", partitions=frozenset({"vc-a", "vc-b"})), "warn", "vc-a and vc-b"),
    (with_nodes("n4", partitions=frozenset({"vc-b", "prof"})), "warn", "vc-b and prof"),
    (with_nodes("n1", partitions=frozenset({"vc-a", "all"})), "warn", "stands in all too"),
    (with_nodes("n3", states=frozenset({"IDLE", "DRAIN"}), reason="fan"), "warn", "n3 (fan)"),
    (with_nodes("n3", states=frozenset({"IDLE", "NOT_RESPONDING"})), "warn", "n3 (IDLE+NOT_RESPONDING)"),
    (with_nodes("n3", gpu_types=(), shard_types=frozenset()), "warn", "no node with GPUs"),
    (lambda site: replace(site, clock_s=site.now_s - 20), "warn", "differ by 20 s"),
    (lambda site: replace(site, clock_s=site.now_s + 300), "bad", "differ by 300 s"),
    (lambda site: replace(site, rights=("lucid", "none")), "bad", "has AdminLevel none, so it cannot"),
    (lambda site: replace(site, rights=("slurm", "none")), "", "AdminLevel"),
]


@pytest.mark.parametrize(("change", "level", "words"), CLUSTER, ids=[words for _, _, words in CLUSTER])
def test_what_is_wrong_with_a_cluster_is_found(site: Site, change: Any, level: str, words: str) -> None:
    told = found(change(site))
    assert {item.level for item in told if words in item.what} == {level} - {""}, told
    assert level or not told


def test_a_partition_of_the_configuration_that_is_not_there_is_named(site: Site) -> None:
    (finding,) = found(site, settings(partitions={"vc-a": "pack", "vcb": "observe"}))
    assert "'vcb' does not exist" in finding.what
    assert any("at once" in item.what for item in found(site, settings(partitions={"prof": "pack"})))
    (finding,) = found(site, settings(profiling_partition=""))
    assert "no profiling partition" in finding.what


def test_a_watcher_needs_no_level(site: Site) -> None:
    stranger, watch = replace(site, rights=("lucid", "none")), settings(**WATCH)
    assert found(stranger, watch) == []
    private = having(stranger, {"PrivateData": "jobs"})
    assert [item.level for item in found(private, watch)] == ["warn", "bad"]
    told = found(replace(private, lucidd=None), watch)
    assert [item.level for item in told] == ["warn"], "Slurm tells others nothing"


def test_without_slurmdbd_nobody_can_be_made_an_operator_who_sees_private_jobs(site: Site) -> None:
    for keeps, user, bad in (("", "lucid", 1), ("", "slurm", 0), ("accounting_storage/slurmdbd", "lucid", 0)):
        private = {"PrivateData": "jobs", "AccountingStorageType": keeps}
        told = found(having(site, private, rights=None, lucidd=user), settings(**WATCH))
        assert ["lucidd sees none" in one.what for one in told if one.level == "bad"] == [True] * bad, (keeps, user)


def of_jobs(site: Site, slurm: FakeSlurm) -> str:
    return "\n".join(item.what for item in found(replace(site, jobs=slurm.jobs())))


def test_jobs_that_nobody_decides_are_told_and_those_passed_over_and_that_never_share_counted(site: Site) -> None:
    slurm = FakeSlurm([fake_node("n1", "vc-a")])
    slurm.submit("7", "vc-a")
    slurm.submit("8", "old", mark="lucid:vc=old")
    for words in ("2 jobs are held for a daemon that does not decide", "stand in old"):
        assert words in of_jobs(site, slurm)
    slurm.records.clear()
    for number in range(1, 13):
        slurm.submit(f"{number}", "vc-a", mark="lucid:vc=vc-a;share=0;why=constraint")
    slurm.submit("20", "vc-a", mark='{"network": "sharp"}')
    slurm.submit("21", "vc-a", mark=" ")
    slurm._set("21", admin_comment="")
    slurm.submit("22", "elsewhere", mark="x")
    past = "2 waiting jobs have no tag (1 an AdminComment of others): Slurm starts them past Lucid's queue (20, 21)"
    assert past in of_jobs(site, slurm).splitlines()
    assert "12 of 12 jobs never share: its constraint is more than a list" in of_jobs(site, slurm)
    for number in range(1, 13):
        slurm._set(f"{number}", admin_comment="lucid:vc=vc-a", features="mig=off")
    assert "not every node has the feature mig=off" in of_jobs(site, slurm)


# -- what Slurm says of its set-up -----------------------------------------------------------------------------


def test_partitions_are_read_as_they_are_odd_ones_and_forced_oversubscription_in_both_forms_included() -> None:
    allowed = (("groups", "bob"), ("accounts", "research"))
    for release in RELEASES:
        odd = Partition("vc-b", "DOWN", True, False, allowed, 100, 600.0, release == "26.05")
        assert partitions_of(release)["vc-b"] == odd
        assert partitions_of(release)["vc-a"] == Partition("vc-a", "UP", False, False, (), 0, None, False)
    old = {"maximums": {"oversubscribe": {"jobs": 2, "flags": ["force"]}}, "partition": {"state": ["UP"]}}
    new = {"partition": {"exclusive": "NO", "oversubscribe": "FORCE:2", "state": ["UP"]}}
    for raw in (old, new):
        (read,) = partitions_from({"partitions": [{"name": "a", **raw}]})
        assert (read.oversubscribe, read.exclusive) == (True, False)
    with pytest.raises(ClusterError):
        partitions_from({"jobs": []})


def test_configuration_is_read_from_text_and_a_clock_that_is_not_told_is_none() -> None:
    text = "A = b\nProlog[0] = /x\nProlog[1] = /y\nTaskProlog = (null)\nDefMemPerNode = UNLIMITED\nno pair\n"
    assert config_from_text(text) == {"A": "b", "Prolog": "/x,/y", "TaskProlog": "", "DefMemPerNode": ""}
    answers: list[Any] = [None, {}, {"statistics": {}}, {"statistics": {"req_time": {"number": 0}}}]
    assert [*map(configuration.clock_from, answers)] == [None] * 4
    assert configuration.clock_from({"statistics": {"req_time": 5}}) == 5.0


def asked(**more: Any) -> Site:
    """What is seen of a Slurm whose slurmdbd is down."""

    def rights(user: str = "") -> tuple[str, str]:
        raise ClusterUnavailable("slurmdbd is down")

    slurm: Any = FakeSlurm([])
    vars(slurm).update(config=dict, partitions=list, partition_settings=dict, clock_s=lambda: 5.0, rights=rights)
    vars(slurm).update(accounting="Slurmdb query failed", gpu_limits=lambda: (Limits(), None), **more)
    return see_site(slurm, iter([4.0, 8.0]).__next__)


def test_without_slurmdbd_all_else_is_looked_at_and_without_munge_pairs_are_said_to_share_by_time_slicing() -> None:
    seen = asked()
    assert (seen.rights, seen.clock_s, seen.now_s) == (None, 5.0, 6.0)
    assert (seen.accounting, seen.unsealed) == ("Slurmdb query failed", "")
    why = asked(no_munge="munge cannot be run (No such file or directory)").unsealed
    for mode, said in (("pack", 1), ("order", 0)):
        found = check_site(Settings(), {"vc": Mode(mode)}, replace(sound("24.11"), unsealed=why))
        assert ["time-slicing, unfenced" in each.what for each in found if why in each.what] == [True] * said


def test_nodes_that_sleep_are_no_trouble_where_slurm_wakes_them(site: Site) -> None:
    seen = asleep(asleep(site, POWER, "n1"), {}, "n2")
    assert found(seen) == []
    told = [item.what for item in check_site(settings(), modes_from(settings(), {}), seen)]
    assert [words for words in told if "power saving is on" in words and words.endswith("; 2 of 4 nodes sleep now")]


SHOWN = (
    "PartitionName=vc-a AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=YES QoS=N/A "
    "DefaultTime=NONE DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO MaxNodes=UNLIMITED MaxTime=UNLIMITED "
    "MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED Nodes=n[1-2] PriorityJobFactor=1 PriorityTier=1 RootOnly=NO "
    "ReqResv=NO OverSubscribe=NO OverTimeLimit=NONE PreemptMode=OFF State=UP TotalCPUs=32 TotalNodes=2 "
    "SelectTypeParameters=NONE JobDefaults=(null) DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED\n"
)


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


@pytest.mark.parametrize(("changes", "level", "words"), PARTITION, ids=lambda item: str(item)[:40])
def test_what_a_partition_has_that_packing_does_not_serve(changes: dict[str, str], level: str, words: str) -> None:
    read = partition_settings_from(SHOWN)
    site = replace(sound("24.11"), partition_settings={**read, "vc-a": {**read["vc-a"], **changes}})
    told = found(site)
    assert [item.level for item in told] == [level] * bool(level)
    assert all(words in item.what and "vc-a" in item.what for item in told)
    assert not found(site, settings(**ORDER))


def test_jobs_of_a_federation_are_known_by_their_numbers() -> None:
    for mode, number, bad in (("pack", 1 << 26, 1), ("order", 1 << 26, 0), ("pack", 67043328, 0)):
        seen = Site((24, 11), {}, (), (), [cast(SlurmJob, SimpleNamespace(number=number + 1))])
        told = check_served(Look(settings(), {"vc-a": Mode(mode)}, seen))
        assert [(one.level, "federation" in one.what) for one in told] == [("bad", True)] * bad, (mode, number)


QOS = """\
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
    limits = configuration.gpu_limits_from(QOS, ASSOCS)
    qos, accounts = (
        "QOS four (gres/gpu=4), QOS each (gres/gpu=1), QOS job (gres/gpu=8)",
        "account capped (gres/gpu=2)",
    )
    assert ", ".join(limits.uncounted) == f"{qos}, {accounts}, account capped for alice (gres/gpu=600)"
    assert limits.by_model == ("QOS model (gres/gpu:a100=2)",)
    assert limits.least == ("QOS least (gres/gpu=1)",)
    groups = {"QOS four": GroupLimit(4), "QOS both": GroupLimit(4, 4), "account capped": GroupLimit(2)}
    assert configuration.group_limits_from(QOS, ASSOCS) == groups, "those of users aside"
    site = replace(sound("24.11"), gpu_limits=limits)
    told = found(having(site, {"AccountingStorageEnforce": "associations,limits"}))
    assert [item.level for item in told] == ["bad", "bad", "warn"]
    assert "QOS four (gres/gpu=4), QOS each" in told[0].what
    assert not found(having(site, {"AccountingStorageEnforce": ""}))


ENFORCED = {"AccountingStorageEnforce": "associations,limits,qos"}
PACK = {"a": Mode.PACK, "b": Mode.PACK}
LIMITS = {"QOS qa": GroupLimit(4, 8), "QOS qb": GroupLimit(4, 8)}


def lends(mode: str = "borrow", a: int = 4, **daemon: Any) -> Settings:
    pool = {"partition": "over", "quotas": {"a": a, "b": 4}}
    data = {"daemon": {"pool": pool, **daemon}, "policy": {"lending": {"mode": mode}}}
    return settings_from(data, "test")


def partition(name: str, qos: str = "") -> Partition:
    return Partition(name, "UP", False, False, (), 1000, None, False, qos)


LENT = [fake_node(name, "", partitions=frozenset({"a", "b", "over"})) for name in ("n1", "n2")]
PARTITIONS = [partition("a", "qa"), partition("b", "qb"), partition("over")]
BARE = [replace(one, qos="") for one in PARTITIONS]


SEEN = Site((24, 11), ENFORCED, LENT, PARTITIONS, (), group_limits=LIMITS)


def told(given: Settings, modes: Mapping[str, Mode] = PACK, **seen: Any) -> list[str]:
    found = [*check_lending(Look(given, modes, replace(SEEN, **seen)))]
    assert all(item.remedy and item.level in ("bad", "warn") for item in found)
    return [item.what for item in found]


def test_where_all_is_right_and_where_nothing_is_lent_nothing_is_told() -> None:
    assert told(lends()) == []
    assert told(lends("off"), partitions=[], nodes=[], group_limits={}, config={}) == []
    own = [fake_node(f"n{vc}", "", partitions=frozenset({vc, "over"})) for vc in "ab"]
    assert told(lends(), partitions=BARE, nodes=own, group_limits={}, config={}) == [], "own nodes need no QOS"


UNEQUAL = [LENT[0], replace(LENT[1], features=frozenset({"big"}))]
LENDING = [
    ({"partitions": PARTITIONS[:2]}, "partition 'over' (daemon.pool.partition) does not exist"),
    ({"nodes": [LENT[0], replace(LENT[1], partitions=frozenset({"a", "b"}))]}, "partition 'over' lacks n2"),
    ({"nodes": LENT[:1]}, "quotas are 8 GPUs together, and the VCs have 4: they cannot all be met"),
    ({"given": lends(a=3)}, "quotas are 7 GPUs together, and the VCs have 8: the rest is only borrowed"),
    ({"given": lends(a=3)}, "gres/gpu=4, gres/shard=8, and daemon.pool.quotas.a is 3"),
    ({"group_limits": {**LIMITS, "QOS qa": GroupLimit(4)}}, "'a' has GrpTRES gres/gpu=4, gres/shard=none"),
    ({"group_limits": {"QOS qb": GroupLimit(4, 8)}}, "Slurm keeps 'a' to no quota"),
    ({"group_limits": None}, "it cannot be told which GrpTRES"),
    ({"config": {"AccountingStorageEnforce": "associations"}}, "AccountingStorageEnforce has no limits"),
    ({"partitions": [*PARTITIONS[:2], partition("over", "qa")]}, "'over' has the QOS of a VC (qa)"),
    ({"modes": {"a": Mode.PACK, "b": Mode.OBSERVE}}, "are in different modes (a pack, b observe)"),
    ({"defaults": {"a": JobDefaults(2), "b": NO_DEFAULTS, "over": NO_DEFAULTS}}, "each GPU than a (JobDef"),
    ({"given": lends(gpu_mem_mib_by_feature={"big": 80000}), "nodes": UNEQUAL}, "have 24576 to 80000 MiB"),
]


@pytest.mark.parametrize(("change", "words"), LENDING, ids=[words for _, words in LENDING])
def test_each_wrong_or_missing_limit_is_told(change: dict[str, Any], words: str) -> None:
    assert words in "\n".join(told(**{"given": lends(), **change}))


def test_quotas_of_accounts_need_a_qos_of_the_pools_partition_that_goes_before_them() -> None:
    accounts = {"account ml": GroupLimit(4, 8)}
    (found,) = told(lends(), partitions=BARE, group_limits=accounts)
    assert "no QOS with GrpTRES: a job that is to borrow waits" in found
    parts, lent = [*BARE[:2], partition("over", "lent")], {**accounts, "QOS lent": GroupLimit(8, 16)}
    assert told(lends(), partitions=parts, group_limits=lent) == []
    (found,) = told(lends(), partitions=parts, group_limits={**lent, "QOS six": GroupLimit(6, 12)})
    assert "the GrpTRES of QOS lent goes before those of QOS six" in found


def test_what_is_to_be_typed() -> None:
    quotas, both = {"a": 4, "b": 4}, {"a": ["n1", "n2"], "b": ["n1", "n2"]}
    own = lending_text("over", quotas, {"a": ["n1"], "b": ["n2"]}, frozenset(), 8)
    assert ("PartitionName=over Nodes=n1,n2 " in own, "sacctmgr" in own) == (True, False)
    typed = lending_text("over", quotas, both, frozenset("ab"), 8)
    assert "sacctmgr -i add qos a-quota set GrpTRES=gres/gpu=4,gres/shard=8\n" in typed
    assert "PartitionName=b … QOS=b-quota\n" in typed
    accounts = lending_text("over", quotas, both, frozenset("ab"), 8, by_account=True)
    assert "sacctmgr -i add qos lucid-borrow set GrpTRES=gres/gpu=8,gres/shard=16\n" in accounts
    assert "MaxTime=UNLIMITED State=UP QOS=lucid-borrow\n" in accounts
