"""A new job is parked with a begin time, not held: it is in the queue at once, and no start takes two writes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import count

from msgspec import structs

from lucid.errors import ActionRefused, ClusterUnavailable
from lucid.slurm.own.waits import LEASE_S
from lucid.slurm.records.request import Request
from scenes.slurm import Scene

MINE = f"lucid:vc=vc;held=1;park={LEASE_S:.0f};node=gres/gpu:1;v=2"


def parked(stage: Scene, job_id: str, /, mark: str = MINE, **rest: object) -> None:
    stage.slurm.submit(job_id, "vc", 1, mark=mark, **{"held": False, "eligible_s": LEASE_S, **rest})


def waiting(stage: Scene) -> list[str]:
    return [entry.job.id for entry in stage.look().pending]


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


def test_it_is_in_the_queue_and_starts_with_one_write(stage: Scene) -> None:
    parked(stage, "1")
    assert waiting(stage) == ["1"]
    assert stage.mend() == []
    assert stage.start("1", "n1:0") is None
    assert (stage.slurm.records["1"].state, written(stage)) == ("RUNNING", ["update"])


def test_its_lease_is_renewed_and_each_is_as_long_as_it_has_waited(stage: Scene) -> None:
    parked(stage, "1")
    leases = []
    for minute in range(24 * 60):
        stage.slurm.advance(60.0)
        stage.look()
        stage.mend()
        left_s = stage.slurm.records["1"].eligible_s - stage.slurm.now
        assert 0 < left_s <= max(LEASE_S, 60.0 * (minute + 1))
        leases.append(left_s)
    assert waiting(stage) == ["1"]
    assert stage.slurm.records["1"].pending
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
    for job_id in jobs:
        parked(stage, job_id)
    stage.slurm.advance(61.0)
    stage.look()
    assert stage.mend() == []
    assert [len(listed) for listed in told] == [8, 16, 32, 50, 14]
    assert {stage.slurm.records[job_id].eligible_s for job_id in jobs} == {61.0 + LEASE_S}

    tries = count()
    stage.slurm.fails_at_write = lambda n: ActionRefused("Job violates policy") if next(tries) % 40 == 7 else None
    for _ in range(30):
        stage.slurm.advance(20.0)
        stage.look()
        stage.mend()
        assert all(stage.slurm.records[job_id].eligible_s > stage.slurm.now for job_id in jobs)
        assert len(waiting(stage)) == len(jobs)


def test_the_jobs_of_a_list_that_slurm_declines_are_told_one_by_one(stage: Scene) -> None:
    jobs = ["1", "2", "3"]
    for job_id in jobs:
        parked(stage, job_id)
    told = lists(stage, error=ActionRefused("Invalid job id specified"))
    stage.slurm.advance(61.0)
    for _ in range(2):
        stage.look()
        stage.mend()
    assert told == [jobs]
    assert {stage.slurm.records[job_id].eligible_s for job_id in jobs} == {61.0 + LEASE_S}


def test_lists_are_shorter_where_slurm_is_slow(stage: Scene) -> None:
    for n in range(15):
        parked(stage, f"{n + 1}")
    told = lists(stage, takes_s=5.0)
    stage.slurm.now = 61.0
    stage.look()
    stage.mend()
    assert [len(jobs) for jobs in told] == [8, 4, 2, 1]


def test_what_ends_soonest_is_renewed_first_and_within_the_cap_on_writes() -> None:
    stage = Scene(writes_per_cycle=8)
    for n in range(18):  # each has a lease of its own
        at_s = 1000.0 - n
        parked(stage, f"{n + 1}", MINE.replace("300", f"{at_s:.0f}"), eligible_s=at_s, submit_s=-4400.0 * n)
    told = lists(stage)
    stage.slurm.now = 930.0
    stage.look()
    stage.mend()
    assert told[0] == ["18"]
    assert len(told) == 8


def test_without_lucidd_it_starts_by_itself(stage: Scene) -> None:
    parked(stage, "1")
    stage.slurm.advance(LEASE_S)
    assert stage.slurm.records["1"].state == "RUNNING"


def test_a_start_that_slurm_refuses_leaves_it_parked(stage: Scene) -> None:
    parked(stage, "1")
    stage.look()
    stage.slurm.fails_at_write = lambda n: ActionRefused("Invalid generic resource (gres) specification")
    assert stage.start("1", "n1:0") is not None
    assert stage.slurm.records["1"].pending
    stage.slurm.fails_at_write = lambda n: None
    assert stage.slurm.records["1"].eligible_s == LEASE_S


def test_one_whose_lease_and_wait_end_in_the_same_turn_is_let_go(stage: Scene) -> None:
    """Let go on what was seen before its lease was renewed, it was parked for ever (seen by the campaign)."""
    parked(stage, "1")
    for now_s, comment in ((61.0, ""), (270.0, "lucid:off"), (271.0, "lucid:off")):
        stage.slurm.now = now_s
        stage.slurm._set("1", comment=comment)
        stage.mend()
    assert stage.slurm.records["1"].state == "RUNNING"


def test_one_whose_lease_is_nearly_over_is_held_before_it_is_changed(stage: Scene) -> None:
    parked(stage, "1")
    stage.slurm.now = LEASE_S - 5
    stage.look()
    assert stage.start("1", "n1:0") is None
    assert written(stage) == ["hold", "update", "release"]


def test_an_array_is_held_as_a_whole(stage: Scene) -> None:
    for task in range(3):
        parked(stage, f"7_{task}")
    assert waiting(stage) == []
    stage.slurm.records["7"] = stage.slurm.records["7_0"]  # that id stands for all of them
    assert stage.mend() == ["job 7: held until Lucid starts it"]
    assert stage.slurm.writes == [("7", "hold")]


def test_an_array_with_a_begin_time_is_held_as_a_whole_until_then(stage: Scene) -> None:
    for task in range(3):
        parked(stage, f"7_{task}", MINE + ";begin=45")
    stage.look()
    stage.slurm.records["7"] = stage.slurm.records["7_0"]
    assert stage.mend() == ["job 7: held until Lucid starts it"]
    assert stage.slurm.writes == [("7", "hold")]
    assert stage.slurm.records["7"].eligible_s == 45.0


def test_a_begin_time_is_kept_to_the_second(stage: Scene) -> None:
    parked(stage, "1", MINE + ";begin=45")
    assert waiting(stage) == []
    assert stage.mend() == ["job 1: queues from now on"]
    record = stage.slurm.records["1"]
    assert (record.held, record.eligible_s) == (True, 45.0)
    stage.slurm.advance(44.0)
    stage.mend()
    assert waiting(stage) == []
    stage.slurm.advance(1.0)
    stage.mend()
    assert waiting(stage) == ["1"]


def test_one_that_its_user_requeues_waits_for_slurms_begin_time_and_one_of_lucids_does_not(stage: Scene) -> None:
    parked(stage, "1")
    stage.known("1")
    assert stage.start("1", "n1:0") is None
    stage.slurm._set("1", state="PENDING", placement=(), restarts=1, eligible_s=120.0, reason="BeginTime")
    stage.look()
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
    stage.look()
    stage.mend()
    until_s = stage.slurm.now + LEASE_S
    stage.slurm._set(
        "1", held=False, eligible_s=until_s, comment=f"mine lucid:lease={until_s:.0f}", reason="BeginTime"
    )
    stage.look()
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
    """Not for a profiling node either; and a list that its user writes while it waits is theirs as well."""
    nodes = MINE + ";nodes=1;share=0;why=nodes"
    stage.new = {"1"}
    request = Request(tres_per_node="gres/gpu:1", req_nodes="n2")
    parked(stage, "1", nodes, request=request)
    assert waiting(stage) == ["1"], "in its VC, and not before the profiling partition"
    assert stage.start("1", "n2:0") is None
    (_, _, place), *_ = stage.slurm.starts
    assert place[0].node == "n2"


def test_a_list_of_nodes_that_its_user_writes_while_it_waits_stays(stage: Scene) -> None:
    parked(stage, "1")
    stage.slurm.limits = lambda job: "Licenses"
    assert stage.start("1", "n1:0") is None
    stage.look()
    stage.mend()
    record = stage.slurm.records["1"]
    assert (record.held, record.request.req_nodes) == (True, ""), "Lucid's own list is taken back"
    stage.slurm._set("1", request=structs.replace(record.request, req_nodes="n2"))
    stage.look()
    stage.mend()
    assert stage.slurm.records["1"].request.req_nodes == "n2"
    assert stage.look().pending[0].job.whole_because == "it names its nodes"
