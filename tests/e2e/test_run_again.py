"""Jobs that are requeued, held and released by hand run again as soon as on plain Slurm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from box import Box
from daemon_box import Lucidd, has_measured

SOON_S = 20.0
"""Less than a lease of five minutes, however busy the machine (PATIENCE): a credential lives for 30 s here."""


@pytest.fixture
def lucidd(box: Box, tmp_path: Path) -> Iterator[Lucidd]:
    """Has measured Alice's program."""
    daemon = Lucidd(box, tmp_path / "state")
    has_measured(daemon, "prog")
    daemon.start()
    yield daemon
    daemon.close()


def by_alice(box: Box, *words: str) -> tuple[int, str]:
    done = box.run("scontrol", *words, user="alice", check=False)
    return done.returncode, done.stderr + done.stdout


def test_one_in_slots_that_its_user_requeues_held_and_releases(box: Box, lucidd: Lucidd) -> None:
    job = box.sbatch("--gres=gpu:1", "-J", "prog", "--comment=mine", script="sleep 60")
    box.wait("it runs in slots", lambda: "gres/shard" in str(box.job(job)["tres_alloc_str"]))
    assert by_alice(box, "requeuehold", job)[0] == 0
    box.wait("it is held", lambda: box.job(job)["job_state"] == ["PENDING"] and box.job(job)["hold"])
    assert by_alice(box, "release", job)[0] == 0
    box.wait("it runs again", lambda: box.state(job) == "RUNNING", SOON_S)
    assert (box.job(job)["restart_cnt"], box.job(job)["comment"]) == (1, "mine")


@pytest.mark.parametrize("array", [(), ("--array=0-1",)])
def test_a_hold_that_an_administrator_leaves_to_the_user(box: Box, lucidd: Lucidd, array: tuple[str, ...]) -> None:
    busy = [box.sbatch("--gres=gpu:4", "--comment=lucid:exclusive", "-J", "prog", script="sleep 99") for _ in "12"]
    box.wait("no free GPU", lambda: all(box.state(one) == "RUNNING" for one in busy))
    job = box.sbatch("--gres=gpu:4", "--comment=lucid:exclusive", "-J", "prog", *array, script="sleep 1")
    box.wait("it queues", lambda: job in lucidd.ctl("queue"))
    box.run("scontrol", "uhold", job)
    assert by_alice(box, "release", job) == (0, "")
    box.run("scancel", *busy)
    box.wait("it runs", lambda: box.state(job) in ("RUNNING", "COMPLETED"), SOON_S)
    box.wait_ended(job)
    assert box.job(job)["comment"] == "lucid:exclusive"


def test_a_hold_that_is_an_administrators_alone(box: Box, lucidd: Lucidd) -> None:
    busy = [box.sbatch("--gres=gpu:4", "--comment=lucid:exclusive", "-J", "prog", script="sleep 99") for _ in "12"]
    box.wait("no free GPU", lambda: all(box.state(one) == "RUNNING" for one in busy))
    job = box.sbatch("--gres=gpu:1", "--comment=lucid:exclusive", "-J", "prog", script="sleep 1")
    box.run("scontrol", "hold", job)
    code, said = by_alice(box, "release", job)
    assert (code, "permission denied" in said, "Lucid" in said) == (1, True, False), said
    assert box.job(job)["hold"]
    box.run("scontrol", "release", job)
    box.run("scancel", *busy)
    box.wait("it runs", lambda: box.state(job) in ("RUNNING", "COMPLETED"), SOON_S)


def test_one_that_completed_on_a_profiling_node_and_is_run_again_with_another_size(box: Box, lucidd: Lucidd) -> None:
    job = box.sbatch("--gres=gpu:1", "-J", "new", script="sleep 1")
    box.wait_ended(job)
    assert (box.state(job), box.job(job)["nodes"]) == ("COMPLETED", "n4"), "the profiling node"
    box.run("scontrol", "requeue", job)
    box.wait("it waits", lambda: box.state(job) == "PENDING")
    assert by_alice(box, "update", f"JobId={job}", "NumNodes=1") == (0, "")
    box.wait("it runs again", lambda: box.job(job)["restart_cnt"] == 1 and box.state(job) == "COMPLETED", 60)
    assert "BadConstraints" not in lucidd.log()
