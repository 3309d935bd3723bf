"""Elastic jobs on a real Slurm: resized by the policies `elastic` and `pollux`, beside rigid jobs and jobs that
misbehave, in a partition of their own, and with a lucidd that dies."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from box import Box
from daemon_box import Lucidd
from elastic_box import REPORTS, Elastics, elastic_lucidd, in_between, lucidd_fixture

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
def test_killed_lucidds_lose_no_job_and_start_none_twice(box: Box, lucidd: Lucidd) -> None:
    """Each time while a job is between its old size and its new one."""
    jobs = Elastics(box)
    numbers = [jobs.submit("-p", "vc-a", epochs=20, step_s=0.15, size="1-8") for _ in range(2)]
    rigid: list[str] = []
    kills = 0
    while kills < 4:
        box.wait("a job in between, or the end", lambda: bool(_between(box, numbers)) or _over(box, numbers), 30)
        if _over(box, numbers):
            break
        lucidd.kill()
        kills += 1
        rigid.append(box.sbatch("-p", "vc-a", "--gres=gpu:2", script="sleep 2"))  # others have to shrink for it
        lucidd.start()
        between = _between(box, numbers)
        box.wait("those go on", lambda gone=between: not gone & _between(box, numbers), 30)  # type: ignore[misc]
    box.wait_ended(*numbers, *rigid, limit_s=120)
    print("kills", kills, [jobs.sizes(n) for n in numbers])
    assert {n: box.state(n) for n in (*numbers, *rigid)} == dict.fromkeys((*numbers, *rigid), "COMPLETED")
    for number in numbers:
        assert jobs.steps(number) == list(range(1, 401)), "no step was lost, and none done by two runs at once"
        assert len(jobs.sizes(number)) == box.job(number)["restart_cnt"] + 1
    assert kills >= 2


def _between(box: Box, numbers: list[str]) -> set[str]:
    return {number for number in numbers if in_between(box, number)}


def _over(box: Box, numbers: list[str]) -> bool:
    return all(box.state(number) == "COMPLETED" for number in numbers)


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


@pytest.fixture
def by_partition(box: Box, tmp_path: Path) -> Iterator[Lucidd]:
    """`lucid` plans for vc-b, `elastic` for vc-a."""
    more = (
        "lease_s = 6", "[daemon.policies]", 'vc-a = "elastic"', "[daemon.elastic]",
        f'reports_dir = "{box.root}/{REPORTS}"', "resize_every_s = 3.0", "restart_s = 5.0",
    )  # fmt: skip
    with Lucidd(box, tmp_path / "state", more="\n".join(more)) as daemon:
        yield daemon


def test_the_same_job_grows_in_one_partition_and_is_profiled_in_the_other(box: Box, by_partition: Lucidd) -> None:
    jobs, daemon = Elastics(box), by_partition
    grows = jobs.submit("-p", "vc-a", epochs=15, size="1-4")
    stays = jobs.submit("-p", "vc-b", "--comment=lucid:restart lucid:elastic=1-4,epochs=15", epochs=15, size="")
    box.wait("one is being profiled", lambda: box.job(stays)["partition"] == "prof", 30)
    assert box.job(grows)["partition"] == "vc-a"
    box.wait("the other has grown", lambda: box.job(grows)["restart_cnt"] > 0, 60)
    daemon.kill()
    daemon.start()
    words = {number: daemon.ctl("explain", number) for number in (grows, stays)}
    policies, when = daemon.json("status")["policies"], daemon.ctl("when", "--gpus", "2")
    box.wait_ended(grows, stays, limit_s=150)
    print(policies, words, when, jobs.sizes(grows), jobs.sizes(stays))
    assert {box.state(number) for number in (grows, stays)} == {"COMPLETED"}
    assert policies == {"vc-a": "elastic", "vc-b": "lucid"}
    assert "resize" in words[grows]
    assert "the policy of its partition resizes no job" in words[stays]
    assert "vc-a" in when
    assert "vc-b" in when
    assert max(jobs.sizes(grows)) > 1
    assert set(jobs.sizes(stays)) == {1}
    assert jobs.lost(grows) == 0
    assert "all the same" in daemon.ctl("replay", str(daemon.folder / "plans"))


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
