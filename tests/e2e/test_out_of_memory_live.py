"""A job that ends out of memory is started again with more, if its owner said so: on a real Slurm with cgroups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from box import Box
from daemon_box import Lucidd
from own_testbed import own_testbed

from testbed import cli

NEEDS = "python3 -c 'import time; kept = bytearray(180 << 20); time.sleep(2)'"
GROW = ("-p", "vc-a", "--gres=gpu:1", "--comment=lucid:oom=grow", "--requeue")


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    with own_testbed("memory", LUCID_TESTBED_CGROUP="v1") as layout:
        if reason := cli.unfit(layout):
            pytest.skip(reason)
        cli.up(layout, print)
        yield Box(layout.root)


@pytest.fixture
def lucidd(box: Box, tmp_path: Path) -> Iterator[Lucidd]:
    one = Lucidd(box, tmp_path / "state", restarts="", more="lease_s = 6\noom_grow_gib = 1")
    one.start()
    yield one
    one.close()
    box.stop_beating()


def mem_mib(box: Box, job: str) -> int:
    return int(box.job(job)["memory_per_node"]["number"])


def test_a_job_gets_more_memory_until_it_has_enough(box: Box, lucidd: Lucidd) -> None:
    job = box.sbatch(*GROW, "--mem=100M", script=NEEDS)
    silent = box.sbatch("-p", "vc-a", "--gres=gpu:1", "--requeue", "--mem=100M", script=NEEDS)
    needed = box.sbatch(*GROW, "--mem=100M", script=f"sleep 5; {NEEDS}")
    after = box.sbatch("-p", "vc-a", "--gres=gpu:1", f"--dependency=afternotok:{needed}", script="true")
    box.wait("it ends well", lambda: box.state(job) == "COMPLETED", 120)
    assert (mem_mib(box, job), box.job(job)["restart_cnt"]) == (225, 2)
    box.wait_ended(silent, needed, after, limit_s=60)
    assert (mem_mib(box, needed), box.job(needed)["restart_cnt"]) == (100, 0)
    assert (box.state(silent), box.job(silent)["restart_cnt"]) == ("OUT_OF_MEMORY", 0)
    assert (box.state(needed), box.state(after)) == ("OUT_OF_MEMORY", "COMPLETED"), "another job was to come after it"
    told = lucidd.ctl("explain", job)
    assert "again with 150 MiB (1 of 2)" in told
    assert "again with 225 MiB (2 of 2)" in told


def test_no_more_than_twice_nor_than_the_site_allows_and_a_lucidd_that_dies_between_loses_nothing(
    box: Box, lucidd: Lucidd
) -> None:
    greedy = NEEDS.replace("180", "2000")
    twice = box.sbatch(*GROW, "--mem=100M", script=greedy)
    box.wait("one goes on", lambda: box.job(twice)["restart_cnt"] > 0, 60)
    lucidd.kill()
    lucidd.start()
    bounded = box.sbatch(*GROW, "--mem=900M", script=greedy)
    box.wait("both have ended for good", lambda: all(_over(box, job) for job in (twice, bounded)), 120)
    assert (mem_mib(box, twice), box.job(twice)["restart_cnt"]) == (225, 2)
    assert (mem_mib(box, bounded), box.job(bounded)["restart_cnt"]) == (1024, 1)


def test_each_task_of_an_array_by_itself(box: Box, lucidd: Lucidd) -> None:
    """Task 0 needs more than it asked for, and task 1 does not."""
    script = f'test "$SLURM_ARRAY_TASK_ID" = 1 && exit 0; {NEEDS}'
    array = box.sbatch(*GROW, "--mem=100M", "--array=0-1", script=script)

    def tasks() -> list[tuple[str, int]]:
        mine = [one for one in box.jobs().values() if one["array_job_id"]["number"] == int(array)]
        return sorted((str(one["job_state"][0]), int(one["restart_cnt"])) for one in mine)

    box.wait("both end well", lambda: tasks() == [("COMPLETED", 0), ("COMPLETED", 2)], 120)


def _over(box: Box, job: str) -> bool:
    most = {225, 1024}
    return box.state(job) == "OUT_OF_MEMORY" and mem_mib(box, job) in most
