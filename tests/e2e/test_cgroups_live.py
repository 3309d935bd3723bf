"""A real Slurm with control groups: a job gets the cores, memory and devices that Slurm gave it, and no others; jobs
that call nothing are measured by their nodes, and make pairs.

CPU time and waits for storage are real, and so are the sampler and what it reads. What their GPUs do is made up by
the kind of job, for nothing here has a GPU.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from box import Box
from daemon_box import Lucidd
from testbeds import running

from lucid.core.gpu import GpuCard, GpuProcess, GpuReading
from lucid.core.job import TimeShares
from lucid.node.processes import JobSpec, Owners
from lucid.node.reports import read_summary
from lucid.node.sampler import Sampler
from testbed import host

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    with running("cgroup", LUCID_TESTBED_SLOTS="4", LUCID_TESTBED_CGROUP="v1") as made:
        (made.root / "etc/slurm/lucid/node.conf").write_text("daemon lucid\nlimit 5\n")
        (made.root / "tmp/opened.py").write_text(OPENED)
        (made.root / "tmp/outside.py").write_text(WORK)
        yield made


OPENED = """import errno, os
said = []
for gpu in range(4):
    try:
        os.open(f"/dev/nvidia{gpu}", os.O_RDONLY)
    except OSError as error:
        said.append(errno.errorcode[error.errno])
print(*said)
"""
"""Nothing drives the fake GPUs: one that may be opened says ENXIO, one that may not says EPERM."""


def test_a_job_has_its_own_gpus_cores_and_memory_only_whether_it_has_gpus_or_slots(box: Box) -> None:
    """And a process that left its parents is still its job's."""
    whole = box.sbatch("-w", "n1", "--gres=gpu:2", script="python3 /tmp/opened.py; srun python3 /tmp/opened.py")
    box.wait_ended(whole)
    assert box.output(whole) == 2 * "ENXIO ENXIO EPERM EPERM\n"
    ask = ("-w", "n1", "--gres=shard:g3:1")  # as nobody may but Lucid and root
    slots = [box.sbatch(*ask, script="python3 /tmp/opened.py", user="root") for _ in range(2)]
    cores = box.sbatch("-c", "1", script="nproc")
    large = box.sbatch("--mem=100", script="python3 -c 'print(len(bytearray(400 * 2**20)))'")
    box.wait_ended(*slots, cores, large)
    assert {box.output(number) for number in slots} == {"EPERM EPERM EPERM ENXIO\n"}
    assert (os.cpu_count() or 1) < 2 or box.output(cores) == "1\n"
    assert box.state(large) == "OUT_OF_MEMORY"
    number = box.sbatch("--gres=gpu:1", script="(setsid sleep 4321 < /dev/null > /dev/null 2>&1 &); sleep 60")

    def strays() -> list[int]:
        found = [pid for pid, name in host.processes_in(box.root).items() if name == "sleep"]
        return [pid for pid in found if b"4321" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    box.wait("the process", lambda: len(strays()) == 1)
    assert Owners().job_of(strays()[0], {}) == number
    box.run("scancel", number)
    box.wait("its end with its job", lambda: not strays())


# -- jobs that call nothing ------------------------------------------------------------------------------------------

REPORTS = "run/lucid-reports"
GPU = {"reads": 10.0, "spins": 15.0, "computes": 92.0}
"""Percent of the time, by kind of job."""
WORK = """
import array, os, sys, time
kind, end = sys.argv[1], time.monotonic() + float(sys.argv[2])
name = "/tmp/outside-%s" % os.environ["SLURM_JOB_ID"]
size, part = 1 << 26, 1 << 22
with open(name, "wb") as file:
    for _ in range(size // part if kind == "reads" else 0):
        file.write(os.urandom(part))
    os.fsync(file.fileno())
fd, memory, at = os.open(name, os.O_RDONLY | os.O_DIRECT), array.array("B", bytes(part + 4096)), 0
first = -memory.buffer_info()[0] % 4096  # reading past the kernel's cache wants whole pages
buffer = memoryview(memory)[first : first + part]
with open(name + ".pid", "w") as file:
    file.write("%d %s %s\\n" % (os.getpid(), kind, os.environ.get("LUCID_TURNS", "-")))
while time.monotonic() < end:
    until = time.monotonic() + 0.16
    while kind == "reads" and time.monotonic() < until:
        os.preadv(fd, [buffer], at % size)
        at += part
    while kind == "spins" and time.monotonic() < until:
        pass
    time.sleep(0.01 if kind == "reads" else 0.04)
os.unlink(name)
print("DONE")
"""


class Meeting:
    """Readings by what jobs do (``GpuMetrics``). GPUs are named by the folder in which the jobs on them meet."""

    name = "emulated"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: set[str] = set()

    def told(self) -> dict[str, tuple[int, str, str]]:
        """Of each job that runs: its process, its kind and its GPU, as it said itself."""
        found = {}
        for number in self.running:
            path = self.folder / f"outside-{number}.pid"
            words = path.read_text().split() if path.exists() else []
            if len(words) == 3:
                found[number] = int(words[0]), words[1], words[2]
        return found

    def specs(self) -> Mapping[str, JobSpec]:
        return {number: JobSpec(number, (gpu,)) for number, (_, _, gpu) in self.told().items()}

    def read(self, uuids: Collection[str]) -> Mapping[str, GpuReading]:
        jobs = self.told()
        found = {}
        for uuid in uuids:
            here = [(pid, GPU[kind]) for pid, kind, gpu in jobs.values() if gpu == uuid]
            processes = tuple(GpuProcess(pid, 1000.0, util, util / 3) for pid, util in here)
            util = min(sum(util for _, util in here), 100.0)
            found[uuid] = GpuReading(uuid, util, util / 3, 1000.0 * len(here), processes=processes)
        return found

    def cards(self) -> Sequence[GpuCard]:
        return []

    def conditions(self) -> None:
        return None

    def xids(self) -> dict[int, list[int]]:
        return {}

    def close(self) -> None:
        return None


@pytest.fixture
def lucidd(box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lucidd]:
    """In place of its stand-in for a sampler the real one: one for all nodes, which are one machine."""
    monkeypatch.setattr(Lucidd, "_sample", lambda self: None)
    folder = box.open_folder(REPORTS)
    more = ("lease_s = 6", 'policy = "muri-l"', "[daemon.elastic]", f'reports_dir = "{folder}"')
    stop, source = threading.Event(), Meeting(box.root / "tmp")
    with Lucidd(box, tmp_path / "state", restarts="", more="\n".join(more)) as daemon:
        sampler = Sampler(source, tmp_path / "spool", daemon.profiles, "n", interval_s=0.5)

        def samples() -> None:
            looked_s = 0.0
            while not stop.wait(0.5):
                now_s = time.time()
                if now_s - looked_s > 1.0:
                    looked_s = now_s
                    with suppress(AssertionError, OSError, ValueError, subprocess.TimeoutExpired):
                        source.running = {n for n, job in box.jobs().items() if job["job_state"] == ["RUNNING"]}
                sampler.tick(source.specs(), now_s)

        beside = threading.Thread(target=samples, daemon=True)
        beside.start()
        yield daemon
        stop.set()
        beside.join(10)
        sampler.close()
    box.clear()


def submit(box: Box, kind: str, seconds: float, where: str = "vc-b") -> str:
    return box.sbatch(
        "-p", where, "--gres=gpu:1", f"--job-name={kind}", "--comment=lucid:turns",
        script=f"echo TURNS $LUCID_TURNS; exec python3 /tmp/outside.py {kind} {seconds}",
    )  # fmt: skip


def shares_of(lucidd: Lucidd, number: str) -> TimeShares:
    profile = read_summary(lucidd.profiles / f"{number}.json").profile
    assert profile is not None
    assert profile.shares is not None
    return profile.shares


def test_jobs_that_call_nothing_are_measured_and_paired(box: Box, lucidd: Lucidd) -> None:
    def runs(*numbers: str) -> bool:
        return {box.state(number) for number in numbers} == {"RUNNING"}

    alone = {kind: submit(box, kind, 45.0, "vc-a") for kind in GPU}
    for number in alone.values():
        box.wait("it is measured", lambda n=number: "measured on its node" in lucidd.ctl("explain", n), 60)  # type: ignore[misc]
    print(lucidd.ctl("explain", alone["reads"]))
    box.wait_ended(*alone.values(), limit_s=90)
    reads, spins, computes = (shares_of(lucidd, alone[kind]) for kind in ("reads", "spins", "computes"))
    print(reads, spins, computes, sep="\n")
    assert reads.storage is not None
    assert reads.storage_by in ("states of processes", "delays of block I/O")
    assert reads.storage > 0.3, "on a busy machine; 0.8 on a quiet one"
    assert reads.storage > max(reads.cpu, reads.gpu)
    assert 0.3 < spins.cpu < 0.95
    assert (spins.storage or 0.0) < 0.2
    assert computes.gpu == pytest.approx(0.92, abs=0.02)
    assert max(computes.cpu, computes.storage or 0.0) < 0.2

    rigid = box.sbatch("-p", "vc-b", "--gres=gpu:3", script="sleep 75; echo DONE")
    box.wait("it runs", lambda: runs(rigid))
    first = submit(box, "computes", 35.0)
    box.wait("it runs", lambda: runs(first))
    second, joins = submit(box, "computes", 3.0), submit(box, "reads", 12.0)
    box.wait("it runs beside the first", lambda: runs(first, joins), 60)
    box.wait("it is told why it waits", lambda: "would share its GPUs" in lucidd.ctl("explain", second), 40)
    story, refusal = lucidd.ctl("explain", joins), lucidd.ctl("explain", second)
    print(story, refusal)
    box.wait_ended(first, second, joins, rigid, limit_s=150)
    numbers = (first, second, joins, rigid, *alone.values())
    assert {(box.state(number), box.job(number)["restart_cnt"]) for number in numbers} == {("COMPLETED", 0)}
    on = {number: re.findall(r"TURNS (\S+)", box.output(number))[-1] for number in (first, joins)}
    assert on[first] == on[joins], "on one GPU"
    assert "shares its GPUs" in story
    assert "more than 33%" in refusal
    assert box.job(second)["start_time"]["number"] >= box.job(first)["end_time"]["number"], "two of one kind"
