"""How much later jobs start and end under lucidd than on plain Slurm, where nobody has to wait; prints it.

python -m pytest -m e2e tests/e2e/test_as_fast.py -s
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import pytest
from box import Box
from daemon_box import Lucidd

ROUNDS = 12
JOBS, RUNS_S, GPUS = 300, 5, 16
LETTERS = "abcdefghijklmnopqrstuvwxyz"
PLAIN, OURS = ("vc-a", "vc-a", "vc-b", "prof"), ("vc-a", "vc-a", "vc-b", "vc-a")
"""Where jobs go in turn: on plain Slurm the profiling node is anybody's."""


def lucidd_of(box: Box, folder: Path, **settings: float) -> Lucidd:
    """With lucidd's own defaults of profiling and polling, but for what is given."""
    one = Lucidd(box, folder, restarts="", t_prof_s=80.0)
    path = folder / "lucid.toml"
    text = path.read_text().replace("poll_idle_s = 6\n", "").replace("start_grace_s = 10\n", "")
    path.write_text(text.replace("nodes_every_s = 5\n", "".join(f"{k} = {v}\n" for k, v in settings.items())))
    one.start()
    return one


def first_line_s(box: Box, number: int) -> float:
    """Seconds from sbatch to the job's first line."""
    began_s = time.time()
    job = box.sbatch("-p", "vc-a", "--gres=gpu:1", "-J", f"first-{number}", script="date +%s.%N")
    box.wait_ended(job)
    return float(box.output(job)) - began_s


def test_a_submission_wakes_lucidd(box: Box, tmp_path: Path) -> None:
    """It looks once in five minutes here, unless job_submit.lua tells it to."""
    lucidd = lucidd_of(box, tmp_path / "lucidd", poll_idle_s=300)
    try:
        for number in range(2):
            assert first_line_s(box, number) < 200
    finally:
        lucidd.close()
        box.stop_beating()


@pytest.mark.slow
def test_sbatch_to_first_line(box: Box, tmp_path: Path) -> None:
    took: dict[str, list[float]] = {"lucid": [], "off": []}
    for number in range(ROUNDS):
        took["off"].append(first_line_s(box, number))
        time.sleep(3)
    lucidd = lucidd_of(box, tmp_path / "lucidd")
    try:
        time.sleep(10)  # so that the cluster is idle, and lucidd polls as rarely as it does then
        for number in range(ROUNDS):
            took["lucid"].append(first_line_s(box, number))
            time.sleep(3)
        calls = lucidd.json("status")["calls"]
    finally:
        lucidd.close()
        box.stop_beating()
    median = {name: statistics.median(times) for name, times in took.items()}
    print(f"\nsbatch to first line, median: {median['off']:.2f} s without, {median['lucid']:.2f} s with Lucid")
    print(f"longest {max(took['off']):.2f} and {max(took['lucid']):.2f} s; lucidd looked {calls['reads']} times")


@pytest.mark.slow
def test_a_burst_of_new_programs(box: Box, tmp_path: Path) -> None:
    """Plain Slurm has all four nodes for itself; Lucid has them, too: one of them profiles, or helps out."""
    took: dict[str, float] = {}
    for name in ("off", "lucid"):
        lucidd = lucidd_of(box, tmp_path / name) if name == "lucid" else None
        jobs: list[str] = []
        try:
            began_s = time.time()
            for number in range(JOBS):
                where = (
                    ("vc-a", "vc-a", "vc-b", "prof")[number % 4]
                    if name == "off"
                    else ("vc-a", "vc-a", "vc-b", "vc-a")[number % 4]
                )
                jobs.append(
                    box.sbatch("-p", where, "--gres=gpu:1", "-J", f"program{'abcdefghij'[number % 10]}x{number}",
                               script=f"sleep {RUNS_S}")
                )  # fmt: skip
            box.wait_ended(*jobs, limit_s=600)
            records = box.jobs()
            took[name] = max(records[job]["end_time"]["number"] for job in jobs) - began_s
            assert all(records[job]["restart_cnt"] == 0 for job in jobs)
        finally:
            if lucidd is not None:
                calls = lucidd.json("status")["calls"]
                lucidd.close()
                box.stop_beating()
    ratio = took["lucid"] / took["off"]
    print(f"\n{JOBS} programs on {GPUS} GPUs: {took['off']:.0f} s without, {took['lucid']:.0f} s with Lucid")
    print(f"that is {ratio:.2f} times as long; lucidd looked {calls['reads']} times, wrote {calls['writes']} times")
