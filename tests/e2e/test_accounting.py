"""What a real Slurm tells of jobs that have ended, in each form of sacct, why they ended, and why one is unknown."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from box import Box
from daemon_box import Lucidd

from lucid.cli.jobs.ended import why_unknown
from lucid.config.load import settings_from
from lucid.core.job import Ended
from lucid.simulator.traces.read import read_trace
from lucid.simulator.traces.record import Trace
from lucid.slurm.accounting import SacctClient
from lucid.slurm.client import Breaker
from lucid.slurm.commands import CommandClient

LUCIDD = {"mode": "observe"}
FIELDS = ("id", "user", "account", "gpus", "cpus", "mem_mib", "time_limit_s", "submit_s")
COLUMNS = "JobID,JobName,User,Account,Partition,Submit,"
COLUMNS += "Start,End,ElapsedRaw,State,NNodes,ReqTRES,AllocTRES,TimelimitRaw"


def test_jobs_are_as_slurmctld_told_them_and_alike_in_each_form_of_sacct(box: Box, tmp_path: Path) -> None:
    commands = CommandClient(["chroot", "--userspec=lucid", str(box.root)], Breaker(time.monotonic))
    accounting = SacctClient(commands)
    jobs = [
        box.sbatch("--gres=gpu:2", "-J", "a|b;'c'", script="sleep 1"),
        box.sbatch("--gres=gpu:2", "-J", "a;b", "-t", "5", script="sleep 1"),
        box.sbatch("--gpus-per-task=1", "-n2", "--array=3", "-t", "5", script="true"),
    ]
    box.wait_ended(*jobs)
    seen = {job.number: job for job in commands.jobs() if str(job.number) in jobs}

    def told() -> dict[int, Ended]:
        ended = [one.ended for one in accounting.ended(600.0, ["vc-a"])]
        return {one.job.rank: one for one in ended if one.job.rank in seen}

    box.wait("slurmdbd", lambda: len(told()) == len(jobs), 60)
    for number, one in told().items():
        job = seen[number]
        for name in FIELDS:
            assert getattr(one.job, name) == getattr(job, name), name
        times = one.end_s - one.ran_s, one.end_s
        assert (one.job.vc, *times, one.state) == (job.partition, job.start_s, job.end_s, job.state)

    def trace(*words: str) -> Trace:
        path = tmp_path / "sacct"
        path.write_text(box.run("sacct", "--allocations", "--allusers", "--jobs", ",".join(jobs[1:]), *words).stdout)
        return replace(read_trace(path), name="")

    plain = trace("--parsable2", "--format", COLUMNS)
    assert sorted(one.job.gpus for one in plain.jobs) == [2, 2]
    for delimiter in (",", "\t"):
        assert trace("--parsable2", f"--delimiter={delimiter}", "--format", COLUMNS) == plain
    without_cpus = (
        [replace(one, job=replace(one.job, cpus=0)) for one in of.jobs] for of in (trace("--json"), plain)
    )
    assert next(without_cpus) == next(without_cpus)


def test_explain_names_the_cause_of_each_end(box: Box, lucidd: Lucidd) -> None:
    made = {
        "time_limit": box.sbatch("--gres=gpu:1", "-t", "1", script="sleep 600"),
        "exit_code": box.sbatch("--gres=gpu:1", script="sleep 3; exit 3"),
        "signal": box.sbatch("--gres=gpu:1", script="sleep 3; kill -SEGV $$"),
        "cancelled": box.sbatch("--gres=gpu:1", script="sleep 600"),
        None: box.sbatch("--gres=gpu:1", script="sleep 3"),
    }
    box.wait("it runs", lambda: box.state(made["cancelled"]) == "RUNNING", 60)
    box.run("scancel", made["cancelled"])
    box.wait_ended(*made.values(), limit_s=240)

    def causes() -> dict[str | None, object]:
        return {cause: (lucidd.story(job).get("ended") or {}).get("cause", "?") for cause, job in made.items()}

    box.wait("lucidd and accounting to know", lambda: causes() == {cause: cause for cause in made}, 60)
    told = lucidd.ctl("explain", made["exit_code"])
    assert "why it ended: Its program ended with exit code 3." in told
    assert "what would help: The program itself reported this" in told
    assert "--time=0:02:00" in lucidd.ctl("explain", made["time_limit"])


def test_explain_asks_slurm_why_nothing_is_known_of_a_job(box: Box) -> None:
    prefix = ["chroot", "--userspec=lucid", str(box.root)]
    settings = settings_from({"slurm": {"prefix": prefix}, "daemon": {"partitions": {"vc-a": "pack"}}}, "here")
    without = box.sbatch(script="sleep 60")
    elsewhere = box.sbatch("--gres=gpu:1", "-p", "vc-b", script="sleep 60")
    off = box.sbatch("--gres=gpu:1", "--comment=lucid:off", "--begin=now+1hour")
    assert "it asks for no GPU" in why_unknown(settings, without)
    assert "it is in partition vc-b, and Lucid looks after vc-a alone" in why_unknown(settings, elsewhere)
    assert "its comment says lucid:off" in why_unknown(settings, off)
    assert "Slurm knows no job 4000000" in why_unknown(settings, "4000000")
    assert why_unknown(settings_from({"slurm": {"prefix": ["false"]}}, "here"), without) == ""
