"""What users and administrators change on a job that Lucid holds means what it means in Slurm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from box import Box
from daemon_box import Lucidd


@pytest.fixture
def lucidd(box: Box, tmp_path: Path) -> Iterator[Lucidd]:
    one = Lucidd(box, tmp_path / "lucidd")
    one.start()
    yield one
    one.close()
    box.stop_beating()


def fill(box: Box) -> list[str]:
    """All GPUs of vc-a and of the profiling node, by jobs that are not Lucid's."""
    jobs = [box.sbatch("-p", "vc-a", "--gres=gpu:4", "--comment=lucid:off", script="sleep 600") for _ in range(2)]
    jobs.append(box.sbatch("-p", "prof", "--gres=gpu:4", "--comment=lucid:off", script="sleep 600"))
    box.wait("a full cluster", lambda: all(box.state(job) == "RUNNING" for job in jobs))
    return jobs


def held(box: Box, job: str) -> bool:
    return bool(box.job(job)["hold"])


def test_a_users_hold_on_a_waiting_job_stands_until_its_user_releases_it(box: Box, lucidd: Lucidd) -> None:
    full = fill(box)
    job = box.sbatch("-p", "vc-a", "--gres=gpu:1", "--comment=mine", script="true")
    other = box.sbatch("-p", "vc-a", "--gres=gpu:1", script="true")
    box.run("scontrol", "hold", job, user="alice")
    assert box.job(job)["comment"] == "mine lucid:held"
    box.run("scancel", *full)
    box.wait_ended(other)
    assert (box.state(job), held(box, job)) == ("PENDING", True)
    box.run("scontrol", "release", job, user="alice")
    assert (box.job(job)["comment"], box.state(job)) == ("mine", "PENDING")
    box.wait_ended(job)
    assert box.job(job)["restart_cnt"] <= 1
    starts = [a for a in lucidd.story(job)["actions"] if a["verb"] == "start"]
    assert starts, "Lucid started it, not Slurm's plain order"


def test_an_administrators_hold_stands_too(box: Box, lucidd: Lucidd) -> None:
    full = fill(box)
    job = box.sbatch("-p", "vc-a", "--gres=gpu:1", script="true")
    box.run("scontrol", "hold", job)
    other = box.sbatch("-p", "vc-a", "--gres=gpu:1", script="true")
    box.run("scancel", *full)
    box.wait_ended(other)
    assert (box.state(job), held(box, job)) == ("PENDING", True)
    box.run("scontrol", "release", job)
    box.wait_ended(job)


@pytest.mark.parametrize(
    ("change", "ends"),
    [
        ("Comment=lucid:off", True),
        ("Dependency=after:{full}", True),
        ("Partition=vc-b", True),
        ("StartTime=now+1hour", False),
    ],
)
def test_a_change_on_a_waiting_job_means_what_it_means_in_slurm(
    box: Box, lucidd: Lucidd, change: str, ends: bool
) -> None:
    full = fill(box)
    job = box.sbatch("-p", "vc-a", "--gres=gpu:1", script="sleep 8")
    box.wait("a decision", lambda: '"verb"' in lucidd.ctl("explain", job, "--json"))
    box.run("scontrol", "update", f"JobId={job}", change.format(full=full[0]), user="alice")
    if change.startswith("Partition"):
        box.run("scancel", full[2])  # it may be profiled first
        box.wait_ended(job)
        assert box.job(job)["partition"] == "vc-b"
        return
    box.wait("let go", lambda: not held(box, job))
    assert "let go" in [a["verb"] for a in lucidd.story(job)["actions"]]
    box.run("scancel", *full)
    if ends:
        box.wait_ended(job)
    else:
        assert box.job(job)["state_reason"] == "BeginTime"
        box.run("scancel", job)


def test_release_without_lucid_leaves_a_job_that_its_user_holds(box: Box) -> None:
    """And a comment that looks like another job's line holds nobody else's job."""
    box.beat()
    job = box.sbatch("-p", "vc-a", "--gres=gpu:1", script="true")
    box.run("scontrol", "hold", job, user="alice")
    free = box.sbatch("-p", "vc-a", "--gres=gpu:1", script="true")
    evil = box.sbatch("-p", "vc-a", "--gres=gpu:1", f"--comment=x\n{free} lucid:held", script="true", user="bob")
    box.stop_beating()
    box.run("/etc/slurm/lucid/lucid-release", "--all")
    box.wait_ended(free, evil)
    assert (box.state(job), held(box, job)) == ("PENDING", True)
    box.run("scontrol", "release", job, user="alice")
    box.wait_ended(job)
