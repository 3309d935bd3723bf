"""Who waits in Lucid's queue: jobs that opt out, jobs with a begin time or a dependency, and new jobs, which are
parked with a begin time, not held: they are in the queue at once, and no start takes two writes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from typing import Any

import pytest
from msgspec import structs

from lucid.errors import ActionRefused, ClusterUnavailable
from lucid.places import Mode
from lucid.slurm.own.waits import LEASE_S
from lucid.slurm.records.request import EXCLUSIVE, Request
from scenes.slurm import MINE, Scene

FAR_S = 360 * 86400.0
"""What an earlier Lucid set as begin time of a job with a dependency."""
OPAQUE = "lucid:vc=vc;held=1;skip=interactive;v=2"


def held(stage: Scene, *jobs: str) -> list[bool]:
    return [stage.slurm.records[job].held for job in jobs]


def waiting(stage: Scene) -> list[str]:
    return [entry.job.id for entry in stage.look().pending]


BEHIND = [{"mark": OPAQUE}, {"mark": MINE, "comment": "x,lucid:off"}, {"mark": OPAQUE, "het": 3}]


@pytest.mark.parametrize("how", [*BEHIND, {"mark": OPAQUE, "partition": "vc,elsewhere"}])
def test_no_job_is_let_go_before_one_held_earlier_that_asks_for_no_more(stage: Scene, how: dict[str, Any]) -> None:
    stage.jobs("1", 2, mark=MINE)
    stage.jobs("2", mark=MINE)
    stage.slurm.submit("3", **{"partition": "vc", **how})
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
    stage.jobs("1", mark=MINE, comment="lucid:held")
    stage.jobs("2", mark=MINE, eligible_s=5000.0)
    stage.jobs("3", mark=MINE, dependency="afterok:9", eligible_s=FAR_S, held=False)
    stage.jobs("4", mark=MINE)
    stage.cluster._writer.obstacles.met(stage.slurm.records["4"], "Licenses", 0.0)
    stage.jobs("5", mark=OPAQUE)
    stage.jobs("6", mark=MINE)
    stage.mend()
    assert held(stage, "1", "2", "4", "5", "6") == [True, True, True, False, True]


def test_of_two_such_jobs_the_one_held_first_goes_first(stage: Scene) -> None:
    stage.jobs("1", mark=MINE)
    stage.jobs("2 3", mark=OPAQUE)
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
    whole = {"mark": OPAQUE.replace("interactive", "whole"), "request": Request(others=(EXCLUSIVE,)), "simple": False}
    stage.jobs("1", 4, mark=MINE)
    stage.jobs("2", 0, **whole)
    assert stage.mend() == []
    stage.slurm._set("1", state="CANCELLED")
    stage.mend()
    assert held(stage, "2") == [False]
    assert stage.slurm.writes == [("2", "release")], "and its request stays as it is"


def test_the_parts_of_a_heterogeneous_job_count_together(stage: Scene) -> None:
    mark = OPAQUE.replace("interactive", "het")
    stage.jobs("1", 3, mark=MINE)
    stage.jobs("2", mark=mark, het=2)
    stage.jobs("3", 2, mark=mark, het=2)
    assert stage.mend() == []
    assert held(stage, "2", "3") == [True, True]


def test_one_that_was_let_go_and_requeued_queues_again(stage: Scene) -> None:
    stage.jobs("1", mark=OPAQUE)
    stage.mend()
    assert stage.slurm.records["1"].state == "RUNNING"
    stage.jobs("2", mark=MINE)
    stage.slurm.now = 50.0
    requeued = {"restarts": 1, "submit_s": 50.0, "eligible_s": 170.0, "reason": "BeginTime"}
    stage.slurm._set("1", state="PENDING", placement=(), **requeued)
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
    stage.jobs("1", mark=MINE)
    stage.jobs("2", 2, mark=MINE)
    stage.jobs("3", mark=f"{MINE};{how}")
    stage.jobs("4", mark=MINE)
    assert waiting(stage) == ["1", "2", "4"]
    assert "job 1 goes before it" in stage.cluster.aside()["3"]
    stage.known("1")
    assert stage.start("1", "n1:0") is None
    assert waiting(stage) == ["2", "3", "4"]


@pytest.mark.parametrize(("nodes", "gpus"), [(3, 3), (1, 5), (5, 5)])
def test_one_that_its_partition_could_never_hold_keeps_nobody_out(stage: Scene, nodes: int, gpus: int) -> None:
    """Slurm judges a job at its submission; its user may move it to a smaller partition after that."""
    stage.jobs("1", gpus, mark=MINE, min_nodes=nodes)
    stage.jobs("2", 5, mark=f"{MINE};wait=1", min_nodes=2)
    assert waiting(stage) == ["1", "2"]


@pytest.mark.parametrize("taken_back", [False, True])
def test_a_begin_time_keeps_a_job_out_of_the_queue_until_it_has_come(stage: Scene, taken_back: bool) -> None:
    stage.jobs("1", mark=MINE, eligible_s=1000.0)
    assert waiting(stage) == []
    assert stage.mend() == []
    assert stage.cluster.aside() == {"1": "it has a begin time: it joins the queue when that has come"}
    begin_s = 100.0 if taken_back else 1000.0
    stage.slurm.advance(begin_s)
    stage.slurm._set("1", eligible_s=begin_s)
    stage.mend()
    (entry,) = stage.look().pending
    assert entry.since_s == begin_s, "its wait begins then"
    assert held(stage, "1") == [True]
    stage.known("1")
    assert stage.start("1", "n1:0") is None
    assert stage.slurm.records["1"].state == "RUNNING"


@pytest.mark.parametrize("begin_s", [0.0, 900.0])
def test_a_job_queues_once_slurm_has_ended_its_dependency(stage: Scene, begin_s: float) -> None:
    mark = MINE + (f";begin={begin_s:.0f}" if begin_s else "")
    stage.jobs("1", mark=mark, held=False, dependency="afterok:9", eligible_s=FAR_S)
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
    stage.jobs("1", mark=OPAQUE if released else MINE)
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
    stage.jobs("1", mark=MINE, held=False, dependency="afterok:9", eligible_s=FAR_S)
    stage.modes["vc"] = Mode.OBSERVE
    assert stage.mend() == ["job 1: given back its begin time"]
    assert stage.slurm.records["1"].eligible_s == 0.0


PARKED = f"lucid:vc=vc;held=1;park={LEASE_S:.0f};node=gres/gpu:1;v=2"


def parked(stage: Scene, names: str, /, mark: str = PARKED, **rest: Any) -> None:
    stage.jobs(names, mark=mark, **{"held": False, "eligible_s": LEASE_S, **rest})


def written(stage: Scene) -> list[str]:
    return [what for _, what in stage.slurm.writes]


def lists(stage: Scene, takes_s: float = 0.0, error: Exception | None = None) -> list[list[str]]:
    """The lists of jobs that Slurm is told from now on; each takes so long, or is declined."""
    told: list[list[str]] = []
    tell = stage.slurm.set_begin

    def listed(job_ids: Sequence[str], begin_s: float) -> None:
        told.append(list(job_ids))
        stage.slurm.now += takes_s
        if error is not None:
            raise error
        tell(job_ids, begin_s)

    stage.slurm.set_begin = listed
    return told


@pytest.mark.parametrize(("now_s", "writes"), [(0.0, ["update"]), (LEASE_S - 5, ["hold", "update", "release"])])
def test_it_starts_with_one_write_and_is_held_near_its_end(stage: Scene, now_s: float, writes: list[str]) -> None:
    parked(stage, "1")
    stage.slurm.now = now_s
    assert waiting(stage) == ["1"]
    assert stage.start("1", "n1:0") is None
    assert (stage.slurm.records["1"].state, written(stage)) == ("RUNNING", writes)


def test_its_lease_is_renewed_and_each_is_as_long_as_it_has_waited(stage: Scene) -> None:
    parked(stage, "1")
    leases = []
    for minute in range(24 * 60):
        stage.slurm.advance(60.0)
        stage.mend()
        left_s = stage.slurm.records["1"].eligible_s - stage.slurm.now
        assert 0 < left_s <= max(LEASE_S, 60.0 * (minute + 1))
        leases.append(left_s)
    assert (waiting(stage), stage.slurm.records["1"].pending) == (["1"], True)
    assert len(written(stage)) < 20


def test_it_is_in_the_queue_all_the_while_its_lease_is_renewed(stage: Scene) -> None:
    """A cycle's status mixes what Slurm showed before the renewal with notes made after it (seen: 57 jobs that "Slurm
    alone decides about (BeginTime)"). And lucidd may die, or Slurm may not answer, between note and write."""
    parked(stage, "1")
    for _ in range(60):
        stage.slurm.advance(20.0)
        for silent in (True, False):
            stage.slurm.fails_at_write = lambda n, silent=silent: ClusterUnavailable("silent") if silent else None
            stage.look()
            with suppress(ClusterUnavailable):
                stage.mend()
            assert stage.cluster.aside() == {}
            assert waiting(stage) == ["1"]
    assert len(written(stage)) > 3


def test_many_are_renewed_by_one_command_and_one_that_slurm_declines_keeps_none_of_them(stage: Scene) -> None:
    told = lists(stage)
    jobs = [str(n) for n in range(1, 121)]
    parked(stage, " ".join(jobs))
    stage.slurm.advance(61.0)
    assert stage.mend() == []
    assert [len(listed) for listed in told] == [8, 16, 32, 50, 14]
    assert {stage.slurm.records[job_id].eligible_s for job_id in jobs} == {61.0 + LEASE_S}

    tries = count()
    stage.slurm.fails_at_write = lambda n: ActionRefused("Job violates policy") if next(tries) % 40 == 7 else None
    for _ in range(30):
        stage.slurm.advance(20.0)
        stage.mend()
        assert all(stage.slurm.records[job_id].eligible_s > stage.slurm.now for job_id in jobs)
        assert len(waiting(stage)) == len(jobs)


def test_the_jobs_of_a_list_that_slurm_declines_are_told_one_by_one(stage: Scene) -> None:
    parked(stage, "1 2 3")
    told = lists(stage, error=ActionRefused("Invalid job id specified"))
    stage.slurm.advance(61.0)
    for _ in range(2):
        stage.mend()
    assert told == [["1", "2", "3"]]
    assert {record.eligible_s for record in stage.slurm.records.values()} == {61.0 + LEASE_S}


def test_what_ends_soonest_is_renewed_first_and_within_the_cap_on_writes() -> None:
    stage = Scene(writes_per_cycle=8)
    for n in range(18):  # each has a lease of its own
        at_s = 1000.0 - n
        parked(stage, f"{n + 1}", PARKED.replace("300", f"{at_s:.0f}"), eligible_s=at_s, submit_s=-4400.0 * n)
    told = lists(stage)
    stage.slurm.now = 930.0
    stage.mend()
    assert told[0] == ["18"]
    assert len(told) == 8


def test_one_whose_lease_and_wait_end_in_the_same_turn_is_let_go(stage: Scene) -> None:
    """Let go on what was seen before its lease was renewed, it was parked for ever (seen by the campaign)."""
    parked(stage, "1")
    for now_s, comment in ((61.0, ""), (270.0, "lucid:off"), (271.0, "lucid:off")):
        stage.slurm.now = now_s
        stage.slurm._set("1", comment=comment)
        stage.mend()
    assert stage.slurm.records["1"].state == "RUNNING"


@pytest.mark.parametrize("now_s", [LEASE_S, 11.0])
def test_one_that_was_let_go_is_not_parked_again_by_the_lease_that_it_had(stage: Scene, now_s: float) -> None:
    """Slurm released it in the very second in which its first lease ended (seen by the campaign), or came back with
    its records of before: lucidd renewed that lease for ever."""
    stage.jobs("big", 8, held=False, mark="none", run_s=1e4)
    parked(stage, "1", PARKED.replace("node=gres/gpu:1", "skip=tasks"))
    stage.slurm.now = 10.0
    assert [said.partition(" as ")[0] for said in stage.mend()] == ["job 1: let go at its turn"]
    stage.slurm.now = now_s
    stage.slurm._set("1", eligible_s=LEASE_S)
    for _ in range(3):
        stage.mend()
        assert stage.slurm.records["1"].eligible_s <= LEASE_S
    assert stage.slurm.records["1"].eligible_s <= now_s


@pytest.mark.parametrize(("begin", "begin_s"), [("", 0.0), (";begin=45", 45.0)])
def test_an_array_is_held_as_a_whole_until_its_begin_time(stage: Scene, begin: str, begin_s: float) -> None:
    parked(stage, "7_0 7_1 7_2", PARKED + begin)
    assert waiting(stage) == []
    stage.slurm.records["7"] = stage.slurm.records["7_0"]  # that id stands for all of them
    assert stage.mend() == ["job 7: held until Lucid starts it"]
    assert stage.slurm.writes == [("7", "hold")]
    assert stage.slurm.records["7"].eligible_s == begin_s


def test_one_that_its_user_requeues_waits_for_slurms_begin_time_and_one_of_lucids_does_not(stage: Scene) -> None:
    parked(stage, "1")
    stage.known("1")
    assert stage.start("1", "n1:0") is None
    stage.slurm._set("1", state="PENDING", placement=(), restarts=1, eligible_s=120.0, reason="BeginTime")
    stage.mend()
    assert waiting(stage) == []
    stage.slurm.advance(121.0)
    stage.mend()
    assert waiting(stage) == ["1"]


def test_one_that_its_user_requeued_held_and_released_waits_for_no_begin_time(stage: Scene) -> None:
    """job_submit.lua gives it a lease at its release, and says so in the comment: AdminComment it may not change."""
    parked(stage, "1")
    assert stage.start("1", "n1:0") is None
    stage.slurm.advance(40.0)
    stage.slurm.requeue_hold("1")
    stage.mend()
    until_s = stage.slurm.now + LEASE_S
    said = f"mine lucid:lease={until_s:.0f}"
    stage.slurm._set("1", held=False, eligible_s=until_s, comment=said, reason="BeginTime")
    assert stage.mend() == ["job 1: queues from now on"]
    assert waiting(stage) == ["1"]
    stage.slurm._set("1", comment="mine lucid:lease=5", held=False, eligible_s=stage.slurm.now + 999.0)
    assert waiting(stage) == [], "another begin time is its user's"


def test_nobody_holds_one_that_slurm_does_not_hold(stage: Scene) -> None:
    """An administrator's hold that Slurm let its user release (scontrol uhold): the comment's words are old."""
    said = f"lucid:held lucid:admin lucid:lease={LEASE_S + 9:.0f}"
    parked(stage, "1", comment=said, eligible_s=LEASE_S + 9)
    parked(stage, "2", comment=said, held=True)
    assert waiting(stage) == ["1"]


def test_no_start_leaves_the_nodes_that_its_user_asked_for(stage: Scene) -> None:
    """Not for a profiling node either."""
    stage.new = {"1"}
    request = Request(tres_per_node="gres/gpu:1", req_nodes="n2")
    parked(stage, "1", PARKED + ";nodes=1;share=0;why=nodes", request=request)
    assert waiting(stage) == ["1"], "in its VC, and not before the profiling partition"
    assert stage.start("1", "n2:0") is None
    assert stage.slurm.starts[0][2][0].node == "n2"


def test_a_list_of_nodes_that_its_user_writes_while_it_waits_stays(stage: Scene) -> None:
    parked(stage, "1")
    stage.slurm.limits = lambda job: "Licenses"
    assert stage.start("1", "n1:0") is None
    stage.mend()
    assert (held(stage, "1"), stage.request("1").req_nodes) == ([True], ""), "Lucid's own list is taken back"
    stage.slurm._set("1", request=structs.replace(stage.request("1"), req_nodes="n2"))
    stage.mend()
    assert stage.request("1").req_nodes == "n2"
    assert stage.look().pending[0].job.whole_because == "it names its nodes"
