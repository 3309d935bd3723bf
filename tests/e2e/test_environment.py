"""A job in slots has the environment that it has on plain Slurm, in its script and in each kind of step."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from box import Box, rewritten
from daemon_box import Lucidd, has_measured

FORMS = {
    "gres": "--gres=gpu:2",
    "gpus": "--gpus=2",
    "per node": "--gpus-per-node=2",
    "per task": "-N1 --gpus-per-task=1 --ntasks=2",
    "tres per task": "-N1 --tres-per-task=gres/gpu:1 --ntasks=2",
    "typed": "--gpus=a100:2",
    "memory": "--gpus=2 --mem-per-gpu=3000",
    "CPUs": "--gpus=2 --cpus-per-gpu=3",
    "both": "--gpus-per-node=2 --cpus-per-gpu=2 --mem-per-gpu=1000",
    "gres and CPUs": "--gres=gpu:2 --cpus-per-gpu=3",
    "gres and memory": "--gres=gpu:2 --mem-per-gpu=2G",
    "tasks": "-N1 --gres=gpu:2 -n2 -c2",
    "CPUs a task": "--gres=gpu:1 -c3 --mem-per-cpu=300",
    "by node": "--gres=gpu:1 --mem=2000",
    "defaults": "--gres=gpu:2 -p vc-b",
    "defaults, not all": "--gres=gpu:2 -p vc-b --mem=500",
    "defaults, none": "--gres=gpu:2 -p vc-b -c3 --mem-per-cpu=100",
}
DEFAULTS = "JobDefaults=DefCpuPerGPU=2,DefMemPerGPU=4000"
"""Of vc-b: what it gives to each GPU."""
STEPS = {
    "all": "srun",
    "one": "srun -n1",
    "two": "srun -n2",
    "exact": "srun -n1 -c1 --exact --mem=100",
    "none": "srun -n1 --gres=none",
    "gres": "srun -n1 --gres=gpu:1",
    "G": "srun -n1 -G1",
    "node": "srun -n1 --gpus-per-node=1",
    "task": "srun -n1 --gpus-per-task=1",
    "more": "srun -n1 --gres=gpu:5",
}
NOT_THE_SAME = {("both", "task")}
"""Steps that ask twice, in ways that Slurm itself weighs differently from version to version."""
CLOSED = re.compile(
    "SLURM_(JOB_ID|JOBID|JOB_SLUID|NODELIST|JOB_NODELIST|STEP_NODELIST|NODEID|TOPOLOGY_ADDR|JOB_START_TIME|JOB_END_TIME|"
    "TASK_PID|STEPID|STEP_ID|LAUNCH_NODE_IPADDR|SRUN_COMM_PORT|SRUN_COMM_HOST|STEP_LAUNCHER_PORT|STEP_RESV_PORTS|"
    "SHARDS_ON_NODE)$|SLURMD_NODENAME$|LUCID_|CUDA_MPS_|HOSTNAME$|_$"
)
"""docs/users.md: numbers, times, node and ports, and what is Lucid's."""
BY_NUMBER = re.compile(
    "SLURM_(JOB|STEP)_GPUS|CUDA_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL|ROCR_VISIBLE_DEVICES|ZE_AFFINITY"
)
"""Lists of GPUs: which they are is Slurm's choice, how many is not."""
LOOK = """out=/tmp/env-$SLURM_JOB_ID; mkdir -m 777 $out; env -0 > $out/batch
{steps}
echo ended
"""


def script() -> str:
    lines = [
        f"{words} -D /tmp sh -c 'env -0 > '$out'/{name}.$SLURM_PROCID' 2> $out/{name}.out; echo $? > $out/{name}.code"
        for name, words in STEPS.items()
    ]
    return LOOK.format(steps="\n".join(lines))


def seen(box: Box, job: str) -> dict[str, dict[str, str] | str]:
    """By script and step: its variables; the steps' exit codes."""
    found: dict[str, dict[str, str] | str] = {}
    for path in sorted((box.root / f"tmp/env-{job}").iterdir()):
        text = path.read_text(errors="replace")
        if path.suffix == ".code":
            found[path.name] = text
        elif "\0" in text:
            pairs = [item.partition("=") for item in text.split("\0") if item]
            found[path.name] = {name: _counted(name, value) for name, _, value in pairs if not CLOSED.match(name)}
    return found


def _counted(name: str, value: str) -> str:
    return f"{len([item for item in value.split(',') if item])} GPUs" if BY_NUMBER.match(name) else value


def differences(
    plain: dict[str, dict[str, str] | str], slots: dict[str, dict[str, str] | str], form: str
) -> list[str]:
    found = []
    for where in sorted(plain.keys() | slots.keys()):
        before, after = plain.get(where), slots.get(where)
        if before == after or (form, where.partition(".")[0]) in NOT_THE_SAME:
            continue
        if not isinstance(before, dict) or not isinstance(after, dict):
            found.append(f"{form}, {where}: {before!r}, in slots {after!r}"[:300])
            continue
        for name in sorted(before.keys() | after.keys()):
            if before.get(name) != after.get(name):
                found.append(f"{form}, {where}: {name}={before.get(name)!r}, in slots {after.get(name)!r}")
    return found


@pytest.fixture
def knowing(box: Box, tmp_path: Path) -> Iterator[Lucidd]:
    """A lucidd, not started yet, that has measured Alice's program."""
    daemon = Lucidd(box, tmp_path / "state", t_prof_s=6.0)
    has_measured(daemon, "prog")
    yield daemon
    daemon.close()


def play(box: Box, forms: dict[str, str], text: str) -> tuple[dict[str, str], set[str]]:
    """Their jobs by name, and which of them ran in slots."""
    jobs = {name: box.sbatch(*options.split(), "-J", "prog", script=text) for name, options in forms.items()}
    in_slots: set[str] = set()

    def over() -> bool:
        records = box.jobs()
        in_slots.update(name for name, job in jobs.items() if "gres/shard" in str(records[job]["tres_alloc_str"]))
        return all(records[job]["job_state"][0] in ("COMPLETED", "FAILED") for job in jobs.values())

    box.wait("the ends", over, 60)
    assert {box.state(job) for job in jobs.values()} == {"COMPLETED"}
    return jobs, in_slots


def test_every_variable_is_that_of_plain_slurm(box: Box, knowing: Lucidd) -> None:
    box.stop_beating()
    box.run("scontrol", "update", "PartitionName=vc-b", DEFAULTS)
    try:
        plain, _ = play(box, FORMS, script())
        knowing.start()
        ours, in_slots = play(box, FORMS, script())
    finally:
        box.run("scontrol", "reconfigure")
    assert in_slots == set(FORMS)
    for name in FORMS:  # CPUs and memory
        held = [box.job(jobs[name])["tres_alloc_str"].partition(",node=")[0] for jobs in (plain, ours)]
        assert held[0] == held[1], name
    wrong = [line for name in FORMS for line in differences(seen(box, plain[name]), seen(box, ours[name]), name)]
    # 26.05 itself refuses --gres beside SLURM_GPUS_PER_NODE; in slots such a step runs.
    wrong = [line for line in wrong if box.release < (26, 5) or not re.match("(per node|both), gres", line)]
    assert not wrong, "\n".join(wrong)


def test_without_the_filter_the_variables_are_unset_and_steps_run(box: Box, knowing: Lucidd) -> None:
    """The control: a site that does not load cli_filter.lua."""
    conf, plugin = box.root / "etc/slurm/lucid.slurm.conf", box.root / "etc/slurm/lucid.plugin.conf"
    with (
        rewritten(conf, conf.read_text().replace("CliFilterPlugins=lua\n", "")),
        rewritten(plugin, plugin.read_text().replace("steps mapped\n", "")),
    ):
        knowing.start()
        asking = box.sbatch("--gpus=2", "-J", "prog", script="srun --gres=gpu:1 true")
        assert "share=0;why=srun" in box.tag(asking)
        jobs, in_slots = play(box, {"plain": "--gpus=2"}, "env; srun -n1 env > /dev/null && echo stepped")
        assert in_slots == {"plain"}
        said = box.output(jobs["plain"])
        assert "SLURM_GPUS=" not in said
        assert "stepped" in said


def test_a_start_that_gives_fewer_tasks_ends_before_its_first_line(box: Box, knowing: Lucidd) -> None:
    """Here an administrator lowers the number in the update that starts the job, as a faulty daemon would."""
    box.beat()
    job = box.sbatch(
        "-n4", "-N1", "--ntasks-per-node=4", "--gres=gpu:1", "--comment=mine", script="echo begun; sleep 5"
    )
    box.scontrol("update", f"JobId={job}", "NumTasks=2", "NumCPUs=2", "StartTime=now")
    if box.release < (26, 5):
        box.wait("it went back", lambda: "lucid:wrong=" in box.jobs()[job]["comment"], 60)
        assert box.jobs()[job]["comment"] == "mine lucid:wrong=2-of-4-tasks"
        assert "begun" not in box.output(job)
    else:  # 26.05 starts no job with fewer tasks than its --ntasks-per-node
        box.wait("Slurm refuses", lambda: "BadConstraints" in box.run("squeue", "-a").stdout, 60)
    knowing.start()
    box.wait("it runs as it was written", lambda: box.state(job) == "COMPLETED", 240)
    assert "begun" in box.output(job)
    assert "NumTasks=4 " in box.run("scontrol", "show", "job", job).stdout
    story = " ".join(knowing.ctl("explain", job).split())  # its lines are wrapped
    assert ("its start gave less than the job asks for: 2 of 4 tasks" in story) is (box.release < (26, 5))


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
