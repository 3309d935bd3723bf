"""A partition of which no plan can be made: its jobs wait, are let go in time, and taken back; the others go on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from daemon_site import Site
from fake_slurm import fake_node
from lucid.config.live import PoolSettings
from lucid.config.load import settings_from
from lucid.core.decision import PartitionPlan, Plan
from lucid.core.snapshot import Partition, Snapshot
from lucid.daemon.modes import modes_from
from lucid.daemon.plan_errors import PlanError, PlanErrors, plan_errors_of, words_of_plan_errors
from lucid.daemon.reporting.metrics import render
from lucid.daemon.reporting.waste_inputs import MetricsSource
from lucid.orchestrator.policies.lucid.policy import LucidPolicy
from lucid.orchestrator.registry import adding_policy
from lucid.places import HELD_AT_MOST_S, Mode
from lucid.slurm.heartbeat import read_heartbeat
from lucid.store.plan_records import record_files

HEAL_S = 20.0


class Brittle(LucidPolicy):
    """A policy like Lucid's own that raises for the partitions in which it rains now."""

    name = "brittle"
    rains_on = frozenset[str]()

    def plan_partition(self, partition: Partition, snapshot: Snapshot) -> PartitionPlan:
        if partition.name in self.rains_on:
            raise ValueError("it rained")
        return super().plan_partition(partition, snapshot)


@pytest.fixture(autouse=True)
def _brittle() -> Iterator[None]:
    with adding_policy("brittle", Brittle):
        yield
    rain()


def rain(*names: str) -> None:
    """There it rains from now on, and nowhere else."""
    Brittle.rains_on = frozenset(names)


def two(folder: Path, **daemon: Any) -> Site:
    """Two VCs of one node each, in the hands of a policy that may fail; jobs are measured where they run."""
    usual = {"partitions": {"vc": "pack", "w": "pack"}, "policy": "brittle", "profiling_partition": ""}
    site = Site(folder, restarts=None, **{**usual, **daemon})
    site.slurm.machines = [fake_node("n1", "vc"), fake_node("m1", "w")]
    return site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return two(tmp_path)


def metrics(site: Site) -> str:
    return render(MetricsSource(site.settings, now_s=lambda: site.slurm.now)).decode()


def turns(site: Site, seconds: float) -> None:
    site.turns(seconds, every_s=30.0 if seconds > 100.0 else 5.0)


def rains(site: Site, name: str) -> None:
    """From now on; and something is to be planned: a plan that holds still is kept."""
    rain(name)
    site.slurm.submit("73", "vc", 1, run_s=10_000.0)


def held(site: Site) -> list[str]:
    return sorted(record.id for record in site.slurm.records.values() if record.pending and record.held)


def running(site: Site) -> list[str]:
    return sorted(record.id for record in site.slurm.records.values() if record.running)


def fill(site: Site) -> None:
    """Both VCs are full, and two jobs wait in each."""
    for vc in ("vc", "w"):
        for i in range(3):
            site.slurm.submit(f"{7 if vc == 'vc' else 8}{i}", vc, 4, run_s=10_000.0)
    turns(site, 10.0)
    assert held(site) == ["71", "72", "81", "82"]


def test_held_jobs_are_let_go_after_five_minutes_and_taken_back(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    fill(site)
    rains(site, "vc")
    began_s = site.slurm.now
    site.slurm.run_s["80"] = 50.0
    turns(site, HELD_AT_MOST_S - 20.0)
    assert site.daemon._barrier.failed == 0
    assert (running(site), held(site)) == (["70", "81"], ["71", "72", "73", "82"])
    (told,) = words_of_plan_errors(site.store.view("status"))
    assert told.startswith("partition vc cannot be planned since ")
    assert told.endswith(" (ValueError: it rained): its jobs wait")
    assert told in site.ctl("status")
    assert "ValueError: it rained" in site.ctl("explain", "73")
    assert 'lucid_partition_unplanned_seconds{error="ValueError",partition="vc"} 27' in metrics(site)
    errors = [line for line in caplog.records if "no plan of a partition" in line.message]
    assert [line.facts["partition"] for line in errors] == ["vc"]  # type: ignore[attr-defined]
    assert "Traceback" in errors[0].facts["traceback"]  # type: ignore[attr-defined]

    site.daemon.stop()
    site.start("two")  # the error is as old as it is
    turns(site, 40.0 + HEAL_S)
    assert held(site) == ["82"]
    assert [site.slurm.records[job].held for job in ("71", "72", "73")] == [False] * 3
    beat = read_heartbeat(site.folder / "run/heartbeat")
    assert beat.modes == {"vc": Mode.OBSERVE, "w": Mode.PACK}  # job_submit.lua leaves new jobs there to Slurm
    assert plan_errors_of(site.store.view("status"))["vc"].since_s == pytest.approx(began_s, abs=5.0)
    assert "are released" in site.ctl("status")
    site.slurm.run_s["70"] = site.slurm.now - 1000.0  # Slurm starts the next by itself
    turns(site, 30.0)
    assert running(site) == ["71", "81"]
    assert len(record_files(site.folder / "plans")) > 5
    assert "all the same" in site.ctl("replay", "--last", "5", str(site.folder / "plans"))

    rain()
    turns(site, HEAL_S)
    assert held(site) == ["72", "73", "82"]
    assert site.daemon.modes == {"vc": Mode.PACK, "w": Mode.PACK}
    assert site.store.view("status")["plan_errors"] == {}
    assert "lucid_partition_unplanned_seconds" not in metrics(site)


def test_a_pool_that_fails_is_one(tmp_path: Path) -> None:
    site, pool = two(tmp_path), PoolSettings(partition="pool", quotas={"vc": 4, "w": 4})
    site.settings = site.settings.changed({"daemon.pool": pool, "policy.lending.mode": "quota"})
    site.slurm.machines = [replace(node, partitions=node.partitions | {"pool"}) for node in site.slurm.machines]
    site.start("pool")
    fill(site)
    rains(site, "pool")
    turns(site, HELD_AT_MOST_S - 30.0)
    assert held(site) == ["71", "72", "73", "81", "82"]
    turns(site, 30.0 + HEAL_S)
    assert held(site) == []
    assert site.daemon.modes == {"vc": Mode.OBSERVE, "w": Mode.OBSERVE}
    rain()
    turns(site, HEAL_S)
    assert held(site) == ["71", "72", "73", "81", "82"]


def test_where_profiling_fails_new_jobs_go_home_in_time_unmeasured(tmp_path: Path) -> None:
    site = Site(tmp_path, policy="brittle")
    rain("prof")
    site.submit("1", 1)
    turns(site, HELD_AT_MOST_S - 20.0)
    assert held(site) == ["1"]
    turns(site, 20.0 + HEAL_S)
    assert running(site) == ["1"]
    assert site.slurm.records["1"].partition == "vc"
    rain()
    site.submit("2", 1)
    turns(site, HEAL_S)
    assert site.slurm.records["2"].partition == "prof"


def test_a_vc_without_nodes_stops_nobody(site: Site) -> None:
    fill(site)
    site.slurm.machines = [fake_node("n1", "elsewhere"), fake_node("m1", "w")]
    site.slurm.run_s["80"] = 50.0
    turns(site, 100.0)
    assert site.daemon._barrier.failed == 0
    assert "81" in running(site)


@pytest.mark.slow
def test_an_order_stays_while_the_error_is_young_and_is_then_taken_back(tmp_path: Path) -> None:
    site = two(tmp_path, partitions={"vc": "order", "w": "order"})
    for i, gpus in enumerate((4, 4, 2, 1)):
        site.slurm.submit(f"7{i}", "vc", gpus, held=False, mark="", run_s=10_000.0)
    turns(site, 30.0)
    before = {job: factor for job, factor in site.slurm.factors.items() if factor}
    assert before
    rain("vc")
    site.slurm.submit("74", "vc", 1, held=False, mark="", run_s=10_000.0)
    turns(site, HELD_AT_MOST_S - 30.0)
    assert "vc" in site.daemon.plan_errors.now
    assert {job: factor for job, factor in site.slurm.factors.items() if factor} == before
    turns(site, 60.0)
    assert not any(site.slurm.factors.values())


def seen(errors: PlanErrors, now_s: float, why: str = "", name: str = "a") -> frozenset[str]:
    errors.observe(Plan(now_s, {name: PartitionPlan({}, error=why), "b": PartitionPlan({})}))
    return errors.released


def test_an_error_that_comes_back_at_once_lets_go_at_once_and_for_as_long_again() -> None:
    errors = PlanErrors()
    assert not seen(errors, 0.0, "ValueError: 1")
    assert not seen(errors, HELD_AT_MOST_S - 1.0, "ValueError: 2")
    assert seen(errors, HELD_AT_MOST_S, "ValueError: 3") == {"a"}
    assert not seen(errors, 310.0)  # the first plan that is made takes them back
    assert seen(errors, 320.0, "ValueError: 4") == {"a"}
    assert seen(errors, 330.0) == {"a"}
    assert errors.now["a"] == PlanError("ValueError: 4", 0.0, HELD_AT_MOST_S, 620.0)
    assert not seen(errors, 620.0)
    assert not seen(errors, 1000.0, "ValueError: 5")  # a new one
    errors = PlanErrors()  # a clock that was set back makes no error younger than it can be
    seen(errors, 10_000.0, "ValueError")
    assert not seen(errors, 100.0, "ValueError")
    assert seen(errors, 100.0 + HELD_AT_MOST_S, "ValueError") == {"a"}
    again = PlanErrors({"a": PlanError("ValueError", 0.0, 1.0, 1e9)})
    assert not seen(again, 500.0)


def test_a_partition_that_is_gone_has_no_error_and_one_for_several_together_is_told_once(caplog: Any) -> None:
    errors = PlanErrors()
    seen(errors, 0.0, "ValueError", "gone")
    seen(errors, 1.0)
    for why in ("1", "2"):
        errors.failed("", ValueError(why))
    assert (errors.to_dict(), sum("several" in one.message for one in caplog.records)) == ({}, 1)


def test_what_is_let_go_is_observed() -> None:
    daemon = {"partitions": {"a": "pack", "b": "pack", "c": "order"}, "pool": {"partition": "p", "quotas": {"b": 1}}}
    settings = settings_from({"daemon": daemon, "policy": {"lending": {"mode": "quota"}}}, "test")
    assert modes_from(settings, {}, released={"p"}) == {"a": Mode.PACK, "b": Mode.OBSERVE, "c": Mode.ORDER}
    assert modes_from(settings, {"mode.c": "pack"}, released={"c"})["c"] is Mode.OBSERVE
