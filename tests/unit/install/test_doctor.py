"""What doctor finds in Slurm's answers: those that real, sound clusters gave, with one thing put wrong at a time."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fake_slurm import FakeSlurm, fake_node
from lucid.config.load import Settings, settings_from
from lucid.core.gpu import NodeHealth
from lucid.daemon.modes import modes_from
from lucid.errors import ClusterError, ClusterUnavailable, Finding
from lucid.node.reports import health_folder, write_health
from lucid.places import Mode
from lucid.setup.doctor import check_site
from lucid.setup.site import Site, see_site
from lucid.slurm.records.configuration import Limits, Partition, clock_from, config_from_text, partitions_from
from lucid.slurm.records.from_json import nodes_from

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


def test_a_sound_cluster_has_no_findings(site: Site) -> None:
    assert found(site) == []
    assert found(site, settings(partitions={"vc-a": "order"}, profiling_partition="")) == []
    assert found(site, settings(partitions={"vc-a": "observe"}, profiling_partition="")) == []


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
]


@pytest.mark.parametrize(("wrong", "level", "words"), CONFIG, ids=lambda item: str(item)[:40])
def test_a_setting_that_is_wrong_is_found(site: Site, wrong: dict[str, str], level: str, words: str) -> None:
    assert site.config is not None
    assert wrong.keys() <= site.config.keys(), "as Slurm names it"
    findings = found(replace(site, config={**site.config, **wrong}))
    assert [item.level for item in findings if words in item.what] == [level]
    assert len(findings) == 1 or wrong.keys() & {"JobSubmitPlugins"}


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


def test_what_matters_to_packing_alone_is_not_said_of_ordering(site: Site) -> None:
    config = {**(site.config or {}), "GresTypes": "gpu", "TaskProlog": "", "SelectTypeParameters": ""}
    assert found(replace(site, config=config), settings(partitions={"vc-a": "order"}, profiling_partition="")) == []


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


def test_a_daemon_that_is_not_to_catch_up_needs_no_accounting(site: Site) -> None:
    config = {**(site.config or {}), "AccountingStorageType": ""}
    assert found(replace(site, config=config), settings(catch_up_days=0)) == []


def test_mps_that_is_off_needs_neither_extra_nor_prolog(site: Site) -> None:
    for wrong in ({"SchedulerParameters": "extra_constraints"}, {"Prolog": ""}):
        assert found(replace(site, config={**(site.config or {}), **wrong}), settings(mps=False)) == []


def with_partition(name: str, /, **changes: Any) -> Callable[[Site], Site]:
    def change(site: Site) -> Site:
        parts = [replace(part, **changes) if part.name == name else part for part in site.partitions]
        return replace(site, partitions=parts)

    return change


def with_nodes(name: str, /, **changes: Any) -> Callable[[Site], Site]:
    return lambda site: replace(site, nodes=[replace(n, **changes) if n.name == name else n for n in site.nodes])


def without_memory(site: Site) -> Site:
    return replace(site, config={**(site.config or {}), "DefMemPerCPU": "0"})


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
    (without_memory, "bad", "no default memory"),
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


def test_memory_may_have_its_default_in_any_place(site: Site) -> None:
    bare = without_memory(site)
    assert found(with_partition("vc-a", def_mem_mib=100)(with_partition("vc-b", def_mem_mib=1)(
        with_partition("prof", def_mem_mib=1)(bare)))) == []  # fmt: skip
    for key, value in (("DefMemPerNode", "100"), ("JobDefaults", "DefMemPerGPU=1000")):
        assert found(replace(bare, config={**(bare.config or {}), key: value})) == []


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


def test_accounting_that_is_silent_is_a_warning() -> None:
    site = replace(sound("24.11"), accounting="Slurmdb query failed")
    found = [one for one in check_site(settings(), modes_from(settings(), {}), site) if "accounting" in one.what]
    assert [(one.level, one.remedy) for one in found] == [("warn", "start slurmdbd, and the data base behind it")]


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
    down = asleep(site, POWER)
    nodes = [
        replace(n, states=frozenset({"DOWN", "POWERED_DOWN"}), reason="ResumeTimeout reached [slurm@now]")
        if n.name == "n1"
        else n
        for n in down.nodes
    ]
    assert any(
        "n1: did not come up within ResumeTimeout (300 s)" in f.what for f in found(replace(down, nodes=nodes))
    )
