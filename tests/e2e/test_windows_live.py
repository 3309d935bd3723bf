"""Maintenance windows and other reservations on a real Slurm: who starts before one, who is held in order, and what
is said of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from box import Box
from daemon_box import Lucidd

from lucid.store.sqlite import SqliteStore

LUCIDD = {"restarts": ""}


@contextmanager
def window(box: Box, start: str, minutes: int, *words: str, nodes: str = "ALL") -> Iterator[None]:
    """A reservation named w."""
    words = words or ("flags=maint,ignore_jobs", "users=root")
    given = ("reservation=w", f"starttime={start}", f"duration={minutes}", f"nodes={nodes}", *words)
    box.run("scontrol", "create", *given)
    try:
        yield
    finally:
        box.run("scontrol", "delete", "reservation=w", check=False)


def verbs(lucidd: Lucidd, *jobs: str) -> list[str]:
    """What was done with them, but for leases of parked jobs: from the store, since a command for each takes long."""
    store = SqliteStore(lucidd.folder / "lucid.db")
    try:
        done = [action.verb for job in jobs for action in store.actions(job)]
    finally:
        store.close()
    return [verb for verb in done if verb not in ("park", "hold")]


def started_s(box: Box, jobs: list[str]) -> list[float]:
    """When those of them started that have, the first first."""
    known = box.jobs()
    return sorted(known[job]["start_time"]["number"] for job in jobs if known[job]["job_state"] != ["PENDING"])


def test_a_job_with_a_least_time_starts_before_a_window_with_less_as_under_plain_slurm(
    box: Box, lucidd: Lucidd
) -> None:
    with window(box, "now+4minutes", 5):
        ask = ("--gres=gpu:1", "-t", "60", "--time-min=1")
        jobs = [box.sbatch("-p", vc, *ask, *more, script="sleep 20") for vc, more in (
            ("vc-b", ("--comment=lucid:off",)), ("vc-a", ()), ("vc-a", ("--comment=lucid:exclusive",)),
        )]  # fmt: skip
        began = time.monotonic()
        box.wait("they run", lambda: len(started_s(box, jobs)) == len(jobs), 30)
        print(f"after {time.monotonic() - began:.1f} s", lucidd.ctl("explain", jobs[-1]))
        limits = {job: box.job(job)["time_limit"]["number"] for job in jobs}
        assert all(1 <= limit <= 4 for limit in limits.values()), limits
        box.wait_ended(*jobs, limit_s=90)
        assert {tuple(verbs(lucidd, job)) for job in jobs[1:]} == {("start",)}


def test_a_users_reservation_is_that_users_and_magnetic_ones_draw_jobs(box: Box, lucidd: Lucidd) -> None:
    with window(box, "now", 30, "users=bob", nodes="n1"):
        theirs = box.sbatch("-p", "vc-a", "--gres=gpu:1", "-t", "5", "--reservation=w", script="sleep 2", user="bob")
        other = [box.sbatch("-p", "vc-a", "--gres=gpu:4", "-t", "5", script="sleep 2") for _ in range(2)]
        box.wait_ended(theirs, *other, limit_s=60)
        assert box.job(theirs)["nodes"] == "n1"
        assert {box.job(job)["nodes"] for job in other} <= {"n2", "n4"}
        box.run("scontrol", "update", "reservation=w", "flags=magnetic")
        time.sleep(7)
        drawn = box.sbatch("-p", "vc-a", "--gres=gpu:4", "-t", "5", script="sleep 2", user="bob")
        box.wait_ended(drawn, limit_s=120)
        assert "let go" in verbs(lucidd, drawn)
        assert box.job(drawn)["nodes"] == "n1"


@pytest.fixture
def reboots(box: Box) -> Iterator[None]:
    """There is a program that reboots nodes, and does nothing."""
    with box.configured(more="RebootProgram=/bin/true\n"):
        yield


def test_a_node_that_is_to_reboot_takes_nothing_until_it_is_back(reboots: None, box: Box, lucidd: Lucidd) -> None:
    running = box.sbatch("-p", "vc-a", "--gres=gpu:4", "-w", "n1", "-t", "5", script="sleep 600")
    box.wait("it runs", lambda: box.runs(running))
    box.run("scontrol", "reboot", "ASAP", "nextstate=resume", "n1")
    try:
        time.sleep(7)
        jobs = [box.sbatch("-p", "vc-a", "--gres=gpu:1", "-t", "1", script="sleep 2") for _ in range(6)]
        box.wait_ended(*jobs)
        assert {box.job(job)["nodes"] for job in jobs} <= {"n2", "n4"}
        assert {tuple(verbs(lucidd, job)) for job in jobs} == {("start",)}
    finally:
        box.run("scontrol", "cancel_reboot", "n1")
