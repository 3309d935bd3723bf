"""Jobs that stay in their partition, by their own word or by the partition's setting, where others are moved."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from test_slurm_lending_pool import Lenders, common_nodes, own_nodes, quota_of_slurm

from builders import LIGHT
from examples import tried
from fake_slurm import fake_node
from lucid.config.load import settings_from
from lucid.daemon.learning.models import WithContention
from lucid.daemon.policies import check_policy
from lucid.errors import ConfigError
from lucid.models.history import HistoryPredictor
from lucid.slurm.heartbeat import read_heartbeat
from lucid.slurm.records.job import SlurmNode
from scenes.slurm import MINE, Scene

Machines = Callable[[], list[SlurmNode]]


def submit(site: Lenders, name: str, vc: str, gpus: int, comment: str = "", run_s: float = 400.0) -> None:
    mark = f"lucid:vc={vc};held=1;v=2"
    site.slurm.submit(name, vc, gpus, run_s=run_s, time_limit_s=500.0, mark=mark, comment=comment)


@pytest.mark.parametrize("machines", [own_nodes, common_nodes])
def test_a_job_that_says_so_waits_for_its_own_partition_and_its_twin_borrows(
    tmp_path: Path, machines: Machines
) -> None:
    site = Lenders(tmp_path, machines())
    if machines is common_nodes:
        quota_of_slurm(site.slurm)
    submit(site, "1", "a", 4, run_s=100.0)
    site.turns(2.0)
    submit(site, "2", "a", 2, "project x lucid:stay")
    submit(site, "3", "a", 2)
    site.turns(20.0)
    assert site.where().keys() == {"1", "3"}
    assert site.where()["3"][0] == "over"
    told = site.ctl("explain", "2")
    assert "stays: in partition a, by its own word (lucid:stay)" in told
    assert ("(asked: -p a)" if machines is own_nodes else "VC a holds 4 of its quota of 4 GPUs: no room") in told
    site.turns(100.0)
    assert site.where()["2"][0] == "a"
    assert "stays: in partition a" in site.ctl("explain", "2")
    assert "stays" not in site.ctl("explain", "3")
    site.turns(500.0)
    assert "stays: in partition a" in site.ctl("explain", "2"), "once it has ended, too"


def test_a_partition_keeps_its_jobs_by_its_setting(tmp_path: Path) -> None:
    site = Lenders(tmp_path, own_nodes(), stay=["a"], profiling_partition="prof")
    for name, vc in (("1", "a"), ("2", "a"), ("3", "b"), ("4", "b")):
        submit(site, name, vc, 3, run_s=100.0)
        site.turns(2.0)
    assert site.where() == {"1": ("a", "n1"), "3": ("b", "n2")}
    assert "stays: in partition a, by the partition's setting (daemon.stay)" in site.ctl("explain", "2")
    assert read_heartbeat(tmp_path / "run/heartbeat").unrouted == ("a",)


def test_others_leave_it_the_nodes_that_it_waits_for_where_they_find_room_elsewhere(tmp_path: Path) -> None:
    site = Lenders(tmp_path, own_nodes())
    submit(site, "1", "b", 3, run_s=100.0)
    site.turns(2.0)
    submit(site, "2", "a", 2, "lucid:stay")
    site.turns(2.0)
    submit(site, "3", "b", 1)
    site.turns(2.0)
    assert site.where() == {"1": ("over", "n1"), "3": ("b", "n2")}
    site.turns(100.0)
    assert site.where()["2"] == ("a", "n1")


def test_it_goes_before_a_job_that_came_earlier_and_would_borrow_its_gpus(tmp_path: Path) -> None:
    site = Lenders(tmp_path, own_nodes())
    for name, run_s in (("1", 100.0), ("2", 300.0), ("3", 50.0)):
        submit(site, name, "b", 4, run_s=run_s)
        site.turns(2.0)
    submit(site, "4", "a", 4, "lucid:stay", run_s=50.0)
    site.turns(105.0)
    assert site.where() == {"2": ("b", "n2"), "4": ("a", "n1")}


def test_one_that_stays_is_paired_on_its_own_node_and_on_no_other(tmp_path: Path) -> None:
    """The twin of what ``test_a_guest_on_gpus_of_another_vc...`` shows without the word."""
    site = Lenders(tmp_path, own_nodes(), gss=2)
    site.predictor = WithContention(HistoryPredictor(500.0))
    site.start()
    site.sampler.profiles = dict.fromkeys("1234", LIGHT)
    for name, vc in (("1", "a"), ("3", "a"), ("2", "b"), ("5", "b")):
        submit(site, name, vc, 2)
        site.turns(2.0)
    site.turns(20.0)
    mark = "lucid:vc=a;held=1;v=2"
    site.slurm.submit("4", "a", 2, run_s=100.0, time_limit_s=500.0, mark=mark, name="2", comment="lucid:stay")
    site.turns(5.0)
    record = site.slurm.records["4"]
    assert (record.state, record.partition, record.request.shards) == ("RUNNING", "a", True)
    assert record.placement in (site.slurm.records["1"].placement, site.slurm.records["3"].placement)


@pytest.mark.parametrize("asks", [{"features": "h100"}, {"features": "a100"}, {"excludes": "n1"}])
def test_what_its_user_asks_of_nodes_holds_beside_it(tmp_path: Path, asks: dict[str, Any]) -> None:
    machines = own_nodes()
    machines[0] = fake_node("n1", "a", partitions=frozenset({"a", "over"}), features=frozenset({"a100"}))
    site = Lenders(tmp_path, machines)
    mark = "lucid:vc=a;held=1;v=2;share=0;why=nodes"
    site.slurm.submit("1", "a", 2, time_limit_s=500.0, mark=mark, comment="lucid:stay", **asks)
    site.turns(20.0)
    assert site.slurm.records["1"].partition == "a"
    assert site.where().get("1", ("a", "n1")) == ("a", "n1"), "what no node of its own meets is Slurm's to refuse"


def test_it_is_not_moved_to_be_profiled_and_its_twin_is() -> None:
    stage = Scene()
    stage.new |= {"mine", "other"}
    stage.slurm.submit("mine", "vc", 1, mark=MINE, comment="lucid:stay")
    stage.slurm.submit("other", "vc", 1, mark=MINE)
    parts = stage.cluster.observe().partitions
    assert [e.job.id for e in parts["prof"].pending] == ["other"]
    assert [(e.job.id, e.home_only) for e in parts["vc"].pending] == [("mine", True)]


def test_no_profiling_node_takes_it_in_where_its_own_are_full(tmp_path: Path) -> None:
    machines = [*own_nodes(), fake_node("p1", "prof")]
    site = Lenders(tmp_path, machines, "quota", profiling_partition="prof")
    submit(site, "1", "a", 4)
    site.turns(2.0)
    submit(site, "2", "a", 1, "lucid:stay")
    submit(site, "3", "a", 1)
    site.turns(10.0)
    assert site.where() == {"1": ("a", "n1"), "3": ("prof", "p1")}


def test_a_setting_that_names_no_vc_is_refused() -> None:
    data = {"daemon": {"partitions": {"vision": "pack"}, "stay": ["visoin"]}}
    with pytest.raises(ConfigError, match=r"daemon\.stay names 'visoin': not in daemon\.partitions.*'vision'"):
        check_policy(settings_from(data, "lucid.toml"), "lucid.toml")


Day = list[tuple[float, str, int, float, str]]


def a_day(rng: random.Random) -> Day:
    """Jobs as (pause before it, VC, GPUs, run time, comment)."""
    words = ("", "lucid:stay", "lucid:stay")
    return [
        (rng.choice([0.0, 0.0, 3.0, 40.0]), rng.choice("ab"), rng.choice([1, 1, 2, 3, 4]),
         float(rng.choice([20, 60, 200])), rng.choice(words))
        for _ in range(rng.randint(3, 14))
    ]  # fmt: skip


def went(folder: Path, machines: list[SlurmNode], lending: str, day: Day, check: Callable[[Lenders], None]) -> Any:
    """The starts of that day: when, which job, where."""
    site = Lenders(folder, machines, lending, gss=2, profiling_partition="prof")
    if "b" in machines[0].partitions:
        quota_of_slurm(site.slurm)
    site.predictor = WithContention(HistoryPredictor(500.0))
    site.start()
    for number, (pause_s, vc, gpus, run_s, comment) in enumerate(day, 1):
        site.sampler.profiles[f"{number}"] = LIGHT
        site.turns(pause_s)
        submit(site, f"{number}", vc, gpus, comment, run_s)
    for _ in range(60):
        site.turns(20.0)
        check(site)
        if all(record.ended for record in site.slurm.records.values()):
            break
    assert all(record.ended for record in site.slurm.records.values()), "every job runs"
    return site.slurm.starts


@pytest.mark.slow
@pytest.mark.parametrize("machines", [own_nodes, common_nodes])
@tried(6, 3)
def test_one_that_stays_is_never_given_nodes_outside_its_partition(machines: Machines, rng: random.Random) -> None:
    def check(site: Lenders) -> None:
        for record in site.slurm.records.values():
            if record.comment:
                assert record.partition == record.admin_comment[len("lucid:vc=")], record
                own = {m.name for m in site.slurm.machines if record.partition in m.partitions}
                assert own >= {part.node for part in record.placement}, record

    with TemporaryDirectory() as folder:
        went(Path(folder), [*machines(), fake_node("p1", "prof")], "borrow", a_day(rng), check)


@pytest.mark.slow
@tried(6, 3)
def test_without_lending_the_word_changes_nobodys_place(rng: random.Random) -> None:
    """Nor when and where any job starts."""
    day, found = a_day(rng), []
    for words in (day, [(*job[:4], "") for job in day]):
        with TemporaryDirectory() as folder:
            found.append(went(Path(folder), own_nodes(), "off", words, lambda site: None))
    assert found[0] == found[1]
