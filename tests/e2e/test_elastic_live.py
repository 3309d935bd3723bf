"""Elastic jobs on a real Slurm: resized by the policy `elastic`, with a lucidd that dies, and jobs that misbehave."""

from __future__ import annotations

import itertools

import pytest
from box import Box
from daemon_box import Lucidd
from elastic_box import Elastics, in_between, lucidd_fixture

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
def test_jobs_that_misbehave_are_no_bodys_trouble(box: Box, lucidd: Lucidd) -> None:
    jobs = Elastics(box)
    deaf = jobs.submit("-p", "vc-a", epochs=12, how="deaf", size="1-2")
    dies = jobs.submit("-p", "vc-a", epochs=12, how="dies", size="1-2")
    rubbish = jobs.submit("-p", "vc-a", epochs=4, how="rubbish")
    bad = jobs.submit("-p", "vc-a", epochs=2, size="lots")
    good = jobs.submit("-p", "vc-a", epochs=12, size="1-4")
    box.wait("a word on the bad one", lambda: "cannot be read" in lucidd.ctl("explain", bad), 30)
    box.wait("a word on the rubbish", lambda: "refused" in lucidd.ctl("explain", rubbish), 30)
    box.wait_ended(deaf, dies, rubbish, bad, good, limit_s=120)
    states = {n: box.state(n) for n in (deaf, dies, rubbish, bad, good)}
    print(states, [jobs.sizes(n) for n in states], jobs.lost(deaf))
    assert [states[n] for n in (deaf, rubbish, bad, good)] == ["COMPLETED"] * 4
    assert jobs.sizes(rubbish) == jobs.sizes(bad) == [1], "rigid"
    assert states[dies] == ("FAILED" if len(jobs.sizes(dies)) > 1 else "COMPLETED"), (
        "its end is Slurm's, never hidden"
    )
    assert sorted(set(jobs.steps(deaf))) == list(range(1, 241))
    assert jobs.lost(deaf) <= 5 * (len(jobs.sizes(deaf)) - 1), "only what its last checkpoint did not have"
    assert jobs.lost(good) == 0
