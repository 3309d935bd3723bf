"""Who owns processes on a node, and the hooks that tell it."""

from __future__ import annotations

import ast
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lucid.node.host_use import Host
from lucid.node.processes import Owners
from lucid.profiler.shape import HostUse
from lucid_hooks.processes import Deadline, Process, alive, below, run_as, seen, signal_as
from lucid_hooks.state import State, Unsafe


def process(
    proc: Path, pid: int, parent: int = 1, cgroup: str = "0::/user.slice\n", command: str = "python\0a", **more: str
) -> None:
    """``more``: environ, exe; uid, real and saved, as ``1000`` or ``1000 0``; a slurmstepd is root's unless told."""
    folder = proc / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    step = command.startswith("slurmstepd")
    real, _, saved = more.get("uid", "0" if step else "1000").partition(" ")
    (folder / "status").write_text(f"Name:\ta\nUid:\t{real}\t0\t{saved or real}\t0\nGid:\t1\t1\t1\t1\n")
    (folder / "exe").unlink(missing_ok=True)
    (folder / "exe").symlink_to(more.get("exe", "/usr/sbin/slurmstepd" if step else "/usr/bin/python3"))
    (folder / "stat").write_text(f"{pid} (a) b) S {parent} {'0 ' * 17}4242 0\n")
    (folder / "cgroup").write_text(cgroup)
    (folder / "cmdline").write_text(command)
    (folder / "environ").write_text(more.get("environ", ""))


def test_by_slurms_control_group(tmp_path: Path) -> None:
    process(tmp_path, 500, cgroup=step("job_77"))
    process(tmp_path, 501, cgroup="11:memory:/slurm/uid_1/job_77/step_0\n4:devices:/slurm/uid_1/job_77\n0::/\n")
    assert [Owners(tmp_path).job_of(pid, {}) for pid in (500, 501)] == ["77", "77"]


def test_by_the_outermost_slurmstepd_among_the_ancestors(tmp_path: Path) -> None:
    """Of several, Slurm's own is the outermost."""
    process(tmp_path, 300, command="slurmstepd: [7.batch]\0")
    process(tmp_path, 301, 300)
    process(tmp_path, 302, 301)
    assert Owners(tmp_path).job_of(302, {}) == "7"
    process(tmp_path, 400, 301, command="slurmstepd: [4242.batch]\0")
    process(tmp_path, 401, 400)
    assert Owners(tmp_path).job_of(401, {}) == "7"


CLAIMS = [{"uid": "1000"}, {"uid": "1000 0"}, {"exe": "/eve/slurmstepd2"}, {"uid": "1000", "exe": "/eve/slurmstepd"}]
"""The second is a setuid program that a user started under this name."""


@pytest.mark.parametrize("claim", CLAIMS, ids=str)
def test_a_process_that_only_calls_itself_slurmstepd_is_nobodys_step(tmp_path: Path, claim: dict[str, str]) -> None:
    process(tmp_path, 400, command="slurmstepd: [4242.batch]\0", **claim)
    process(tmp_path, 401, 400)
    assert Owners(tmp_path).job_of(401, {}) is None
    process(tmp_path, 410, command="slurmstepd: [4242.batch]\0", cgroup=step(SLUID), **claim)
    process(tmp_path, 411, cgroup=step(SLUID))
    assert Owners(tmp_path).job_of(411, {}) is None


SLUID = "s5H9M8071CEN00"
"""As Slurm 26.05.5 gave its first job on the testbed."""


def step(sluid: str) -> str:
    return f"0::/system.slice/slurmstepd.scope/{sluid}/step_batch/user/task_0\n"


def test_by_the_step_daemon_in_a_control_group_that_is_named_by_sluid(tmp_path: Path) -> None:
    process(tmp_path, 400, command="slurmstepd: [78.batch]\0", cgroup=step(SLUID).replace("user/task_0", "slurm"))
    process(tmp_path, 410, command="slurmstepd: [79.batch]\0", cgroup=step("s5H9M8071CEN01"))
    process(tmp_path, 402, cgroup=step(SLUID), environ=f"SLURM_JOB_ID=99\0SLURM_JOB_SLUID={SLUID}\0")
    owners = Owners(tmp_path)
    assert owners.job_of(402, {}) == "78"  # what a user may write into an environment does not count
    (tmp_path / "400/cmdline").unlink()
    process(tmp_path, 403, cgroup=step(SLUID))
    assert owners.job_of(403, {}) == "78"  # a SLUID never becomes another job's


def test_by_the_environment_in_the_same_control_group_where_no_step_daemon_is_seen(tmp_path: Path) -> None:
    process(tmp_path, 402, cgroup=step(SLUID))
    owners = Owners(tmp_path)
    assert owners.job_of(402, {}) is None
    process(tmp_path, 401, environ=f"SLURM_JOB_ID=5\0SLURM_JOB_SLUID={SLUID}\0")  # in no control group of the job's
    process(tmp_path, 403, cgroup=step(SLUID), environ="SLURM_JOB_ID=6\0SLURM_JOB_SLUID=s5H9M8071CEN01\0")
    assert owners.job_of(402, {}) is None
    process(tmp_path, 404, cgroup=step(SLUID), environ=f"A=b\0SLURM_JOB_ID=78\0SLURM_JOB_SLUID={SLUID}\0")
    assert owners.job_of(402, {}) == "78"  # nothing was known before: it is looked for again


@pytest.mark.parametrize("name", ["sshd.service", "s5H9M8071CEN0", "s5H9M8071CENI0", "S5H9M8071CEN00"])
def test_other_control_groups_are_no_sluid(tmp_path: Path, name: str) -> None:
    process(tmp_path, 400, command="slurmstepd: [78.batch]\0", cgroup=f"0::/{name}\n")
    process(tmp_path, 402, cgroup=f"0::/{name}\n")
    assert [Owners(tmp_path).job_of(pid, {}) for pid in (402, 403)] == [None, None], "one is nobody's, one is gone"


def test_a_number_used_again_is_another_process(tmp_path: Path) -> None:
    process(tmp_path, 500, cgroup=step("job_1"))
    owners = Owners(tmp_path)
    assert owners.job_of(500, {}) == "1"
    process(tmp_path, 500, cgroup=step("job_2"))
    assert owners.job_of(500, {}) == "1"  # the same start time: the same process
    stat = tmp_path / "500" / "stat"
    stat.write_text(stat.read_text().replace("4242", "4343"))
    assert owners.job_of(500, {}) == "2"


HOOKS = Path(__file__).parents[3] / "slurm" / "lucid_hooks"
ME = os.getuid()
NOBODY = 65534
root = pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")


def found(pid: int) -> Process:
    process = seen(pid)
    assert process is not None
    return process


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "300"])
    while Path(f"/proc/{process.pid}/exe").resolve().name == Path(sys.executable).resolve().name:
        time.sleep(0.01)
    yield process
    process.kill()
    process.wait()


def test_a_signal_reaches_the_very_process_that_was_written_down(sleeper: subprocess.Popen[bytes]) -> None:
    process = found(sleeper.pid)
    for other in (replace(process, started=process.started - 1), replace(process, uid=NOBODY - 1)):
        assert not signal_as(other, signal.SIGKILL)  # the number was used again, or is somebody else's
        assert not alive(other)
    assert sleeper.poll() is None
    assert signal_as(process, signal.SIGKILL)
    assert sleeper.wait(30) == -signal.SIGKILL
    assert not signal_as(process, signal.SIGKILL)


@root
def test_a_signal_is_sent_as_the_processs_user(sleeper: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where root took a process of its own for a user's."""
    process = replace(found(sleeper.pid), uid=NOBODY)
    monkeypatch.setattr("lucid_hooks.processes.alive", lambda _: True)
    assert not signal_as(process, signal.SIGKILL)
    time.sleep(0.1)
    assert sleeper.poll() is None


def test_an_answer_is_cut_off_in_length_and_in_time() -> None:
    def ran(*words: str, seconds: float = 20, told: str = "") -> Any:
        return run_as(ME, [*words], {"PATH": os.defpath}, Deadline(seconds), told)

    long = ran("yes", "4242")
    assert long.code is None
    assert 65536 <= len(long.text) <= 65536 + 8192
    began = time.monotonic()
    assert ran("sleep", "300", seconds=0.2) == ran("sh", "-c", "exec >&-; sleep 300", seconds=0.2)
    assert time.monotonic() - began < 60
    assert ran("sh", "-c", "cat; exit 3", told="a\n").text == "a\n"
    assert ran("no-such-program").code is None


def test_servers_are_found_below_their_daemon_and_not_by_its_word() -> None:
    script = "sleep 301 & setsid sleep 302 & echo ready; wait"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True) as daemon:
        daemon.stdout.readline()
        process = found(daemon.pid)
        deadline = Deadline(30)
        while len(children := below(process, "server")) < 2 and deadline.left():
            time.sleep(0.05)
        assert len(children) == 2, "one in its session, and one that left it"
        assert process not in children
        daemon.kill()
        daemon.wait()
        assert below(process, "server") == [], "whose number the session's was is another's by now"
        assert [Path(child.exe).name for child in below(process, Path(children[0].exe).name)] in ([], ["sleep"])
        for child in children:
            assert signal_as(child, signal.SIGKILL)


@root
def test_root_keeps_nothing_in_a_folder_that_others_can_change(tmp_path: Path) -> None:
    for name in ("theirs", "open"):
        (tmp_path / name).mkdir()
    os.chown(tmp_path / "theirs", NOBODY, -1)
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path / "theirs")
    for name, says in (("theirs", "belongs to user 65534"), ("open", "others may write"), ("link", ".")):
        with pytest.raises(Unsafe, match=says):
            State(tmp_path / name / "mps").prepare()
    State(tmp_path / "mine").prepare()


def test_the_hooks_run_on_an_old_and_on_a_minimal_python() -> None:
    """3.9's grammar; and no module that Debian's python3-minimal lacks."""
    lacking = {"shutil", "tempfile", "tomllib", "logging", "socket", "typing_extensions", "lucid"}
    for path in HOOKS.glob("*.py"):
        tree = ast.parse(path.read_text(), feature_version=(3, 9))
        named = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        named |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not {name.partition(".")[0] for name in named} & lacking, path


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
        job = "system.slice/slurmstepd.scope/job_7"
        self.job = self.groups / (job if version == 2 else "freezer/slurm/uid_5/job_7")
        self.accounts = self.groups / "cpu,cpuacct/slurm/uid_5/job_7"
        self.counters(0.0, 0.0)
        self.processes(500)
        self.stat(500)
        cpuset = f"{job}/cpuset.cpus.effective" if version == 2 else "cpuset/slurm/uid_5/job_7/cpuset.cpus"
        self.write(self.groups / cpuset, "0-2,8\n")
        self.host = Host(self.proc, self.groups)

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def counters(self, cpu_s: float, stalled_s: float = 0.0) -> None:
        if self.version == 2:
            self.write(self.job / "cpu.stat", f"usage_usec {cpu_s * 1e6:.0f}\nuser_usec 1\nsystem_usec 2\n")
            text = f"some avg10=0.00 avg60=0.00 avg300=0.00 total={stalled_s * 1e6:.0f}\n"
            if self.pressure:
                self.write(self.job / "io.pressure", f"{text}full avg10=0.00 avg60=1.00 total=7\n")
        else:
            self.write(self.accounts / "cpuacct.usage", f"{cpu_s * 1e9:.0f}\n")

    def processes(self, *pids: int) -> None:
        self.write(self.job / "step_0/cgroup.procs", "".join(f"{pid}\n" for pid in pids))

    def stat(self, pid: int, state: str = "S", delay_s: float = 0.0, cpu_s: float = 0.0) -> None:
        fields = ["0"] * 50
        fields[0], fields[11], fields[39] = state, f"{cpu_s * TICKS:.0f}", f"{delay_s * TICKS:.0f}"
        self.write(self.proc / f"{pid}/stat", f"{pid} (a) D (b\n) {' '.join(fields)}\n")

    def second(self, cpu_s: float = 1.0) -> Any:
        """What the first second tells, in which the job had so much CPU time."""
        self.use(0.0)
        self.counters(cpu_s)
        return self.use(1.0)

    def use(self, now_s: float, pids: tuple[int, ...] = (500,)) -> Any:
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


def test_version_two_tells_cpu_time_and_pressure_and_nothing_once_where_they_go_backwards(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 2)
    assert machine.use(0.0) is None, "nothing to compare with"
    machine.counters(3.0, 0.5)
    assert machine.use(2.0) == HostUse(1.5, 4, 0.25, "io.pressure")
    machine.counters(3.0, 9.0)
    assert machine.use(3.0) == HostUse(0.0, 4, 1.0, "io.pressure"), "no more than all of the time"
    for cpu_s, stalled_s, now_s, told in (
        (1.0, 9.0, 4.0, None),
        (1.5, 1.0, 5.0, HostUse(0.5, 4)),  # and storage is not known
        (2.0, 1.5, 6.0, HostUse(0.5, 4, 0.5, "io.pressure")),
    ):
        machine.counters(cpu_s, stalled_s)
        assert machine.use(now_s) == told


def test_version_one_tells_cpu_time_and_the_states_of_processes(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 1)
    assert machine.use(0.0) is None
    machine.counters(0.5)
    machine.stat(500, "D")
    assert machine.use(1.0) == HostUse(0.5, 4, 0.0, "states of processes"), "it is looked every other second"
    for now_s, state, storage in ((2.0, "R", 1.0), (3.0, "R", 1.0), (4.0, "R", 0.0)):
        assert machine.use(now_s) == HostUse(0.0, 4, storage, "states of processes")
        machine.stat(500, state)


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
    assert machine.use(2.0).storage_by == how


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
    assert machine.use(2.0).busy_cores == 0.25


def test_pressure_that_is_switched_off_is_not_taken_for_no_waits(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "off", 2)
    (machine.job / "io.pressure").write_text("")
    assert machine.second() == HostUse(1.0, 4, 0.0, "states of processes")
    without_processes = Machine(tmp_path / "none", 2, pressure=False)
    without_processes.processes()
    assert without_processes.second() == HostUse(1.0, 4), "nothing tells of storage"


ODD: list[tuple[float, float, str | None]] = [
    (0.0, 0.0, None), (5.0, 1.0, None), (0.0, 3600.0, None),
    *((0.0, 1.0, text) for text in ("", "usage_usec -5\n", "usage_usec 1e9\n", "nr_periods 7\n", "usage_usec \xff")),
]  # fmt: skip


@pytest.mark.parametrize(("first_s", "then_s", "text"), ODD)
def test_an_odd_clock_or_counter_tells_nothing_once(tmp_path: Path, first_s: float, then_s: float, text: Any) -> None:
    """The clock stands still, goes back or leaps; the counter is rubbish."""
    machine = Machine(tmp_path, 2)
    machine.use(first_s)
    machine.counters(1.0)
    if text is not None:
        (machine.job / "cpu.stat").write_text(text)
    assert machine.use(then_s) is None
    machine.counters(2.0)
    assert (machine.use(then_s + 1.0) is None) is (text is not None)
    machine.counters(3.0)
    assert machine.use(then_s + 2.0) is not None
    machine.host.forget_all_but(["b"])
    machine.counters(4.0)
    assert machine.use(then_s + 3.0) is None, "a job that has ended is forgotten"


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
    assert machine.use(13.0).busy_cores == 0.5


OTHERS = [*map(step, ("job_8", "job_77", "job_7x")), "0::/../../system.slice/slurmstepd.scope/job_7\n"]
OTHERS += ["", "rubbish", "0::/user.slice\n", "0::/system.slice/job_7/step_0\n", "\x00::\xff\n" * 9]


@pytest.mark.parametrize("lines", OTHERS)
def test_a_process_that_is_in_no_group_of_this_job(tmp_path: Path, lines: str) -> None:
    """A process id is another job's by now, there are no control groups, or the path leads out of them."""
    machine = Machine(tmp_path, 2)
    machine.write(machine.proc / "500/cgroup", lines)
    assert machine.second() is None
    assert machine.use(2.0, pids=()) is None
    assert machine.use(3.0, pids=(-1, 10**9)) is None


def test_a_group_that_is_named_by_sluid(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 2)
    machine.job = machine.job.rename(machine.job.parent / SLUID)
    machine.write(machine.proc / "500/cgroup", step(SLUID))
    assert machine.second() == HostUse(1.0, 4, 0.0, "io.pressure")


@pytest.mark.parametrize(("text", "cores"), [("0-2,8\n", 4), ("5\n", 1), ("", 2), ("x-y", 2), ("0-999999999999", 2)])
def test_cores_by_cpuset_else_by_affinity(tmp_path: Path, text: str, cores: int) -> None:
    machine = Machine(tmp_path, 2)
    (machine.job / "cpuset.cpus.effective").write_text(text)
    machine.write(machine.proc / "500/status", "Name:\ta\nCpus_allowed_list:\t0-1\n")
    assert machine.second().cores == cores


def test_rubbish_among_the_processes_and_a_crowd_of_them(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 1)
    machine.processes(500, *range(1000, 2000))
    with (machine.job / "step_0/cgroup.procs").open("a") as file:
        file.write("-7\nx\n" + "9" * 400 + "\n")
    (machine.job / "step_0/1/cgroup.procs").parent.mkdir()
    os.mkfifo(machine.job / "step_0/1/cgroup.procs")
    machine.write(machine.proc / "1000/stat", "1000 (x) D rubbish")
    found = machine.second(0.5)
    assert (found.busy_cores, found.storage) == (0.5, 0.0)


def test_the_machine_that_this_runs_on() -> None:
    """Whatever it has: nothing fails."""
    assert Owners().job_of(os.getpid(), {os.getppid(): "mine"}) == "mine"
    host = Host()
    assert host.use("a", "7", (os.getpid(),), 0.0) is None
    host.use("a", "7", (os.getpid(),), 1.0)
