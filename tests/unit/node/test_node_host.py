"""CPU time and waits for storage of a job, from its control group: both versions, and what can be wrong with them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from lucid.node.host_use import Host
from lucid.profiler.shape import HostUse

TICKS = os.sysconf("SC_CLK_TCK")


class Machine:
    """A /proc and a /sys/fs/cgroup. ``cpu_s``, ``stalled_s``: what the counters of job 7 say."""

    def __init__(self, folder: Path, version: int, pressure: bool = True, delays: str | None = "0") -> None:
        self.proc, self.groups, self.version, self.pressure = folder / "proc", folder / "cgroup", version, pressure
        if delays is not None:
            self.write(self.proc / "sys/kernel/task_delayacct", delays + "\n")
        self.lines = (
            "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n"
            if version == 2
            else "9:name=systemd:/x\n7:freezer:/slurm/uid_5/job_7/step_0\n"
            "5:cpu,cpuacct:/slurm/uid_5/job_7/step_0/task_0\n3:cpuset:/slurm/uid_5/job_7/step_0\n0::/\n"
        )
        self.write(self.proc / "500/cgroup", self.lines)
        self.job = self.groups / (
            "system.slice/slurmstepd.scope/job_7" if version == 2 else "freezer/slurm/uid_5/job_7"
        )
        self.accounts = self.groups / "cpu,cpuacct/slurm/uid_5/job_7"
        self.counters(0.0, 0.0)
        self.processes(500)
        self.stat(500)
        cpuset = "cpuset.cpus.effective" if version == 2 else "cpuset.cpus"
        place = self.job if version == 2 else self.groups / "cpuset/slurm/uid_5/job_7"
        self.write(place / cpuset, "0-2,8\n")
        self.host = Host(self.proc, self.groups)

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def counters(self, cpu_s: float, stalled_s: float = 0.0) -> None:
        if self.version == 2:
            self.write(self.job / "cpu.stat", f"usage_usec {cpu_s * 1e6:.0f}\nuser_usec 1\nsystem_usec 2\n")
            total = f"{stalled_s * 1e6:.0f}"
            if self.pressure:
                text = f"some avg10=0.00 avg60=0.00 avg300=0.00 total={total}\nfull avg10=0.00 avg60=1.00 total=7\n"
                self.write(self.job / "io.pressure", text)
        else:
            self.write(self.accounts / "cpuacct.usage", f"{cpu_s * 1e9:.0f}\n")

    def processes(self, *pids: int) -> None:
        self.write(self.job / "step_0/cgroup.procs", "".join(f"{pid}\n" for pid in pids))

    def stat(
        self, pid: int, state: str = "S", delay_s: float = 0.0, cpu_s: float = 0.0, name: str = "a) D (b\n"
    ) -> None:
        fields = ["0"] * 50
        fields[0], fields[11], fields[39] = state, f"{cpu_s * TICKS:.0f}", f"{delay_s * TICKS:.0f}"
        self.write(self.proc / f"{pid}/stat", f"{pid} ({name}) {' '.join(fields)}\n")

    def use(self, now_s: float, pids: tuple[int, ...] = (500,)) -> HostUse | None:
        return self.host.use("a", "7", pids, now_s)


@pytest.mark.parametrize("version", [1, 2])
def test_memory_is_what_processes_hold_without_caches(version: int, tmp_path: Path) -> None:
    machine = Machine(tmp_path, version)
    place = machine.job if version == 2 else machine.groups / "memory/slurm/uid_5/job_7"
    key = "anon" if version == 2 else "total_rss"
    if version == 1:
        machine.write(machine.proc / "500/cgroup", f"{machine.lines}4:memory:/slurm/uid_5/job_7/step_0\n")
    machine.write(place / "memory.stat", f"rss 7\ncache 99999999\n{key} {300 << 20}\ntotal_cache 5\n")
    machine.use(0.0)
    assert machine.host.held_mib("a") == 300.0
    machine.write(place / "memory.stat", "garbled")
    machine.use(11.0)
    assert machine.host.held_mib("a") is None
    assert machine.host.held_mib("nobody") is None


def test_version_two_tells_cpu_time_and_pressure(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 2)
    assert machine.use(0.0) is None, "nothing to compare with"
    machine.counters(3.0, 0.5)
    assert machine.use(2.0) == HostUse(1.5, 4, 0.25, "io.pressure")
    machine.counters(3.0, 9.0)
    assert machine.use(3.0) == HostUse(0.0, 4, 1.0, "io.pressure"), "no more than all of the time"


def test_version_one_tells_cpu_time_and_the_states_of_processes(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 1)
    assert machine.use(0.0) is None
    machine.counters(0.5)
    machine.stat(500, "D")
    assert machine.use(1.0) == HostUse(0.5, 4, 0.0, "states of processes"), "it is looked every other second"
    assert machine.use(2.0) == HostUse(0.0, 4, 1.0, "states of processes")
    machine.stat(500, "R")
    assert machine.use(3.0) == HostUse(0.0, 4, 1.0, "states of processes")
    assert machine.use(4.0) == HostUse(0.0, 4, 0.0, "states of processes")


@pytest.mark.parametrize("version", [1, 2])
def test_delays_of_processes_where_the_kernel_counts_them(tmp_path: Path, version: int) -> None:
    machine = Machine(tmp_path, version, pressure=False, delays="1")
    machine.processes(500, 501)
    machine.stat(501)
    machine.use(0.0)
    machine.stat(500, delay_s=0.5)
    machine.stat(501, "D", delay_s=1.0)
    machine.counters(1.0)
    assert machine.use(1.0) == HostUse(1.0, 4), "one look tells nothing yet"
    assert machine.use(2.0) == HostUse(0.0, 4, 0.75, "delays of block I/O")
    assert machine.use(3.0) == HostUse(0.0, 4, 0.75, "delays of block I/O")
    assert machine.use(4.0) == HostUse(0.0, 4, 0.0, "delays of block I/O")


@pytest.mark.parametrize(("ticks", "how"), [(30, "delays of block I/O"), (0, "states of processes")])
def test_a_kernel_that_does_not_say_whether_it_counts_delays(tmp_path: Path, ticks: int, how: str) -> None:
    machine = Machine(tmp_path, 1, delays=None)
    machine.stat(1, delay_s=ticks / TICKS)
    machine.host = Host(machine.proc, machine.groups)
    machine.use(0.0)
    found = machine.use(2.0)
    assert found.storage_by == how


def test_version_one_without_accounts_counts_the_time_of_processes_that_are_still_there(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 1)
    shutil.rmtree(machine.accounts)
    machine.processes(500, 501, 502)
    machine.stat(501, cpu_s=90.0)
    machine.use(0.0)
    machine.stat(500, cpu_s=0.5)
    (machine.proc / "501/stat").unlink()
    machine.stat(502, cpu_s=80.0)
    assert machine.use(1.0) is None
    found = machine.use(2.0)
    assert found.busy_cores == 0.25


def test_a_group_without_pressure_or_processes_tells_no_storage(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 2, pressure=False)
    machine.processes()
    machine.use(0.0)
    machine.counters(1.0)
    assert machine.use(1.0) == HostUse(1.0, 4)


def test_pressure_that_is_switched_off_is_not_taken_for_no_waits(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 2)
    (machine.job / "io.pressure").write_text("")
    machine.use(0.0)
    found = machine.use(1.0)
    assert found.storage_by == "states of processes"


def test_counters_that_go_backwards_tell_nothing_once(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 2)
    machine.counters(100.0, 50.0)
    machine.use(0.0)
    machine.counters(1.0, 50.0)
    assert machine.use(1.0) is None
    machine.counters(1.5, 10.0)
    assert machine.use(2.0) == HostUse(0.5, 4), "and storage is not known"
    machine.counters(2.0, 10.5)
    assert machine.use(3.0) == HostUse(0.5, 4, 0.5, "io.pressure")


def test_a_group_that_vanishes_is_found_again(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 2)
    machine.use(0.0)
    shutil.rmtree(machine.job)
    assert machine.use(1.0) is None
    assert machine.use(2.0) is None
    machine.counters(5.0)
    assert machine.use(3.0) is None, "it is looked for again some seconds later"
    assert machine.use(12.0) is None
    machine.counters(5.5)
    found = machine.use(13.0)
    assert found.busy_cores == 0.5


@pytest.mark.parametrize("times", [(0.0, 0.0), (5.0, 1.0), (0.0, 3600.0)])
def test_a_clock_that_stands_still_goes_back_or_leaps_tells_nothing(
    tmp_path: Path, times: tuple[float, float]
) -> None:
    machine = Machine(tmp_path, 2)
    machine.use(times[0])
    machine.counters(1.0)
    assert machine.use(times[1]) is None


@pytest.mark.parametrize(
    "lines",
    [
        "", "rubbish", "0::/user.slice\n", "0::/system.slice/slurmstepd.scope/job_8/step_0\n",
        "0::/system.slice/slurmstepd.scope/job_77\n", "0::/../../system.slice/slurmstepd.scope/job_7\n",
        "0::/system.slice/slurmstepd.scope/job_7x/step_0\n", "0::/system.slice/job_7/step_0\n", "\x00::\xff\n" * 9,
    ],
)  # fmt: skip
def test_a_process_that_is_in_no_group_of_this_job(tmp_path: Path, lines: str) -> None:
    """A process id is another job's by now, there are no control groups, or the path leads out of them."""
    machine = Machine(tmp_path, 2)
    machine.write(machine.proc / "500/cgroup", lines)
    machine.use(0.0)
    machine.counters(1.0)
    assert machine.use(1.0) is None
    assert machine.use(2.0, pids=()) is None
    assert machine.use(3.0, pids=(-1, 10**9)) is None


def test_a_group_that_is_named_by_sluid(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 2)
    machine.job.rename(machine.job.parent / "s5H9M8071CEN00")
    machine.job = machine.job.parent / "s5H9M8071CEN00"
    machine.write(machine.proc / "500/cgroup", "0::/system.slice/slurmstepd.scope/s5H9M8071CEN00/step_batch/user\n")
    machine.use(0.0)
    machine.counters(1.0)
    assert machine.use(1.0) == HostUse(1.0, 4, 0.0, "io.pressure")


@pytest.mark.parametrize("text", ["", "usage_usec -5\n", "usage_usec 1e9\n", "nr_periods 7\n", "usage_usec \xff\n"])
def test_rubbish_in_counters_is_unknown(tmp_path: Path, text: str) -> None:
    machine = Machine(tmp_path, 2)
    machine.use(0.0)
    (machine.job / "cpu.stat").write_text(text)
    assert machine.use(1.0) is None
    machine.counters(1.0)
    assert machine.use(2.0) is None
    machine.counters(2.0)
    assert machine.use(3.0) is not None


@pytest.mark.parametrize(
    ("text", "cores"), [("0-2,8\n", 4), ("5\n", 1), ("", 0), ("x-y", 0), ("0-999999999999999", 0)]
)
def test_cores_by_cpuset_else_by_affinity(tmp_path: Path, text: str, cores: int) -> None:
    machine = Machine(tmp_path, 2)
    (machine.job / "cpuset.cpus.effective").write_text(text)
    machine.write(machine.proc / "500/status", "Name:\ta\nCpus_allowed_list:\t0-1\n")
    machine.use(0.0)
    machine.counters(1.0)
    found = machine.use(1.0)
    assert found is not None
    assert found.cores == (cores or 2)


def test_rubbish_among_the_processes_and_a_crowd_of_them(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 1)
    machine.processes(500, *range(1000, 2000))
    with (machine.job / "step_0/cgroup.procs").open("a") as file:
        file.write("-7\nx\n" + "9" * 400 + "\n")
    (machine.job / "step_0/1/cgroup.procs").parent.mkdir()
    os.mkfifo(machine.job / "step_0/1/cgroup.procs")
    machine.write(machine.proc / "1000/stat", "1000 (x) D rubbish")
    machine.use(0.0)
    machine.counters(0.5)
    found = machine.use(1.0)
    assert (found.busy_cores, found.storage) == (0.5, 0.0)


def test_jobs_that_have_ended_are_forgotten(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 2)
    machine.use(0.0)
    machine.host.forget_all_but(["b"])
    machine.counters(1.0)
    assert machine.use(1.0) is None


def test_the_machine_that_this_runs_on() -> None:
    """Whatever it has: nothing fails."""
    host = Host()
    found: list[Any] = [host.use("a", "7", (os.getpid(),), at) for at in (0.0, 1.0)]
    assert found[0] is None
