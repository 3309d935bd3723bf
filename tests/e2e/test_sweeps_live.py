"""Tasks of an array share GPUs on a real Slurm whose GPUs have six slots: how many, how fast all of it ends, and who
does not join."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from box import Box
from daemon_box import Lucidd, has_measured
from own_testbed import own_testbed

from lucid.adapters.store.sqlite import SqliteStore
from testbed import cli

TASKS, LASTS_S = 32, 20
SWEEP = ("-p", "vc-a", "--gres=gpu:1", f"--array=0-{TASKS - 1}", "-J", "sweep")
"""Eight GPUs, with four CPUs for each."""


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    with own_testbed("sweeps", LUCID_TESTBED_SLOTS="6") as layout:
        cli.up(layout, print)
        yield Box(layout.root)


def lucidd(box: Box, folder: Path, most: int) -> Lucidd:
    daemon = Lucidd(box, folder, restarts="")
    path = folder / "lucid.toml"
    path.write_text(path.read_text().replace("[policy.packing]\n", f"[policy.packing]\nsweep_most = {most}\n"))
    has_measured(daemon, "sweep")
    daemon.start()
    return daemon


def tasks(box: Box, array: str) -> dict[str, dict[str, Any]]:
    return {number: job for number, job in box.jobs().items() if str(job["array_job_id"]["number"]) == array}


def span_s(box: Box, array: str) -> float:
    jobs = tasks(box, array).values()
    return max(job["end_time"]["number"] for job in jobs) - min(job["submit_time"]["number"] for job in jobs)


def ended(box: Box, array: str) -> bool:
    states = [job["job_state"] for job in tasks(box, array).values()]
    return states == [["COMPLETED"]] * TASKS


def most_together(box: Box, daemon: Lucidd, array: str) -> int:
    """The most tasks that ran on one GPU at once: where Lucid started them, and when they ran by Slurm's record."""
    store, runs = SqliteStore(daemon.folder / "lucid.db"), []
    for job in tasks(box, array).values():
        told = store.actions(f"{array}_{job['array_task_id']['number']}")
        where = [action.detail.split()[0] for action in told if action.verb == "start"]
        if where and job["start_time"]["number"]:
            runs.append((where[-1], job["start_time"]["number"], job["end_time"]["number"]))
    store.close()
    held = (Counter(gpu for gpu, begin_s, end_s in runs if begin_s <= at_s < end_s) for _, at_s, _ in runs)
    return max((count for each in held for count in each.values()), default=0)


def test_a_sweep_ends_sooner_and_its_owner_can_say_how_many_share(box: Box, tmp_path: Path) -> None:
    plain = box.sbatch(*SWEEP, script=f"sleep {LASTS_S}")
    box.wait("all tasks end", lambda: ended(box, plain), 300)
    spans, together = {"plain": span_s(box, plain)}, {}
    for name, most, words in (("two", 2, ()), ("six", 6, ()), ("owner", 6, ("--comment=lucid:k=3",))):
        daemon = lucidd(box, tmp_path / name, most)
        try:
            array = box.sbatch(*SWEEP, *words, script=f"sleep {LASTS_S}")
            box.wait("all tasks end", lambda array=array: ended(box, array), 300)
            spans[name], together[name] = span_s(box, array), most_together(box, daemon, array)
            story = daemon.ctl("explain", f"{array}_{TASKS - 1}")
        finally:
            daemon.close()
            box.stop_beating()
            box.clear()
        print(spans, together)
        assert ("of its array" in story) is (name != "two"), story
    assert together == {"two": 2, "six": 4, "owner": 3}, "a task needs a CPU, and a node has 16 for four GPUs"
    assert spans["six"] <= 0.5 * spans["plain"]


def test_nobody_joins_while_another_waits_and_no_task_is_started_twice(box: Box, tmp_path: Path) -> None:
    daemon = lucidd(box, tmp_path / "state", 6)
    try:
        array = box.sbatch(*SWEEP, script="echo ran; sleep 8")
        box.wait("tasks share", lambda: most_together(box, daemon, array) > 2, 90)
        large = box.sbatch("-p", "vc-a", "--gres=gpu:4", "-J", "large", script="sleep 2", user="bob")
        asked_s = time.time()
        daemon.kill()
        daemon.start()
        box.wait("the large job starts", lambda: box.jobs()[large]["job_state"] != ["PENDING"], 90)
        started_s = box.jobs()[large]["start_time"]["number"]
        box.wait("all tasks end", lambda: ended(box, array), 200)
        assert started_s - asked_s < 60, "no task took the place of one that ended before it"
        assert all(job["restart_cnt"] == 0 for job in tasks(box, array).values())
    finally:
        daemon.close()
        box.stop_beating()
