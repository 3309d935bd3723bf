"""One look at the queue through each client, on a running testbed: time, CPU and memory.

    python -m benchmarks.slurm_clients [--jobs 10000] -- chroot DIR        # as root; a testbed with nothing queued

Each client has a process of its own inside the testbed, so that both run under one Python and one libslurm
(``LUCID_TESTBED_PYSLURM``; without it only the commands are measured). The jobs are tasks of held
arrays, each with a record of its own. CPU: of the process, of the commands that it starts, and of
slurmctld. Not among ``python -m benchmarks``: it needs a Slurm.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[1]
HERE = "/opt/lucid-benchmark"
LIBRARY = "/usr/local/lib/lucid-testbed"
LOOKS = 5
ARRAY = 1000


def submit(root: Path, count: int) -> None:
    """Held tasks of alice's, each apart: an update of one task takes it out of its array's record."""
    for first in range(0, count, ARRAY):
        size = min(ARRAY, count - first)
        words = ["sbatch", "--parsable", "-D", "/tmp", "-H", f"--array=1-{size}", "--gres=gpu:1", "--wrap=true"]
        done = subprocess.run(
            ["chroot", "--userspec=alice", str(root), *words], capture_output=True, text=True, check=True, cwd="/"
        )
        updates = "".join(f"update JobId={done.stdout.strip()}_{n} AdminComment=apart\n" for n in range(1, size + 1))
        subprocess.run(
            ["chroot", str(root), "scontrol", "-Q"], input=updates, text=True, capture_output=True, cwd="/"
        )


def look(kind: str) -> dict[str, Any]:
    """Inside the testbed: the first look, and the median of the next ones."""
    from lucid.slurm.client import Breaker
    from lucid.slurm.commands import CommandClient

    breaker = Breaker(time.monotonic, latency_s=1e9)
    commands = CommandClient([], breaker, 120.0)
    client: Any = commands
    if kind == "pyslurm":
        from lucid.slurm.pyslurm import PyslurmClient

        client = PyslurmClient(breaker, commands)
    times, jobs = [], 0
    before = _cpu_s()
    for _ in range(LOOKS):
        began = time.perf_counter()
        jobs = len(client.jobs())
        times.append(time.perf_counter() - began)
    cpu = (_cpu_s() - before) / LOOKS
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    child = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return {
        "client": kind, "jobs": jobs, "look_s": statistics.median(times), "slowest_s": max(times), "cpu_s": cpu,
        "peak_mib": peak, "command_mib": child,
    }  # fmt: skip


def _cpu_s() -> float:
    return sum(
        used.ru_utime + used.ru_stime
        for used in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    )


def slurmctld_s(root: Path) -> float:
    """CPU seconds so far of the testbed's slurmctld."""
    found = 0.0
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "root").readlink() != root:
                continue
            name, fields = (
                (entry / "comm").read_text().strip(),
                (entry / "stat").read_text().rpartition(")")[2].split(),
            )
        except OSError:
            continue
        if name == "slurmctld":
            found += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


def main() -> None:
    if sys.argv[1:2] == ["--inside"]:
        print(json.dumps(look(sys.argv[2])))
        return
    parser = argparse.ArgumentParser(description="One look through each client of a running testbed.")
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("prefix", nargs="+", help="-- chroot DIR")
    given = parser.parse_args()
    root = Path(given.prefix[-1]).resolve()
    inside = root / HERE.lstrip("/")
    shutil.rmtree(inside, ignore_errors=True)
    shutil.copytree(REPO / "lucid", inside / "lucid", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(__file__, inside / "slurm_clients.py")
    began = time.monotonic()
    submit(root, given.jobs)
    print(f"{given.jobs} held jobs submitted in {time.monotonic() - began:.0f} s", flush=True)
    kinds = ["commands", *(["pyslurm"] if (root / LIBRARY.lstrip("/")).is_dir() else [])]
    for kind in kinds:
        before_s = slurmctld_s(root)
        done = subprocess.run(
            ["chroot", "--userspec=lucid", str(root), "env", f"PYTHONPATH={HERE}:{LIBRARY}", "LC_ALL=C.UTF-8",
             "python3", f"{HERE}/slurm_clients.py", "--inside", kind],
            capture_output=True, text=True, check=False, cwd="/",
        )  # fmt: skip
        if done.returncode:
            print(f"{kind}: {done.stderr.strip().splitlines()[-1]}", flush=True)
            continue
        told = json.loads(done.stdout.splitlines()[-1])
        told["slurmctld_cpu_s"] = (slurmctld_s(root) - before_s) / LOOKS
        print(json.dumps({key: round(v, 3) if isinstance(v, float) else v for key, v in told.items()}), flush=True)


if __name__ == "__main__":
    main()
