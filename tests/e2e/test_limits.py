"""Limits of QOS, accounts, licences and nodes: Slurm's word stands, its jobs wait in Lucid's queue, and nobody else
waits for GPUs that they cannot have yet."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from box import Box
from daemon_box import Lucidd


@pytest.fixture
def lucidd(box: Box, tmp_path: Path) -> Iterator[Lucidd]:
    one = Lucidd(box, tmp_path / "lucidd", restarts="")
    one.start()
    yield one
    one.close()
    box.stop_beating()


def verbs(lucidd: Lucidd, job: str) -> list[str]:
    return [action["verb"] for action in lucidd.story(job)["actions"]]


def waits_for(lucidd: Lucidd, job: str, words: str) -> bool:
    story: dict[str, Any] = lucidd.story(job)
    return any(words in text for decision in story["decisions"] for text in decision["words"])


def span(box: Box, job: str) -> tuple[int, int]:
    record = box.job(job)
    return record["start_time"]["number"], record["end_time"]["number"]


def test_jobs_over_a_limit_run_one_after_the_other_and_hold_nothing_from_others(box: Box, lucidd: Lucidd) -> None:
    one = ["--qos=one-job", "-p", "vc-a", "--gres=gpu:1"]
    gate = box.root / "tmp/limited-run-while-it-is-there"
    gate.touch()
    script = f"while test -e /tmp/{gate.name}; do sleep 0.2; done; sleep 3"
    limited = [box.sbatch(*one, "-J", f"limited-{n}", script=script) for n in range(3)]
    box.wait("the first runs", lambda: any(box.state(job) == "RUNNING" for job in limited))
    box.wait(
        "another waits for the limit", lambda: any(waits_for(lucidd, j, "QOSMaxJobsPerUserLimit") for j in limited)
    )
    whole = box.sbatch("-p", "vc-a", "--gres=gpu:4", "-J", "whole", script="sleep 1", user="bob")
    box.wait_ended(whole)  # it does not wait for those that Slurm holds back
    gate.unlink()
    box.wait_ended(*limited)
    assert {box.state(job) for job in (whole, *limited)} == {"COMPLETED"}
    runs = sorted(span(box, job) for job in limited)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(runs)), runs
    tried = sum(verbs(lucidd, job).count("take back") for job in limited)
    assert tried <= 6, "one is tried now and then, not each of them in every cycle"


def test_a_job_waits_for_its_licences(box: Box, lucidd: Lucidd) -> None:
    jobs = [
        box.sbatch("-p", "vc-a", "--gres=gpu:1", "-L", "matlab:2", "-J", f"licensed-{n}", script="sleep 3")
        for n in range(2)
    ]
    box.wait_ended(*jobs)
    assert {box.state(job) for job in jobs} == {"COMPLETED"}
    first, second = sorted(span(box, job) for job in jobs)
    assert first[1] <= second[0]


def test_a_job_that_slurm_does_not_start_is_let_go_with_slurms_words(box: Box, lucidd: Lucidd) -> None:
    box.run("scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=test")
    try:
        job = box.sbatch("-p", "vc-a", "-w", "n1", "--gres=gpu:1", script="true")
        box.wait("let go", lambda: "let go" in verbs(lucidd, job))
        story = lucidd.ctl("explain", job)
        assert "Slurm did not start it 2 times as Lucid asked (ReqNodeNotAvail" in story
        assert verbs(lucidd, job).count("start") == 2
        other = box.sbatch("-p", "vc-a", "--gres=gpu:4", script="true", user="bob")
        box.wait_ended(other)
    finally:
        box.run("scontrol", "update", "NodeName=n1", "State=RESUME")
    box.wait_ended(job)
    assert box.state(job) == "COMPLETED"
