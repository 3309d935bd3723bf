"""Elastic jobs that are moved or refused in the middle of a resize, on a slurmctld in memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from test_resizes import Stage

from fake_slurm import fake_node
from lucid.config.live import DaemonSettings
from lucid.core.decision import Action, Resize, Start
from lucid.core.job import Pending
from lucid.places import Mode
from lucid.slurm.records.job import SlurmJob
from scenes.jobs import at
from scenes.slurm import WHY


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


@pytest.mark.parametrize("other", ["waits", "runs"])
def test_nobody_takes_gpus_whose_job_was_not_stopped_after_all(stage: Stage, other: str) -> None:
    """Slurm declines the requeue that it counts on: it is not tried, and that counts against nobody."""
    stage.running("2", "n1:1,2,3", 3)
    if other == "waits":
        stage.submit("1", 2, comment="")
    else:
        stage.running("1", "n1:0", 1)
    stage.slurm._set("2", requeue=False)
    stage.cluster.observe()
    shrinks = Action("2", "vc", Resize(at("n1:3"), WHY))
    starts, grows = Start(at("n1:1,2"), WHY), Resize(at("n1:0-2"), WHY)
    done = stage.cluster.apply(
        [shrinks, Action("1", "vc", starts)] if other == "waits" else [Action("1", "vc", grows), shrinks]
    )
    assert all(one.refused for one in done)
    assert "job 2" in next(str(one.refused) for one in done if one.action.job_id == "1")
    assert stage.slurm.records["1"].state == ("PENDING" if other == "waits" else "RUNNING")
    assert other == "runs" or (stage.slurm.records["1"].held and not stage.cluster.notes.get("1"))


def test_a_job_that_its_user_moves_to_another_partition_in_between_is_decided_anew(stage: Stage) -> None:
    stage.daemon = DaemonSettings(partitions={"vc": Mode.PACK, "far": Mode.PACK}, elastic=stage.daemon.elastic)
    stage.slurm.machines.append(fake_node("n3", "far"))
    stage.restart()
    stage.running("1", to="n1:0")
    stage.slurm._set("1", partition="far")
    said = stage.round(rounds=5)
    assert any("its partition far" in words for words in said), said
    assert stage.slurm.records["1"].held
    assert len(stage.slurm.starts) == 1
    assert stage.do("1", Start(at("n3:0,1"), WHY), "far") is None
    stage.round(rounds=2)
    assert stage.slurm.records["1"].state == "RUNNING"


def limited(most: int, reason: str) -> Callable[[SlurmJob], str]:
    return lambda job: reason if job.gpus > most else ""


@pytest.mark.parametrize("reason", ["QOSMaxGRESPerJob", "QOSGrpGRES"])
def test_a_size_that_a_limit_does_not_give_is_halved_until_slurm_starts_it(stage: Stage, reason: str) -> None:
    """Slurm says so only once the job has been stopped and released: it must not be tried there again and again."""
    stage.running("1", "n1:0", 1)
    stage.slurm.limits = limited(2, reason)
    stage.resized("1", "n1:0,1,2,3 n2:0,1,2,3")
    sizes = [8]
    for _ in range(20):
        stage.round()
        if stage.slurm.records["1"].held and isinstance(entry := stage.entry("1"), Pending):
            sizes.append(entry.job.elastic.max_gpus)
            assert entry.job.elastic.min_gpus == 1
            stage.begins("1", f"n1:0-{sizes[-1] - 1}")
    assert sizes == [8, 4, 2]
    assert stage.slurm.records["1"].state == "RUNNING"
    stage.report("1", epochs=2.0)
    stage.restart()  # a lucidd that comes later knows it, too
    assert stage.entry("1").job.elastic.max_gpus == 2
    assert reason in stage.story
    for epochs in (3.0, 4.0, 5.0, 6.0):
        stage.round(1000.0)
        stage.report("1", epochs=epochs, epoch_s=[[2, 1000.0]])
    most = 2 if "PerJob" in reason else 8
    assert stage.entry("1").job.elastic.max_gpus == most, "others may have left since"


def test_a_limit_below_its_least_size_makes_it_wait(stage: Stage) -> None:
    stage.submit("1", 2, comment="lucid:elastic=2-8")
    stage.slurm.limits = limited(1, "QOSMaxGRESPerJob")
    stage.begins("1", "n1:0,1")
    said = stage.round(rounds=3)
    assert any("waits" in words for words in said), said
    assert stage.entry("1", Pending).barred == "QOSMaxGRESPerJob"
