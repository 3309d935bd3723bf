"""``lucidctl when`` on a real Slurm: what is said before a job is submitted, beside when that job starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from box import Box
from daemon_box import Lucidd

from lucid.core.job import JobProfile

RUN_S = 45
"""Run time of the jobs in the way; their time limit is a minute."""
ASKED = ("--gpus", "4", "--time", "6:00:00", "--partition", "vc-b")


def occupied(box: Box) -> list[str]:
    """Jobs that nobody can join, on all GPUs of vc-b and of the profiling node, which takes in what overflows."""
    ids = [box.sbatch("-p", "vc-b", "--gpus=4", "-t", "1", "-J", "heavy", script=f"sleep {RUN_S}") for _ in range(2)]
    box.wait("the jobs in the way", lambda: all(box.state(number) == "RUNNING" for number in ids))
    return ids


@pytest.fixture
def lucidd(box: Box, tmp_path: Path) -> Iterator[Lucidd]:
    daemon = Lucidd(box, tmp_path / "state", restarts="")
    daemon.measured["heavy"] = JobProfile(97.0, 70.0, 20_000.0)
    daemon.start()
    yield daemon
    daemon.close()


def test_what_when_says_comes_true_for_that_very_job(box: Box, lucidd: Lucidd) -> None:
    now = lucidd.json("when", *ASKED)["partitions"]["vc-b"]
    assert now["starts_in_s"] == [0, 0, 0], "nothing is in the way"
    first = box.sbatch("-p", "vc-b", "--gpus=4", "-t", "6:00:00", script="sleep 2")
    box.wait_ended(first, limit_s=60)
    began_s = min(box.job(number)["start_time"]["number"] for number in occupied(box))

    def asked() -> tuple[float, list[int] | None]:
        answer = lucidd.json("when", *ASKED)
        return answer["at_s"], answer["partitions"]["vc-b"]["starts_in_s"]

    box.wait("lucidd to see it", lambda: asked()[1] != [0, 0, 0])
    at_s, said = asked()
    assert said is not None
    early_s, likely_s, late_s = said
    # the jobs in the way may end at any moment, by what other tests' short jobs taught
    assert 0 <= early_s <= likely_s <= late_s
    number = box.sbatch("-p", "vc-b", "--gpus=4", "-t", "6:00:00", script="sleep 2")
    box.wait("the job that was asked about", lambda: box.state(number) in ("RUNNING", "COMPLETED"), 120)
    started_s = box.job(number)["start_time"]["number"]
    assert started_s >= began_s + RUN_S - 1, "it could not start beside the other"
    # of ten ranges two may be too early: other tests' jobs of a second each are in the history here
    assert at_s + early_s - 6 <= started_s, "not before the range, and the beats of two daemons"


def test_who_may_not_read_the_store_is_told_the_same(box: Box, lucidd: Lucidd) -> None:
    blockers = occupied(box)
    waiting = box.sbatch("-p", "vc-b", "--gpus=4", "-t", "6:00:00", script="sleep 2")

    def told() -> list[int] | None:
        return {row["job"]: row["starts_in_s"] for row in lucidd.json("queue")["queue"]}.get(waiting)

    box.wait("a forecast", lambda: bool(told()))
    box.wait_ended(*blockers, waiting, limit_s=120)
    box.wait("what came true", lambda: '"done": []' not in _published(box))
    assert "alice" not in _published(box)


def _published(box: Box) -> str:
    return (box.root / "run/lucid/public.json").read_text()
