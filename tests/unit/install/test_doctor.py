"""What doctor finds in Slurm's answers: those that real, sound clusters gave, with one thing put wrong at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
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
from lucid.setup.site import Site as SlurmSite
from lucid.slurm.records.configuration import (
    GroupLimit,
    Limits,
    Partition,
    clock_from,
    config_from_text,
    gpu_limits_from,
    group_limits_from,
    partitions_from,
)
from lucid.slurm.records.fields import partition_settings_from
from lucid.slurm.records.from_json import nodes_from
from lucid.slurm.records.job import SlurmJob, SlurmNode
from lucid.slurm.records.request import NO_DEFAULTS, JobDefaults

ASSETS = Path(__file__).parents[2] / "assets/slurm"
RELEASES = ("24.11", "26.05")


def document(release: str, name: str) -> Any:
    return json.loads((ASSETS / release / f"{name}.json").read_text())


def sound(release: str) -> Site:
    """As the daemons of the testbed answered; ``vc-b``, which was made odd in the recording, is as ``vc-a``."""
    config = config_from_text((ASSETS / release / "config.txt").read_text())
    partitions = {partition.name: partition for partition in partitions_from(document(release, "partitions"))}
    partitions["vc-b"] = replace(partitions["vc-a"], name="vc-b")
    major, minor = map(int, release.split("."))
    nodes = nodes_from(document(release, "site_nodes"))
    return Site((major, minor), config, nodes, [*partitions.values()], [], 1e9, ("lucid", "operator"), 1e9)


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
NO_MEMORY = {"DefMemPerCPU": "0"}
SOUND: list[tuple[dict[str, str], dict[str, Any]]] = [
    ({}, {}),
    ({}, ORDER),
    ({}, {**ORDER, "partitions": {"vc-a": "observe"}}),
    ({"GresTypes": "gpu", "TaskProlog": "", "SelectTypeParameters": ""}, ORDER),
    ({"AccountingStorageType": ""}, {"catch_up_days": 0}),
    ({"SchedulerParameters": "extra_constraints"}, {"mps": False}),
    ({"Prolog": ""}, {"mps": False}),
    ({**NO_MEMORY, "DefMemPerNode": "100"}, {}),
    ({**NO_MEMORY, "JobDefaults": "DefMemPerGPU=1000"}, {}),
]


@pytest.mark.parametrize(("config", "daemon"), SOUND, ids=lambda item: str(item)[:40])
def test_what_is_sound_or_not_needed_has_no_findings(
    site: Site, config: dict[str, str], daemon: dict[str, Any]
) -> None:
    assert found(replace(site, config={**(site.config or {}), **config}), settings(**daemon)) == []


def test_each_partition_may_have_a_default_of_memory_of_its_own(site: Site) -> None:
    partitions = [replace(part, def_mem_mib=1) for part in site.partitions]
    assert found(replace(site, config={**(site.config or {}), **NO_MEMORY}, partitions=partitions)) == []


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
    site = replace(site, config={**(site.config or {}), "ConstrainDevices": constrained})
    given = settings(profiles_dir=str(tmp_path / "profiles"))
    assert ["CUDA counts the GPUs of n1 in another order" in one.what for one in found(site, given)] == [True] * says


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
    assert site.config is not None
    assert wrong.keys() <= site.config.keys(), "as Slurm names it"
    findings = found(replace(site, config={**site.config, **wrong}))
    assert [item.level for item in findings if words in item.what] == [level] * bool(level)
    assert len(findings) <= 1 or wrong.keys() & {"JobSubmitPlugins"}


def test_jobs_with_a_shm_of_their_own_are_found_by_either_name_of_the_setting(site: Site) -> None:
    assert site.config is not None
    (name,) = site.config.keys() & {"JobContainerType", "NamespaceType"}
    (finding,) = found(replace(site, config={**site.config, name: "namespace/tmpfs"}))
    assert (finding.level, "namespace/tmpfs: where a job has a /dev/shm" in finding.what) == ("warn", True)


@pytest.mark.parametrize(
    ("setting", "plugin", "said"),
    [("no", "cgroup/v2", True), ("yes", "cgroup/v2", False), ("no", "cgroup/v1", False), (None, "cgroup/v2", False)],
)
def test_control_groups_without_job_numbers_are_told(setting: str | None, plugin: str, said: bool) -> None:
    config = {**(sound("26.05").config or {}), "CgroupPlugin": plugin}
    config |= {} if setting is None else {"CgroupJobIdPaths": setting}
    here = replace(sound("26.05"), config=config)
    told = [one for one in check_site(settings(), modes_from(settings(), {}), here) if "SLUID" in one.what]
    assert [(one.level, one.remedy.split()[0]) for one in told] == [("ok", "CgroupJobIdPaths=yes")] * said


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"PriorityType": "priority/basic"}, "no site factors"),
        ({"PrioritySiteFactorPlugin": "site_factor/own"}, "writes over the site factors"),
        ({"PriorityWeightAge": "10", "PriorityWeightQOS": "0"}, None),
        ({"PriorityWeightAge": "10", "PriorityWeightQOS": "0", "PriorityWeightFairShare": "0",
          "PriorityWeightFairshare": "0"}, "outweighs age, fair-share and QOS"),
    ],
)  # fmt: skip
def test_order_mode_needs_site_factors_that_count_and_do_not_rule(
    site: Site, wrong: dict[str, str], words: str | None
) -> None:
    order = settings(partitions={"vc-a": "order"}, profiling_partition="")
    findings = found(replace(site, config={**(site.config or {}), **wrong}), order)
    assert [words in item.what for item in findings] == ([True] if words else [])


def with_partition(name: str, /, **changes: Any) -> Callable[[Site], Site]:
    def change(site: Site) -> Site:
        parts = [replace(part, **changes) if part.name == name else part for part in site.partitions]
        return replace(site, partitions=parts)

    return change


def with_nodes(name: str, /, **changes: Any) -> Callable[[Site], Site]:
    return lambda site: replace(site, nodes=[replace(n, **changes) if n.name == name else n for n in site.nodes])


CLUSTER: list[tuple[Callable[[Site], Site], str, str]] = [
    (with_partition("vc-a", exclusive=True), "bad", "none shares"),
    (with_partition("prof", exclusive=True), "bad", "none shares"),
    (with_partition("vc-a", oversubscribe=True), "warn", "same CPUs"),
    (with_partition("vc-b", state="DRAIN"), "warn", "is DRAIN"),
    (with_partition("prof", root_only=True), "bad", "RootOnly"),
    (with_partition("prof", allowed=(("groups", "ml"),)), "bad", "allows groups ml"),
    (with_partition("prof", allowed=(("no accounts", "guests"),)), "bad", "allows no accounts guests"),
    (with_partition("prof", max_time_s=600.0), "bad", "MaxTime 10 min"),
    (
        with_partition("prof", name="profiling"),
        "bad",
        "'prof' does not exist; did you mean 'profiling'? (there are: profiling, vc-a, vc-b)",
    ),
    (lambda site: replace(site, config={**(site.config or {}), **NO_MEMORY}), "bad", "no default memory"),
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
]


@pytest.mark.parametrize(("change", "level", "words"), CLUSTER, ids=[words for _, _, words in CLUSTER])
def test_what_is_wrong_with_a_cluster_is_found(
    site: Site, change: Callable[[Site], Site], level: str, words: str
) -> None:
    findings = [item for item in found(change(site)) if words in item.what]
    assert findings, found(change(site))
    assert {item.level for item in findings} == {level}


def test_a_partition_of_the_configuration_that_is_not_there_is_named(site: Site) -> None:
    (finding,) = found(site, settings(partitions={"vc-a": "pack", "vcb": "observe"}))
    assert "'vcb' does not exist" in finding.what
    (finding, *_) = found(site, settings(partitions={"vc-a": "pack", "prof": "pack"}))
    assert any("at once" in item.what for item in found(site, settings(partitions={"prof": "pack"})))
    (finding,) = found(site, settings(profiling_partition=""))
    assert "no profiling partition" in finding.what


def test_slurms_own_user_needs_no_level_and_a_watcher_none_at_all(site: Site) -> None:
    assert found(replace(site, rights=("slurm", "none"))) == []
    watch = settings(partitions={"vc-a": "observe"}, profiling_partition="")
    stranger = replace(site, rights=("lucid", "none"))
    assert found(stranger, watch) == []
    private = replace(stranger, config={**(site.config or {}), "PrivateData": "jobs"})
    assert [item.level for item in found(private, watch)] == ["warn", "bad"]
    assert [item.level for item in found(replace(private, lucidd=None), watch)] == ["warn"], (
        "Slurm tells others nothing"
    )


@pytest.mark.parametrize(
    ("keeps", "user", "bad"), [("", "lucid", 1), ("", "slurm", 0), ("accounting_storage/slurmdbd", "lucid", 0)]
)
def test_without_slurmdbd_nobody_can_be_made_an_operator_who_sees_private_jobs(
    site: Site, keeps: str, user: str, bad: int
) -> None:
    config = {**(site.config or {}), "PrivateData": "jobs", "AccountingStorageType": keeps}
    watch = settings(partitions={"vc-a": "observe"}, profiling_partition="")
    told = found(replace(site, config=config, rights=None, lucidd=user), watch)
    assert ["lucidd sees none" in one.what for one in told if one.level == "bad"] == [True] * bad


def test_jobs_that_nobody_decides_are_told(site: Site) -> None:
    slurm = FakeSlurm([fake_node("n1", "vc-a")])
    slurm.submit("7", "vc-a")
    slurm.submit("8", "old", mark="lucid:vc=old")
    words = [item.what for item in found(replace(site, jobs=slurm.jobs()))]
    assert any("2 jobs are held for a daemon that does not decide" in text for text in words)
    assert any("stand in old" in text for text in words)


def test_jobs_that_are_passed_over_and_jobs_that_never_share_are_counted(site: Site) -> None:
    slurm = FakeSlurm([fake_node("n1", "vc-a")])
    for number in range(1, 13):
        slurm.submit(f"{number}", "vc-a", mark="lucid:vc=vc-a;share=0;why=constraint")
    slurm.submit("20", "vc-a", mark='{"network": "sharp"}')
    slurm.submit("21", "vc-a", mark=" ")
    slurm._set("21", admin_comment="")
    slurm.submit("22", "elsewhere", mark="x")
    words = [item.what for item in found(replace(site, jobs=slurm.jobs()))]
    told = "2 waiting jobs have no tag (1 an AdminComment of others): Slurm starts them past Lucid's queue (20, 21)"
    assert told in words
    assert any("12 of 12 jobs never share: its constraint is more than a list" in text for text in words)
    for number in range(1, 13):
        slurm._set(f"{number}", admin_comment="lucid:vc=vc-a", features="mig=off")
    assert any(
        "not every node has the feature mig=off" in item.what for item in found(replace(site, jobs=slurm.jobs()))
    )


# -- what Slurm says of its set-up -----------------------------------------------------------------------------


@pytest.mark.parametrize("release", RELEASES)
def test_an_odd_partition_is_read_as_it_is(release: str) -> None:
    read = {partition.name: partition for partition in partitions_from(document(release, "partitions"))}
    # 24.11 does not print RootOnly in JSON.
    odd = Partition("vc-b", "DOWN", True, False, (("groups", "bob"), ("accounts", "research")), 100, 600.0,
                    release == "26.05")  # fmt: skip
    assert read["vc-b"] == odd
    assert read["vc-a"] == Partition("vc-a", "UP", False, False, (), 0, None, False)


def test_forced_oversubscription_is_read_in_both_forms() -> None:
    old = {
        "name": "a",
        "maximums": {"oversubscribe": {"jobs": 2, "flags": ["force"]}},
        "partition": {"state": ["UP"]},
    }
    new = {"name": "a", "partition": {"exclusive": "NO", "oversubscribe": "FORCE:2", "state": ["UP"]}}
    for raw in (old, new):
        (read,) = partitions_from({"partitions": [raw]})
        assert (read.oversubscribe, read.exclusive) == (True, False)
    with pytest.raises(ClusterError):
        partitions_from({"jobs": []})


def test_configuration_is_read_from_text() -> None:
    text = "A = b\nProlog[0] = /x\nProlog[1] = /y\nTaskProlog = (null)\nDefMemPerNode = UNLIMITED\nno pair\n"
    assert config_from_text(text) == {"A": "b", "Prolog": "/x,/y", "TaskProlog": "", "DefMemPerNode": ""}


@pytest.mark.parametrize("answer", [None, {}, {"statistics": {}}, {"statistics": {"req_time": {"number": 0}}}])
def test_a_clock_that_is_not_told_is_none(answer: Any) -> None:
    assert clock_from(answer) is None
    assert clock_from({"statistics": {"req_time": 5}}) == 5.0


class Asked(FakeSlurm):
    accounting = "Slurmdb query failed"

    def config(self) -> dict[str, str]:
        return {}

    def partitions(self) -> list[Partition]:
        return []

    def clock_s(self) -> float:
        return 5.0

    def rights(self, user: str = "") -> tuple[str, str]:
        raise ClusterUnavailable("slurmdbd is down")

    def gpu_limits(self) -> tuple[Limits, None]:
        return Limits(("QOS a (gres/gpu=1)",)), None

    def partition_settings(self) -> dict[str, dict[str, str]]:
        return {}


def test_without_slurmdbd_all_else_is_still_looked_at() -> None:
    seen = see_site(Asked([]), iter([4.0, 8.0]).__next__)
    assert (seen.rights, seen.clock_s, seen.now_s) == (None, 5.0, 6.0)
    assert seen.accounting == "Slurmdb query failed"


def test_without_munge_pairs_are_said_to_share_by_time_slicing() -> None:
    asked = Asked([])
    assert see_site(asked, iter([4.0, 8.0]).__next__).unsealed == ""
    asked.no_munge = "munge cannot be run (No such file or directory)"
    why = see_site(asked, iter([4.0, 8.0]).__next__).unsealed
    found = check_site(Settings(), {"vc": Mode.PACK}, replace(sound("24.11"), unsealed=why))
    (finding,) = [each for each in found if why in each.what]
    assert "time-slicing, unfenced" in finding.what
    found = check_site(Settings(), {"vc": Mode.ORDER}, replace(sound("24.11"), unsealed=why))
    assert not [each for each in found if why in each.what]


POWER = {"SuspendProgram": "/s", "ResumeProgram": "/r", "SuspendTime": "600 sec", "ResumeTimeout": "300 sec"}


def asleep(site: Site, config: dict[str, str], *names: str, **changes: Any) -> Site:
    states = frozenset({"IDLE", "POWERED_DOWN"})
    nodes = [replace(n, states=states, **changes) if n.name in names else n for n in site.nodes]
    return replace(site, config={**(site.config or {}), **config}, nodes=nodes)


def test_nodes_that_sleep_are_no_trouble_where_slurm_wakes_them(site: Site) -> None:
    seen = asleep(site, POWER, "n1", "n2")
    assert found(seen) == []
    told = [item.what for item in check_site(settings(), modes_from(settings(), {}), seen)]
    assert [words for words in told if "power saving is on" in words and words.endswith("; 2 of 4 nodes sleep now")]


def test_what_of_power_saving_is_not_served_is_told(site: Site) -> None:
    words = [item.what for item in found(asleep(site, {**POWER, "SuspendTime": "INFINITE"}, "n1"))]
    assert any("n1: asleep, and SuspendTime is not set, so Slurm does not wake it" in what for what in words)
    (item,) = found(asleep(site, POWER, "n4"))
    assert "all nodes of prof sleep: new jobs are not profiled" in item.what
    down = {"states": frozenset({"DOWN", "POWERED_DOWN"}), "reason": "ResumeTimeout reached [slurm@now]"}
    words = [item.what for item in found(with_nodes("n1", **down)(asleep(site, POWER)))]
    assert any("n1: did not come up within ResumeTimeout (300 s)" in what for what in words)


SHOWN = (
    "PartitionName=vc-a AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=YES QoS=N/A "
    "DefaultTime=NONE DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO MaxNodes=UNLIMITED MaxTime=UNLIMITED "
    "MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED Nodes=n[1-2] PriorityJobFactor=1 PriorityTier=1 RootOnly=NO "
    "ReqResv=NO OverSubscribe=NO OverTimeLimit=NONE PreemptMode=OFF State=UP TotalCPUs=32 TotalNodes=2 "
    "SelectTypeParameters=NONE JobDefaults=(null) DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED\n"
)
GPU_LIMITS = {"AccountingStorageEnforce": "associations,limits"}


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


@pytest.mark.parametrize(("changes", "level", "words"), PARTITION, ids=lambda item: str(item)[:40])
def test_what_a_partition_has_that_packing_does_not_serve(changes: dict[str, str], level: str, words: str) -> None:
    site = replace(sound("24.11"), partition_settings=shown(**changes))
    told = found(site)
    assert [item.level for item in told] == [level] * bool(level)
    assert all(words in item.what and "vc-a" in item.what for item in told)
    assert not found(site, settings(partitions={"vc-a": "order"}, profiling_partition=""))


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
    told = found(replace(site, gpu_limits=limits, config={**(site.config or {}), **GPU_LIMITS}))
    assert [item.level for item in told] == ["bad", "bad", "warn"]
    assert "QOS four (gres/gpu=4), QOS each" in told[0].what
    assert not found(replace(site, gpu_limits=limits, config={**(site.config or {}), "AccountingStorageEnforce": ""}))


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


def told(
    given: Settings,
    partitions: Sequence[Partition] = PARTITIONS,
    nodes: Sequence[SlurmNode] = LENT,
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
    assert told(lends()) == []
    assert told(lends("off"), [], [], {}, {}) == []
    own = [fake_node(f"n{vc}", "", partitions=frozenset({vc, "over"})) for vc in "ab"]
    assert told(lends(), [replace(p, qos="") for p in PARTITIONS], own, {}, {}) == [], "nodes of its own need no QOS"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"partitions": PARTITIONS[:2]}, "partition 'over' (daemon.pool.partition) does not exist"),
        ({"nodes": [LENT[0], replace(LENT[1], partitions=frozenset({"a", "b"}))]}, "partition 'over' lacks n2"),
        ({"nodes": LENT[:1]}, "quotas are 8 GPUs together, and the VCs have 4: they cannot all be met"),
        ({"given": lends(a=3)}, "quotas are 7 GPUs together, and the VCs have 8: the rest is only borrowed"),
        ({"given": lends(a=3)}, "gres/gpu=4, gres/shard=8, and daemon.pool.quotas.a is 3"),
        ({"limits": {**LIMITS, "QOS qa": GroupLimit(4)}}, "of partition 'a' has GrpTRES gres/gpu=4, gres/shard=none"),
        ({"limits": {"QOS qb": GroupLimit(4, 8)}}, "Slurm keeps 'a' to no quota"),
        ({"limits": None}, "it cannot be told which GrpTRES"),
        ({"config": {"AccountingStorageEnforce": "associations"}}, "AccountingStorageEnforce has no limits"),
        ({"partitions": [*PARTITIONS[:2], partition("over", "qa")]}, "'over' has the QOS of a VC (qa)"),
        ({"modes": {"a": Mode.PACK, "b": Mode.OBSERVE}}, "are in different modes (a pack, b observe)"),
        ({"defaults": {"a": JobDefaults(2), "b": NO_DEFAULTS, "over": NO_DEFAULTS}}, "each GPU than a (JobDef"),
        (
            {"given": lends(gpu_mem_mib_by_feature={"big": 80000}),
             "nodes": [LENT[0], replace(LENT[1], features=frozenset({"big"}))]},
            "have 24576 to 80000 MiB",
        ),
    ],
)  # fmt: skip
def test_each_wrong_or_missing_limit_is_told(change: dict[str, Any], words: str) -> None:
    assert words in "\n".join(told(**{"given": lends(), **change}))


def test_quotas_of_accounts_need_a_qos_of_the_pools_partition_that_goes_before_them() -> None:
    bare = [partition("a"), partition("b"), partition("over")]
    accounts = {"account ml": GroupLimit(4, 8)}
    assert "no QOS with GrpTRES: a job that is to borrow waits" in "\n".join(told(lends(), bare, LENT, accounts))
    lent = {**accounts, "QOS lent": GroupLimit(8, 16)}
    assert told(lends(), [*bare[:2], partition("over", "lent")], LENT, lent) == []
    stranger = {**lent, "QOS six": GroupLimit(6, 12)}
    (found,) = told(lends(), [*bare[:2], partition("over", "lent")], LENT, stranger)
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
