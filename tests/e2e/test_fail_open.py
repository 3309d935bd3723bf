"""What is left when the daemon is dead: the release script frees its jobs, and nobody else's."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from box import HOSTILE_NAMES, Box

SLURM = Path(__file__).resolve().parents[2] / "slurm"


def release(box: Box, *options: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run it as systemd would: as the operator, under a plain POSIX shell, outside the chroot."""
    shell = "/usr/bin/dash" if Path("/usr/bin/dash").exists() else "/bin/sh"
    return subprocess.run(
        [shell, str(SLURM / "lucid-release"), *options],
        capture_output=True,
        text=True,
        check=False,
        env={
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "LUCID_HEARTBEAT": str(box.root / "run/lucid/heartbeat"),
            "LUCID_SLURM_PREFIX": f"chroot --userspec=lucid {box.root}",
            **settings,
        },
        timeout=60,
    )


@pytest.fixture
def held(box: Box) -> list[str]:
    """Jobs that the plugin holds, under names and comments that try to be something else; vc-b stays free."""
    box.beat()
    first, *others = HOSTILE_NAMES
    return [
        box.sbatch("--gres=gpu:1", "--array=0-1", f"--job-name={first}"),
        *[box.sbatch("--gpus=1", f"--job-name={name}", f"--comment={name}") for name in others],
    ]


def test_without_any_heartbeat_too(box: Box, held: list[str]) -> None:
    box.stop_beating()
    assert release(box).returncode == 0
    box.wait_ended(*held)


def test_a_clock_that_ran_ahead_does_not_keep_them_held(box: Box, held: list[str]) -> None:
    box.write_heartbeat(f"time {time.time() + 86400:.0f}\nmode vc-a pack\n")
    assert release(box).returncode == 0
    box.wait_ended(*held)


def test_nobody_elses_hold_is_touched(box: Box) -> None:
    box.beat()
    fake = "x\n   AdminComment=lucid:vc=prof;held=1"
    own = box.sbatch("--gpus=1", "--hold", f"--job-name={fake}", f"--comment={fake}")
    operator = box.sbatch("--gres=gpu:1", "-p", "vc-b", "--begin=now+1hour")
    box.scontrol("hold", operator)
    assert release(box, "--all").returncode == 0
    assert box.job(own)["waits"]
    assert box.job(operator)["waits"]
    assert {box.job(number)["partition"] for number in (own, operator)} == {"vc-a", "vc-b"}


def test_what_waits_for_others_or_for_its_time_is_let_go_too(box: Box) -> None:
    box.beat()
    first = box.sbatch("--gres=gpu:1", script="sleep 2")
    after = box.sbatch("--gres=gpu:1", f"--dependency=afterok:{first}")
    later = box.sbatch("--gres=gpu:1", "--begin=now+1hour")
    both = box.sbatch("--gres=gpu:1", f"--dependency=afterok:{first}", "--begin=now+1hour")
    two = box.sbatch("-p", "vc-a,vc-b", "--gres=gpu:1")
    when = box.job(later)["eligible_time"]["number"]
    assert (release(box, "--all").returncode, release(box, "--all").stderr) == (0, "")
    box.wait_ended(first, after, two)
    assert box.job(two)["partition"] in ("vc-a", "vc-b")
    for job in (later, both):
        found = box.job(job)
        assert (found["state_reason"], found["hold"]) == ("BeginTime", False)
        assert abs(found["eligible_time"]["number"] - when) < 5


def test_a_request_that_had_become_slots_is_given_back(box: Box) -> None:
    box.beat()
    jobs = {form: box.sbatch(*form.split()) for form in ("--gres=gpu:2", "--gpus=2", "--gpus-per-task=1 -n2")}
    before = {form: box.job(number) for form, number in jobs.items()}
    slots = ["TresPerNode=gres/shard:g1:1,gres/shard:g3:1", "TresPerJob=", "TresPerTask=", "ReqNodeList=n1",
             "Extra=lucid-gpus=1,3;lucid-mem=9000"]  # fmt: skip
    for number in jobs.values():
        box.scontrol("update", f"JobId={number}", "Partition=prof", "ReqNodeList=")
        box.scontrol("update", f"JobId={number}", "Partition=vc-a", *slots)
        assert "shard" in box.job(number)["tres_per_node"]
    assert (release(box, "--all").returncode, release(box, "--all").stderr) == (0, "")
    box.wait_ended(*jobs.values())
    for form, number in jobs.items():
        job = box.job(number)
        for field in ("tres_per_node", "tres_per_job", "tres_per_task", "partition", "required_nodes", "extra"):
            assert job[field] == before[form][field], (form, field)
        assert job["job_state"] == ["COMPLETED"]
        assert "gres/gpu=2" in job["tres_alloc_str"]


def test_cpus_and_memory_by_gpu_are_given_back_even_half_way(box: Box) -> None:
    """lucidd was killed between the update that empties a request and the one that makes it slots; or after both."""
    box.beat()
    options = ["--gpus=2", "--cpus-per-gpu=3", "--mem-per-gpu=1000"]
    half, whole, untouched = (box.sbatch(*options) for _ in range(3))
    for number in (half, whole):
        box.scontrol("update", f"JobId={number}", "TresPerJob=", "CpusPerTres=", "MemPerTres=")
    box.scontrol(
        "update",
        f"JobId={whole}",
        "TresPerNode=gres/shard:g1:1,gres/shard:g3:1",
        "ReqNodeList=n1",
        "MinMemoryNode=2000",
    )
    assert (release(box, "--all").returncode, release(box, "--all").stderr) == (0, "")
    box.wait_ended(half, whole, untouched)
    for number in (half, whole, untouched):
        job = box.job(number)
        assert (job["cpus_per_tres"], job["memory_per_tres"]) == ("gres/gpu:3", "gres/gpu:1000")
        assert job["tres_alloc_str"].startswith("cpu=6,mem=2000M,node=1,billing=6,gres/gpu=2")


def test_a_routed_job_goes_back_to_its_own_partition(box: Box) -> None:
    settings = box.root / "etc/slurm/lucid.plugin.conf"
    before = settings.read_text()
    settings.write_text(before.replace("route no", "route yes"))
    blocker = box.sbatch("-p", "prof", "--gres=gpu:4", script="sleep 60", user="root")
    try:
        box.wait("the profiling node taken", lambda: box.state(blocker) == "RUNNING")
        box.beat(extra="profiling prof\nn_prof 4\n")
        number = box.sbatch("--gres=gpu:2")
        assert (box.job(number)["partition"], box.state(number)) == ("prof", "PENDING")
        assert release(box, "--all").returncode == 0
        box.wait_ended(number)
        assert box.job(number)["partition"] == "vc-a"
    finally:
        settings.write_text(before)


def test_site_factors_are_taken_back(box: Box) -> None:
    blocker = box.sbatch("-p", "vc-b", "--gres=gpu:4", script="sleep 60", user="bob")
    box.wait("the node taken", lambda: box.state(blocker) == "RUNNING")
    waiting = [box.sbatch("-p", "vc-b", "--gres=gpu:4") for _ in range(3)]
    box.scontrol("update", f"JobId={waiting[0]},{waiting[1]}", "SiteFactor=500")
    first = box.job(waiting[0])["priority"]["number"]
    box.wait("a priority", lambda: box.run("sprio", "-h", "-o", "%S").stdout.split().count("500") == 2)
    assert release(box, "--all", LUCID_KEEP_SITE_FACTOR="1").returncode == 0
    assert box.job(waiting[0])["priority"]["number"] == first
    assert release(box, "--all").returncode == 0
    assert {box.job(number)["priority"]["number"] < 500 for number in waiting} == {True}


def test_after_a_crash_the_stop_hook_waits_and_after_a_stop_it_frees(box: Box, held: list[str]) -> None:
    assert release(box, "--stopped", SERVICE_RESULT="watchdog").returncode == 0
    assert all(box.job(number)["waits"] for number in held)
    assert release(box, "--stopped", SERVICE_RESULT="success").returncode == 0
    box.wait_ended(*held)


def test_bad_settings_are_refused_and_a_silent_slurm_is_said(box: Box) -> None:
    assert "whole number" in release(box, LUCID_BOUND_S="5m").stderr
    unknown = release(box, "--force")
    assert (unknown.returncode, "known: --all" in unknown.stderr) == (2, True)
    silent = release(box, "--all", LUCID_SLURM_PREFIX="false")
    assert (silent.returncode, "does not answer" in silent.stderr) == (1, True)


def test_the_script_names_no_program_beyond_slurm_and_posix() -> None:
    text = (SLURM / "lucid-release").read_text()
    assert os.access(SLURM / "lucid-release", os.X_OK)
    assert "python" not in text.lower()
    assert "lucidctl" not in text
