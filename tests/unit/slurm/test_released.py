"""Jobs that are released, by lucid-release or by Lucid for a reason that may end, and those kept from their CPUs and
memory by jobs that Lucid does not order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builders import at, decide, kinds
from daemon_site import Site
from lucid.core.decision import PartitionPlan
from lucid.core.job import Elastic
from lucid.core.prediction import Prediction
from lucid.places import Mode
from lucid.slurm.act.repair import Released
from lucid.slurm.elastic.opt_in import rigid_because
from lucid.slurm.own.reasons import CROWDED, NOT_IN_TIME, may_end, with_cause
from lucid.slurm.records.request import Request
from lucid.store.port import GivenUp, JobNote
from scenes.slurm import MINE, Scene


def fill(site: Site, held: bool = False) -> list[int]:
    """No GPU of the VC is free; seven jobs wait, all let go by lucid-release, unless it is still to come (*held*).
    Their numbers."""
    for n in range(3):
        site.slurm.submit(f"big{n}", ("vc", "vc", "prof")[n], 4, held=False, mark="none", run_s=1e6)
    for n in range(7):
        site.submit(f"w{n}", 4, held=held, mark=MINE)
    numbers = [site.slurm.records[f"w{n}"].number for n in range(7)]
    if not held:
        released(site, numbers)
    return numbers


def released(site: Site, numbers: list[int]) -> None:
    """What lucid-release leaves."""
    (site.folder / "released").write_text("".join(f"{number} 0 900\n" for number in numbers))


def test_what_lucid_release_let_go_is_held_again(site: Site) -> None:
    fill(site)
    site.turns(10.0)
    for n in range(7):
        assert site.slurm.records[f"w{n}"].held
    assert sum(what == "hold" for _, what in site.slurm.writes) == 7, "once each"
    assert not (site.folder / "released").exists()
    site.slurm._set("w0", held=False)
    site.turns(10.0)
    assert not site.slurm.records["w0"].held, "its user released it afterwards: that is not undone"


UNTOUCHED: dict[str, dict[str, Any]] = {
    "requeued since": {"restarts": 1},
    "comment off": {"comment": "lucid:off"},
    "user holds": {"comment": "lucid:held"},
    "dependency": {"dependent": True, "dependency": "afterok:1(unfulfilled)"},
}


@pytest.mark.parametrize("how", [*UNTOUCHED, "user released", "observe", "gave up"])
def test_what_is_not_lucids_to_take_up_stays_as_it_is(site: Site, how: str) -> None:
    fill(site)
    if how == "user released":
        released(site, [site.slurm.records[f"w{n}"].number for n in range(1, 7)])
    elif how == "observe":
        site.ctl("pause")
    elif how == "gave up":
        assert site.store.take_lease("one", site.slurm.now, 15.0) is not None
        site.store.put_notes([JobNote("w0", home="vc", released=True, given_up="Requested node configuration")], 1)
        site.start()
    site.slurm._set("w0", **UNTOUCHED.get(how, {}))
    site.turns(10.0)
    assert not site.slurm.records["w0"].held
    assert site.slurm.records["w1"].held is (how != "observe")


def test_a_list_that_is_none_is_passed_over(site: Site) -> None:
    fill(site)
    (site.folder / "released").write_bytes(b"\xff\xfe nonsense\n99999999999999999999 0 1\n1 1\n-1 0 1\n")
    site.turns(10.0)
    assert not any(record.held for record in site.slurm.records.values())
    (site.folder / "released").unlink(missing_ok=True)
    (site.folder / "released").mkdir()
    site.turns(10.0)
    assert not any(record.held for record in site.slurm.records.values())


def test_a_list_is_kept_while_lucid_release_may_still_be_at_it(site: Site) -> None:
    """It runs on another host, and writes the list before it lets go: what a look shows is older than the list."""
    numbers = fill(site, held=True)
    released(site, numbers[:4])
    site.daemon.turn()
    released(site, numbers)
    site.daemon.turn()
    assert (site.folder / "released").exists(), "it has changed since the look before"
    for n in range(7):
        site.slurm._set(f"w{n}", held=False)
    site.turns(10.0)
    assert all(site.slurm.records[f"w{n}"].held for n in range(7))
    site.turns(10.0)
    assert not (site.folder / "released").exists()


def test_a_list_that_grows_while_it_is_done_with_is_kept(tmp_path: Path) -> None:
    (tmp_path / "released").write_text("7 0 900\n")
    listed = Released(tmp_path)
    assert listed.read()
    with (tmp_path / "released").open("a") as file:
        file.write("8 0 900\n")
    listed.done()
    assert listed.read()
    listed.done()
    assert not (tmp_path / "released").exists()
    assert not listed.read()


UNPACKED = "partition 'vc' is not packed"


@pytest.fixture
def stage() -> Scene:
    stage = Scene()
    stage.slurm.limits = lambda job: "Resources"
    return stage


def unpacked(stage: Scene) -> None:
    stage.modes["vc"] = Mode.OBSERVE
    stage.mend()
    assert not any(job.held for job in stage.slurm.records.values() if job.comment != "lucid:held")
    assert stage.mend() == []


def packed(stage: Scene) -> list[str]:
    stage.modes["vc"] = Mode.PACK
    said = stage.mend()
    assert stage.mend() == []
    return said


def queue(stage: Scene) -> list[tuple[str, float]]:
    return [(entry.job.id, entry.since_s) for entry in stage.look().pending]


def test_jobs_queue_again_at_their_old_place_when_their_partition_is_packed_again(stage: Scene) -> None:
    stage.jobs("1 2_0 2_1", mark=MINE)
    before = queue(stage)
    stage.slurm.advance(50.0)
    stage.jobs("3", mark=MINE)
    before = queue(stage)
    unpacked(stage)
    stage.slurm.advance(500.0)
    stage.restart()
    words = f"held again: what kept it from starting may have ended ({UNPACKED})"
    assert packed(stage) == [f"job {n}: {words}" for n in ("1", "2_0", "2_1", "3")]
    assert queue(stage) == before
    stage.slurm.limits = lambda job: ""
    assert stage.start("1", "n1:0") is None
    assert stage.slurm.records["1"].state == "RUNNING"


def test_whoever_started_ended_or_is_held_by_others_meanwhile_is_left_alone(stage: Scene) -> None:
    stage.jobs("1 2 3", mark=MINE)
    unpacked(stage)
    stage.slurm._set("1", state="RUNNING", placement=())
    stage.slurm._set("2", held=True, comment="lucid:held", reason="JobHeldUser")
    del stage.slurm.records["3"]
    assert packed(stage) == []
    assert stage.slurm.records["2"].held
    stage.slurm._set("2", held=False, comment="")
    assert len(stage.mend()) == 1, "its user lets it go, and it queues"


def test_a_job_that_was_on_its_way_to_a_start_queues_again(stage: Scene) -> None:
    stage.jobs("1", mark=MINE)
    assert stage.start("1", "n1:0") is None
    stage.modes["vc"] = Mode.OBSERVE
    assert stage.mend() == ["job 1: given back the request that its user wrote, its partition is not packed"]
    assert len(packed(stage)) == 1
    assert [name for name, _ in queue(stage)] == ["1"]


def test_a_parked_job_queues_again(stage: Scene) -> None:
    stage.jobs("1", mark=f"{MINE};park=300", held=False, eligible_s=300.0)
    assert [name for name, _ in queue(stage)] == ["1"]
    stage.modes["vc"] = Mode.OBSERVE
    assert stage.mend()
    assert stage.slurm.records["1"].eligible_s <= stage.slurm.now
    assert len(packed(stage)) == 1
    assert [name for name, _ in queue(stage)] == ["1"]


def test_a_change_of_mode_that_slurm_did_not_hear_of_leaves_a_job_in_the_queue(stage: Scene) -> None:
    stage.jobs("1", mark=MINE)
    stage.cluster._writer.put(with_cause(JobNote("1", given_up=UNPACKED)))
    assert packed(stage) == []
    assert [name for name, _ in queue(stage)] == ["1"]


def test_a_job_that_no_node_could_hold_queues_again_when_one_can(stage: Scene) -> None:
    stage.jobs("1", mark=MINE, cpus=1000)
    assert "no node has the CPUs" in stage.mend()[0]
    assert stage.mend() == []
    stage.slurm._set("1", cpus=1)  # or a node that has as many came
    assert "held again" in stage.mend()[0]


def noted(why: str) -> tuple[GivenUp | None, bool]:
    """Of a note that has the reason in words alone: whose words they are, and whether the reason may end."""
    note = with_cause(JobNote("1", given_up=why))
    return note.given_up_for, may_end(note)


def test_whose_words_these_are_and_which_of_them_may_end() -> None:
    own = [UNPACKED, "it asks for 5 GPUs, and the quota of a is 4 (daemon.pool.quotas)", CROWDED]
    causes = [GivenUp.UNPACKED, GivenUp.QUOTA, GivenUp.CROWDED]
    assert [noted(why) for why in own] == [*zip(causes, (True, True, False), strict=True)]
    theirs = ["ReqNodeNotAvail, Reserved for maintenance", "BadConstraints"]
    assert [noted(why) for why in theirs] == [(GivenUp.SLURM, True), (GivenUp.SLURM, False)]
    assert with_cause(JobNote("1")).given_up_for is None


def test_a_job_that_ran_meanwhile_by_slurms_order_may_still_be_resized(stage: Scene) -> None:
    stage.jobs("1", mark="lucid:vc=vc;held=1;v=2;elastic=1", comment="lucid:elastic=1-4")
    record = replace(stage.slurm.records["1"], state="RUNNING")
    asked = Elastic(max_gpus=4)
    assert rigid_because(record, with_cause(JobNote("1", given_up=UNPACKED, released=True)), asked) == ""
    assert "Slurm did not start it" in rigid_because(
        record, with_cause(JobNote("1", given_up="Invalid", tries=2)), asked
    )


def full_of_others(stage: Scene, cpus: int = 16, mem_mib: int = 1000) -> None:
    """Jobs without GPUs on each node of the VC."""
    for name in ("n1", "n2"):
        runs = {"state": "RUNNING", "held": False, "start_s": stage.slurm.now}
        used = ((name, cpus, mem_mib),)
        stage.jobs(f"cpu-{name}", 0, mark="none", user="eve", hosts_used=used, request=Request(), **runs)


def planned(stage: Scene, policy: str) -> PartitionPlan:
    snapshot = stage.cluster.observe()
    known = [entry.job for part in snapshot.partitions.values() for entry in (*part.pending, *part.running)]
    predictions = {job.id: Prediction(1000.0, "test") for job in known}
    return decide(policy, replace(snapshot, predictions=predictions))


@pytest.mark.parametrize(("cpus", "mem_mib"), [(16, 1000), (1, 31900)])
def test_a_job_kept_from_cpus_or_memory_by_jobs_without_gpus_gets_its_place_in_slurms_order(
    cpus: int, mem_mib: int
) -> None:
    stage = Scene(start_grace_s=30.0)
    full_of_others(stage, cpus, mem_mib)
    stage.jobs("1", mark=MINE, cpus=4)
    stage.turns(25)
    assert stage.slurm.records["1"].held, "it may be over in a moment"
    told = stage.turns(10)
    assert not stage.slurm.records["1"].held
    assert f"job 1: let go as its user wrote it: {CROWDED}" in told
    stage.slurm._set("1", state="PENDING", reason="Resources", placement=(), start_s=0.0)
    stage.look()
    assert f"released as its user wrote it: {CROWDED}" in stage.cluster.aside()["1"]


def test_a_job_that_waits_for_cpus_is_not_told_that_no_node_could_ever_hold_it() -> None:
    stage = Scene(start_grace_s=30.0)
    full_of_others(stage)
    stage.jobs("1", mark=MINE, cpus=4)
    stage.jobs("2", mark=MINE, cpus=17, submit_s=-9.0)
    for name in ("lucid", "fifo", "backfill"):
        found = planned(stage, name)
        assert "EverFits" not in kinds(found.decisions["1"]), name
        assert "HostFits" in kinds(found.decisions["1"]), name
        assert "EverFits" in kinds(found.decisions["2"]), f"{name}: no node has 17 CPUs"


def test_where_gpus_are_missing_cpus_are_not_blamed() -> None:
    stage = Scene(start_grace_s=30.0)
    stage.jobs("1", 2, mark="none", state="RUNNING", held=False, placement=at("n1:0-1"))
    stage.jobs("2", 8, mark=MINE, cpus=2, mem_mib=2000)
    for name in ("lucid", "fifo", "backfill"):
        found = kinds(planned(stage, name).decisions["2"])
        assert "FreeGpus" in found, name
        assert "HostFits" not in found, f"{name}: both nodes have 16 CPUs; a node with 4 free GPUs does not help"


def test_the_last_cpu_of_a_node_is_given_once() -> None:
    stage = Scene()
    full_of_others(stage)
    stage.jobs("1", mark=MINE, cpus=1)
    assert planned(stage, "lucid").actions == ()


def test_they_go_in_the_order_in_which_they_were_held() -> None:
    stage = Scene(start_grace_s=30.0)
    full_of_others(stage)
    stage.slurm.limits = lambda job: "Resources" if job.user == "bob" else ""
    stage.jobs("2", mark=MINE, cpus=4, user="bob", submit_s=-5.0)
    stage.jobs("1", mark=MINE, cpus=4, user="bob", submit_s=-9.0)
    stage.turns(40)
    assert [stage.slurm.records[i].held for i in ("1", "2")] == [False, True]
    stage.turns(30)
    assert not stage.slurm.records["2"].held, "the first one keeps nobody waiting for long"


def test_who_would_not_fit_without_these_either_stays_held() -> None:
    stage = Scene(start_grace_s=30.0)
    full_of_others(stage)
    for name in ("n1", "n2"):
        stage.slurm.submit(f"gpu-{name}", "vc", 4, mark="none", user="dan", held=False)
    assert stage.slurm.records["gpu-n2"].state == "RUNNING"
    stage.jobs("1", mark=MINE, cpus=4)
    stage.turns(100)
    assert stage.slurm.records["1"].held


def test_jobs_that_slurm_cannot_start_keep_gpus_from_others_one_at_a_time() -> None:
    stage = Scene(start_grace_s=10.0)
    stage.slurm.limits = lambda job: "Resources" if job.user == "alice" else ""
    stage.jobs(" ".join(map(str, range(1, 31))), mark=MINE, user="alice")
    stage.jobs("b", mark=MINE, user="bob")
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
    stage.jobs("1 2 3 4 5 6 7 8", mark=MINE, user="alice")
    assert stage.start("1", "n1:0") is None
    stage.turns(15)
    assert all(entry.barred for entry in stage.look().pending)
    stage.turns(40)
    assert stage.start("2", "n1:1") is None
    stage.turns(2)
    assert stage.slurm.records["2"].state == "RUNNING"
    assert stage.start("3", "n1:2") is None
    assert stage.start("4", "n1:3") is None


def test_small_jobs_do_not_wait_for_what_keeps_larger_ones() -> None:
    stage = Scene(start_grace_s=10.0)
    stage.slurm.limits = lambda job: "Resources" if job.id == "1" else ""
    stage.jobs("1", 4, mark=MINE, user="alice")
    stage.jobs("2", mark=MINE, user="alice")
    assert stage.start("1", "n1:0,1,2,3") is None
    stage.turns(15)
    assert [entry.job.id for entry in stage.look().pending if not entry.barred] == ["2"]


def fails(site: Site, job_id: str) -> None:
    """What slurmctld makes of it: put back, and held by nobody but itself."""
    record = site.slurm.records[job_id]
    site.slurm.records[job_id] = replace(
        record, state="PENDING", held=True, reason="JobHeldUser", launch_failed=True, placement=(),
        restarts=record.restarts + 1,
    )  # fmt: skip


def test_it_is_tried_again_and_in_the_end_left_to_the_administrator_unless_it_runs(tmp_path: Path) -> None:
    site = Site(tmp_path, profiling_partition="")
    for job_id in ("1", "2"):
        site.submit(job_id, 4, mark="lucid:vc=vc;held=1;share=0;v=2", run_s=50.0)
    site.turns(5.0)
    fails(site, "2")
    starts = 0
    for _ in range(12):
        if site.slurm.records["1"].state == "RUNNING":
            starts += 1
            fails(site, "1")
        site.turns(12.0)
    assert site.slurm.records["1"].held
    assert starts == 3, "twice as Lucid asks, once as its user wrote it"
    assert site.slurm.records["2"].state == "COMPLETED"
