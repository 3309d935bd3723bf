"""Nobody keeps another's job waiting with jobs that Lucid does not order, nor with jobs that Slurm cannot start."""

from __future__ import annotations

from dataclasses import replace

from builders import at, decide, kinds
from lucid.core.decision import PartitionPlan
from lucid.core.prediction import Prediction
from lucid.slurm.own.reasons import CROWDED, NOT_IN_TIME
from lucid.slurm.records.request import Request
from scenes.slurm import MINE, Scene


def full_of_others(stage: Scene, cpus: int = 16, mem_mib: int = 1000) -> None:
    """Jobs without GPUs on each node of the VC."""
    for name in ("n1", "n2"):
        used = ((name, cpus, mem_mib),)
        stage.slurm.submit(
            f"cpu-{name}", "vc", 0, mark="none", state="RUNNING", held=False, user="eve", hosts_used=used,
            request=Request(), start_s=stage.slurm.now,
        )  # fmt: skip


def planned(stage: Scene, policy: str) -> PartitionPlan:
    snapshot = stage.cluster.observe()
    known = [entry.job for part in snapshot.partitions.values() for entry in (*part.pending, *part.running)]
    predictions = {job.id: Prediction(1000.0, "test") for job in known}
    return decide(policy, replace(snapshot, predictions=predictions))


def turns(stage: Scene, seconds: int) -> list[str]:
    told = []
    for _ in range(seconds):
        stage.look()
        told += stage.mend()
        stage.slurm.advance(1.0)
    return told


def test_a_job_kept_from_its_cpus_by_jobs_without_gpus_gets_its_place_in_slurms_order() -> None:
    stage = Scene(start_grace_s=30.0)
    full_of_others(stage)
    stage.slurm.submit("1", "vc", 1, mark=MINE, cpus=4)
    turns(stage, 25)
    assert stage.slurm.records["1"].held, "it may be over in a moment"
    told = turns(stage, 10)
    assert not stage.slurm.records["1"].held
    assert f"job 1: let go as its user wrote it: {CROWDED}" in told
    stage.slurm._set("1", state="PENDING", reason="Resources", placement=(), start_s=0.0)
    stage.look()
    assert CROWDED in stage.cluster.aside()["1"]


def test_a_job_that_waits_for_cpus_is_not_told_that_no_node_could_ever_hold_it() -> None:
    stage = Scene(start_grace_s=30.0)
    full_of_others(stage)
    stage.slurm.submit("1", "vc", 1, mark=MINE, cpus=4)
    stage.slurm.submit("2", "vc", 1, mark=MINE, cpus=17, submit_s=-9.0)
    for name in ("lucid", "fifo", "backfill"):
        found = planned(stage, name)
        assert "EverFits" not in kinds(found.decisions["1"]), name
        assert "HostFits" in kinds(found.decisions["1"]), name
        assert "EverFits" in kinds(found.decisions["2"]), f"{name}: no node has 17 CPUs"


def test_where_gpus_are_missing_cpus_are_not_blamed() -> None:
    stage = Scene(start_grace_s=30.0)
    stage.slurm.submit("1", "vc", 2, mark="none", state="RUNNING", held=False, placement=at("n1:0-1"))
    stage.slurm.submit("2", "vc", 8, mark=MINE, cpus=2, mem_mib=2000)
    for name in ("lucid", "fifo", "backfill"):
        found = kinds(planned(stage, name).decisions["2"])
        assert "FreeGpus" in found, name
        assert "HostFits" not in found, f"{name}: both nodes have 16 CPUs; a node with 4 free GPUs does not help"


def test_the_last_cpu_of_a_node_is_given_once() -> None:
    stage = Scene()
    full_of_others(stage)
    stage.slurm.submit("1", "vc", 1, mark=MINE, cpus=1)
    assert planned(stage, "lucid").actions == ()


def test_the_same_for_memory() -> None:
    stage = Scene(start_grace_s=30.0)
    full_of_others(stage, cpus=1, mem_mib=31900)
    stage.slurm.submit("1", "vc", 1, mark=MINE, mem_mib=500)
    turns(stage, 40)
    assert not stage.slurm.records["1"].held


def test_they_go_in_the_order_in_which_they_were_held() -> None:
    stage = Scene(start_grace_s=30.0)
    full_of_others(stage)
    stage.slurm.limits = lambda job: "Resources" if job.user == "bob" else ""
    stage.slurm.submit("2", "vc", 1, mark=MINE, cpus=4, user="bob", submit_s=-5.0)
    stage.slurm.submit("1", "vc", 1, mark=MINE, cpus=4, user="bob", submit_s=-9.0)
    turns(stage, 40)
    assert [stage.slurm.records[i].held for i in ("1", "2")] == [False, True]
    turns(stage, 30)
    assert not stage.slurm.records["2"].held, "the first one keeps nobody waiting for long"


def test_who_would_not_fit_without_these_either_stays_held() -> None:
    stage = Scene(start_grace_s=30.0)
    full_of_others(stage)
    for name in ("n1", "n2"):
        stage.slurm.submit(f"gpu-{name}", "vc", 4, mark="none", user="dan", held=False)
    assert stage.slurm.records["gpu-n2"].state == "RUNNING"
    stage.slurm.submit("1", "vc", 1, mark=MINE, cpus=4)
    turns(stage, 100)
    assert stage.slurm.records["1"].held


def test_who_finds_room_beside_them_stays_lucids() -> None:
    stage = Scene(start_grace_s=30.0)
    full_of_others(stage, cpus=12)
    stage.slurm.submit("1", "vc", 1, mark=MINE, cpus=4)
    turns(stage, 100)
    assert stage.slurm.records["1"].held


def test_jobs_that_slurm_cannot_start_keep_gpus_from_others_one_at_a_time() -> None:
    stage = Scene(start_grace_s=10.0)
    stage.slurm.limits = lambda job: "Resources" if job.user == "alice" else ""
    for i in range(1, 31):
        stage.slurm.submit(str(i), "vc", 1, mark=MINE, user="alice")
    stage.slurm.submit("b", "vc", 1, mark=MINE, user="bob")
    tried: list[int] = []
    for _ in range(150):
        seen = stage.look()
        assert not any(entry.barred for entry in seen.pending if entry.job.user == "bob")
        free = [f"n{i // 4 + 1}:{i % 4}" for i in range(8)]
        taken = {f"{part.node}:{part.mask.bit_length() - 1}" for entry in seen.running for part in entry.placement}
        ready = [entry.job.id for entry in seen.pending if not entry.barred and entry.job.user == "alice"]
        for job_id, where in zip(ready, (place for place in free if place not in taken), strict=False):
            stage.start(job_id, where)
        tried.append(len(stage.look().running))
        stage.mend()
        stage.slurm.advance(1.0)
    assert tried[0] == 8, "nothing is known of them at first"
    assert max(tried[30:]) <= 1
    assert sum(tried[30:]) < 0.5 * len(tried[30:]), "most of the time none"
    assert any(entry.barred == NOT_IN_TIME for entry in stage.look().pending)


def test_one_start_that_came_late_keeps_its_users_jobs_back_for_a_while_only() -> None:
    stage = Scene(start_grace_s=10.0)
    stuck = {"1"}
    stage.slurm.limits = lambda job: "Resources" if job.id in stuck else ""
    for i in range(1, 9):
        stage.slurm.submit(str(i), "vc", 1, mark=MINE, user="alice")
    assert stage.start("1", "n1:0") is None
    turns(stage, 15)
    assert all(entry.barred for entry in stage.look().pending)
    turns(stage, 40)
    assert stage.start("2", "n1:1") is None
    turns(stage, 2)
    assert stage.slurm.records["2"].state == "RUNNING"
    assert stage.start("3", "n1:2") is None
    assert stage.start("4", "n1:3") is None


def test_small_jobs_do_not_wait_for_what_keeps_larger_ones() -> None:
    stage = Scene(start_grace_s=10.0)
    stage.slurm.limits = lambda job: "Resources" if job.id == "1" else ""
    stage.slurm.submit("1", "vc", 4, mark=MINE, user="alice")
    stage.slurm.submit("2", "vc", 1, mark=MINE, user="alice")
    assert stage.start("1", "n1:0,1,2,3") is None
    turns(stage, 15)
    assert [entry.job.id for entry in stage.look().pending if not entry.barred] == ["2"]
