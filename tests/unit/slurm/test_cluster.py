"""The live adapter over a slurmctld in memory: what it does to Slurm, and what it makes of what others did."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from math import ceil
from typing import Any
from unittest.mock import MagicMock

import pytest
from msgspec import structs

from builders import LIGHT, at
from fake_slurm import unsealed
from lucid.core.decision import Action, EndProfiling, Requeue, Start
from lucid.errors import ClusterError, ClusterUnavailable
from lucid.places import Mode
from lucid.slurm.client import Changes
from lucid.slurm.records.request import Request
from scenes.slurm import WHY, Scene


def test_a_job_that_nobody_may_join_runs_exactly_as_its_user_wrote_it(stage: Scene) -> None:
    stage.jobs("1", 2, request=Request(tres_per_job="gres/gpu:2"))
    assert stage.start("1", "n2:0-1") is None
    assert stage.request("1") == Request(tres_per_job="gres/gpu:2", req_nodes="n2")
    assert stage.slurm.records["1"].state == "RUNNING"
    assert stage.look().running[0].alone, "and a GPU in gpu use takes no slots"


@pytest.mark.parametrize("asked", [("gres/gpu:2", "cpu=2"), ("", "cpu=2,gres/gpu=1")])
def test_a_light_job_starts_in_slots_of_exactly_the_chosen_gpus(stage: Scene, asked: tuple[str, str]) -> None:
    stage.jobs("1", 2, request=Request(tres_per_job=asked[0], tres_per_task=asked[1]), light=True)
    assert stage.start("1", "n2:1,3") is None
    assert stage.request("1") == Request("gres/shard:g1:1,gres/shard:g3:1", "", "", "cpu=2", "n2")
    (entry,) = stage.look().running
    assert (entry.placement, entry.alone, entry.job.gpus) == (at("n2:1,3"), False, 2)


def extra(stage: Scene, job_id: str) -> str:
    return stage.slurm.records[job_id].extra


def test_the_prolog_is_told_of_the_gpus_the_fence_and_the_speed_of_a_job_in_slots(stage: Scene) -> None:
    """With a seal that is of this start alone."""
    stage.jobs("1 2", 2, light=True)
    stage.slurm._set("2", restarts=4, extra="lucid-gpus=0;lucid-seal=MUNGE:b2xk:")
    stage.start("1", "n2:1,3")
    fence = f"lucid-mem={ceil(LIGHT.gpu_mem_mib * 1.1) + 512}"
    plain, _, seal = extra(stage, "1").partition(";lucid-seal=")
    assert (plain, seal[:6]) == (f"lucid-gpus=1,3;{fence}", "MUNGE:")
    payload = f"lucid 1 job=1 restarts=0 node=n2 gpus=1,3 {fence[6:]}"
    assert unsealed(extra(stage, "1")) == payload
    stage.do("2", Start(at("n2:1,3"), WHY, "1", slots=True, speeds=(0.934, 0.9)))
    assert extra(stage, "2").startswith(f"lucid-gpus=1,3;{fence};lucid-speed=0.93;lucid-seal=")
    assert unsealed(extra(stage, "2")) == payload.replace("1 restarts=0", "2 restarts=4") + " speed=0.93"


def test_a_task_of_an_array_is_sealed_by_the_number_that_it_gets_when_it_is_changed(stage: Scene) -> None:
    stage.jobs("70_3", number=70, light=True)
    apart = stage.slurm.update

    def update(job_id: str, changes: Changes) -> None:
        apart(job_id, changes)
        stage.slurm._set(job_id, number=75)

    stage.slurm.update = update  # type: ignore[method-assign]
    assert stage.start("70_3", "n1:0") is None
    assert unsealed(extra(stage, "70_3")).startswith("lucid 1 job=75 ")


@pytest.mark.parametrize(
    ("mps", "no_munge", "extra_", "why"),
    [
        (True, "munge cannot be run", "", ", without MPS: munge cannot be run"),
        (True, "", "rack=7; $(id)", ", without MPS, because the user has set the job's Extra field"),
        (False, "", "", ""),
    ],
    ids=["no munge", "a user's own Extra", "no MPS"],
)
def test_without_mps_a_job_starts_in_slots_and_says_why(mps: bool, no_munge: str, extra_: str, why: str) -> None:
    stage = Scene(mps=mps)
    stage.slurm.no_munge = no_munge
    stage.jobs("1", extra=extra_, light=True)
    assert stage.start("1", "n1:0") is None
    assert (stage.request("1").shards, extra(stage, "1")) == (True, extra_)
    assert stage.store.actions("1")[-1].detail == f"n1:0 in slots{why}"
    stage.do("1", Requeue(WHY))
    stage.mend()
    assert extra(stage, "1") == extra_


def test_on_whole_gpus_again_the_prolog_is_told_nothing(stage: Scene) -> None:
    pair(stage)
    assert extra(stage, "2")
    assert stage.do("2", Requeue(WHY, part=True)) is None
    stage.mend()
    assert extra(stage, "2") == "", "taken back while it waits"
    stage.slurm._set("2", extra="lucid-gpus=2")  # as a lost note would leave it
    assert stage.start("2", "n2:0") is None
    assert (stage.request("2").shards, extra(stage, "2")) == (False, "")


def pair(stage: Scene) -> None:
    stage.jobs("1 2", light=True)
    assert stage.start("1", "n1:2") is None
    assert stage.start("2", "n1:2", "1") is None


def test_a_parted_job_gets_its_own_request_back_before_anything_else(stage: Scene) -> None:
    stage.slurm.completing_s, stage.slurm.now = 3.0, 10.0
    pair(stage)
    stage.slurm.advance(40.0)
    before = Request(tres_per_node="gres/gpu:1")
    assert stage.do("2", Requeue(WHY, part=True)) is None
    assert {e.job.id for e in stage.look().running} == {"1", "2"}, "it holds its slot while it completes"
    assert stage.start("2", "n2:0") is not None
    stage.slurm.advance(3.0)
    (entry,) = stage.look().pending
    assert (entry.alone, entry.restarts) == (True, 1)
    assert (entry.job.submit_s, stage.slurm.records["2"].submit_s) == (10.0, 50.0), "Slurm says that of the requeue"
    assert stage.mend() == ["job 2: given back the request that its user wrote"]
    assert stage.request("2") == before
    assert stage.start("2", "n2:0") is None
    assert stage.request("2") == structs.replace(before, req_nodes="n2")
    assert stage.slurm.records["2"].eligible_s == stage.slurm.now, "StartTime was two minutes ahead"


def test_slots_and_whole_gpus_do_not_start_on_a_node_at_the_same_moment(stage: Scene) -> None:
    stage.jobs("1 2 3")
    stage.known("2")
    stage.cluster.observe()
    stage.slurm._schedule = lambda: None  # type: ignore[method-assign]
    starts = [Action(n, "vc", stage.decided(n, f"n1:{n}")) for n in ("1", "2", "3")]
    done = stage.cluster.apply(starts)
    assert [item.refused for item in done] == [None, "job 2: waits until job 1 has started on node n1", None]


def test_jobs_that_are_not_ours_are_left_alone(stage: Scene) -> None:
    stage.jobs("1", mark="jobstats:abc")
    stage.jobs("2", mark="lucid:vc=vc;skip=1")
    stage.slurm.submit("4", "elsewhere", 1, mark="none")
    stage.jobs("5", held=False)
    assert not stage.look().pending
    assert stage.mend() == []
    assert stage.slurm.writes == []
    (entry,) = stage.look().running
    assert (entry.job.id, entry.alone) == ("5", True)


def test_a_job_that_its_user_holds_again_stays_held(stage: Scene) -> None:
    stage.jobs("1")
    stage.start("1", "n1:0")
    stage.slurm.requeue_hold("1")
    assert not stage.look().pending
    assert stage.mend() == ["job 1: given back the request that its user wrote"]
    written = len(stage.slurm.writes)
    stage.slurm.advance(600.0)
    assert stage.mend() == []
    assert len(stage.slurm.writes) == written
    assert stage.slurm.records["1"].held


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.ORDER])
def test_outside_pack_mode_nothing_is_done(stage: Scene, mode: Mode) -> None:
    stage.modes["vc"] = mode
    stage.jobs("1", 4, held=False, mark="")
    stage.jobs("2", 8, held=False, mark="none")
    assert [e.job.id for e in stage.look().running] == ["1"]
    stage.jobs("3", 8, held=False, mark="none")
    assert [e.job.id for e in stage.look().pending] == ["2", "3"]
    assert f"{mode} mode" in str(stage.start("3", "n1:0-3 n2:0-3"))
    assert stage.slurm.writes == []


def test_a_job_that_lucid_is_about_to_let_go_is_seen_to_wait(stage: Scene) -> None:
    """A plan of what waits there is then one of all that waits (``plan_errors``)."""
    stage.jobs("1 2")
    stage.slurm._set("2", comment="lucid:held")  # by its user
    stage.modes["vc"] = Mode.OBSERVE
    assert [e.job.id for e in stage.look().pending] == ["1"]


def test_the_users_own_choice_of_nodes_is_kept(stage: Scene) -> None:
    stage.jobs("1", request=Request(tres_per_node="gres/gpu:1", req_nodes="n2"))
    stage.jobs("2", features="a100")
    assert stage.start("1", "n1:0") is None
    assert stage.start("2", "n1:1") is None
    assert stage.request("1").req_nodes == "n2"
    assert stage.request("2").req_nodes == ""


def test_an_ended_job_is_told_once_even_over_a_restart(stage: Scene) -> None:
    stage.slurm.advance(10.0)
    stage.jobs("1", run_s=40.0)
    stage.start("1", "n1:0")
    stage.slurm.advance(60.0)
    ended = stage.cluster.observe().ended
    assert [(e.job.id, e.end_s, e.ran_s, e.state) for e in ended] == [("1", 50.0, 40.0, "COMPLETED")]
    stage.store.put_ended(ended, stage.token)
    assert not stage.cluster.observe().ended
    assert not stage.restart().observe().ended


def test_a_site_factor_that_slurm_takes_back_is_written_again_and_counted(stage: Scene) -> None:
    stage.modes["vc"] = Mode.ORDER
    stage.jobs("1 2 3", 8, held=False, mark="none")
    stage.look()
    waiting = next(record for record in stage.slurm.records.values() if record.pending)
    assert stage.cluster.order({waiting.id: 500, "3": 0}) == 1
    assert stage.slurm.writes == [(waiting.id, "update")], "a factor of 0 is what it has"
    stage.slurm.records[waiting.id] = replace(waiting, priority=waiting.priority + 3)  # its age, and no factor
    stage.slurm.factors.clear()
    stage.look()
    assert stage.cluster.order({waiting.id: 500}) == 1
    assert stage.cluster.factors.undone == 1
    stage.look()
    assert stage.cluster.order({waiting.id: 500}) == 0
    assert stage.cluster.order({}) == 1
    stage.look()
    assert (stage.cluster.order({}), stage.cluster.factors.undone) == (0, 1)
    assert stage.slurm.records[waiting.id].priority == waiting.priority + 3


def test_under_a_priority_plugin_without_site_factors_they_are_not_written_for_ever(stage: Scene) -> None:
    stage.modes["vc"] = Mode.ORDER
    stage.slurm.heeds_factors = False
    stage.jobs("1 2 3", 8, held=False, mark="none")
    for _ in range(20):
        stage.look()
        stage.cluster.order({"2": 500})
    assert stage.slurm.writes == [("2", "update")] * 4


LEAVES = {"requeue": Requeue(WHY), "part": Requeue(WHY, part=True), "end profiling": EndProfiling(WHY)}


@pytest.mark.parametrize("what", ["start", "its release", *LEAVES])
@pytest.mark.parametrize("after", [True, False])
def test_killed_at_any_write_it_goes_on_from_what_is(stage: Scene, what: str, after: bool) -> None:
    """The process dies just before, or just after, a command; the next daemon starts the job once."""
    decision = LEAVES.get(what)
    room = "prof" if isinstance(decision, EndProfiling) else "vc"
    stage.new = {"1"} if room == "prof" else set()
    stage.jobs("1", light=room == "vc")
    if decision is not None:
        assert stage.start("1", f"{'p1' if room == 'prof' else 'n1'}:0", room=room) is None
    act = Action("1", room, decision or stage.decided("1", "n1:3"))
    stage.cluster.observe()
    kill(stage, int(what == "its release"), after)
    with pytest.raises(KeyboardInterrupt):
        stage.cluster.apply([act])
    stage.slurm.fails_at_write = lambda n: None
    stage.restart()
    stage.known("1")
    stage.mend()
    stage.slurm.advance(1.0)
    where = "n1:3" if decision is None else "n2:0"
    if decision is not None and stage.look(room).running:
        assert not after
        assert stage.do("1", decision, room) is None
        stage.mend()
    if stage.look().pending:
        assert stage.look().pending[0].restarts == (decision is not None)
        assert stage.start("1", where) is None
    stage.mend()
    assert stage.slurm.starts[-1][1:] == ("1", at(where))
    assert len(stage.slurm.starts) == 1 + (decision is not None)
    assert stage.store.notes()["1"].released


def kill(stage: Scene, at_write: int, after: bool) -> None:
    """The process dies at one write: before Slurm has it, or after."""
    target = len(stage.slurm.writes) + at_write
    if not after:
        stage.slurm.fails_at_write = lambda n: KeyboardInterrupt() if n == target else None  # type: ignore[return-value]
        return
    for name in ("update", "release", "requeue_hold"):
        inner = getattr(stage.slurm, name)

        def act(*given: Any, inner: Any = inner) -> None:
            inner(*given)
            if len(stage.slurm.writes) == target + 1:
                raise KeyboardInterrupt

        setattr(stage.slurm, name, act)


def test_a_slurm_that_stops_answering_ends_the_turn(stage: Scene) -> None:
    stage.jobs("1 2")
    stage.cluster.observe()
    stage.slurm.fails_at_write = lambda n: ClusterUnavailable("gone") if n == 1 else None
    with pytest.raises(ClusterUnavailable):
        stage.cluster.apply([Action(n, "vc", stage.decided(n, f"n1:{n}")) for n in ("1", "2")])
    stage.slurm.fails_at_write = lambda n: None
    assert [e.job.id for e in stage.look().pending] == ["1", "2"]
    assert stage.store.actions()[-1].result == ""


@pytest.mark.parametrize("error", [ClusterUnavailable("busy"), ClusterError("no answer that can be read")])
def test_what_partitions_give_is_asked_again_soon_where_slurm_did_not_say(stage: Scene, error: ClusterError) -> None:
    """Until it is known, jobs start on whole GPUs: that must not go on for as long as an answer counts."""
    stage.jobs("1")
    answers, stage.slurm.job_defaults = stage.slurm.job_defaults, MagicMock(side_effect=error)  # type: ignore[method-assign]
    with suppress(ClusterUnavailable):
        stage.cluster.observe()
    stage.slurm.job_defaults = answers  # type: ignore[method-assign]
    stage.slurm.now += 2
    assert stage.look().pending[0].job.whole_because == ""


def test_with_the_store_lost_requests_are_given_back_as_whole_gpus(stage: Scene) -> None:
    stage.jobs("1", 2, request=Request(tres_per_node="gres/shard:g1:1,gres/shard:g3:1", req_nodes="n1"))
    assert stage.mend() == ["job 1: given back the request that its user wrote"]
    assert stage.request("1") == Request(tres_per_node="gres/gpu:2")


def profiled(stage: Scene, job_id: str, mark: str, req_nodes: str = "p1", **rest: Any) -> None:
    """Its note is gone."""
    request = Request(tres_per_node="gres/gpu:1", req_nodes=req_nodes)
    stage.slurm.submit(job_id, "prof", mark=f"lucid:vc=vc;held=1;{mark}", restarts=1, request=request, **rest)


def test_with_the_store_lost_a_job_is_not_tied_to_its_profiling_node(stage: Scene) -> None:
    profiled(stage, "1", "node=gres/gpu:1")
    profiled(stage, "2", "share=0;why=srun")
    stage.look()
    assert stage.start("1", "n1:0") is None
    assert stage.start("2", "n2:0") is None
    assert [stage.slurm.records[n].state for n in "12"] == ["RUNNING", "RUNNING"]
    assert {r.partition for r in stage.slurm.records.values()} == {"vc"}


@pytest.mark.parametrize("listed", ["p1", ""])
def test_one_that_ended_on_a_profiling_node_and_is_run_again_is_not_tied_to_it(stage: Scene, listed: str) -> None:
    """Its note went when it ended; its user requeues it, and changes its size while it waits."""
    profiled(stage, "1", "node=gres/gpu:1;v=2", listed, comment="lucid:resized=1")
    stage.mend()
    assert stage.request("1") == Request(tres_per_node="gres/gpu:1")
    assert (stage.slurm.records["1"].partition, stage.slurm.records["1"].state) == ("vc", "RUNNING")


def test_mixed_precision_is_known_from_the_jobs_tag(stage: Scene) -> None:
    stage.measured("1", mark="lucid:vc=vc;amp=1")
    stage.measured("2")
    for name in ("1", "2"):
        stage.start(name, f"n{name}:0")
    stage.slurm.advance(100.0)
    found = {entry.job.id: (entry.job.amp, entry.profile and entry.profile.amp) for entry in stage.look().running}
    assert found == {"1": (True, True), "2": (None, None)}


def test_a_job_has_its_note_after_a_requeue_that_slurm_forgot_and_who_gets_its_number_has_none(stage: Scene) -> None:
    """slurmctld, killed, forgets requeues and jobs, and their numbers go to the next that are submitted, maybe before
    anybody has looked."""
    stage.jobs("1", 2, request=Request(tres_per_job="gres/gpu:2"))
    assert stage.start("1", "n1:0-1") is None
    before = stage.slurm.records["1"]
    stage.slurm.now = 30.0
    assert stage.do("1", Requeue(WHY)) is None
    stage.look()
    assert "1" in stage.store.notes()
    stage.slurm.records["1"] = before
    stage.look()
    assert "1" in stage.store.notes()
    stage.slurm.records.clear()
    stage.jobs("1 2", user="bob", request=Request(tres_per_node="gres/gpu:1"))
    assert [entry.job.id for entry in stage.look().pending] == ["1", "2"]
    assert "1" not in stage.store.notes()
    assert stage.start("1", "n2:3") is None
    assert stage.request("1") == Request(tres_per_node="gres/gpu:1", req_nodes="n2")
    noted = stage.store.notes()["1"]
    assert (noted.user, noted.submit_s) == ("bob", 30.0)
