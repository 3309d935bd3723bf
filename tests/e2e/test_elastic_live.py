"""Elastic jobs on a real Slurm: resized by the policies `elastic` and `pollux`, beside rigid jobs and jobs that
misbehave."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path

import pytest
from box import Box
from daemon_box import Lucidd
from elastic_box import REPORTS, Elastics, elastic_lucidd, lucidd_fixture

lucidd = lucidd_fixture()


def test_jobs_grow_onto_idle_gpus_shrink_for_others_and_lose_nothing(box: Box, lucidd: Lucidd) -> None:
    jobs = Elastics(box)
    first = jobs.submit("-p", "vc-a", epochs=25, size="1-8", gpus=2)
    box.wait("it has grown", lambda: max(jobs.sizes(first), default=0) > 2, 40)
    rigid = box.sbatch("-p", "vc-a", "--gres=gpu:4", script="sleep 3")
    second = jobs.submit("-p", "vc-a", epochs=10, wrap="srun {}", gpus=1)
    box.wait_ended(first, second, rigid, limit_s=90)
    assert {n: box.state(n) for n in (first, second, rigid)} == dict.fromkeys((first, second, rigid), "COMPLETED")
    sizes = jobs.sizes(first)
    print("sizes", sizes, jobs.sizes(second))
    assert max(sizes) > 2, sizes
    assert any(after < before for before, after in itertools.pairwise(sizes)), sizes
    for number, steps in ((first, 500), (second, 200)):
        assert jobs.lost(number) == 0
        assert jobs.steps(number) == list(range(1, steps + 1)), "each step was done once, in order"
        assert "stale None" in box.output(number)
    assert "resize" in lucidd.ctl("explain", first)


@pytest.mark.slow
def test_one_that_does_not_hear_and_one_that_dies_at_its_restart(box: Box, lucidd: Lucidd) -> None:
    jobs = Elastics(box)
    deaf, dies = (jobs.submit("-p", "vc-a", epochs=12, how=how, size="1-2") for how in ("deaf", "dies"))
    good = jobs.submit("-p", "vc-a", epochs=12, size="1-4")
    box.wait_ended(deaf, dies, good, limit_s=120)
    print([(box.state(n), jobs.sizes(n)) for n in (deaf, dies, good)], jobs.lost(deaf))
    assert box.state(deaf) == box.state(good) == "COMPLETED"
    ends = "FAILED" if len(jobs.sizes(dies)) > 1 else "COMPLETED"
    assert box.state(dies) == ends, "its end is Slurm's, never hidden"
    assert sorted(set(jobs.steps(deaf))) == list(range(1, 241))
    assert jobs.lost(deaf) <= 5 * (len(jobs.sizes(deaf)) - 1), "only what its last checkpoint did not have"
    assert jobs.lost(good) == 0


PROGRAM = "--epochs 40 --steps 20 --batch 32 --most 512 --pass-s 0.01 --sample-s 0.003 --sync-s 0.004"


def test_under_pollux_a_job_grows_and_chooses_a_larger_batch_beside_a_rigid_one(box: Box, tmp_path: Path) -> None:
    jobs = Elastics(box)
    with elastic_lucidd(box, tmp_path / "state", "pollux", silent_s=15.0, round_s=5.0) as daemon:
        number = jobs.submit_adaptive(
            "-p", "vc-a", program=PROGRAM, how="adapts", gpus=1, epochs=40, size="1-4", batch="32:512"
        )
        rigid = box.sbatch("-p", "vc-a", "--gres=gpu:2", script="sleep 25")
        began = time.monotonic()
        print(daemon.ctl("queue"), daemon.ctl("when", "--gpus", "1"))
        assert time.monotonic() - began < 30, "no search for each round of the days to come"
        box.wait("it has grown", lambda: box.job(number)["restart_cnt"] > 0, 60)
        assert "resize" in daemon.ctl("explain", number)
        box.wait_ended(number, rigid, limit_s=120)
    assert box.state(number) == box.state(rigid) == "COMPLETED"
    assert box.job(rigid)["restart_cnt"] == 0
    said = json.loads(next((box.root / REPORTS).glob(f"u*/{number}.json")).read_text())
    print("sizes", jobs.sizes(number), "batch", said["batch"], "steps", len(jobs.steps(number)), said["losses"][-1])
    assert max(jobs.sizes(number)) > 1
    assert jobs.lost(number) == 0
    assert said["epochs"] >= 40
    assert len(jobs.steps(number)) < 40 * 20, "steps with larger batches are worth more than one"
    assert said["losses"][-1][1] < 1.3, "and it has learnt: 1 is the noise of its points"
