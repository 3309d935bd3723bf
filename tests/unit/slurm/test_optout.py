"""Jobs that opt out, and requests as they are read."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from builders import at
from lucid.core.decision import Requeue, Start
from lucid.errors import ActionRefused
from lucid.places import Mode
from lucid.slurm.client import Changes
from lucid.slurm.own.waits import LEASE_S
from lucid.slurm.records.from_json import JOB_NEEDS, jobs_from
from lucid.slurm.records.request import (
    EXCLUSIVE,
    JobDefaults,
    Request,
    defaults_from,
    host_needs,
    per_gpu,
    whole_because,
)
from scenes.slurm import WHY, Scene

FAR_S = 360 * 86400.0
"""What an earlier Lucid set as begin time of a job with a dependency."""
MINE = "lucid:vc=vc;held=1;v=2"
OPAQUE = "lucid:vc=vc;held=1;skip=interactive;v=2"


def held(stage: Scene, *jobs: str) -> list[bool]:
    return [stage.slurm.records[job].held for job in jobs]


def waiting(stage: Scene) -> list[str]:
    return [entry.job.id for entry in stage.look().pending]


# -- behind -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how",
    [
        {"mark": OPAQUE},
        {"mark": MINE, "comment": "x,lucid:off"},
        {"mark": OPAQUE, "partition": "vc,elsewhere"},
        {"mark": OPAQUE, "het": 3},
    ],
)
def test_no_job_is_let_go_before_one_that_was_held_earlier_and_asks_for_no_more(
    stage: Scene, how: dict[str, object]
) -> None:
    stage.slurm.submit("1", "vc", 2, mark=MINE)
    stage.slurm.submit("2", "vc", 1, mark=MINE)
    partition = str(how.pop("partition", "vc"))
    stage.slurm.submit("3", partition, 1, **how)  # type: ignore[arg-type]
    assert waiting(stage) == ["1", "2"]
    assert stage.mend() == []
    assert "no job held before it" in stage.cluster.aside()["3"]
    stage.known("2")
    stage.start("2", "n1:0")
    (said,) = stage.mend()
    assert said.startswith("job 3: let go at its turn as its user wrote it")
    assert held(stage, "1", "3") == [True, False], "the earlier one asks for more"
    assert stage.mend() == []


def test_what_was_held_later_or_cannot_start_itself_stops_nobody(stage: Scene) -> None:
    stage.slurm.submit("1", "vc", 1, mark=MINE, comment="lucid:held")
    stage.slurm.submit("2", "vc", 1, mark=MINE, eligible_s=5000.0)
    stage.slurm.submit("3", "vc", 1, mark=MINE, dependency="afterok:9", eligible_s=FAR_S, held=False)
    stage.slurm.submit("4", "vc", 1, mark=MINE)
    stage.cluster._writer.obstacles.met(stage.slurm.records["4"], "Licenses", 0.0)
    stage.slurm.submit("5", "vc", 1, mark=OPAQUE)
    stage.slurm.submit("6", "vc", 1, mark=MINE)
    stage.mend()
    assert held(stage, "1", "2", "4", "5", "6") == [True, True, True, False, True]


def test_of_two_such_jobs_the_one_held_first_goes_first(stage: Scene) -> None:
    stage.slurm.submit("1", "vc", 1, mark=MINE)
    stage.slurm.submit("2", "vc", 1, mark=OPAQUE)
    stage.slurm.submit("3", "vc", 1, mark=OPAQUE)
    assert stage.mend() == []
    stage.slurm._set("1", held=False, state="CANCELLED")
    stage.mend()
    assert held(stage, "2", "3") == [False, True]
    stage.mend()
    assert held(stage, "3") == [False]


def test_an_array_too_large_to_look_at_goes_as_one(stage: Scene) -> None:
    mark = OPAQUE.replace("interactive", "array")
    stage.slurm.submit("7", "vc", 0, mark="none of Lucid's")  # how commands name the whole
    for task in range(3):
        stage.slurm.submit(f"7_{task}", "vc", 1, mark=mark, number=7)
    stage.mend()
    assert stage.slurm.writes == [("7", "release")]


def test_a_job_of_whole_nodes_that_asks_for_no_gpu_asks_for_all_of_them(stage: Scene) -> None:
    from lucid.slurm.records.request import EXCLUSIVE, Request

    stage.slurm.submit("1", "vc", 4, mark=MINE)
    stage.slurm.submit(
        "2", "vc", 0, mark=OPAQUE.replace("interactive", "whole"), request=Request(others=(EXCLUSIVE,)), simple=False
    )
    assert stage.mend() == []
    stage.slurm._set("1", state="CANCELLED")
    stage.mend()
    assert held(stage, "2") == [False]
    assert stage.slurm.writes == [("2", "release")], "and its request stays as it is"


def test_the_parts_of_a_heterogeneous_job_count_together(stage: Scene) -> None:
    mark = OPAQUE.replace("interactive", "het")
    stage.slurm.submit("1", "vc", 3, mark=MINE)
    stage.slurm.submit("2", "vc", 1, mark=mark, het=2)
    stage.slurm.submit("3", "vc", 2, mark=mark, het=2)
    assert stage.mend() == []
    assert held(stage, "2", "3") == [True, True]


def test_one_that_was_let_go_and_requeued_queues_again(stage: Scene) -> None:
    stage.slurm.submit("1", "vc", 1, mark=OPAQUE)
    stage.mend()
    assert stage.slurm.records["1"].state == "RUNNING"
    stage.slurm.submit("2", "vc", 1, mark=MINE)
    stage.slurm.now = 50.0
    stage.slurm._set(
        "1", state="PENDING", placement=(), restarts=1, submit_s=50.0, eligible_s=170.0, reason="BeginTime"
    )
    assert stage.mend() == ["job 1: queues from now on"]
    assert held(stage, "1") == [True]
    assert stage.mend() == []
    stage.slurm._set("2", state="CANCELLED")
    stage.mend()
    assert held(stage, "1") == [True], "Slurm's begin time after a requeue has not come"
    stage.slurm.advance(121.0)
    stage.mend()
    assert stage.slurm.records["1"].state == "RUNNING"


@pytest.mark.parametrize("how", ["wait=1", "begin=1", "own=1"])
def test_who_joined_the_queue_late_is_behind_first_and_then_an_ordinary_job(stage: Scene, how: str) -> None:
    """Whatever the policy goes by: it sees them when their turn has come."""
    stage.slurm.submit("1", "vc", 1, mark=MINE)
    stage.slurm.submit("2", "vc", 2, mark=MINE)
    stage.slurm.submit("3", "vc", 1, mark=f"{MINE};{how}")
    stage.slurm.submit("4", "vc", 1, mark=MINE)
    assert waiting(stage) == ["1", "2", "4"]
    assert "job 1 goes before it" in stage.cluster.aside()["3"]
    stage.known("1")
    assert stage.start("1", "n1:0") is None
    assert waiting(stage) == ["2", "3", "4"]


@pytest.mark.parametrize(("nodes", "gpus"), [(3, 3), (1, 5), (5, 5)])
def test_one_that_its_partition_could_never_hold_keeps_nobody_out(stage: Scene, nodes: int, gpus: int) -> None:
    """Slurm judges a job at its submission; its user may move it to a smaller partition after that."""
    stage.slurm.submit("1", "vc", gpus, mark=MINE, min_nodes=nodes)
    stage.slurm.submit("2", "vc", 5, mark=f"{MINE};wait=1", min_nodes=2)
    assert waiting(stage) == ["1", "2"]


# -- begin times and dependencies -------------------------------------------------------------------------------


def test_a_begin_time_keeps_a_job_out_of_the_queue_until_it_has_come(stage: Scene) -> None:
    stage.slurm.submit("1", "vc", 1, mark=MINE, eligible_s=1000.0)
    assert waiting(stage) == []
    assert stage.mend() == []
    assert stage.cluster.aside() == {"1": "it has a begin time: it joins the queue when that has come"}
    stage.slurm.advance(1001.0)
    (entry,) = stage.look().pending
    assert entry.since_s == 1000.0, "its wait begins then"
    assert held(stage, "1") == [True]
    stage.known("1")
    assert stage.start("1", "n1:0") is None
    assert stage.slurm.records["1"].state == "RUNNING"


def test_a_begin_time_that_its_user_takes_back_is_none(stage: Scene) -> None:
    stage.slurm.submit("1", "vc", 1, mark=MINE, eligible_s=1000.0)
    stage.mend()
    stage.slurm.now = 100.0
    stage.slurm._set("1", eligible_s=100.0)
    stage.mend()
    (entry,) = stage.look().pending
    assert entry.since_s == 100.0


@pytest.mark.parametrize("begin_s", [0.0, 900.0])
def test_a_job_queues_once_slurm_has_ended_its_dependency(stage: Scene, begin_s: float) -> None:
    mark = MINE + (f";begin={begin_s:.0f}" if begin_s else "")
    stage.slurm.submit("1", "vc", 1, mark=mark, held=False, dependency="afterok:9", eligible_s=FAR_S)
    assert waiting(stage) == []
    assert stage.mend() == []
    assert "dependency" in stage.cluster.aside()["1"]
    stage.slurm.now = 200.0
    stage.slurm._set("1", dependency="", reason="BeginTime")
    assert stage.cluster.still_ours() == ["1"]
    assert stage.mend() == ["job 1: queues from now on"]
    assert held(stage, "1") == [True]
    stage.slurm.advance(begin_s)
    stage.mend()
    (entry,) = stage.look().pending
    assert entry.since_s == max(200.0, begin_s)
    stage.known("1")
    assert stage.start("1", "n1:0") is None
    assert stage.slurm.records["1"].state == "RUNNING"


@pytest.mark.parametrize("released", [False, True])
def test_a_dependency_that_its_user_adds_leads_out_of_the_queue_and_back(stage: Scene, released: bool) -> None:
    stage.slurm.submit("1", "vc", 1, mark=OPAQUE if released else MINE)
    if released:
        stage.slurm.limits = lambda job: "Licenses"
        stage.mend()
        assert held(stage, "1") == [False]
    stage.slurm._set("1", dependency="afterany:9")
    assert stage.mend() == ["job 1: has a dependency, and queues when Slurm has ended that"]
    record = stage.slurm.records["1"]
    assert (record.held, record.eligible_s) == (False, LEASE_S)
    assert stage.mend() == []
    stage.slurm._set("1", dependency="")
    assert stage.mend() == ["job 1: queues from now on"]


def test_where_nobody_queues_any_more_a_begin_time_of_lucids_is_taken_away(stage: Scene) -> None:
    stage.slurm.submit("1", "vc", 1, mark=MINE, held=False, dependency="afterok:9", eligible_s=FAR_S)
    stage.modes["vc"] = Mode.OBSERVE
    assert stage.mend() == ["job 1: given back its begin time"]
    assert stage.slurm.records["1"].eligible_s == 0.0


def test_a_reservation_is_an_administrators_grant(stage: Scene) -> None:
    stage.slurm.submit("1", "vc", 1, mark=MINE)
    stage.slurm.submit("2", "vc", 1, mark=MINE, reservation="class", eligible_s=FAR_S)
    assert stage.mend() == ["job 2: let go as its user wrote it, it asks for reservation class"]
    assert stage.slurm.records["2"].eligible_s == 0.0


TEXT = """\
PartitionName=vc-a AllowGroups=ALL SelectTypeParameters=NONE JobDefaults=(null) DefMemPerNode=UNLIMITED
PartitionName=vc-b AllowGroups=ALL SelectTypeParameters=NONE JobDefaults=DefCpuPerGPU=2,DefMemPerGPU=4000 TRES=cpu=16
"""
HELD = {"vc": "vc-a", "held": "1"}


def test_defaults_are_read_by_partition_and_the_configurations_own_fill_the_gaps() -> None:
    assert defaults_from(TEXT, {}) == {"vc-a": JobDefaults(), "vc-b": JobDefaults(2, 4000)}
    assert defaults_from(TEXT, {"JobDefaults": "DefCpuPerGPU=8"}) == {
        "vc-a": JobDefaults(8),
        "vc-b": JobDefaults(2, 4000),
    }


@pytest.mark.parametrize(
    ("request_", "nodes", "defaults", "why"),
    [
        (Request("gres/gpu:1"), 1, JobDefaults(), ""),
        (Request("gres/gpu:1", cpus_per_tres="gres/gpu:3", mem_per_tres="gres/gpu:500"), 1, JobDefaults(), ""),
        (Request("gres/gpu:1"), 1, JobDefaults(2, 4000), ""),
        (Request("gres/gpu:1"), 2, JobDefaults(), "it asks for 2 nodes"),
        (Request("gres/gpu:1", max_nodes=4), 1, JobDefaults(), "it may be given up to 4 nodes"),
        (Request("gres/gpu:1", tasks_per_gpu=2), 1, JobDefaults(), "--ntasks-per-gpu"),
        (Request("gres/gpu:1", others=("it excludes nodes",)), 1, JobDefaults(), "it excludes nodes"),
        (Request("gres/gpu:1"), 1, None, "not known"),
        (Request("gres/gpu:1", tasks=2), 1, JobDefaults(2), "several tasks"),
        (Request("gres/gpu:1", tasks=2, exact_cpus=True), 1, JobDefaults(2), ""),
        (Request("gres/gpu:1", tasks=2, cpus_per_tres="gres/gpu:2"), 1, JobDefaults(), "CPUs by GPU"),
        (Request("gres/gpu:1", tasks=2), 1, JobDefaults(None, 4000), ""),
    ],
)
def test_what_slots_cannot_say_is_told(request_: Request, nodes: int, defaults: JobDefaults | None, why: str) -> None:
    mark = {**HELD, "cpg": request_.cpus_per_tres}
    told = whole_because(request_, mark, nodes, True, defaults)
    assert why in told
    assert bool(told) == bool(why)


def test_the_plugins_word_is_told_in_words() -> None:
    told = whole_because(Request("gres/gpu:1"), {**HELD, "share": "0", "why": "srun"}, 1, True, JobDefaults())
    assert told == "its script asks for GPUs in an srun of its own"


@pytest.mark.parametrize(
    ("written", "request_", "defaults", "needs"),
    [
        ({}, Request(), JobDefaults(), (None, None)),
        ({"cpus_per_tres": "gres/gpu:3"}, Request(), JobDefaults(16), (6, None)),
        ({"mem_per_tres": "gres/gpu:500"}, Request(), JobDefaults(), (None, 1000)),
        ({}, Request(), JobDefaults(16, 4000), (32, 8000)),
        ({}, Request(exact_cpus=True, exact_mem=True), JobDefaults(16, 4000), (None, None)),
    ],
)
def test_cpus_and_memory_that_follow_from_gpus(
    written: dict[str, str], request_: Request, defaults: JobDefaults, needs: tuple[int | None, int | None]
) -> None:
    assert host_needs(written, request_, 2, defaults) == needs


def test_what_slurm_took_from_job_defaults_reads_like_what_users_ask_for() -> None:
    assert (per_gpu("gpu:2"), per_gpu("gres/gpu:2"), per_gpu("")) == ("gres/gpu:2", "gres/gpu:2", "")


def test_a_job_that_stands_half_way_is_known_by_its_tag() -> None:
    raw = {
        **dict.fromkeys(JOB_NEEDS), "job_id": 7, "job_state": ["PENDING"],
        "priority": {"set": True, "number": 0}, "node_count": {"number": 1},
        "admin_comment": "lucid:vc=vc-a;held=1;node=gres/gpu:2;cpg=gres/gpu:3", "tres_per_node": "",
    }  # fmt: skip
    (record,) = jobs_from({"jobs": [raw]})
    assert record.gpus == 2
    assert record.request.emptied


class Asked(Scene):
    """No MPS; job 1 asks for GPUs as a test says."""

    def __init__(self, request: Request, cpus: int = 1, **rest: object) -> None:
        super().__init__(mps=False)
        mark = "lucid:vc=vc;held=1;node=gres/gpu:2"
        mark += f";cpg={request.cpus_per_tres}" if request.cpus_per_tres else ""
        mark += f";mpg={request.mem_per_tres}" if request.mem_per_tres else ""
        self.jobs("1", 2, light=True, mark=mark, request=replace(request, num_cpus=cpus), cpus=cpus, **rest)


SLOTS = "gres/shard:g1:1,gres/shard:g2:1"
START = Start(at("n1:1-2"), WHY, slots=True)


def test_cpus_by_gpu_become_cpus_and_come_back_with_the_request() -> None:
    asked = Request("gres/gpu:2", cpus_per_tres="gres/gpu:3", mem_per_tres="gres/gpu:500")
    scene = Asked(asked, cpus=6)
    assert scene.do("1", START) is None
    assert scene.request("1") == Request(SLOTS, req_nodes="n1")
    record = scene.slurm.records["1"]
    assert (record.state, record.cpus, record.mem_mib) == ("RUNNING", 6, 1000)
    assert scene.do("1", Requeue(WHY)) is None
    scene.slurm.advance(10)
    scene.mend()
    assert scene.request("1") == asked


def test_job_defaults_are_said_with_the_slots() -> None:
    scene = Asked(Request("gres/gpu:2"))
    scene.slurm.defaults = {"vc": JobDefaults(4, 4000)}
    assert scene.do("1", START) is None
    record = scene.slurm.records["1"]
    assert (record.request.shards, record.cpus, record.mem_mib) == (True, 8, 8000)


def test_job_defaults_that_slurm_wrote_into_a_job_it_judged_are_not_its_users() -> None:
    asked = Request("gres/gpu:2", mem_per_tres="gres/gpu:4000", exact_mem=True)
    scene = Scene(mps=False)
    scene.jobs("1", 2, light=True, mark="lucid:vc=vc;held=1;node=gres/gpu:2", request=asked, mem_mib=500)
    scene.slurm.defaults = {"vc": JobDefaults(2, 4000)}
    assert scene.do("1", START) is None
    assert (scene.request("1").mem_per_tres, scene.slurm.records["1"].mem_mib) == ("", 500)


def test_killed_half_way_the_request_is_given_back() -> None:
    asked = Request("gres/gpu:2", cpus_per_tres="gres/gpu:3")
    scene = Asked(asked, cpus=6)
    whole = scene.slurm.update

    def first_only(job_id: str, changes: Changes) -> None:
        assert changes.first is not None
        whole(job_id, changes.first)
        raise ActionRefused("slurmctld is gone")

    scene.slurm.update = first_only  # type: ignore[method-assign]
    assert "slurmctld is gone" in str(scene.do("1", START))
    assert scene.request("1").emptied
    scene.slurm.update = whole  # type: ignore[method-assign]
    scene.mend()
    assert scene.request("1") == asked
    assert scene.slurm.records["1"].held


def test_why_it_runs_whole_stands_in_the_job() -> None:
    scene = Asked(Request("gres/gpu:2", tasks_per_gpu=2))
    (entry,) = scene.look().pending
    assert not entry.job.shareable
    assert "--ntasks-per-gpu" in entry.job.whole_because
    assert scene.do("1", replace(START, slots=False)) is None
    assert not scene.request("1").shards


def test_an_exclusive_job_has_whole_nodes_in_the_books() -> None:
    scene = Asked(Request("gres/gpu:1", others=(EXCLUSIVE,)), simple=False)
    (entry,) = scene.look().pending
    assert entry.job.gpus == 4
    assert scene.do("1", Start(at("n1:0-3"), WHY)) is None
    assert scene.request("1") == Request("gres/gpu:1", req_nodes="n1"), "as written, on the node of the plan"
    (running,) = scene.look().running
    assert running.placement == at("n1:0-3")
