"""Who owns processes on a node, and the hooks that tell it."""

from __future__ import annotations

import ast
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
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
    proc: Path,
    pid: int,
    parent: int = 1,
    cgroup: str = "0::/user.slice\n",
    command: str = "python\0a.py",
    environ: str = "",
    uid: str = "",
    exe: str = "",
) -> None:
    """``uid``: real and saved, as ``1000`` or ``1000 0``; a slurmstepd is root's unless told."""
    folder = proc / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    step = command.startswith("slurmstepd")
    real, _, saved = (uid or ("0" if step else "1000")).partition(" ")
    (folder / "status").write_text(f"Name:\ta\nUid:\t{real}\t0\t{saved or real}\t0\nGid:\t1\t1\t1\t1\n")
    (folder / "exe").unlink(missing_ok=True)
    (folder / "exe").symlink_to(exe or ("/usr/sbin/slurmstepd" if step else "/usr/bin/python3"))
    rest = " ".join(["0"] * 17)
    (folder / "stat").write_text(f"{pid} (a) b) S {parent} {rest} 4242 0\n")
    (folder / "cgroup").write_text(cgroup)
    (folder / "cmdline").write_text(command)
    (folder / "environ").write_text(environ)


@pytest.mark.parametrize(
    "cgroup",
    [
        "0::/system.slice/slurmstepd.scope/job_77/step_batch/user/task_0\n",
        "11:memory:/slurm/uid_1000/job_77/step_0\n4:devices:/slurm/uid_1000/job_77\n0::/\n",
    ],
)
def test_by_slurms_control_group(tmp_path: Path, cgroup: str) -> None:
    process(tmp_path, 500, cgroup=cgroup)
    assert Owners(tmp_path).job_of(500, {}) == "77"


def test_by_the_outermost_slurmstepd_among_the_ancestors(tmp_path: Path) -> None:
    """Of several, Slurm's own is the outermost."""
    process(tmp_path, 300, command="slurmstepd: [7.batch]\0")
    process(tmp_path, 301, 300)
    process(tmp_path, 302, 301)
    assert Owners(tmp_path).job_of(302, {}) == "7"
    process(tmp_path, 400, 301, command="slurmstepd: [4242.batch]\0")
    process(tmp_path, 401, 400)
    assert Owners(tmp_path).job_of(401, {}) == "7"


@pytest.mark.parametrize(
    "claim",
    [
        {"uid": "1000"},
        {"uid": "1000 0"},  # a setuid program that a user started under this name
        {"exe": "/home/eve/slurmstepd2"},
        {"uid": "1000", "exe": "/home/eve/slurmstepd"},
    ],
)
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


@pytest.mark.parametrize(
    "name", ["system.slice", "sshd.service", "s5H9M8071CEN0", "s5H9M8071CENI0", "S5H9M8071CEN00"]
)
def test_other_control_groups_are_no_sluid(tmp_path: Path, name: str) -> None:
    process(tmp_path, 400, command="slurmstepd: [78.batch]\0", cgroup=f"0::/{name}\n")
    process(tmp_path, 402, cgroup=f"0::/{name}\n")
    assert Owners(tmp_path).job_of(402, {}) is None


def test_a_process_that_is_gone_or_nobodys_has_no_job(tmp_path: Path) -> None:
    process(tmp_path, 400)
    assert Owners(tmp_path).job_of(400, {}) is None
    assert Owners(tmp_path).job_of(401, {}) is None


def test_a_number_used_again_is_another_process(tmp_path: Path) -> None:
    process(tmp_path, 500, cgroup="0::/slurmstepd.scope/job_1/step_0\n")
    owners = Owners(tmp_path)
    assert owners.job_of(500, {}) == "1"
    process(tmp_path, 500, cgroup="0::/slurmstepd.scope/job_2/step_0\n")
    assert owners.job_of(500, {}) == "1"  # the same start time: the same process
    stat = tmp_path / "500" / "stat"
    stat.write_text(stat.read_text().replace("4242", "4343"))
    assert owners.job_of(500, {}) == "2"


def test_on_this_machine() -> None:
    assert Owners().job_of(os.getpid(), {os.getppid(): "mine"}) == "mine"


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
def test_a_signal_is_sent_as_the_processs_user(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where root took a process of its own for a user's."""
    process = replace(found(sleeper.pid), uid=NOBODY)
    monkeypatch.setattr("lucid_hooks.processes.alive", lambda _: True)
    assert not signal_as(process, signal.SIGKILL)
    time.sleep(0.1)
    assert sleeper.poll() is None


def test_an_answer_is_cut_off_in_length_and_in_time() -> None:
    long = run_as(ME, ["yes", "4242"], {"PATH": os.defpath}, Deadline(20))
    assert long.code is None
    assert 65536 <= len(long.text) <= 65536 + 8192
    began = time.monotonic()
    assert run_as(ME, ["sleep", "300"], {"PATH": os.defpath}, Deadline(0.2)) == run_as(
        ME, ["sh", "-c", "exec >&-; sleep 300"], {"PATH": os.defpath}, Deadline(0.2)
    )
    assert time.monotonic() - began < 60
    assert run_as(ME, ["sh", "-c", "cat; exit 3"], {"PATH": os.defpath}, Deadline(20), "a\n").text == "a\n"
    assert run_as(ME, ["no-such-program"], {"PATH": os.defpath}, Deadline(20)).code is None


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
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, NOBODY, -1)
    with pytest.raises(Unsafe, match="belongs to user 65534"):
        State(theirs / "mps").prepare()
    open_ = tmp_path / "open"
    open_.mkdir()
    open_.chmod(0o777)
    with pytest.raises(Unsafe, match="others may write"):
        State(open_ / "mps").prepare()
    (tmp_path / "link").symlink_to(theirs)
    with pytest.raises(Unsafe):
        State(tmp_path / "link/mps").prepare()
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

    def second(self, cpu_s: float = 1.0) -> HostUse | None:
        """What the first second tells, in which the job had so much CPU time."""
        self.use(0.0)
        self.counters(cpu_s)
        return self.use(1.0)

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


def without_processes(machine: Machine) -> None:
    (machine.job / "io.pressure").unlink()
    machine.pressure = False
    machine.processes()


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (without_processes, HostUse(1.0, 4)),
        # pressure that is switched off is not taken for no waits
        (lambda machine: (machine.job / "io.pressure").write_text(""), HostUse(1.0, 4, 0.0, "states of processes")),
    ],
    ids=["nothing of storage", "switched off"],
)
def test_what_a_group_has_tells_of_storage(tmp_path: Path, change: Callable[[Machine], Any], found: HostUse) -> None:
    machine = Machine(tmp_path, 2)
    change(machine)
    assert machine.second() == found


ODD: list[tuple[float, float, str | None]] = [
    (0.0, 0.0, None), (5.0, 1.0, None), (0.0, 3600.0, None),
    *((0.0, 1.0, text) for text in ("", "usage_usec -5\n", "usage_usec 1e9\n", "nr_periods 7\n", "usage_usec \xff")),
]  # fmt: skip


@pytest.mark.parametrize(("first_s", "then_s", "text"), ODD)
def test_an_odd_clock_or_counter_tells_nothing_once(
    tmp_path: Path, first_s: float, then_s: float, text: str | None
) -> None:
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
    found = machine.use(13.0)
    assert found.busy_cores == 0.5


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
    assert machine.second() is None
    assert machine.use(2.0, pids=()) is None
    assert machine.use(3.0, pids=(-1, 10**9)) is None


def test_a_group_that_is_named_by_sluid(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 2)
    machine.job.rename(machine.job.parent / "s5H9M8071CEN00")
    machine.job = machine.job.parent / "s5H9M8071CEN00"
    machine.write(machine.proc / "500/cgroup", "0::/system.slice/slurmstepd.scope/s5H9M8071CEN00/step_batch/user\n")
    assert machine.second() == HostUse(1.0, 4, 0.0, "io.pressure")


@pytest.mark.parametrize(
    ("text", "cores"), [("0-2,8\n", 4), ("5\n", 1), ("", 0), ("x-y", 0), ("0-999999999999999", 0)]
)
def test_cores_by_cpuset_else_by_affinity(tmp_path: Path, text: str, cores: int) -> None:
    machine = Machine(tmp_path, 2)
    (machine.job / "cpuset.cpus.effective").write_text(text)
    machine.write(machine.proc / "500/status", "Name:\ta\nCpus_allowed_list:\t0-1\n")
    found = machine.second()
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
    found = machine.second(0.5)
    assert (found.busy_cores, found.storage) == (0.5, 0.0)


def test_the_machine_that_this_runs_on() -> None:
    """Whatever it has: nothing fails."""
    host = Host()
    found: list[Any] = [host.use("a", "7", (os.getpid(),), at) for at in (0.0, 1.0)]
    assert found[0] is None
