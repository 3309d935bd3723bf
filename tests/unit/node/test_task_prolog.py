"""What the shipped shell tells a job of changing size, one in slots and one that takes turns, as its user."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SLURM = Path(__file__).resolve().parents[3] / "slurm"
PROLOG, HOOK = SLURM / "task_prolog", SLURM / "node_hook.sh"


def prolog(env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", str(PROLOG)], capture_output=True, text=True, check=False, env=env, timeout=30)


def printed(env: dict[str, str]) -> list[str]:
    """What a prolog that goes well prints."""
    done = prolog(env)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def program(folder: Path, name: str, does: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{does}\n")
    (folder / name).chmod(0o755)


def told(folder: Path, squeue: str, **more: str) -> list[str]:
    """What it prints. ``squeue``: what Slurm answers, as a shell script."""
    program(folder, "squeue", f"echo asked >> {folder}/asked\n{squeue}")
    path = f"{folder}:/usr/bin:/bin"
    job = {"SLURM_JOB_ID": "7", "SLURM_GPUS_ON_NODE": "4", "SLURM_JOB_NUM_NODES": "2"}
    lines = printed({"PATH": path, "LUCID_ELASTIC": "1", **job, **more})
    return [line for line in lines if line.startswith("export LUCID_")]


def test_gpus_of_all_nodes_are_slurms_count_and_where_it_does_not_answer_nodes_are_equal(tmp_path: Path) -> None:
    lines = told(tmp_path, "echo 'cpu=5,mem=5000M,node=2,billing=5,gres/gpu=5,gres/gpu:a100=5   '")
    assert lines == [f"export LUCID_{word}" for word in ("GPUS_HERE=4", "NODES=2", "GPUS=5", "RESTART=0")]
    for squeue in ("exit 1", "echo", "echo 'gres/gpu=$(id)'"):
        assert "export LUCID_GPUS=8" in told(tmp_path, squeue), squeue


def test_slurm_is_asked_only_by_the_batch_script_of_a_job_on_several_nodes(tmp_path: Path) -> None:
    assert "export LUCID_GPUS=4" in told(tmp_path, "exit 1", SLURM_JOB_NUM_NODES="1")
    assert not any("LUCID_GPUS=" in line for line in told(tmp_path, "exit 1", SLURM_STEP_ID="0"))
    assert not (tmp_path / "asked").exists()


IN_SLOTS = {
    "SLURM_JOB_ID": "7", "SLURM_SHARDS_ON_NODE": "2", "CUDA_VISIBLE_DEVICES": "1,3", "SLURM_JOB_GPUS": "1,3",
    "SLURM_GPUS": "2", "SLURM_STEP_ID": "4294967291",
}  # fmt: skip
STEP = {**IN_SLOTS, "SLURM_STEP_ID": "0", "SLURM_STEP_GPUS": "1,3", "LUCID_STEPS": "7"}


def environment(folder: Path, conf: str = "CliFilterPlugins=lua\n", **variables: str) -> dict[str, str]:
    """The variables that a job or step ends up with."""
    etc = folder / "etc"
    etc.mkdir(exist_ok=True)
    (etc / "slurm.conf").write_text(f"ClusterName=x\n{conf}")
    (etc / "cli_filter.lua").write_bytes((PROLOG.parent / "cli_filter.lua").read_bytes())
    after = dict(variables)
    for line in printed({"PATH": "/usr/bin:/bin", "SLURM_CONF": str(etc / "slurm.conf"), **variables}):
        word, _, rest = line.partition(" ")
        name, _, value = rest.partition("=")
        if word == "export":
            after[name] = value
        else:
            assert word == "unset", line
            after.pop(name, None)
    return after


def test_where_srun_maps_its_steps_the_batch_script_keeps_what_sbatch_wrote(tmp_path: Path) -> None:
    after = environment(tmp_path, **IN_SLOTS)
    assert (after["SLURM_GPUS"], after["SLURM_GPUS_ON_NODE"], after["LUCID_STEPS"]) == ("2", "2", "7")
    emptied = environment(tmp_path, **IN_SLOTS, SLURM_TRES_PER_TASK="")  # by the start, on 26.05
    assert "SLURM_TRES_PER_TASK" not in emptied, "beside it srun refuses CPUs by GPU"
    (tmp_path / "etc/more.conf").write_text("CliFilterPlugins = lua,other\n")
    for line in ("include more.conf\n", f"Include {tmp_path}/etc/more.conf # x\n"):
        assert "SLURM_GPUS" in environment(tmp_path, line, **IN_SLOTS), line
    assert not {"SLURM_GPUS", "LUCID_STEPS"} & environment(tmp_path, "", **IN_SLOTS).keys()


def test_a_mapped_step_has_its_variables_as_on_plain_slurm(tmp_path: Path) -> None:
    bind = dict.fromkeys(("SLURM_TRES_BIND", "SLURMD_TRES_BIND"), "gres/shard:per_task:1")
    memory = {"SLURM_MEM_PER_GPU": "100", "SLURM_MEM_PER_NODE": "200", "SLURM_NTASKS": "2"}
    gpus = {"SLURM_GPUS_PER_NODE": ",,", "SLURM_TRES_PER_TASK": "gres/shard=1"}
    after = environment(tmp_path, **STEP, **gpus, **bind, **memory)
    assert (after["SLURM_GPUS_PER_NODE"], after["SLURM_TRES_PER_TASK"]) == ("2", "gres/gpu=1")
    assert after["SLURM_TRES_BIND"] == after["SLURMD_TRES_BIND"] == "gres/gpu:per_task:1"
    assert "SLURM_MEM_PER_NODE" not in after
    assert (after["SLURM_DISTRIBUTION"], after["CUDA_VISIBLE_DEVICES"]) == ("block", "1,3")


def test_memory_by_gpu_has_the_distribution_of_plain_slurm(tmp_path: Path) -> None:
    by_gpu = {"SLURM_CPUS_PER_GPU": "2", "SLURM_CPUS_PER_TASK": "2", "SLURM_TRES_PER_TASK": "cpu:2"}
    for way, asked in (("cyclic", [{}, by_gpu]), ("block", [{"SLURM_CPUS_PER_TASK": "1"}, {"SLURM_NTASKS": "2"}])):
        for more in asked:
            assert environment(tmp_path, **STEP, SLURM_MEM_PER_GPU="100", **more)["SLURM_DISTRIBUTION"] == way


def test_cpus_by_gpu_stay_by_gpu_in_a_mapped_step(tmp_path: Path) -> None:
    ours = {**STEP, "SLURM_GPUS": ",", "SLURM_CPUS_PER_GPU": "3", "SLURM_CPUS_PER_TASK": "3"}
    after = environment(tmp_path, **ours, SLURM_TRES_PER_TASK="cpu:3")
    assert not {"SLURM_CPUS_PER_TASK", "SLURM_TRES_PER_TASK"} & after.keys()
    assert after["SLURM_GPUS"] == "1"
    typed = environment(tmp_path, **ours, SLURM_TRES_PER_TASK="cpu=3")
    assert (typed["SLURM_CPUS_PER_TASK"], typed["SLURM_TRES_PER_TASK"]) == ("3", "cpu=3")


def test_a_step_without_gpus_has_its_variables_back_too(tmp_path: Path) -> None:
    bare = {key: value for key, value in STEP.items() if key not in ("SLURM_SHARDS_ON_NODE", "CUDA_VISIBLE_DEVICES")}
    after = environment(tmp_path, **{**bare, "SLURM_GPUS": ",,"})
    assert (after["SLURM_GPUS"], after.get("SLURM_GPUS_ON_NODE")) == ("2", None)


def test_what_another_job_left_in_the_environment_is_not_believed(tmp_path: Path) -> None:
    inherited = {**IN_SLOTS, "LUCID_STEPS": "6", "LUCID_MEM_DEFAULT": "6", "SLURM_MEM_PER_NODE": "500"}
    after = environment(tmp_path, "", **inherited)
    assert (after.get("SLURM_GPUS"), after["SLURM_MEM_PER_NODE"]) == (None, "500")
    whole = {"SLURM_JOB_ID": "7", "SLURM_MEM_PER_NODE": "500"}
    assert environment(tmp_path, **whole, LUCID_MEM_DEFAULT="new", SLURM_SCRIPT_CONTEXT="prolog_task") == whole


BINDS = {
    "single:1": "1 3 6 1 3",
    "single:2": "1 1 3 3 6",
    "map_gpu:2,0": "6 1 6 1 6",
    "map:1*3,0": "3 3 3 1 3",
    "map_gpu:5": "1 1 1 1 1",
    "mask_gpu:0x3,4": "1,3 6 1,3 6 1,3",
    "mask:1*2,70,a": "1 1 1 3 1",
    "closest": "1,3,6 1,3,6 1,3,6 1,3,6 1,3,6",
}


@pytest.mark.parametrize("bind", BINDS)
def test_tasks_have_the_gpus_that_their_bind_says(tmp_path: Path, bind: str) -> None:
    """cli_filter.lua's words behind ``none=``: what Slurm itself would have given to each of five tasks."""
    step = {**STEP, "CUDA_VISIBLE_DEVICES": "1,3,6", "SLURM_STEP_GPUS": "1,3,6", "SLURM_SHARDS_ON_NODE": "3"}
    for loud in ("", "verbose,"):
        step["SLURM_TRES_BIND"] = f"gres/shard:{loud}none={bind}"
        tasks = [environment(tmp_path, **step, SLURM_LOCALID=str(task)) for task in range(5)]
        for name in ("CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS"):
            assert [task[name] for task in tasks] == BINDS[bind].split()
        assert {task["SLURM_TRES_BIND"] for task in tasks} == {f"gres/gpu:{loud}{bind}"}


def test_tasks_by_gpu_are_told_again(tmp_path: Path) -> None:
    after = environment(tmp_path, **STEP, SLURM_NTASKS_PER_TRES=str(65536 * 3 + 65534), SLURM_TRES_BIND="x")
    assert (after["SLURM_NTASKS_PER_TRES"], after["CUDA_VISIBLE_DEVICES"]) == ("3", "1,3")
    assert environment(tmp_path, **STEP, SLURM_NTASKS_PER_TRES="3")["SLURM_NTASKS_PER_TRES"] == "3"


def test_where_nothing_maps_steps_no_task_goes_on_without_its_gpu(tmp_path: Path) -> None:
    none = {"LUCID_STEPS": "", "CUDA_VISIBLE_DEVICES": "", "SLURM_TRES_BIND": "gres/gpu:single:1"}
    done = prolog({"PATH": "/usr/bin:/bin", "SLURM_CONF": f"{tmp_path}/none", **STEP, **none})
    assert done.returncode == 1
    assert "print Lucid: this job shares its GPUs, and here no step of it can have --gpu-bind" in done.stdout


LEAST = {"SLURM_JOB_ID": "7", "SLURM_GPUS_ON_NODE": "2", "SLURM_JOB_NUM_NODES": "1", "SLURM_NTASKS": "4",
         "SLURM_JOB_CPUS_PER_NODE": "8", "SLURM_STEP_ID": "4294967291"}  # fmt: skip
FITS = "nodes=1,tasks=4,cpus=8,gpus=2,here=2"
WRONG = FITS.replace("tasks=4", "tasks=5")


def sent_back(
    folder: Path, least: str, comment: str = "mine", squeue: str = "", scontrol: str = "", **more: str
) -> tuple[int, str, str]:
    """Its exit code, what Slurm's commands were told, and what the user reads."""
    program(folder, "squeue", squeue or f"echo '{comment}'")
    program(folder, "scontrol", scontrol or f'echo "$*" >> {folder}/told')
    program(folder, "sleep", "exit 0")
    (folder / "told").write_text("")
    done = prolog({"PATH": f"{folder}:/usr/bin:/bin", **LEAST, "LUCID_LEAST": least, **more})
    return done.returncode, (folder / "told").read_text(), done.stdout


LESS = {
    "4-of-5-tasks": WRONG,
    "1-of-2-nodes": "nodes=2,tasks=4,cpus=8,gpus=2,here=2",
    "8-of-9-CPUs": "nodes=1,tasks=4,cpus=9,gpus=2,here=2",
    "2-of-3-GPUs": "nodes=1,tasks=4,cpus=8,gpus=3,here=0",
    "99999-of-100000-tasks": "nodes=1,tasks=100000,cpus=8,gpus=2,here=2",
}


@pytest.mark.parametrize("wrong", LESS)
def test_a_start_that_gives_less_goes_back_before_its_first_line(tmp_path: Path, wrong: str) -> None:
    code, told, printed = sent_back(tmp_path, LESS[wrong], SLURM_NTASKS="99999" if "99999" in wrong else "4")
    assert (code, told) == (1, f"update JobId=7 Comment=mine lucid:wrong={wrong}\nrequeue 7\n")
    assert f"print Lucid: this start gives {wrong}" in printed


def test_the_comment_stays_json_is_not_written_twice_and_comes_last_where_it_has_to(tmp_path: Path) -> None:
    _, told, _ = sent_back(tmp_path, "tasks=5", comment='{"reaper": {"exempt": true}}')
    assert told.startswith('update JobId=7 Comment={"reaper": {"exempt": true}," lucid:wrong=4-of-5-tasks ":1}\n')
    code, told, _ = sent_back(tmp_path, WRONG, comment="lucid:wrong=4-of-5-tasks", SLURM_SHARDS_ON_NODE="2")
    assert (code, told) == (1, "requeue 7\n"), "lucidd has not given it back yet"
    does = f'echo "$1" >> {tmp_path}/told; [ "$1" = requeue ] || grep -q requeue {tmp_path}/told'
    code, told, _ = sent_back(tmp_path, "tasks=5", scontrol=does)
    assert (code, told.split()) == (1, ["update", "requeue", "update"]), "Slurm refuses it on a running job"


def test_a_start_that_gives_what_was_asked_goes_on(tmp_path: Path) -> None:
    two = {"SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_CPUS_PER_NODE": "4(x2),2", "SLURM_GPUS_ON_NODE": "1"}
    fine: list[tuple[str, dict[str, str]]] = [
        (FITS, {}),
        ("nodes=2,tasks=4,cpus=10,gpus=2,here=1", two),  # GPUs of other nodes are not seen here
        ("tasks=;scancel,cpus=x", {}),
        (WRONG, {"SLURM_STEP_ID": "0"}),
        (WRONG, {"comment": "lucid:resized"}),
        (WRONG, {"comment": "lucid:wrong=4-of-5-tasks"}),  # as its user wrote it now
        (WRONG, {"squeue": "exit 1"}),
    ]
    for least, more in fine:
        code, told, printed = sent_back(tmp_path, least, **more)
        assert (code, told) == (0, ""), (least, more)
        assert ("unset LUCID_LEAST" in printed) is ("SLURM_STEP_ID" not in more)


class Node:
    def __init__(self, folder: Path) -> None:
        self.base = folder / "turns"
        self.conf = folder / "node.conf"
        self.conf.write_text(f"turns-dir {self.base}\n")
        self.own = self.base / "n1"

    def call(self, verb: str, job: str, gpus: str = "", turns: str = "1") -> None:
        told = f"lucid_conf={self.conf}; limit=5; job={job}; gpus={gpus}; turns={turns}; lucid_turns {verb}"
        words, env = ["sh", "-c", f". {HOOK}; {told}"], {"SLURMD_NODENAME": "n1", "PATH": PATH}
        done = subprocess.run(words, capture_output=True, text=True, check=False, env=env)
        assert (done.stdout, done.stderr) == ("", "")

    def task(self, job: str) -> str:
        """What the task prolog prints of it."""
        environ = {"SLURM_SHARDS_ON_NODE": "1", "SLURM_JOB_ID": job, "SLURMD_NODENAME": "n1", "PATH": PATH}
        lines = printed({**environ, "LUCID_TURNS_DIR": str(self.base)})
        return "".join(line for line in lines if "LUCID_TURNS" in line)

    @property
    def sets(self) -> list[str]:
        return sorted(path.name for path in self.own.glob("g*")) if self.own.exists() else []


PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    if shutil.which("flock") is None:
        pytest.skip("no flock here")
    return Node(tmp_path)


def test_jobs_on_the_same_gpus_have_one_folder_that_goes_with_the_last_of_them(node: Node) -> None:
    for job in ("1", "2", "3"):
        node.call("start", job, "0,1" if job != "3" else "2")
    assert node.sets == ["g0-1", "g2"]
    assert (node.own / "g0-1").stat().st_mode & 0o7777 == 0o1777
    assert node.own.stat().st_mode & 0o022 == 0
    assert node.task("1") == node.task("2") == f"export LUCID_TURNS={node.own}/g0-1"
    node.call("stop", "1")
    assert node.sets == ["g0-1", "g2"]
    assert node.task("1") == ""
    node.call("stop", "2")
    node.call("stop", "3")
    assert node.sets == []


def test_a_job_that_starts_again_elsewhere_leaves_its_old_folder(node: Node) -> None:
    node.call("start", "1", "0")
    node.call("start", "1", "1,2")
    assert node.sets == ["g1-2"]
    node.call("start", "1", "3", turns="")
    assert node.sets == []


def test_links_are_never_followed(node: Node, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    node.call("start", "1", "0")
    (node.own / "g0/link").symlink_to(kept)
    (node.own / "g0/deep").mkdir()
    node.call("stop", "1")
    assert node.sets == []
    assert (kept / "file").exists()
    shutil.rmtree(node.base)
    node.base.symlink_to(kept)
    node.call("start", "2", "0")
    assert [path.name for path in kept.iterdir()] == ["file"]


def test_rubbish_in_a_record_removes_nothing(node: Node) -> None:
    node.call("start", "1", "0")
    node.call("start", "2", "1")
    (node.own / "jobs/1").write_text("/etc\n../g1\n")
    node.call("stop", "1")
    assert "g1" in node.sets
