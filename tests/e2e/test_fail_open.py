"""What is left when the daemon is dead: the release script frees its jobs, and nobody else's."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from box import Box, rewritten

SLURM = Path(__file__).resolve().parents[2] / "slurm"
NOWHERE = "/nonexistent/heartbeat"


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


def held(box: Box) -> str:
    """A job that the plugin holds; it leaves a heartbeat of now."""
    box.beat()
    number = box.sbatch("--gres=gpu:1")
    assert box.job(number)["waits"]
    return number


def test_without_a_heartbeat_of_about_now_jobs_are_let_go(box: Box) -> None:
    """By the file, or where that is not seen by what slurmctld answers; clocks may be a minute apart."""
    number = held(box)
    box.stop_beating()
    assert release(box).returncode == 0
    box.wait_ended(number)
    number = held(box)
    box.write_heartbeat(f"time {time.time() + 86400:.0f}\nmode vc-a pack\n")
    assert release(box).returncode == 0
    box.wait_ended(number)
    for ahead_s, kept in ((-250, True), (30, True), (-350, False), (90, False)):
        number = held(box)
        box.beat(age_s=-ahead_s)
        assert release(box, LUCID_HEARTBEAT=NOWHERE).returncode == 0
        assert box.job(number)["waits"] is kept, ahead_s


def test_a_stop_lets_go_where_no_other_host_goes_on_and_a_crash_nobody(box: Box) -> None:
    here = subprocess.run(["uname", "-n"], capture_output=True, text=True, check=True).stdout.strip()
    number = held(box)
    assert release(box, "--stopped", SERVICE_RESULT="watchdog").returncode == 0
    assert box.job(number)["waits"]
    for lines, let_go in (
        ("", True),
        (f"host {here}\n", True),
        ("host elsewhere\n", False),
        (f"host {here}\nstandby elsewhere\n", False),
    ):
        number = held(box)
        box.beat(extra=lines)
        assert release(box, "--stopped", SERVICE_RESULT="success").returncode == 0
        assert box.job(number)["waits"] is not let_go, lines


def test_what_waits_for_others_or_for_its_time_is_let_go_too_and_nobody_elses_hold(box: Box) -> None:
    box.beat()
    fake = "x\n   AdminComment=lucid:vc=prof;held=1"
    own = box.sbatch("--gpus=1", "--hold", f"--job-name={fake}", f"--comment={fake}")
    operator = box.sbatch("--gres=gpu:1", "-p", "vc-b", "--begin=now+1hour")
    box.scontrol("hold", operator)
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
    assert [(box.job(n)["waits"], box.job(n)["partition"]) for n in (own, operator)] == [
        (True, "vc-a"),
        (True, "vc-b"),
    ]


PER_GPU = "--gpus=2 --cpus-per-gpu=3 --mem-per-gpu=1000"
FORMS = ("--gres=gpu:2", "--gpus=2", "--gpus-per-task=1 -n2", PER_GPU)
FIELDS = ("tres_per_node", "tres_per_job", "tres_per_task", "cpus_per_tres", "memory_per_tres", "partition",
          "required_nodes", "extra")  # fmt: skip


def test_a_request_that_had_become_slots_is_given_back_even_half_way(box: Box) -> None:
    """lucidd was killed between the update that empties a request and the one that makes it slots; or after both."""
    box.beat()
    jobs = {form: box.sbatch(*form.split()) for form in FORMS}
    jobs["half-way"] = box.sbatch(*PER_GPU.split())
    before = {form: box.job(number) for form, number in jobs.items()}
    slots = ["TresPerNode=gres/shard:g1:1,gres/shard:g3:1", "ReqNodeList=n1", "Extra=lucid-gpus=1,3;lucid-mem=9000"]
    for number in (jobs[PER_GPU], jobs["half-way"]):
        box.scontrol("update", f"JobId={number}", "TresPerJob=", "CpusPerTres=", "MemPerTres=")
    for form in FORMS:
        box.scontrol("update", f"JobId={jobs[form]}", "Partition=prof", "ReqNodeList=")
        memory = ["MinMemoryNode=2000"] if form == PER_GPU else ["TresPerJob=", "TresPerTask="]
        box.scontrol("update", f"JobId={jobs[form]}", "Partition=vc-a", *slots, *memory)
        assert "shard" in box.job(jobs[form])["tres_per_node"]
    assert (release(box, "--all").returncode, release(box, "--all").stderr) == (0, "")
    box.wait_ended(*jobs.values())
    for form, number in jobs.items():
        job = box.job(number)
        assert {field: job[field] for field in FIELDS} == {field: before[form][field] for field in FIELDS}, form
        assert job["job_state"] == ["COMPLETED"]
        assert "gres/gpu=2" in job["tres_alloc_str"]
        assert not job["cpus_per_tres"] or job["tres_alloc_str"].startswith("cpu=6,mem=2000M,node=1,billing=6,")


def test_a_routed_job_goes_back_to_its_own_partition(box: Box) -> None:
    settings = box.root / "etc/slurm/lucid.plugin.conf"
    blocker = box.sbatch("-p", "prof", "--gres=gpu:4", script="sleep 60", user="root")
    with rewritten(settings, settings.read_text().replace("route no", "route yes")):
        box.wait("the profiling node taken", lambda: box.runs(blocker))
        box.beat(extra="profiling prof\nn_prof 4\n")
        number = box.sbatch("--gres=gpu:2")
        assert (box.job(number)["partition"], box.state(number)) == ("prof", "PENDING")
        assert release(box, "--all").returncode == 0
        box.wait_ended(number)
        assert box.job(number)["partition"] == "vc-a"


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


def test_bad_settings_are_refused_and_a_silent_slurm_is_said(box: Box) -> None:
    assert "whole number" in release(box, LUCID_BOUND_S="5m").stderr
    unknown = release(box, "--force")
    assert (unknown.returncode, "known: --all" in unknown.stderr) == (2, True)
    silent = release(box, "--all", LUCID_SLURM_PREFIX="false")
    assert (silent.returncode, "does not answer" in silent.stderr) == (1, True)
