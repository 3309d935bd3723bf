"""The node's MPS hooks on a real GPU: daemon, fence, second job, another user, a killed and a faulty client, the end.

Runs as root on a machine with an NVIDIA GPU, MPS and torch, without Slurm: the commands are those that prolog and
epilog call.

    python -m benchmarks.gpu_hooks [--user nobody]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pwd
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.calibrate.measure import steps_between
from lucid.core.gpu import GpuReading
from lucid.errors import MetricsError
from lucid.node.nvml import NvmlMetrics

__all__ = ["main"]

_ROOT = Path(__file__).parents[1]
_WORKLOAD = "rnn/tokens-64/32/0"
_ASSERT = (
    "import torch; x = torch.zeros(4, device='cuda'); "
    "x[torch.tensor([99], device='cuda')] = 1; torch.cuda.synchronize()"
)
"""An assertion in a kernel: the usual mistake of a user."""
_FAULT = (
    "import cupy; x = cupy.zeros(4, dtype='f'); "
    "wild = cupy.RawKernel('extern \"C\" __global__ void wild(float* p) { p[1L << 40] = 1; }', 'wild'); "
    "wild((1,), (1,), (x,)); cupy.cuda.Device().synchronize()"
)
"""A store to an address that nobody has: what CUDA calls an illegal memory access. Needs cupy."""
_ALLOCATE = (
    "import sys, torch; free, total = torch.cuda.mem_get_info(); "
    'print(f\'{{"free_mib": {free >> 20}, "total_mib": {total >> 20}}}\', flush=True); '
    "torch.empty(int(sys.argv[1]) << 20, dtype=torch.uint8, device='cuda'); torch.cuda.synchronize()"
)


class _Node:
    """Hooks and clients, as one user's jobs would call them."""

    def __init__(self, user: str, gpu: str, folder: Path) -> None:
        self.who = pwd.getpwnam(user)
        self.gpu = gpu
        self.folder = folder
        self.books = folder / "mps"

    def hook(self, verb: str, *words: str) -> dict[str, Any]:
        """Call slurm/mps/VERB; what it said and how long it took."""
        began = time.monotonic()
        done = subprocess.run(
            [str(_ROOT / "slurm" / "mps" / verb), *words, "--dir", str(self.books)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        said = (done.stdout + done.stderr).split("\n")
        return {"exit": done.returncode, "said": [x for x in said if x], "s": round(time.monotonic() - began, 2)}

    def start(self, job: str, mib: int, uid: int | None = None) -> dict[str, Any]:
        """The prolog of a job on the GPU."""
        uid = self.who.pw_uid if uid is None else uid
        return self.hook("start", "--job", job, "--uid", str(uid), "--gpus", self.gpu, "--mem-limit", str(mib))

    def environ(self, job: str) -> dict[str, str]:
        """What the task prolog would give the job, over a plain environment."""
        found = {"PATH": os.environ["PATH"], "HOME": "/tmp", "PYTHONPATH": str(_ROOT)}
        for line in (self.books / "env" / job).read_text().splitlines():
            verb, _, rest = line.partition(" ")
            name, _, value = rest.partition("=")
            if verb == "export":
                found[name] = value
            else:
                found.pop(rest, None)
        return found

    def client(self, job: str, code: str, *words: str) -> dict[str, Any]:
        """Run a short program as the job's user."""
        done = subprocess.run(
            [sys.executable, "-c", code, *words], env=self.environ(job), user=self.who.pw_uid, group=self.who.pw_gid,
            extra_groups=[], cwd="/tmp", capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        last = [x for x in done.stderr.strip().splitlines() if "Error" in x][-1:]
        return {"exit": done.returncode, "printed": done.stdout.strip(), "says": [x[:160] for x in last]}

    @contextlib.contextmanager
    def training(self, job: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
        """A job of the suite that trains under this job's environment."""
        report = self.folder / f"{job}-{time.monotonic_ns()}"
        report.touch()
        report.chmod(0o666)
        worker = [sys.executable, "-m", "benchmarks.calibrate.worker", "--seconds", "120", "--workload", _WORKLOAD]
        with subprocess.Popen(
            [*worker, "--report", str(report)], env=self.environ(job), user=self.who.pw_uid,
            group=self.who.pw_gid, extra_groups=[], cwd="/tmp", stderr=subprocess.PIPE,
        ) as process:  # fmt: skip
            try:
                end = time.monotonic() + 60
                while time.monotonic() < end and not report.stat().st_size and process.poll() is None:
                    time.sleep(0.1)
                yield process, report
            finally:
                process.kill()


def _rate(report: Path, seconds: float = 8.0) -> float | None:
    at = time.monotonic()
    time.sleep(seconds)
    rate = steps_between(report.read_text(), at, at + seconds)
    return None if rate is None else round(rate, 2)


def _processes(metrics: NvmlMetrics, gpu: str, pids: dict[str, int]) -> list[dict[str, Any]]:
    """What NVML tells of the processes on the card, over some seconds."""
    names = {pid: name for name, pid in pids.items()}
    found = []
    for _ in range(4):
        time.sleep(1)
        reading = metrics.read([gpu])[gpu]
    assert isinstance(reading, GpuReading)
    for one in reading.processes or ():
        with contextlib.suppress(OSError):
            comm = Path(f"/proc/{one.pid}/comm").read_text().strip()
            found.append(
                {"who": names.get(one.pid, comm), "mib": one.mem_mib, "sm": one.sm_util, "mem": one.mem_util}
            )
    return found


def _left() -> list[str]:
    done = subprocess.run(["ps", "-eo", "pid,user,args"], capture_output=True, text=True, check=False)
    lines = [line.strip() for line in done.stdout.splitlines()]
    return [line for line in lines if "nvidia-cuda-mps" in " ".join(line.split()[2:3])]


def _story(node: _Node, metrics: NvmlMetrics) -> dict[str, Any]:
    found: dict[str, Any] = {"first job, fence of 6 GiB": node.start("101", 6144)}
    found["its environment"] = (node.books / "env" / "101").read_text().splitlines()
    found["daemon runs as"] = _left()
    found["allocates 2 GiB"] = node.client("101", _ALLOCATE, "2048")
    found["allocates 8 GiB"] = node.client("101", _ALLOCATE, "8192")
    with node.training("101") as (one, report):
        found["first job alone, steps/s"] = _rate(report)
        found["second job, fence of 8 GiB"] = node.start("102", 8192)
        with node.training("102") as (two, other):
            time.sleep(2)
            found["steps/s of both"] = [_rate(report), _rate(other)]
            found["NVML of processes"] = _processes(metrics, node.gpu, {"101": one.pid, "102": two.pid})
            two.send_signal(signal.SIGKILL)
            two.wait()
        found["second job's client killed: first job, steps/s"] = _rate(report)
        found["another user's job"] = node.start("103", 4096, uid=node.who.pw_uid - 1)
        found["another user's job ends"] = node.hook("stop", "--job", "103")
        found["check while all is well"] = node.hook("check")
        found["client with a failed assertion"] = node.client("102", _ASSERT)
        found["first job after it, steps/s"] = _rate(report, 4.0)
        found["faulty client"] = node.client("102", _FAULT)
        time.sleep(3)
        found["first job after the fault"] = {"exit": one.poll(), "steps/s": _rate(report, 4.0)}
        found["NVML after the fault"] = _processes(metrics, node.gpu, {"101": one.pid})
        found["servers after the fault"] = _left()
        found["check after the fault"] = node.hook("check")
        one.kill()
        words = one.stderr.read().decode(errors="replace") if one.stderr else ""
        found["first job said"] = [line[:160] for line in words.strip().splitlines() if "Error" in line][-1:]
    faults = node.books / "faults"
    found["faults"] = faults.read_text().splitlines() if faults.exists() else []
    found["a new client of the second job"] = node.client("102", _ALLOCATE, "1024")
    found["epilogs"] = [node.hook("stop", "--job", job) for job in ("101", "102")]
    found["MPS processes left"] = _left()
    found["books left"] = sorted(str(p.relative_to(node.books)) for p in node.books.rglob("*") if p.is_file())
    return found


def main() -> int:
    """Measure and print; exit code 2 without a GPU or without root."""
    parser = argparse.ArgumentParser(prog="benchmarks.gpu_hooks")
    parser.add_argument("--user", default="nobody", help="whose jobs they are (%(default)s)")
    given = parser.parse_args()
    metrics = NvmlMetrics()
    try:
        card = metrics.cards()[0]
    except (MetricsError, IndexError) as error:
        print(f"no GPU to measure on: {error}", file=sys.stderr)
        return 2
    if os.geteuid():
        print("root is needed: the hooks run as root", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(dir="/run") as name:
        folder = Path(name)
        folder.chmod(0o755)
        found = _story(_Node(given.user, card.uuid, folder), metrics)
    print(json.dumps({"card": card.name, "driver": metrics.driver, **found}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
