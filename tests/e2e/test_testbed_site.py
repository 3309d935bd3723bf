"""The testbed looks like a site: what a site's Slurm enforces is in force here, each thing shown by a job."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from box import Box

from testbed import cli
from testbed.settings import layout_from


def waits_for(box: Box, number: str, reason: str) -> None:
    box.wait(f"{number} waits for {reason}", lambda: box.reason(number) == reason, 20)
    assert box.state(number) == "PENDING"


def test_a_user_runs_as_many_jobs_as_the_qos_says(box: Box) -> None:
    first = box.sbatch("--qos=one-job", "--gres=gpu:1", script="sleep 60")
    box.wait("the first runs", lambda: box.state(first) == "RUNNING")
    waits_for(box, box.sbatch("--qos=one-job", "--gres=gpu:1"), "QOSMaxJobsPerUserLimit")
    others = box.sbatch("--qos=one-job", "--gres=gpu:1", user="bob")
    box.wait_ended(others)


def test_a_qos_has_so_many_gpus(box: Box) -> None:
    first = box.sbatch("--qos=four-gpus", "--gres=gpu:4", script="sleep 60")
    box.wait("the first runs", lambda: box.state(first) == "RUNNING")
    waits_for(box, box.sbatch("--qos=four-gpus", "--gres=gpu:1", user="carol"), "QOSGrpGRES")


def test_slots_count_against_their_own_limit_only(box: Box) -> None:
    """Which is why doctor wants one for them beside each one for GPUs."""
    slots = ",".join(f"shard:g{number}:2" for number in range(4))
    with box.unrefused("alice"):
        first = box.sbatch("--qos=four-gpus", "-w", "n1", f"--gres={slots}", script="sleep 60")
        waiting = box.sbatch("--qos=four-gpus", "-p", "vc-b", "--gres=shard:g0:1")
    whole = box.sbatch("--qos=four-gpus", "-w", "n2", "--gres=gpu:4", script="sleep 60")
    box.wait("both run", lambda: {box.state(first), box.state(whole)} == {"RUNNING"})
    waits_for(box, waiting, "QOSGrpGRES")


def test_an_account_has_so_many_gpus(box: Box) -> None:
    first = box.sbatch("--account=capped", "--gres=gpu:2", script="sleep 60")
    box.wait("the first runs", lambda: box.state(first) == "RUNNING")
    waits_for(box, box.sbatch("--account=capped", "--gres=gpu:1", user="bob"), "AssocGrpGRES")


def test_who_may_submit_what_is_checked(box: Box) -> None:
    words = ("sbatch", "--wrap=true", "-D", "/tmp", "-o", "/dev/null")
    foreign = box.run(*words, "--account=capped", user="carol", check=False)
    assert "Invalid account" in foreign.stderr
    unknown = box.run(*words, "--qos=root-only", user="alice", check=False)
    assert "Invalid qos" in unknown.stderr
    for _ in range(2):
        box.run(*words, "--hold", "--qos=few-queued", user="alice")
    assert "QOSMaxSubmitJobPerUserLimit" in box.run(*words, "--qos=few-queued", user="alice", check=False).stderr


def test_jobs_of_one_partition_get_cpus_and_memory_by_their_gpus(box: Box) -> None:
    wide = box.sbatch("-p", "vc-c", "--gres=gpu:3")
    plain = box.sbatch("-p", "vc-a", "--gres=gpu:3")
    box.wait_ended(wide, plain)
    assert box.job(wide)["tres_alloc_str"].startswith("cpu=6,mem=12000M,")
    assert box.job(plain)["tres_alloc_str"].startswith("cpu=1,mem=1000M,")


def test_a_node_of_eight_gpus_runs_a_job_of_eight(box: Box) -> None:
    number = box.sbatch("-p", "vc-c", "--gres=gpu:8", script="echo $CUDA_VISIBLE_DEVICES")
    both = box.sbatch("-p", "vc-c", "-N2", "--gpus-per-node=8", script="srun true; echo $SLURM_NNODES")
    box.wait_ended(number, both)
    assert box.output(number) == "0,1,2,3,4,5,6,7\n"
    assert box.output(both) == "2\n"
    assert "gres/gpu=16" in box.job(both)["tres_alloc_str"]


def test_licences_are_counted(box: Box) -> None:
    first = box.sbatch("-L", "matlab:2", script="sleep 60")
    box.wait("it runs", lambda: box.state(first) == "RUNNING")
    waits_for(box, box.sbatch("-L", "matlab:1"), "Licenses")
    box.run("scancel", first)


def test_a_feature_is_on_some_nodes_only(box: Box) -> None:
    number = box.sbatch("-p", "vc-a", "-C", "ib", "--gres=gpu:1", script="echo $SLURMD_NODENAME")
    box.wait_ended(number)
    assert box.output(number) == "n2\n"


def test_a_reservation_keeps_others_out(box: Box) -> None:
    with box.reserved("n3", "bob") as name:
        kept_out = box.sbatch("-p", "vc-b", "--gres=gpu:1")
        let_in = box.sbatch("-p", "vc-b", "--gres=gpu:1", f"--reservation={name}", user="bob")
        box.wait_ended(let_in)
        assert box.state(kept_out) == "PENDING"
        assert "ReqNodeNotAvail" in box.reason(kept_out)
    box.wait_ended(kept_out)


@pytest.fixture
def two_prof() -> Iterator[Box]:
    name = f"{os.environ.get('LUCID_TESTBED_NAME', 'pytest')[:20]}-two-prof"
    layout = layout_from({**os.environ, "LUCID_TESTBED_NAME": name, "LUCID_TESTBED_VARIANT": "two-prof"})
    cli.down(layout)
    cli.up(layout, print)
    yield Box(layout.root)
    cli.down(layout)


@pytest.mark.slow
def test_two_profiling_nodes_from_which_an_account_is_kept(testbed: Box, two_prof: Box) -> None:
    ids = [two_prof.sbatch("-p", "prof", "-N2", "--gpus-per-node=4", script="srun true")]
    two_prof.wait_ended(*ids)
    assert two_prof.job(ids[0])["nodes"] == "n[4,7]"
    denied = two_prof.sbatch("-p", "prof", "--gres=gpu:1", user="carol")
    two_prof.wait("it may not", lambda: two_prof.reason(denied) in ("PartitionConfig", "AccountNotAllowed"), 20)
    elsewhere = two_prof.sbatch("-p", "vc-a", "--gres=gpu:1", user="carol")
    two_prof.wait_ended(elsewhere)
