"""Jobs that wait for something else than their turn, and those that Lucid can only let go at it."""

from __future__ import annotations

import pytest

from lucid.places import Mode
from lucid.slurm.own.waits import LEASE_S
from scenes.slurm import Scene

FAR_S = 360 * 86400.0
"""What an earlier Lucid set as begin time of a job with a dependency."""
MINE = "lucid:vc=vc;held=1;v=2"
OPAQUE = "lucid:vc=vc;held=1;skip=interactive;v=2"


@pytest.fixture
def stage() -> Scene:
    return Scene()


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
