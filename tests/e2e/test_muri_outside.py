"""Jobs that call nothing, on a real Slurm with control groups: their nodes measure what they do, and they make pairs.

CPU time and waits for storage are real, and so are the sampler and what it reads. What their GPUs do is made up by
the kind of job, for nothing here has a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from box import Box
from daemon_box import Lucidd
from sampler_box import Emulated, SamplerBeside
from testbeds import own_testbed

from lucid.core.gpu import GpuProcess, GpuReading
from lucid.core.job import TimeShares
from lucid.node.processes import JobSpec
from lucid.node.reports import read_summary
from testbed import cli

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


class Meeting(Emulated):
    """GPUs named by the folder in which the jobs on them meet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: set[str] = set()

    def told(self) -> dict[str, tuple[int, str, str]]:
        """Of each job that runs: its process, its kind and its GPU, as it said itself."""
        found = {}
        for number in self.running:
            words = (self.folder / f"outside-{number}.pid").read_text().split() if self.has(number) else []
            if len(words) == 3:
                found[number] = int(words[0]), words[1], words[2]
        return found

    def has(self, number: str) -> bool:
        return (self.folder / f"outside-{number}.pid").exists()

    def saw(self, running: Mapping[str, Mapping[str, Any]]) -> None:
        self.running = set(running)

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


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    with own_testbed("outside", LUCID_TESTBED_SLOTS="4", LUCID_TESTBED_CGROUP="v1") as layout:
        cli.up(layout, print)
        made = Box(layout.root)
        (made.root / "etc/slurm/lucid/node.conf").write_text("daemon lucid\nlimit 5\n")
        (made.root / "tmp/outside.py").write_text(WORK)
        yield made


@pytest.fixture
def lucidd(box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lucidd]:
    """One whose own stand-in for a sampler tells nothing: the real one does."""
    monkeypatch.setattr(Lucidd, "_sample", lambda self: None)
    folder = box.root / REPORTS
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o1777)
    more = ("lease_s = 6", 'policy = "muri-l"', "[daemon.elastic]", f'reports_dir = "{folder}"')
    daemon = Lucidd(box, tmp_path / "state", restarts="", more="\n".join(more))
    daemon.start()
    beside = SamplerBeside(box, tmp_path, daemon.profiles, Meeting(box.root / "tmp"))
    yield daemon
    beside.close()
    daemon.close()
    box.clear()


def submit(box: Box, kind: str, seconds: float, where: str = "vc-b") -> str:
    return box.sbatch(
        "-p", where, "--gres=gpu:1", f"--job-name={kind}", "--comment=lucid:turns",
        script=f"echo TURNS $LUCID_TURNS; exec python3 /tmp/outside.py {kind} {seconds}",
    )  # fmt: skip


def span(box: Box, number: str) -> tuple[float, float]:
    job = box.job(number)
    return job["start_time"]["number"], job["end_time"]["number"]


def shares_of(lucidd: Lucidd, number: str) -> TimeShares:
    profile = read_summary(lucidd.profiles / f"{number}.json").profile
    assert profile is not None
    assert profile.shares is not None
    return profile.shares


@pytest.mark.slow
def test_jobs_that_call_nothing_are_measured_and_paired(box: Box, lucidd: Lucidd) -> None:
    alone = {kind: submit(box, kind, 45.0, "vc-a") for kind in GPU}
    for number in alone.values():
        box.wait(
            "it is measured",
            lambda number=number: "measured on its node" in lucidd.ctl("explain", number),  # type: ignore[misc]
            60,
        )
    print(lucidd.ctl("explain", alone["reads"]))
    box.wait_ended(*alone.values(), limit_s=90)
    reads, spins, computes = (shares_of(lucidd, alone[kind]) for kind in ("reads", "spins", "computes"))
    print(reads, spins, computes, sep="\n")
    assert reads.storage is not None
    assert reads.storage_by in ("states of processes", "delays of block I/O")
    assert reads.storage > 0.5
    assert reads.storage > max(reads.cpu, reads.gpu)
    assert 0.5 < spins.cpu < 0.95
    assert (spins.storage or 0.0) < 0.2
    assert computes.gpu == pytest.approx(0.92, abs=0.02)
    assert max(computes.cpu, computes.storage or 0.0) < 0.2

    rigid = box.sbatch("-p", "vc-b", "--gres=gpu:3", script="sleep 75; echo DONE")
    box.wait("it runs", lambda: box.state(rigid) == "RUNNING")
    first = submit(box, "computes", 35.0)
    box.wait("it runs", lambda: box.state(first) == "RUNNING")
    second = submit(box, "computes", 3.0)
    joins = submit(box, "reads", 12.0)
    box.wait("it runs beside the first", lambda: {box.state(n) for n in (first, joins)} == {"RUNNING"}, 60)
    box.wait("it is told why it waits", lambda: "would share its GPUs" in lucidd.ctl("explain", second), 40)
    story, refusal = lucidd.ctl("explain", joins), lucidd.ctl("explain", second)
    print(story, refusal)
    box.wait_ended(first, second, joins, rigid, limit_s=150)
    numbers = (first, second, joins, rigid, *alone.values())
    print({number: span(box, number) for number in numbers})
    assert {box.state(number) for number in numbers} == {"COMPLETED"}
    assert {box.job(number)["restart_cnt"] for number in numbers} == {0}, "nobody was stopped"
    on = {number: re.findall(r"TURNS (\S+)", box.output(number))[-1] for number in (first, second, joins)}
    assert on[first] == on[joins], "on one GPU"
    assert "shares its GPUs" in story
    assert "more than 33%" in refusal
    assert span(box, second)[0] >= span(box, first)[1], "two of one kind never shared"
