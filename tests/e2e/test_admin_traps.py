"""What an administrator does to a running Lucid, on real daemons: deletes its store, edits its file."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from box import Box
from daemon_box import REPO, Lucidd

from lucid.core.job import Ended, Job
from lucid.store.sqlite import SqliteStore


@pytest.fixture
def lucidd(box: Box, tmp_path: Path) -> Iterator[Lucidd]:
    one = Lucidd(box, tmp_path)
    try:
        yield one
    finally:
        one.close()


def restart(lucidd: Lucidd) -> None:
    assert lucidd.process is not None
    lucidd.process.terminate()
    lucidd.process.wait(30)
    lucidd.start()


@pytest.mark.slow
def test_a_store_deleted_under_lucidd_costs_no_job(box: Box, lucidd: Lucidd) -> None:
    lucidd.start()
    ran = "echo $SLURM_JOB_ID >> /tmp/ran-store; sleep 6"
    (box.root / "tmp/ran-store").unlink(missing_ok=True)
    jobs = [box.sbatch("--gres=gpu:4", "-p", "vc-a", "-J", f"gone-{n}", script=ran) for n in range(3)]
    box.wait("a job is being profiled", lambda: any(box.state(number) == "RUNNING" for number in jobs))
    for path in lucidd.folder.glob("lucid.db*"):
        path.unlink()
    box.wait("a new store", lambda: "a new one begun" in lucidd.log(), 15)
    assert lucidd.json("status")["alive"]
    assert "start lucidd" not in lucidd.ctl("doctor")
    box.wait_ended(*jobs, limit_s=90)
    assert {box.state(number) for number in jobs} == {"COMPLETED"}
    starts = (box.root / "tmp/ran-store").read_text().split()
    # once on the profiling node, and once at home where it had to move on
    assert all(1 <= starts.count(number) <= 2 for number in jobs)


@pytest.mark.slow
def test_a_switch_gives_way_to_an_edited_file(box: Box, lucidd: Lucidd) -> None:
    lucidd.start()
    lucidd.ctl("mode", "vc-a", "order")
    restart(lucidd)
    number = box.sbatch("--gres=gpu:1", "-p", "vc-a")
    assert "held=1" not in box.tag(number), "order mode holds nobody"
    assert "vc-a is in mode order by hand since" in lucidd.ctl("doctor")
    path = lucidd.folder / "lucid.toml"
    path.write_text(path.read_text().replace('vc-a = "pack"', 'vc-a = "observe"'))
    assert "it says observe now" in lucidd.ctl("doctor")
    restart(lucidd)
    rows = {row["partition"]: row for row in lucidd.json("mode")["partitions"]}
    assert (rows["vc-a"]["by_hand"], rows["vc-a"]["in_force"]) == (None, "observe")


def test_a_time_limit_bounds_the_estimate(box: Box, lucidd: Lucidd) -> None:
    store = SqliteStore(lucidd.folder / "lucid.db")
    lease = store.take_lease("the test", 0.0, 1.0)
    assert lease is not None
    before = Job("past", "vc-a", 4, time.time() - 7200, user="alice", name="hour")
    store.put_ended([Ended(before, time.time() - 3600, 3600.0, "COMPLETED")], lease.token)
    store.close()
    lucidd.start()
    number = box.sbatch("--gres=gpu:4", "-p", "vc-a", "-J", "hour", "-t", "10", script="sleep 3")
    box.wait("an estimate", lambda: "estimate 10 min by" in lucidd.ctl("explain", number), 20)
    said = "history: the time limit, corrected by 1 job with the same user and name; capped at its time limit"
    assert said in lucidd.ctl("explain", number)


def test_a_policy_that_no_slurm_can_run_ends_lucidd_at_once(box: Box, lucidd: Lucidd) -> None:
    path = lucidd.folder / "lucid.toml"
    path.write_text(path.read_text().replace("[daemon]\n", '[daemon]\npolicy = "pollux"\n'))
    done = subprocess.run(
        [sys.executable, "-m", "lucid.daemon", "--config", str(path)],
        capture_output=True, text=True, check=False, cwd=REPO, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert "daemon.policy = 'pollux'" in done.stderr
    assert "daemon.policy = 'pollux'" in lucidd.ctl("doctor")
