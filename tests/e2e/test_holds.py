"""What users and administrators change on a job that Lucid holds means what it means in Slurm."""

from __future__ import annotations

import time

from box import Box
from daemon_box import Lucidd


def fill(box: Box) -> list[str]:
    """All GPUs of vc-a and of the profiling node, by jobs that are not Lucid's."""
    jobs = [box.sbatch("-p", "vc-a", "--gres=gpu:4", "--comment=lucid:off", script="sleep 600") for _ in range(2)]
    jobs.append(box.sbatch("-p", "prof", "--gres=gpu:4", script="sleep 600", user="root"))
    box.wait("a full cluster", lambda: all(box.state(job) == "RUNNING" for job in jobs))
    return jobs


def held(box: Box, job: str) -> bool:
    return bool(box.job(job)["hold"])


def test_a_change_on_waiting_jobs_means_what_it_means_in_slurm_and_gains_nothing(box: Box, lucidd: Lucidd) -> None:
    """They go out of the queue and come back into it; Lucid starts each, or lets it go at its turn."""
    full = fill(box)
    changes = {
        "off": "Comment=lucid:off",
        "moved": "Partition=vc-b",
        "behind": f"Dependency=afterany:{full[0]}",
        "never": f"Dependency=afternotok:{full[0]}",
        "later": "StartTime=now+1hour",
        "back": "StartTime=now",
    }
    jobs = {name: box.sbatch("-p", "vc-a", "--gres=gpu:1", script="sleep 2") for name in changes}
    for name, job in jobs.items():
        box.run("scontrol", "update", f"JobId={job}", changes[name], user="alice")
    box.wait("parked", lambda: not held(box, jobs["behind"]))
    box.wait("Slurm's word for it", lambda: box.reason(jobs["behind"]) == "Dependency")
    box.wait_ended(jobs["moved"])
    assert box.job(jobs["moved"])["partition"] == "vc-b"
    box.run("scancel", *full)
    box.wait_ended(jobs["off"], jobs["back"], jobs["behind"], jobs["never"])
    verbs = [a["verb"] for a in lucidd.story(jobs["behind"])["actions"]]
    assert [verb for verb in verbs if verb in ("park", "take over", "start")] == ["start"], (
        "it was parked all the time"
    )
    assert "let go" in [a["verb"] for a in lucidd.story(jobs["off"])["actions"]]
    assert held(box, jobs["later"]), "its time has not come"
    assert "begin time" in lucidd.ctl("status", "--json")


def test_dependencies_end_by_slurms_own_rules(box: Box, lucidd: Lucidd) -> None:
    """afterok of a job that failed, with and without kill_invalid_depend; afterok of one that went well, a singleton,
    and the tasks of an array that wait for those of another (aftercorr)."""
    first, bad = (box.sbatch("-p", "vc-a", "--gres=gpu:1", script=script) for script in ("sleep 3", "sleep 3; false"))
    pair = box.sbatch("-p", "vc-a", "--gres=gpu:1", "--array=0-1", script="sleep 3")

    def after(*options: str) -> str:
        return box.sbatch("-p", "vc-a", "--gres=gpu:1", *options, script="sleep 1")

    well = after(f"--dependency=afterok:{first}")
    killed = after(f"--dependency=afterok:{bad}", "--kill-on-invalid-dep=yes")
    stuck = after(f"--dependency=afterok:{bad}", "--kill-on-invalid-dep=no")
    corr = after(f"--dependency=aftercorr:{pair}", "--array=0-1")
    after("--job-name=one")
    single = after("--dependency=singleton", "--job-name=one")
    box.wait_ended(well, killed, single)
    assert (box.state(well), box.state(killed), box.state(single)) == ("COMPLETED", "CANCELLED", "COMPLETED")
    assert box.reason(stuck) == "DependencyNeverSatisfied"

    def tasks() -> list[str]:
        return [job["job_state"][0] for job in box.jobs().values() if str(job["array_job_id"]["number"]) == corr]

    box.wait("the array", lambda: set(tasks()) == {"COMPLETED"})
    for job in (well, single):
        assert "take over" in [action["verb"] for action in lucidd.story(job)["actions"]]


def test_release_without_lucid_leaves_a_job_that_its_user_holds(box: Box) -> None:
    """And a comment that looks like another job's line holds nobody else's job."""
    box.beat()
    job = box.sbatch("-p", "vc-a", "--gres=gpu:1", script="true")
    box.run("scontrol", "hold", job, user="alice")
    free = box.sbatch("-p", "vc-a", "--gres=gpu:1", script="true")
    evil = box.sbatch("-p", "vc-a", "--gres=gpu:1", f"--comment=x\n{free} lucid:held", script="true", user="bob")
    box.stop_beating()
    box.run("/etc/slurm/lucid/lucid-release", "--all")
    box.wait_ended(free, evil)
    assert (box.state(job), held(box, job)) == ("PENDING", True)
    box.run("scontrol", "release", job, user="alice")
    box.wait_ended(job)


def test_jobs_queue_again_when_their_partition_is_packed_again(box: Box, lucidd: Lucidd) -> None:
    """One that waits in the queue, two tasks of an array, and one with a begin time; one that is its user's stays."""
    full = fill(box)
    words = ("-p", "vc-a", "--gres=gpu:1")
    jobs = [box.sbatch(*words, script="sleep 2") for _ in range(2)]
    array = box.sbatch(*words, "--array=0-1", script="sleep 2")
    own = box.sbatch(*words, script="sleep 2")
    later = box.sbatch(*words, "--begin=now+1hour", script="sleep 2")

    def waits() -> list[str]:
        return sorted(number for number, job in box.jobs().items() if job["waits"] and number not in (own, later))

    box.wait("they are in the queue", lambda: len(waits()) >= 3)
    lucidd.ctl("mode", "vc-a", "observe")
    box.wait("nobody orders them", lambda: waits() == [] and not held(box, own))
    box.run("scontrol", "hold", own, user="alice")
    lucidd.ctl("mode", "vc-a", "configured")
    box.wait("they are back", lambda: len(waits()) >= 4 and set(jobs) <= set(waits()))
    assert held(box, own)
    assert box.job(later)["eligible_time"]["number"] > time.time() + 1800
    box.run("scancel", *full, own, later)
    box.wait_ended(*jobs)
    box.wait("the array too", lambda: box.run("squeue", "-h", "-j", array).stdout == "", 60)
