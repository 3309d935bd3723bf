"""Jobs that ended out of memory: who is started again with more, and what becomes of all others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from lucid.adapters.slurm.records.request import Request
from lucid.config import Mode
from lucid.errors import ActionRefused, ClusterUnavailable
from scenes.slurm import Scene

ASKED: Mapping[str, Any] = {
    "comment": "lucid:oom=grow",
    "mem_mib": 1000,
    "request": Request(tres_per_node="gres/gpu:1", exact_mem=True),
}


def scene(bound_gib: float = 4.0) -> Scene:
    made = Scene()
    made.oom_grow_gib = bound_gib
    made.restart()
    return made


def fails(stage: Scene, job_id: str = "1", where: str = "n1:0") -> None:
    """It runs for a while, and its host's memory is full."""
    stage.slurm.advance(1.0)
    assert stage.start(job_id, where) is None
    stage.slurm.advance(100.0)
    stage.slurm._set(job_id, state="OUT_OF_MEMORY", end_s=stage.slurm.now, placement=())


def turn(stage: Scene) -> tuple[list[str], list[str]]:
    """The jobs that are told to have ended, and what was mended."""
    told = [one.job.id for one in stage.cluster.observe().ended]
    return told, stage.cluster.heal()


def test_a_job_waits_again_with_half_more_memory_twice_and_then_has_ended() -> None:
    stage = scene()
    stage.jobs("1", **ASKED)
    for mib, number in ((1500, 1), (2250, 2)):
        fails(stage)
        told, done = turn(stage)
        assert told == []
        assert f"again with {mib} MiB ({number} of 2)" in done[0]
        turn(stage)
        assert (stage.slurm.records["1"].mem_mib, stage.slurm.records["1"].restarts) == (mib, number)
        (entry,) = stage.look().pending
        assert entry.job.id == "1", "it is Lucid's to start"
    fails(stage)
    assert turn(stage)[0] == ["1"]
    for _ in range(3):
        turn(stage)
        assert stage.slurm.records["1"].state == "OUT_OF_MEMORY"
    assert "1" not in stage.cluster.notes
    stage.restart()
    turn(stage)
    assert stage.slurm.records["1"].restarts == 2, "nor by the next lucidd"


def test_so_does_one_whose_admin_comment_the_site_has_overwritten() -> None:
    stage = scene()
    stage.jobs("1", **ASKED)
    fails(stage)
    stage.slurm._set("1", admin_comment="the site's")
    assert "again with 1500 MiB (1 of 2)" in turn(stage)[1][0]
    turn(stage)
    assert [entry.job.id for entry in stage.look().pending] == ["1"]


def test_a_lucidd_that_dies_between_the_steps_leaves_the_rest_to_the_next() -> None:
    stage = scene()
    stage.jobs("1", **ASKED)
    fails(stage)
    real, stage.slurm.update = stage.slurm.update, _refuses  # type: ignore[assignment,method-assign]
    turn(stage)
    assert stage.slurm.records["1"].mem_mib == 1000, "Slurm was told to take it back, and not yet what it gets"
    stage.slurm.update = real  # type: ignore[method-assign]
    stage.oom_grow_gib = 0.0  # the site has thought better of it
    stage.restart()
    assert "was told its memory" in (stage.start("1", "n1:0") or "")
    turn(stage)
    assert stage.slurm.records["1"].mem_mib == 1500
    turn(stage)
    assert stage.cluster.notes["1"].grown == 1


def test_a_slurm_that_does_not_answer_is_asked_once_more_and_counts_once() -> None:
    stage = scene()
    stage.jobs("1", **ASKED)
    fails(stage)
    real, stage.slurm.requeue_ended = stage.slurm.requeue_ended, _silent  # type: ignore[method-assign]
    with pytest.raises(ClusterUnavailable):
        turn(stage)
    stage.slurm.requeue_ended = real  # type: ignore[method-assign]
    stage.restart()
    assert "again with 1500 MiB (1 of 2)" in turn(stage)[1][0]


def test_what_slurm_refuses_has_ended() -> None:
    stage = scene()
    stage.jobs("1", **ASKED)
    fails(stage)
    stage.slurm.requeue_ended = _refuses  # type: ignore[method-assign]
    assert "cannot be repaired yet" in turn(stage)[1][0]
    assert turn(stage)[0] == ["1"]


def test_the_site_and_the_nodes_bound_it() -> None:
    stage = scene(bound_gib=1.25)
    stage.jobs("1", **ASKED)
    fails(stage)
    assert "again with 1280 MiB (1 of 2)" in turn(stage)[1][0]
    turn(stage)
    fails(stage)
    assert turn(stage)[0] == ["1"], "it has what the site gives"
    stage = scene(bound_gib=1000.0)
    most = stage.slurm.machines[0].mem_mib
    stage.jobs("1", **{**ASKED, "mem_mib": most - 10})
    fails(stage)
    assert f"again with {most} MiB" in turn(stage)[1][0]


def test_no_more_than_the_nodes_have_that_its_user_allows() -> None:
    """Else it would wait for a node that never comes."""
    stage = scene(bound_gib=1000.0)
    stage.slurm.node("n1", mem_mib=1200)
    stage.jobs("1", **ASKED, excludes="n2")
    fails(stage)
    assert "again with 1200 MiB (1 of 2)" in turn(stage)[1][0]
    turn(stage)
    fails(stage)
    assert turn(stage)[0] == ["1"], "no node that it may have has more"


@pytest.mark.parametrize(
    "more",
    [
        {"comment": "lucid:restart"},
        {"requeue": False},
        {"batch": False},
        {"het": 7},
        {"min_nodes": 2, "gpus": 2},
        {"request": Request(tres_per_node="gres/gpu:1")},
        {"request": Request(tres_per_node="gres/gpu:1", exact_mem=True, mem_per_tres="gres/gpu:1000")},
        {"mark": "lucid:vc=vc;skip=off"},
    ],
    ids=["not asked", "no requeue", "no batch", "het", "two nodes", "no --mem", "--mem-per-gpu", "not Lucid's"],
)
def test_who_has_ended_for_good(more: Mapping[str, Any]) -> None:
    stage = scene()
    gpus = more.get("gpus", 1)
    stage.jobs("1", **{**ASKED, **{key: value for key, value in more.items() if key != "gpus"}}, gpus=gpus)
    stage.slurm._set("1", state="OUT_OF_MEMORY", held=False, start_s=5.0, end_s=60.0)
    assert not any("MiB" in words for words in turn(stage)[1])
    assert stage.slurm.records["1"].restarts == 0


def test_nobody_where_the_site_said_nothing_or_the_partition_is_not_packed() -> None:
    for bound_gib, mode in ((0.0, Mode.PACK), (4.0, Mode.OBSERVE)):
        stage = scene(bound_gib)
        stage.jobs("1", **ASKED)
        fails(stage)
        stage.modes["vc"] = mode
        assert not any("MiB" in words for words in turn(stage)[1])


def test_a_job_after_which_another_was_to_come_has_ended() -> None:
    stage = scene()
    stage.jobs("1", **ASKED)
    stage.jobs("2", dependency="afternotok:1(unfulfilled)")
    stage.cluster.observe()
    fails(stage)
    stage.slurm._set("2", dependency="")  # Slurm has fulfilled it by now
    assert turn(stage)[0] == ["1"]


def test_of_a_job_that_ended_while_no_lucidd_ran_nobody_knows_who_came_after_it() -> None:
    stage = scene()
    stage.jobs("1", **ASKED)
    fails(stage)
    stage.restart()
    assert turn(stage)[0] == ["1"]


def _silent(job_id: str) -> None:
    raise ClusterUnavailable(f"no answer about {job_id}")


def _refuses(job_id: str, *_: object) -> None:
    raise ActionRefused(f"job {job_id}: Invalid job id specified")
