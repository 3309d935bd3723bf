"""lucid-run over two nodes, with a stand-in for srun that starts both here; the real one is in tests/e2e."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_lucid_run import CHECKPOINTS, SHOW, alive, launch, python, run, shown, started

SRUN = """#!/bin/sh
while case $1 in --*) true ;; *) false ;; esac; do shift; done
{first}
SLURM_NODEID=0 SLURMD_NODENAME=n1 SLURM_GPUS_ON_NODE=2 "$@" & echo $! > {folder}/node0
SLURM_NODEID=1 SLURMD_NODENAME=n2 SLURM_GPUS_ON_NODE=1 {second} & echo $! > {folder}/node1
wait
"""


def two_nodes(folder: Path, first: str = "", second: str = '"$@"') -> dict[str, str]:
    """An environment in which srun starts two GPUs on n1 and one on n2."""
    program = folder / "bin/srun"
    program.parent.mkdir(exist_ok=True)
    program.write_text(SRUN.format(folder=folder, first=first, second=second))
    program.chmod(0o755)
    return {
        "PATH": f"{program.parent}:{os.environ['PATH']}", "SLURM_JOB_NUM_NODES": "2", "SLURMD_NODENAME": "n1",
        "SLURM_GPUS": "8", "SLURM_NTASKS": "8",
    }  # fmt: skip


def test_uneven_nodes_make_one_world(tmp_path: Path) -> None:
    ranks = shown(run(*SHOW, **two_nodes(tmp_path)))
    assert [one["RANK"] for one in ranks] == ["0", "1", "2"]
    assert [one["LOCAL_RANK"] for one in ranks] == ["0", "1", "0"]
    assert [one["LOCAL_WORLD_SIZE"] for one in ranks] == ["2", "2", "1"]
    assert [one["SLURMD_NODENAME"] for one in ranks] == ["n1", "n1", "n2"]
    assert {(one["WORLD_SIZE"], one["SLURM_NTASKS"], one["LUCID_RUN"]) for one in ranks} == {("3", "3", "7:3")}
    assert len({(one["MASTER_ADDR"], one["MASTER_PORT"]) for one in ranks}) == 1
    assert not any("SLURM_GPUS" in one or "LUCID_RUN_JOIN" in one for one in ranks)


def test_the_batch_node_is_rank_0_even_where_slurm_counts_it_second(tmp_path: Path) -> None:
    ranks = shown(run(*SHOW, **(two_nodes(tmp_path) | {"SLURMD_NODENAME": "n2"})))
    assert [(one["SLURMD_NODENAME"], one["NODE_RANK"]) for one in ranks] == [("n2", "0"), ("n1", "1"), ("n1", "1")]


def test_strangers_are_not_joined(tmp_path: Path) -> None:
    knock = (
        "import json, os, socket; _, port, _ = os.environ['LUCID_RUN_JOIN'].split(); "
        "lines = [socket.create_connection(('127.0.0.1', int(port))) for _ in range(6)]; "
        "said = {'token': 'guess', 'node': 1, 'gpus': 8, 'name': 'n9'}; "
        "[line.sendall(what) for line, what in zip(lines, [b'[1]' + bytes([10]), bytes(90000), "
        "json.dumps(said).encode() + bytes([10]), b'{', b'[' * 60000 + bytes([10])])]"
    )
    path = tmp_path / "knock.py"
    path.write_text(knock)
    assert len(shown(run(*SHOW, **two_nodes(tmp_path, f"{sys.executable} {path}")))) == 3


def test_sigterm_to_the_batch_script_alone_reaches_both_nodes(tmp_path: Path) -> None:
    with launch(*python(CHECKPOINTS.format(status=143)), **two_nodes(tmp_path)) as process:
        ranks = started(process, 3)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 143
    assert not any(alive(one) for one in ranks)


def test_a_failure_on_the_other_node_is_the_jobs(tmp_path: Path) -> None:
    program = "import os, sys, time; sys.exit(5) if os.environ['RANK'] == '2' else time.sleep(60)"
    done = run(*python(program), **two_nodes(tmp_path))
    assert (done.returncode, "status 5; the others are stopped" in done.stderr) == (5, True)


@pytest.mark.parametrize("whose", ["node1", "first"])
def test_what_was_killed_takes_the_others_with_it(tmp_path: Path, whose: str) -> None:
    with launch(*python(CHECKPOINTS.format(status=143)), **two_nodes(tmp_path)) as process:
        ranks = started(process, 3)
        if whose == "node1":
            os.kill(int((tmp_path / "node1").read_text()), signal.SIGKILL)
            assert process.wait(20) == 1
            assert "a node was lost" in process.stderr.read()
        else:
            process.kill()
        until = time.monotonic() + 20
        while any(alive(one) for one in ranks) and time.monotonic() < until:
            time.sleep(0.05)
    assert not any(alive(one) for one in ranks)


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
