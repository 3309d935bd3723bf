"""AdaptDL's protocol as its agent speaks it, and what rubbish does to it: nothing."""

from __future__ import annotations

import http.client
import json
import math
import os
import pickle
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from test_lucid_run import PYTHON, RUN, SHOW, environ, python, run, shown

from lucid.slurm.elastic.reports import said_in
from lucid_job import adaptdl
from scenes.jobs import HOME

PERF = {"alpha_c": 0.1, "beta_c": 0.01, "alpha_n": 0.2, "beta_n": 0.02, "alpha_r": 0.1, "beta_r": 0.01, "gamma": 1.5}
HINTS: dict[str, Any] = {
    "initBatchSize": 128, "localBszBounds": [32, 256], "globalBatchSize": 512, "maxBatchSize": 1024,
    "maxProfiledReplicas": 2, "gradientAccumulation": True, "gradParams": {"norm": 0.5, "var": 2.0},
    "perfParams": PERF,
}  # fmt: skip
"""The eight keys of AdaptDL's agent."""


class Agent:
    """What a job's agent would do."""

    def __init__(self, url: str, report: Path) -> None:
        self.url, self.report = urlsplit(url), report

    def line(self) -> socket.socket:
        return socket.create_connection((self.url.hostname or "", self.url.port or 0))

    def call(self, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
        with closing(http.client.HTTPConnection(self.url.netloc, timeout=20)) as line:
            line.request(method, self.url.path + path, body, headers)
            answer = line.getresponse()
            return answer.status, answer.read()

    def put(self, said: Any) -> int:
        return self.call("PUT", "/hints/slurm/7", json.dumps(said).encode())[0]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Agent]:
    """Of a job that runs, and goes on to its end."""
    for name in ("root", "reports"):
        (tmp_path / name).mkdir()
    wait = "import os, time; print(os.environ['ADAPTDL_SUPERVISOR_URL'], flush=True); time.sleep(120)"
    command = [PYTHON, "-BS", str(RUN), "--adaptdl", "--checkpoints", str(tmp_path / "root"), *python(wait)]
    env = environ(LUCID_REPORTS=str(tmp_path / "reports"), SLURM_GPUS_ON_NODE="1")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        yield Agent(process.stdout.readline().strip(), tmp_path / "reports" / HOME / "7.json")
        status = process.poll()
        process.kill()
    assert status is None


def test_each_replica_has_what_adaptdl_reads(tmp_path: Path) -> None:
    told = {"CUDA_VISIBLE_DEVICES": "2,5", "SLURM_RESTART_COUNT": "4", "ADAPTDL_NUM_REPLICAS": "9"}
    ranks = shown(run("--adaptdl", "--checkpoints", str(tmp_path), *SHOW, **told, https_proxy="http://proxy:1"))
    for rank, one in enumerate(ranks):
        found = {name: value for name, value in one.items() if name.startswith("ADAPTDL_")}
        assert found.pop("ADAPTDL_SUPERVISOR_URL").startswith("http://127.0.0.1:")
        assert found == {
            "ADAPTDL_CHECKPOINT_PATH": f"{tmp_path}/{HOME}/7/adaptdl",
            "ADAPTDL_SHARE_PATH": f"{tmp_path}/{HOME}/7/share",
            "ADAPTDL_JOB_ID": "slurm/7", "ADAPTDL_MASTER_ADDR": "127.0.0.1",
            "ADAPTDL_MASTER_PORT": one["MASTER_PORT"],
            "ADAPTDL_REPLICA_RANK": str(rank), "ADAPTDL_NUM_REPLICAS": "2", "ADAPTDL_NUM_NODES": "1",
            "ADAPTDL_NUM_RESTARTS": "4", "ADAPTDL_SCHED_VERSION": "0.0.0",
        }  # fmt: skip
        assert "127.0.0.1" in one["no_proxy"]
        assert "LOCAL_RANK" not in one
    assert [one["CUDA_VISIBLE_DEVICES"] for one in ranks] == ["2", "5"]
    assert all(Path(ranks[0][f"ADAPTDL_{name}_PATH"]).is_dir() for name in ("CHECKPOINT", "SHARE"))


def test_adaptdl_without_a_folder_or_with_a_minimal_python_is_refused_with_a_remedy(tmp_path: Path) -> None:
    done = run("--adaptdl", "true")
    assert (done.returncode, "--adaptdl needs --checkpoints" in done.stderr) == (2, True)
    (tmp_path / "socketserver.py").write_text("raise ModuleNotFoundError(name='socketserver')")
    done = run("--adaptdl", "--checkpoints", str(tmp_path), "true", PYTHONPATH=str(tmp_path))
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
    assert "has no socketserver: call lucid_run.py with the Python of your training program" in done.stderr


def test_the_agents_hints_become_a_report_that_lucidd_reads(job: Agent) -> None:
    assert json.loads(job.call("GET", "/discover/slurm/7/0")[1]) == ["127.0.0.1"]
    assert job.put(HINTS) == 200
    progress = said_in(job.report.read_bytes()).progress
    assert (progress.step_model, progress.gradient, progress.batch) == (tuple(PERF.values()), (0.5, 2.0), 512)
    told = json.loads(job.report.read_text())
    assert (told["batch_range"], told["atomic_range"], told["accumulation"]) == ([128, 1024], [32, 256], True)
    assert told["epochs"] == 0.0


def test_rubbish_is_refused_and_the_job_goes_on(job: Agent) -> None:
    for body in (b"", b"{", b"\xff\xfe", b"[" * 50_000, b"7", b'"x"', b"[1]", b"null"):
        assert job.call("PUT", "/hints/slurm/7", body)[0] == 400, body[:9]
    assert job.call("PUT", "/hints/slurm/7", b" " * 70_000)[0] == 413
    assert job.call("PUT", "/hints/slurm/7", b"x", **{"Content-Length": "-4"})[0] == 411
    paths = (("PUT", "/elsewhere"), ("GET", "/../../etc/passwd"), ("BREW", "/hints/slurm/7"))
    assert [job.call(method, path, b"{}")[0] for method, path in paths] == [404, 404, 501]
    with job.line() as raw:
        raw.sendall(b"\x00" * 100_000)
    with closing(http.client.HTTPConnection(job.url.netloc, timeout=20)) as guessed:
        guessed.request("PUT", "/hints/slurm/7", json.dumps(HINTS).encode())
        assert guessed.getresponse().status == 404, "another user of the node does not know the random part"
    assert not job.report.exists()
    assert job.put(HINTS) == 200


def test_slow_clients_do_not_keep_the_agent_from_reporting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An endpoint of this process, whose patience is shorter than that of a job's."""
    assert adaptdl._Handler.timeout == adaptdl.SLOW_S
    monkeypatch.setattr(adaptdl._Handler, "timeout", 1.0)
    monkeypatch.setenv("LUCID_REPORTS", str(tmp_path))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    endpoint = adaptdl.Endpoint({"master": "127.0.0.1", "hosts": ["127.0.0.1"], "epochs": 0})
    endpoint.start()
    agent = Agent(endpoint.url, tmp_path / HOME / "7.json")
    answers: list[int] = []
    with endpoint._server, ExitStack() as lines:
        slow = lines.enter_context(agent.line())
        slow.sendall(f"PUT {agent.url.path}/hints/slurm/7 HTTP/1.1\r\nContent-Length: 60000\r\n\r\n{{".encode())
        while endpoint._server.places._value:
            lines.enter_context(agent.line())
            time.sleep(0.002)  # for it to take the line up
        until = time.monotonic() + 60.0
        while 200 not in answers and time.monotonic() < until:
            try:
                answers.append(agent.put(HINTS))
            except OSError:
                answers.append(0)
                time.sleep(0.05)
        endpoint._server.shutdown()
    assert answers[-1] == 200
    assert agent.report.exists()


GRADIENTS: list[Any] = [{"norm": math.nan, "var": 1.0}, {"norm": 1.0}, [1.0, 2.0]]
LEFT_OUT: list[dict[str, Any]] = [
    {}, {"initBatchSize": True, "globalBatchSize": 10**400, "gradientAccumulation": 1}, {"perfParams": 5},
    *({"localBszBounds": said} for said in ([32, 8], "wide")), *({"gradParams": said} for said in GRADIENTS),
    *({"perfParams": PERF | {"gamma": said}} for said in (math.inf, "1")),
]  # fmt: skip


@pytest.mark.parametrize("hints", LEFT_OUT)
def test_what_is_not_as_it_should_be_is_left_out(hints: dict[str, Any]) -> None:
    assert adaptdl.report_of(hints) == {}
    sizes = {"initBatchSize": 64, "localBszBounds": [None, 32], "maxBatchSize": None, "surprise": {"a": 1}}
    assert adaptdl.report_of(hints | sizes) == {"batch_range": [64, 64], "atomic_range": [1, 32]}


def test_epochs_are_those_of_the_last_checkpoint_and_each_start_has_a_number_of_its_own(tmp_path: Path) -> None:
    for number, epochs in ((2, 3), (10, 7)):
        folder = tmp_path / f"adaptdl/checkpoint-{number}"
        folder.mkdir(parents=True)
        (folder / ".adaptdl-epoch").write_bytes(pickle.dumps(epochs))
    found = adaptdl.prepared(str(tmp_path), 3)
    assert (found["restart"], found["epochs"]) == (11, 7)
    assert adaptdl.prepared(str(tmp_path), 12)["restart"] == 12


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (99,)


@pytest.mark.parametrize("content", [pickle.dumps(Evil()), b"", b"rubbish", pickle.dumps("many"), pickle.dumps(-1)])
def test_a_checkpoint_that_is_no_number_runs_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "checkpoint-0").mkdir()
    (tmp_path / "checkpoint-0/.adaptdl-epoch").write_bytes(content)
    assert adaptdl.finished_epochs(str(tmp_path)) == 0
