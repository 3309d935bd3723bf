"""Pollux on a real Slurm: jobs that choose their batch, beside rigid ones, liars, and a lucidd that dies."""

from __future__ import annotations

import json
import time
from collections.abc import Collection
from pathlib import Path

import pytest
from box import Box
from daemon_box import Lucidd
from elastic_box import Elastics, elastic_lucidd, in_between, lucidd_fixture

PROGRAM = "--epochs {} --steps 20 --batch 32 --most 512 --pass-s 0.01 --sample-s 0.003 --sync-s 0.004"


lucidd = lucidd_fixture("pollux", silent_s=15.0, round_s=5.0)


def submit(jobs: Elastics, how: str, epochs: int, gpus: int = 1, size: str = "1-4") -> str:
    return jobs.submit_adaptive(
        "-p", "vc-a", program=PROGRAM.format(epochs), how=how, gpus=gpus, epochs=epochs, size=size, batch="32:512"
    )


def test_a_job_grows_and_chooses_a_larger_batch_beside_a_rigid_one(box: Box, lucidd: Lucidd) -> None:
    jobs = Elastics(box)
    number = submit(jobs, "adapts", 40)
    rigid = box.sbatch("-p", "vc-a", "--gres=gpu:2", script="sleep 25")
    began = time.monotonic()
    print(lucidd.ctl("queue"), lucidd.ctl("when", "--gpus", "1"))
    assert time.monotonic() - began < 30, "no search for each round of the days to come"
    box.wait("it has grown", lambda: box.job(number)["restart_cnt"] > 0, 60)
    assert "resize" in lucidd.ctl("explain", number)
    box.wait_ended(number, rigid, limit_s=120)
    assert box.state(number) == box.state(rigid) == "COMPLETED"
    assert box.job(rigid)["restart_cnt"] == 0
    said = json.loads(next((box.root / "run/lucid-reports").glob(f"u*/{number}.json")).read_text())
    print("sizes", jobs.sizes(number), "batch", said["batch"], "steps", len(jobs.steps(number)), said["losses"][-1])
    assert max(jobs.sizes(number)) > 1
    assert jobs.lost(number) == 0
    assert said["epochs"] >= 40
    assert len(jobs.steps(number)) < 40 * 20, "steps with larger batches are worth more than one"
    assert said["losses"][-1][1] < 1.3, "and it has learnt: 1 is the noise of its points"


@pytest.mark.slow
def test_jobs_that_lie_fall_silent_or_die_and_a_lucidd_that_is_killed(box: Box, lucidd: Lucidd) -> None:
    jobs = Elastics(box)
    kinds = ("adapts", "lies", "silent", "dies")
    numbers = {how: submit(jobs, how, 40, size="1-2") for how in kinds}
    rigid = box.sbatch("-p", "vc-a", "--gres=gpu:1", script="sleep 5")
    for _ in range(3):
        box.wait("a job in between, or all over", lambda: _between_or_over(box, numbers.values()), 40)
        lucidd.kill()
        lucidd.start()
    box.wait_ended(*numbers.values(), rigid, limit_s=200)
    states = {how: box.state(number) for how, number in numbers.items()}
    restarts = {how: box.job(number)["restart_cnt"] for how, number in numbers.items()}
    print(states, restarts, {how: jobs.sizes(number) for how, number in numbers.items()})
    assert box.state(rigid) == "COMPLETED"
    assert [states[how] for how in ("adapts", "lies", "silent")] == ["COMPLETED"] * 3
    assert states["dies"] == ("FAILED" if restarts["dies"] else "COMPLETED"), "its end is Slurm's, never hidden"
    for how in ("adapts", "lies", "silent"):
        assert jobs.lost(numbers[how]) == 0, how
        assert len(jobs.sizes(numbers[how])) == restarts[how] + 1, "one run for each start"
    assert sum(restarts.values()), "somebody was resized"


def _between_or_over(box: Box, numbers: Collection[str]) -> bool:
    over = all(box.state(number) in ("COMPLETED", "FAILED") for number in numbers)
    return over or any(in_between(box, number) for number in numbers)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["optimus-fitted", "optimus-drf"])
def test_the_other_policies_by_rounds_serve_jobs_too(box: Box, tmp_path: Path, policy: str) -> None:
    lucidd = elastic_lucidd(box, tmp_path / "state", policy, every_s=3.0, round_s=5.0)
    lucidd.start()
    try:
        jobs = Elastics(box)
        numbers = [submit(jobs, "fixed", 30) for _ in range(2)]
        rigid = box.sbatch("-p", "vc-a", "--gres=gpu:2", script="sleep 5")
        box.wait("somebody is resized", lambda: any(box.job(n)["restart_cnt"] for n in numbers), 60)
        why = lucidd.ctl("explain", next(n for n in numbers if box.job(n)["restart_cnt"]))
        box.wait_ended(*numbers, rigid, limit_s=200)
        print(policy, [jobs.sizes(n) for n in numbers])
        assert {n: box.state(n) for n in (*numbers, rigid)} == dict.fromkeys((*numbers, rigid), "COMPLETED")
        assert [jobs.lost(n) for n in numbers] == [0, 0]
        assert "resize" in why
    finally:
        lucidd.close()
