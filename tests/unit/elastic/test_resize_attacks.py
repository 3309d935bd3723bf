"""Elastic jobs that are moved or refused in the middle of a resize, on a slurmctld in memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from test_resizes import WHY, Stage

from builders import at
from fake_slurm import fake_node
from lucid.config.live import DaemonSettings
from lucid.core.decision import Action, Resize, Start
from lucid.core.job import Pending
from lucid.places import Mode
from lucid.slurm.records.job import SlurmJob


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_nobody_starts_on_gpus_whose_job_was_not_stopped_after_all(stage: Stage) -> None:
    """Slurm declines the requeue that the start counts on: the start is not tried, and counts against nobody."""
    stage.running("1", "n1:0,1,2,3", 4)
    stage.slurm._set("1", requeue=False)
    stage.submit("2", 2, comment="")
    stage.cluster.observe()
    first, second = stage.cluster.apply(
        [Action("1", "vc", Resize(at("n1:0,1"), WHY)), Action("2", "vc", Start(at("n1:2,3"), WHY))]
    )
    assert first.refused is not None
    assert second.refused is not None
    assert "job 1" in second.refused
    assert stage.slurm.records["2"].held
    assert not stage.cluster.notes.get("2")


def test_nobody_is_stopped_for_gpus_whose_job_was_not_stopped_after_all(stage: Stage) -> None:
    """The one that is to grow comes first in the plan; the other has to shrink for it, and Slurm declines."""
    stage.running("1", "n1:0,1", 2)
    stage.running("2", "n1:2,3", 2)
    stage.slurm._set("2", requeue=False)
    stage.cluster.observe()
    grows, shrinks = stage.cluster.apply(
        [Action("1", "vc", Resize(at("n1:0,1,2"), WHY)), Action("2", "vc", Resize(at("n1:3"), WHY))]
    )
    assert shrinks.refused is not None
    assert grows.refused is not None
    assert "job 2" in grows.refused
    assert stage.slurm.records["1"].state == "RUNNING"


def test_a_job_that_its_user_moves_to_another_partition_in_between_is_decided_anew(stage: Stage) -> None:
    stage.daemon = DaemonSettings(partitions={"vc": Mode.PACK, "far": Mode.PACK}, elastic=stage.daemon.elastic)
    stage.slurm.machines.append(fake_node("n3", "far"))
    stage.cluster = stage.restart()
    stage.running("1")
    assert stage.do("1", Resize(at("n1:0"), WHY)) is None
    stage.slurm._set("1", partition="far")
    said = stage.round(rounds=5)
    assert any("its partition far" in words for words in said), said
    assert stage.slurm.records["1"].held
    assert len(stage.starts) == 1
    assert stage.cluster.apply([Action("1", "far", Start(at("n3:0,1"), WHY))])[0].refused is None
    stage.round(rounds=2)
    assert stage.slurm.records["1"].state == "RUNNING"


def limited(most: int, reason: str) -> Callable[[SlurmJob], str]:
    return lambda job: reason if job.gpus > most else ""


@pytest.mark.parametrize("reason", ["QOSMaxGRESPerJob", "QOSGrpGRES"])
def test_a_size_that_a_limit_does_not_give_is_halved_until_slurm_starts_it(stage: Stage, reason: str) -> None:
    """Slurm says so only once the job has been stopped and released: it must not be tried there again and again."""
    stage.running("1", "n1:0", 1)
    stage.slurm.limits = limited(2, reason)
    assert stage.do("1", Resize(at("n1:0,1,2,3 n2:0,1,2,3"), WHY)) is None
    sizes = [8]
    for _ in range(20):
        stage.round()
        if stage.slurm.records["1"].state == "RUNNING":
            break
        if not stage.slurm.records["1"].held:
            continue
        entry = stage.entry("1")
        if isinstance(entry, Pending):
            sizes.append(entry.job.elastic.max_gpus)
            assert entry.job.elastic.min_gpus == 1
            gpus = ",".join(str(i) for i in range(sizes[-1]))
            assert stage.do("1", Start(at(f"n1:{gpus}"), WHY)) is None
    assert sizes == [8, 4, 2]
    assert stage.slurm.records["1"].state == "RUNNING"
    stage.report("1", epochs=2.0)
    stage.restart()  # a lucidd that comes later knows it, too
    elastic = stage.entry("1").job.elastic
    assert elastic.max_gpus == 2
    assert reason in stage.cluster.status()["elastic"]["1"]
    for epochs in (3.0, 4.0, 5.0, 6.0):
        stage.round(1000.0)
        stage.report("1", epochs=epochs, epoch_s=[[2, 1000.0]])
    elastic = stage.entry("1").job.elastic
    assert elastic.max_gpus == (2 if "PerJob" in reason else 8), "others may have left since"


def test_a_limit_below_its_least_size_makes_it_wait(stage: Stage) -> None:
    stage.submit("1", 2, comment="lucid:elastic=2-8")
    stage.slurm.limits = limited(1, "QOSMaxGRESPerJob")
    assert stage.do("1", Start(at("n1:0,1"), WHY)) is None
    said = stage.round(rounds=3)
    assert any("waits" in words for words in said), said
    entry = stage.entry("1", Pending)
    assert entry.barred == "QOSMaxGRESPerJob"
