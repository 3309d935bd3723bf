"""Each way of asking for GPUs, with each kind of inner step: alone and packed, a job ends as on plain Slurm."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from box import Box
from daemon_box import Lucidd

FORMS = {
    "gres": "--gres=gpu:2",
    "gpus": "--gpus=2",
    "per-node": "--gpus-per-node=2",
    "per-task": "--gpus-per-task=1 --ntasks=2",
    "typed": "--gpus=a100:2",
    "array": "--gres=gpu:2 --array=0-1",
}
INNER = {
    "none": "sh -c 'echo task 0 $CUDA_VISIBLE_DEVICES'",
    "plain": "srun sh -c 'echo task $SLURM_PROCID $CUDA_VISIBLE_DEVICES'",
    "asking": "srun --gres=gpu:1 sh -c 'echo task $SLURM_PROCID $CUDA_VISIBLE_DEVICES'",
}
SCRIPT = "echo batch $CUDA_VISIBLE_DEVICES on node $SLURM_GPUS_ON_NODE; {inner}; code=$?; sleep {sleep_s}; exit $code"
NONE = 4294967294


def numbers(box: Box, job: str) -> list[str]:
    """The job, or the tasks of the array, by their own numbers."""
    found = [number for number, j in box.jobs().items() if number == job or str(j["array_job_id"]["number"]) == job]
    return sorted(found, key=int)


def all_ended(box: Box, job: str, count: int) -> bool:
    jobs = box.jobs()
    ours = [j for n, j in jobs.items() if n == job or str(j["array_job_id"]["number"]) == job]
    return len(ours) == count and all(j["job_state"][0] in {"COMPLETED", "FAILED"} for j in ours)


def running(box: Box, *jobs: str) -> int:
    """How many jobs and tasks run; all of them on the same two GPUs here."""
    ours = [j for n, j in box.jobs().items() if n in jobs or str(j["array_job_id"]["number"]) in jobs]
    return [j["job_state"][0] for j in ours].count("RUNNING")


def ending(box: Box, job: str) -> list[tuple[str, int, list[str]]]:
    """Of each task: state, exit code, and what it saw, with numbers of GPUs in place of their names."""
    seen = []
    for number in numbers(box, job):
        record = box.job(number)
        task = record["array_task_id"]["number"] if record["array_job_id"]["number"] else NONE
        base = str(record["array_job_id"]["number"] or number)
        lines = [
            re.sub(r"(?<= )\d+(,\d+)*(?= on|$)", lambda gpus: f"{gpus.group().count(',') + 1} GPUs", line)
            if line.startswith(("batch", "task"))
            else re.sub(r"\d+|error: |shared (?=gres)", "", line.replace("gres/shard", "gres/gpu"))
            for line in box.output(base, str(task)).splitlines()
        ]
        seen.append((record["job_state"][0], record["exit_code"]["return_code"]["number"], sorted(lines)))
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_a_job_ends_as_on_plain_slurm(box: Box, form: str) -> None:
    options = FORMS[form].split()
    count = 2 if form == "array" else 1
    plain = {kind: box.sbatch(*options, script=SCRIPT.format(inner=INNER[kind], sleep_s=0)) for kind in INNER}
    for job in plain.values():
        assert box.tag(job) == ""
        box.wait(f"end of {job}", lambda job=job: all_ended(box, job, count))

    box.beat()
    alone = {kind: box.sbatch(*options, script=SCRIPT.format(inner=INNER[kind], sleep_s=0)) for kind in INNER}
    for kind, job in alone.items():
        assert box.tag(job).startswith("lucid:vc=vc-a;held=1;"), box.tag(job)
        assert "share=0" not in box.tag(job), kind
        box.scontrol("release", job)
    for kind, job in alone.items():
        box.wait(f"end of {job}", lambda job=job: all_ended(box, job, count))
        assert ending(box, job) == ending(box, plain[kind]), kind

    for kind in INNER:
        pair = [box.sbatch(*options, script=SCRIPT.format(inner=INNER[kind], sleep_s=4)) for _ in range(2)]
        for job in pair:
            box.scontrol(
                "update", f"JobId={job}", "TresPerNode=gres/shard:g1:1,gres/shard:g3:1", "TresPerJob=",
                "TresPerTask=", "ReqNodeList=n1",
            )  # fmt: skip
            box.scontrol("release", job)
        # Two tasks of an array are a pair already: the second array then waits for them.
        box.wait("two side by side", lambda pair=pair: running(box, *pair) == 2)
        for job in pair:
            box.wait(f"end of {job}", lambda job=job: all_ended(box, job, count))
            assert ending(box, job) == ending(box, plain[kind]), (kind, job)
            for number in numbers(box, job):
                record = box.job(number)
                task = str(record["array_task_id"]["number"]) if form == "array" else str(NONE)
                assert "batch 1,3 on node 2" in box.output(job, task)
                assert record["nodes"] == "n1"


def test_tasks_of_a_shared_job_see_their_own_gpu_each(box: Box) -> None:
    box.beat()
    job = box.sbatch("--gpus-per-task=1", "--ntasks=2", script=SCRIPT.format(inner=INNER["plain"], sleep_s=0))
    box.scontrol(
        "update", f"JobId={job}", "TresPerNode=gres/shard:g0:1,gres/shard:g2:1", "TresPerTask=", "ReqNodeList=n2"
    )
    box.scontrol("release", job)
    box.wait_ended(job)
    lines = set(box.output(job).splitlines())
    assert lines == {"batch 0,2 on node 2", "task 0 0", "task 1 2"}


def test_without_filter_and_task_prolog_an_inner_srun_would_fail(box: Box) -> None:
    """The control: what these mend is really broken without them."""
    prolog, conf = box.root / "etc/slurm/lucid/task_prolog", box.root / "etc/slurm/lucid.slurm.conf"
    before = {path: path.read_text() for path in (prolog, conf)}
    prolog.write_text("#!/bin/sh\n")
    conf.write_text(before[conf].replace("CliFilterPlugins=lua\n", ""))
    try:
        box.beat()
        job = box.sbatch("--gpus=1", script="srun true")
        box.scontrol("update", f"JobId={job}", "TresPerNode=gres/shard:g0:1", "TresPerJob=", "ReqNodeList=n1")
        box.scontrol("release", job)
        box.wait_ended(job)
        assert box.state(job) == "FAILED"
        assert "Invalid generic resource" in box.output(job)
    finally:
        for path, text in before.items():
            path.write_text(text)


@pytest.mark.parametrize(
    "option", ["--gres=gpu:a100:1", "--gpus=a100:1", "--gpus-per-node=a100:1", "--gpus-per-task=a100:1"]
)
def test_a_model_may_be_asked_for_in_steps_and_interactive_jobs_too(box: Box, option: str) -> None:
    show = "echo $CUDA_VISIBLE_DEVICES"
    done = box.run("srun", "-Q", "-D", "/tmp", "-n1", option, "sh", "-c", show, user="alice")
    assert done.stdout.strip() in "0123"
    # The same option again: 26.05 refuses two of them in one job.
    inner = ["sh", "-c", f"srun -D /tmp sh -c '{show}' && srun -D /tmp -n1 {option} true"]
    done = box.run("salloc", "-Q", "-n1", option, "-C", "a100|a100", *inner, user="alice")
    assert done.stdout.strip() in "0123"
    assert box.run("srun", "--gpus=v100:1", "true", user="alice", check=False).returncode != 0


PER_GPU = {
    "cpus": ("--gres=gpu:2 --cpus-per-gpu=3", "cpu=6,mem=6000M"),
    "memory": ("--gpus=2 --mem-per-gpu=3000", "cpu=1,mem=6000M"),
    "both": ("--gpus-per-node=2 --cpus-per-gpu=2 --mem-per-gpu=1000", "cpu=4,mem=2000M"),
    "defaults": ("--gres=gpu:2 -p vc-b", "cpu=4,mem=8000M"),
    "defaults, not all": ("--gres=gpu:2 -p vc-b --mem=500", "cpu=4,mem=500M"),
    "defaults, none": ("--gres=gpu:2 -p vc-b -c3 --mem-per-cpu=100", "cpu=3,mem=300M"),
}


@pytest.fixture
def defaults(box: Box) -> Iterator[None]:
    """vc-b gives CPUs and memory to each GPU."""
    box.run("scontrol", "update", "PartitionName=vc-b", "JobDefaults=DefCpuPerGPU=2,DefMemPerGPU=4000")
    yield
    box.run("scontrol", "reconfigure")


def test_what_follows_from_gpus_is_the_same_after_profiling_and_in_slots(
    box: Box, defaults: None, tmp_path: Path
) -> None:
    """Profiled, requeued, started in slots: with the CPUs and the memory that plain Slurm gives."""
    look = "echo $SLURM_CPUS_ON_NODE CPUs; srun -n1 true && echo step; sleep {}"
    plain = {name: box.sbatch(*options.split(), script=look.format(0)) for name, (options, _) in PER_GPU.items()}
    box.wait_ended(*plain.values())
    for name, (_, held) in PER_GPU.items():
        assert box.job(plain[name])["tres_alloc_str"].startswith(held), name
    lucidd = Lucidd(box, tmp_path / "state", t_prof_s=4.0)
    lucidd.start()
    try:
        jobs = {
            name: box.sbatch(*options.split(), "-J", name.replace(" ", ""), script=look.format(20))
            for name, (options, _) in PER_GPU.items()
        }
        in_slots: dict[str, str] = {}

        def seen() -> bool:
            for name, number in jobs.items():
                job = box.job(number)
                if job["job_state"] == ["RUNNING"] and "gres/shard" in job["tres_alloc_str"]:
                    in_slots[name] = job["tres_alloc_str"]
            return set(in_slots) == set(jobs)

        box.wait(f"all in slots, {in_slots}", seen, 90)
        box.wait_ended(*jobs.values())
        for name, number in jobs.items():
            assert in_slots[name].startswith(PER_GPU[name][1]), name
            assert box.output(number) == box.output(plain[name]), name
    finally:
        lucidd.close()


def test_a_job_on_two_nodes_with_a_gpu_each_starts_at_once_and_blocks_nobody(box: Box, tmp_path: Path) -> None:
    lucidd = Lucidd(box, tmp_path / "state", t_prof_s=4.0)
    lucidd.start()
    try:
        wide = box.sbatch("-N2", "--gpus-per-node=1", script="srun hostname; sleep 6")
        tasks = box.sbatch("-N2", "--ntasks-per-node=2", "--gpus-per-task=1", script="srun hostname; sleep 6")
        other = box.sbatch("--gres=gpu:4", "-p", "vc-b", "--no-requeue", script="sleep 6")
        ours = [wide, tasks, other]
        box.wait("all three", lambda: all(box.state(n) == "RUNNING" for n in ours), 15)
        assert {box.job(n)["nodes"] for n in (wide, tasks)} == {"n[1-2]"}
        ours.append(box.sbatch("-N2", "--gpus=3", script="srun hostname; sleep 1"))
        ours.append(box.sbatch("--gpus=4", "-N1-2", script="srun hostname; sleep 1"))
        ours.append(box.sbatch("--exclusive", "-N1", "--gres=gpu:1", script="srun hostname; sleep 1"))
        told = lucidd.ctl("explain", wide)
        assert "starts on n1" in told
        assert " n2:" in told
        box.wait_ended(*ours)
        assert {box.state(n) for n in ours} == {"COMPLETED"}
        assert box.job(ours[3])["nodes"] == "n[1-2]"
        assert not [line for line in lucidd.log().splitlines() if "taken back" in line]
    finally:
        lucidd.close()
