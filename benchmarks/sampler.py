"""What the sampler costs a node: CPU, memory and disk, for 8 GPUs with 8 jobs (4 pairs among them) at 1 Hz.

The real process with the vendor's real bindings, on the emulated driver: what a real driver's calls cost beyond
that is not in these figures (benchmarks/gpu_readings.py measures it where a GPU is at hand).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figure import Absent, Figure

__all__ = ["figures"]

_WARM_S, _MEASURED_S = 15.0, 60.0
_TICKS = os.sysconf("SC_CLK_TCK")


def figures(runs: int) -> Iterator[Figure]:
    """Reading control groups; then one run of a minute: CPU seconds by /proc over wall seconds, peak resident memory,
    bytes of samples a day."""
    del runs  # a minute at 1 Hz is sixty runs of a round
    for version, what in ((2, "cgroup/v2"), (1, "cgroup/v1, 10 processes each")):
        name = f"control groups of 8 jobs at 1 Hz ({what}): CPU"
        yield Figure(name, _groups_cpu(version), "% of a core", at_most=0.2)
    if shutil.which("cc") is None:
        raise Absent("no C compiler (cc), which builds the emulated driver")
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    from lucid.node.processes import JobSpec, write_job_spec
    from lucid.node.service import NodePaths
    from nvml_emulator import Board, Gpu, Proc, build, node_environment, uuid_of

    with tempfile.TemporaryDirectory() as name, subprocess.Popen(["sleep", "600"]) as sleeper:
        folder = Path(name)
        library = build(folder / "lib")
        board = Board(folder / "state")
        for i in range(8):
            procs = [Proc(sleeper.pid, 4000, 60, 30), Proc(os.getpid(), 5000, 30, 10)]
            board.gpus[i] = Gpu(90, 40, 10_000, 81_559, (70.0, 40.0, 30.0), procs=procs)
        board.write()
        paths = NodePaths(folder / "run", folder / "spool", folder / "profiles")
        paths.make()
        for job in range(8):
            # jobs 0-3 alone on a GPU each, 4 and 5 a pair on GPUs 4-5, 6 and 7 a pair on GPUs 6-7
            gpus = (job,) if job < 4 else (4, 5) if job < 6 else (6, 7)
            pids = (sleeper.pid if job % 2 else os.getpid(),)
            write_job_spec(paths.jobs, JobSpec(str(job), tuple(uuid_of(i) for i in gpus), pids=pids))
        command = [sys.executable, "-m", "lucid.node", "--run-dir", paths.run, "--spool", paths.spool]
        command += ["--profiles", paths.profiles, "run", "--stay"]
        environment = node_environment(library, board.path)
        with subprocess.Popen([str(word) for word in command], env=environment) as process:
            time.sleep(_WARM_S)
            cpu, began, size = _cpu_s(process.pid), time.monotonic(), _size(paths.spool)
            time.sleep(_MEASURED_S)
            cpu, took = _cpu_s(process.pid) - cpu, time.monotonic() - began
            grown = _size(paths.spool) - size
            peak_mib = _peak_mib(process.pid)
            process.terminate()
        sleeper.kill()
    yield Figure("sampler, 8 GPUs and 8 jobs at 1 Hz: CPU", 100 * cpu / took, "% of a core", at_most=0.5)
    yield Figure("sampler, 8 GPUs and 8 jobs at 1 Hz: peak resident memory", peak_mib, "MiB", at_most=60)
    # four jobs on one GPU and four on two make 12 GPU samples a second, in 8 records; one 8-GPU job has 8 in one
    from lucid.profiler.samples import record_size

    yield Figure("samples of a job on 8 GPUs at 1 Hz: a day", 86_400 * record_size(8) / 2**20, "MiB", at_most=20)
    yield Figure("samples of these 8 jobs at 1 Hz: a day", grown / took * 86_400 / 2**20, "MiB", at_most=20)


def _groups_cpu(version: int) -> float:
    """Of a core in percent, on folders made up here: what the kernel does when it is asked is not in it."""
    from lucid.node.host_use import Host

    with tempfile.TemporaryDirectory() as name:
        proc, groups = Path(name, "proc"), Path(name, "cgroup")
        for job in range(8):
            pids = [1000 * job + at for at in range(100, 110)]
            inside = f"slurm/job_{job}/step_0"
            for kind in ("",) if version == 2 else ("freezer", "cpuacct", "cpuset"):
                folder = groups / kind / inside
                folder.mkdir(parents=True)
                (folder / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
                (folder.parent / "cpu.stat").write_text("usage_usec 5\nuser_usec 1\nsystem_usec 4\n")
                (folder.parent / "cpuacct.usage").write_text("5\n")
                (folder.parent / "io.pressure").write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=5\n")
                (folder.parent / "cpuset.cpus").write_text("0-7\n")
            for pid in pids:
                (proc / str(pid)).mkdir(parents=True)
                lines = "0::/" if version == 2 else "3:freezer:/X\n2:cpuacct:/X\n1:cpuset:/"
                (proc / str(pid) / "cgroup").write_text(lines.replace("X", inside) + inside + "\n")
                (proc / str(pid) / "stat").write_text(Path("/proc/self/stat").read_text())
        host, rounds = Host(proc, groups), 200
        began = time.process_time()
        for second in range(rounds):
            for job in range(8):
                host.use(str(job), str(job), (1000 * job + 100,), float(second))
        return 100.0 * (time.process_time() - began) / rounds


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _peak_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise Absent("this system does not tell a process's peak memory")


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.seg"))
