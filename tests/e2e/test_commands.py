"""What Slurm makes of the daemon's own commands, where its manual leaves room for doubt."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from box import Box

from lucid.cli.jobs.ended import why_unknown
from lucid.config.load import settings_from
from lucid.simulator.traces.read import read_trace
from lucid.simulator.traces.record import Trace
from lucid.slurm.accounting import Accounted, SacctClient
from lucid.slurm.client import Breaker
from lucid.slurm.commands import CommandClient


def test_a_job_that_has_just_ended_is_not_run_again_by_a_requeue_that_comes_late(box: Box) -> None:
    slurm = CommandClient(["chroot", "--userspec=lucid", str(box.root)], Breaker(time.monotonic))
    job = box.sbatch("--gres=gpu:1", script="true")
    box.wait_ended(job)
    slurm.requeue_hold(job)
    assert (box.state(job), box.job(job)["restart_cnt"]) == ("COMPLETED", 0)
    box.scontrol("requeuehold", job)
    assert box.job(job)["restart_cnt"] == 1, "the control: without 'Incomplete' it would"
    box.run("scancel", job)


def test_accounting_tells_of_jobs_what_slurmctld_told_while_it_knew_them(box: Box) -> None:
    commands = CommandClient(["chroot", "--userspec=lucid", str(box.root)], Breaker(time.monotonic))
    accounting = SacctClient(commands)
    jobs = [
        box.sbatch("--gres=gpu:2", "-J", "a|b;'c'", script="sleep 1"),
        box.sbatch("--gpus-per-task=1", "-n2", "--array=3", "-t", "5", script="true"),
    ]
    box.wait_ended(*jobs)
    seen = {job.number: job for job in commands.jobs() if str(job.number) in jobs}

    def told() -> dict[int, Accounted]:
        return {job.number: job for job in accounting.ended(600.0, ["vc-a"]) if job.number in seen}

    box.wait("slurmdbd", lambda: len(told()) == len(jobs), 60)
    for number, job in told().items():
        for name in ("id", "partition", "user", "account", "gpus", "cpus", "mem_mib", "time_limit_s", "submit_s",
                     "start_s", "end_s", "state"):  # fmt: skip
            assert getattr(job, name) == getattr(seen[number], name), name


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
    box.run("scancel", without, elsewhere, off)


def test_what_sacct_writes_is_read_alike_in_each_of_its_forms(box: Box, tmp_path: Path) -> None:
    jobs = [
        box.sbatch("--gres=gpu:2", "-J", "a;b", "-t", "5", script="sleep 1"),
        box.sbatch("--gpus-per-task=1", "-n2", "--array=3-4", script="true"),
    ]
    box.wait_ended(*jobs)
    columns = "JobID,JobName,User,Account,Partition,Submit,"
    columns += "Start,End,ElapsedRaw,State,NNodes,ReqTRES,AllocTRES,TimelimitRaw"

    def trace(*words: str) -> Trace:
        path = tmp_path / "sacct"
        path.write_text(box.run("sacct", "--allocations", "--allusers", "--jobs", ",".join(jobs), *words).stdout)
        return replace(read_trace(path), name="")

    def told() -> bool:
        return box.run("sacct", "-nPX", "--jobs", ",".join(jobs), "-o", "State").stdout.split() == ["COMPLETED"] * 3

    box.wait("slurmdbd", told, 60)
    plain = trace("--parsable2", "--format", columns)
    assert sorted(one.job.gpus for one in plain.jobs) == [2, 2, 2]
    for delimiter in (",", "\t"):
        assert trace("--parsable2", f"--delimiter={delimiter}", "--format", columns) == plain
    read = trace("--json")
    assert [(replace(one, job=replace(one.job, cpus=0))) for one in read.jobs] == [
        replace(one, job=replace(one.job, cpus=0)) for one in plain.jobs
    ]
