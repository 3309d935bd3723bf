"""lucid_run, on one node and on several."""

from __future__ import annotations

import ast
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from lucid_job import checkpoints
from scenes.jobs import HOME

SLURM = Path(__file__).resolve().parents[3] / "slurm"
RUN = SLURM / "lucid_run.py"
PYTHON = os.environ.get("LUCID_JOB_PYTHON", sys.executable)
"""What runs lucid-run; a node may have an old one."""


def environ(**more: str) -> dict[str, str]:
    made = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1", "SLURM_GPUS_ON_NODE": "2"}
    return made | more


def launch(*words: str, **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [PYTHON, "-BS", str(RUN), *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ(**more),
    )  # fmt: skip


def run(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
    with launch(*words, **more) as process:
        out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(words, process.returncode, out, err)


def python(program: str) -> tuple[str, ...]:
    """A rank; what site-packages hold would take it longer to begin."""
    return sys.executable, "-S", "-c", program


SHOW = python("import json, os; print(json.dumps(dict(os.environ)))")


def shown(done: subprocess.CompletedProcess[str]) -> list[dict[str, str]]:
    assert done.returncode == 0, done.stderr
    return sorted((json.loads(line) for line in done.stdout.splitlines()), key=lambda one: int(one["RANK"]))


def test_a_process_for_each_gpu_with_numbers_of_this_start() -> None:
    stale = {"SLURM_GPUS": "8", "WORLD_SIZE": "8", "RANK": "5", "SLURM_NTASKS": "8", "LUCID_GPUS_HERE": "8"}
    ranks = shown(run(*SHOW, **stale, SLURM_RESTART_COUNT="3", SLURM_GPUS_ON_NODE="3"))
    assert [one["RANK"] for one in ranks] == [one["LOCAL_RANK"] for one in ranks] == ["0", "1", "2"]
    for one in ranks:
        assert {one[name] for name in ("WORLD_SIZE", "SLURM_NTASKS", "LOCAL_WORLD_SIZE", "LUCID_GPUS_HERE")} == {"3"}
        assert (one["MASTER_ADDR"], one["LUCID_RESTART"]) == ("127.0.0.1", "3")
        assert 20000 <= int(one["MASTER_PORT"]) < 30000
        assert "SLURM_GPUS" not in one
        assert "LUCID_CHECKPOINTS" not in one


def started(process: subprocess.Popen[str], count: int = 2) -> list[int]:
    return [int(process.stdout.readline()) for _ in range(count)]


CHECKPOINTS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit({status}))
print(os.getpid(), flush=True)
time.sleep(60)
"""


def alive(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def all_gone(ranks: Sequence[int], within_s: float = 20.0) -> bool:
    until = time.monotonic() + within_s
    while any(alive(one) for one in ranks) and time.monotonic() < until:
        time.sleep(0.05)
    return not any(alive(one) for one in ranks)


def test_what_a_killed_process_had_started_ends_too() -> None:
    starts = "import os, subprocess; child = subprocess.Popen(['sleep', '60']); print(child.pid, flush=True)"
    done = run(*python(f"{starts}; os.abort()"))
    assert done.returncode == 128 + signal.SIGABRT
    assert not any(alive(int(line)) for line in done.stdout.split())


def test_what_cannot_start_is_said() -> None:
    done = run("/no/such/program")
    assert (done.returncode, "/no/such/program cannot be started" in done.stderr) == (2, True)
    assert run().returncode == 2
    several = run("true", SLURM_JOB_NUM_NODES="2")
    assert (several.returncode, "from its batch script" in several.stderr) == (2, True)


def run_with(root: object, **more: str) -> subprocess.CompletedProcess[str]:
    """Ranks that show their environment, with checkpoints below this folder."""
    return run("--checkpoints", str(root), *SHOW, **more)


def test_a_checkpoint_folder_is_the_users_alone_and_found_again(tmp_path: Path) -> None:
    folder = tmp_path / HOME / "7"
    assert {one["LUCID_CHECKPOINTS"] for one in shown(run_with(tmp_path))} == {str(folder)}
    assert folder.stat().st_mode & 0o777 == 0o700
    (folder / "model").write_text("weights")
    folder.chmod(0o755)
    done = run_with(tmp_path, SLURM_RESTART_COUNT="1", SLURM_JOB_START_TIME="99")
    assert shown(done)[0]["LUCID_CHECKPOINTS"] == str(folder)
    assert (folder.stat().st_mode & 0o777, done.stderr) == (0o700, "")
    assert (folder / "model").read_text() == "weights"
    folder.rename(tmp_path / "7")  # as before there were folders of users
    shown(run_with(tmp_path, SLURM_RESTART_COUNT="1"))
    assert (folder / "model").read_text() == "weights"


def test_an_earlier_job_of_this_number_is_not_gone_on_with_and_a_folder_of_one_node_is_said(tmp_path: Path) -> None:
    model = tmp_path / HOME / "7/model"
    first = run_with(tmp_path, SLURM_JOB_START_TIME="50", SLURM_RESTART_COUNT="2")
    assert (first.returncode, "on a file system that all nodes share?" in first.stderr) == (0, True)
    model.write_text("of another job")
    again = run_with(tmp_path, SLURM_JOB_START_TIME="50")
    assert (again.stderr, model.exists()) == ("", True), "a second call of the same start"
    done = run_with(tmp_path, SLURM_JOB_START_TIME="99")
    assert ("earlier job of this number" in done.stderr, model.exists()) == (True, False)
    (old,) = (tmp_path / HOME).glob("7.old-*/model")
    assert old.read_text() == "of another job", "nothing is lost"


def test_what_others_could_change_is_not_used(tmp_path: Path) -> None:
    elsewhere, shared = tmp_path / "elsewhere", tmp_path / "shared"
    elsewhere.mkdir()
    (shared / HOME).mkdir(parents=True)
    (shared / HOME / "7").symlink_to(elsewhere)
    done = run_with(shared)
    assert (done.returncode, "not a folder of yours" in done.stderr) == (2, True)
    shared.chmod(0o777)
    refused = {shared: "other users can rename", "shared": "absolute", tmp_path / "none": "cannot be used"}
    assert all(says in run_with(root).stderr for root, says in refused.items())
    assert list(elsewhere.iterdir()) == []
    if os.getuid() == 0:
        (tmp_path / HOME / "7").mkdir(parents=True)
        os.chown(tmp_path / HOME / "7", 12345, 12345)
        assert "not a folder of yours" in run_with(tmp_path).stderr


def path_with(folder: Path, name: str, text: str) -> str:
    """A search path on which this shell script comes first."""
    program = folder / "bin" / name
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    return f"{program.parent}:{os.environ['PATH']}"


def clean(folder: Path, days: int, squeue: str, root: str = "root") -> subprocess.CompletedProcess[str]:
    """Where squeue is this script."""
    words = ("--checkpoints", str(folder / root), "--clean", str(days))
    return run(*words, PATH=path_with(folder, "squeue", squeue))


def test_old_folders_of_jobs_that_have_left_are_cleaned(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for name in ("5", "6", "7", "8.old-3", "notes"):
        (root / name / "inner").mkdir(parents=True)
        (root / name / checkpoints.MARK).write_text("{}")
        (root / name / "inner/model").write_text("x")
        if name != "6":
            for path in ("inner/model", checkpoints.MARK, "inner", "."):
                os.utime(root / name / path, (0, 0))
    (root / "9").mkdir()
    os.utime(root / "9", (0, 0))
    (root / "10").symlink_to(root / "5")
    done = clean(tmp_path, 30, "echo 7")
    assert done.stdout.splitlines() == [f"removed {root / name}" for name in ("5", "8.old-3")], done.stderr
    assert sorted(path.name for path in root.iterdir()) == ["10", "6", "7", "9", "notes"]
    (root / "7").rename(root / "11")
    away = tmp_path / "away"
    for folder in (root / HOME / "12", away / "13"):
        folder.mkdir(parents=True)
        (folder / checkpoints.MARK).write_text("{}")
    (root / "u61001").symlink_to(away)
    done = clean(tmp_path, -1, "echo 6; echo 7; echo 11")
    assert done.stdout.splitlines() == [f"removed {root / HOME / '12'}"], done.stderr
    assert (away / "13").exists(), "a link in a user's place leads nowhere"
    if os.getuid() == 0:
        os.chown(root / "6", 12345, 12345)
        done = clean(tmp_path, 0, "echo 11")
        assert done.stdout.splitlines() == [f"removed {root / '6'}"], "root's cron job cleans for all"
    for text in ("echo no >&2; exit 1", "exit 1"):
        done = clean(tmp_path, 0, text)
        assert (done.returncode, "nothing is removed" in done.stderr) == (2, True)
    assert (root / "11").exists()


def test_a_tree_that_is_too_deep_stops_nobodys_cleaning(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for name in ("5", "6"):
        (root / HOME / name).mkdir(parents=True)
        (root / HOME / name / checkpoints.MARK).write_text("{}")
    deep = "import os\nos.chdir(os.environ['DEEP'])\nfor _ in range(1500): os.mkdir('d'); os.chdir('d')"
    subprocess.run([sys.executable, "-c", deep], env={"DEEP": str(root / HOME / "5")}, check=True)
    done = clean(tmp_path, -1, "true")
    assert f"removed {root / HOME / '6'}" in done.stdout.splitlines(), done.stderr
    assert "cannot be listed" in clean(tmp_path, 1, "true", "none").stderr
    subprocess.run(["rm", "-rf", str(root)], check=True)  # pytest cannot


OF_JOBS = [SLURM / f"lucid_{name}.py" for name in ("report", "run", "torch", "turns")]


@pytest.mark.parametrize("path", [*OF_JOBS, *(SLURM / "lucid_job").glob("*.py")])
def test_what_runs_in_a_job_is_python_of_3_6(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 6))


SRUN = """
while case $1 in --*) true ;; *) false ;; esac; do shift; done
{first}
SLURM_NODEID=0 SLURMD_NODENAME=n1 SLURM_GPUS_ON_NODE=2 "$@" & echo $! > {folder}/node0
SLURM_NODEID=1 SLURMD_NODENAME=n2 SLURM_GPUS_ON_NODE=1 {second} & echo $! > {folder}/node1
wait
"""


def two_nodes(folder: Path, first: str = "", second: str = '"$@"') -> dict[str, str]:
    """An environment in which srun starts two GPUs on n1 and one on n2."""
    path = path_with(folder, "srun", SRUN.format(folder=folder, first=first, second=second))
    stale = {"SLURM_GPUS": "8", "SLURM_NTASKS": "8"}
    return {"PATH": path, "SLURM_JOB_NUM_NODES": "2", "SLURMD_NODENAME": "n1", **stale}


def test_uneven_nodes_make_one_world_of_which_the_batch_node_has_rank_0(tmp_path: Path) -> None:
    ranks = shown(run(*SHOW, **two_nodes(tmp_path)))
    names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "SLURMD_NODENAME")
    assert [" ".join(one[name] for name in names) for one in ranks] == ["0 0 2 n1", "1 1 2 n1", "2 0 1 n2"]
    assert {(one["WORLD_SIZE"], one["SLURM_NTASKS"], one["LUCID_RUN"]) for one in ranks} == {("3", "3", "7:3")}
    assert len({(one["MASTER_ADDR"], one["MASTER_PORT"]) for one in ranks}) == 1
    assert not any("SLURM_GPUS" in one or "LUCID_RUN_JOIN" in one for one in ranks)
    ranks = shown(run(*SHOW, **(two_nodes(tmp_path) | {"SLURMD_NODENAME": "n2"})))  # the second, as Slurm counts
    assert [(one["SLURMD_NODENAME"], one["NODE_RANK"]) for one in ranks] == [("n2", "0"), ("n1", "1"), ("n1", "1")]


BOTH = pytest.mark.parametrize("nodes", [1, 2])
"""On one node of two GPUs, and with another of one GPU beside it."""


def world(folder: Path, nodes: int) -> dict[str, str]:
    return two_nodes(folder) if nodes == 2 else {}


ENDS = [(1, "143", 143), (1, "0", 0), (1, "9", 9), (1, "143 * (os.environ['RANK'] == '0')", 143), (2, "143", 143)]


@pytest.mark.parametrize(("nodes", "status", "ends"), ENDS)
def test_sigterm_reaches_all_and_their_status_is_the_jobs(tmp_path: Path, nodes: int, status: str, ends: int) -> None:
    """It comes to the batch script alone."""
    with launch(*python(CHECKPOINTS.format(status=status)), **world(tmp_path, nodes)) as process:
        ranks = started(process, nodes + 1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == ends
    assert all_gone(ranks, 0.0)


@BOTH
def test_one_that_fails_ends_the_others_and_says_so(tmp_path: Path, nodes: int) -> None:
    program = f"import os, sys, time; sys.exit(4) if os.environ['RANK'] == '{nodes}' else time.sleep(60)"
    done = run(*python(program), **world(tmp_path, nodes))
    assert (done.returncode, "status 4; the others are stopped" in done.stderr) == (4, True)


@BOTH
def test_a_killed_launcher_leaves_no_orphans(tmp_path: Path, nodes: int) -> None:
    with launch(*python(CHECKPOINTS.format(status=0)), **world(tmp_path, nodes)) as process:
        ranks = started(process, nodes + 1)
        process.kill()
        assert all_gone(ranks)


def test_a_node_that_is_lost_takes_the_other_with_it(tmp_path: Path) -> None:
    with launch(*python(CHECKPOINTS.format(status=143)), **two_nodes(tmp_path)) as process:
        ranks = started(process, 3)
        os.kill(int((tmp_path / "node1").read_text()), signal.SIGKILL)
        assert process.wait(20) == 1
        assert "a node was lost" in process.stderr.read()
        assert all_gone(ranks)


def test_strangers_are_not_joined(tmp_path: Path) -> None:
    knock = (
        "import json, os, socket; _, port, _ = os.environ['LUCID_RUN_JOIN'].split(); "
        "lines = [socket.create_connection(('127.0.0.1', int(port))) for _ in range(6)]; "
        "said = {'token': 'guess', 'node': 1, 'gpus': 8, 'name': 'n9'}; "
        "[line.sendall(what) for line, what in zip(lines, [b'[1]' + bytes([10]), bytes(90000), "
        "json.dumps(said).encode() + bytes([10]), b'{', b'[' * 60000 + bytes([10])])]"
    )
    (tmp_path / "knock.py").write_text(knock)
    assert len(shown(run(*SHOW, **two_nodes(tmp_path, f"{sys.executable} {tmp_path}/knock.py")))) == 3


def test_nodes_that_do_not_start_are_said(tmp_path: Path) -> None:
    done = run("true", **two_nodes(tmp_path, "echo no such step >&2; exit 1"))
    assert (done.returncode, "0 of 2 nodes have started; srun says above why" in done.stderr) == (2, True)
    done = run("true", **(two_nodes(tmp_path) | {"PATH": str(tmp_path)}))
    assert (done.returncode, "srun cannot be started" in done.stderr) == (2, True)


def test_a_folder_that_the_other_node_does_not_have_is_said(tmp_path: Path) -> None:
    (tmp_path / "ck").mkdir()
    hide = f'unshare -m sh -c \'mount -t tmpfs none {tmp_path}/ck && exec "$@"\' sh "$@"'
    if subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode:
        pytest.skip("needs a mount namespace")
    done = run("--checkpoints", str(tmp_path / "ck"), "sleep", "60", **two_nodes(tmp_path, second=hide))
    assert (done.returncode, "a file system that all nodes share" in done.stderr) == (2, True)


def test_a_stop_that_comes_together_with_the_ranks_is_obeyed() -> None:
    """The first node failed at once: both lines lie in one packet."""
    place = {"node": 1, "first": 1, "here": 1, "world": 2, "nodes": 2, "port": 1, "restart": 0, "checkpoints": None}
    with socket.create_server(("127.0.0.1", 0)) as first:
        environ = {"LUCID_RUN_JOIN": f"token {first.getsockname()[1]} 127.0.0.1", "SLURM_NODEID": "1"}
        with launch("sleep", "60", **environ) as process:
            connection, _ = first.accept()
            with connection, connection.makefile("rw") as line:
                assert json.loads(line.readline())["token"] == "token"
                line.write(f'{json.dumps(place)}\n{{"stop": true}}\n')
                line.flush()
                try:
                    assert json.loads(line.readline()) == {"ended": 128 + signal.SIGTERM}
                finally:
                    process.kill()
