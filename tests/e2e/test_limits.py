"""Limits of QOS, accounts, licences and nodes: Slurm's word stands, its jobs wait in Lucid's queue, and nobody else
waits for GPUs that they cannot have yet."""

from __future__ import annotations

from box import Box
from daemon_box import Lucidd

LUCIDD = {"restarts": ""}


def verbs(lucidd: Lucidd, job: str) -> list[str]:
    return [action["verb"] for action in lucidd.story(job)["actions"]]


def span(box: Box, job: str) -> tuple[int, int]:
    record = box.job(job)
    return record["start_time"]["number"], record["end_time"]["number"]


def test_a_job_waits_for_its_licences(box: Box, lucidd: Lucidd) -> None:
    jobs = [
        box.sbatch("-p", "vc-a", "--gres=gpu:1", "-L", "matlab:2", "-J", f"licensed-{n}", script="sleep 3")
        for n in range(2)
    ]
    box.wait_ended(*jobs)
    assert {box.state(job) for job in jobs} == {"COMPLETED"}
    first, second = sorted(span(box, job) for job in jobs)
    assert first[1] <= second[0]


def test_a_job_whose_only_node_is_drained_waits_for_it_and_keeps_nobody_else(box: Box, lucidd: Lucidd) -> None:
    box.run("scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=test")
    try:
        job = box.sbatch("-p", "vc-a", "-w", "n1", "--gres=gpu:1", script="true")
        other = box.sbatch("-p", "vc-a", "--gres=gpu:4", script="true", user="bob")
        box.wait_ended(other)
        assert verbs(lucidd, job).count("start") <= 1, "only before lucidd has seen that the node is drained"
    finally:
        box.run("scontrol", "update", "NodeName=n1", "State=RESUME")
    box.wait_ended(job)
    assert box.state(job) == "COMPLETED"
