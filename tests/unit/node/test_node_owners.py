"""Who owns processes on a node, and the hooks that tell it."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lucid.node.processes import Owners
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


def test_by_a_slurmstepd_among_the_ancestors(tmp_path: Path) -> None:
    process(tmp_path, 400, command="slurmstepd: [78.batch]\0")
    process(tmp_path, 401, 400)
    process(tmp_path, 402, 401)
    assert Owners(tmp_path).job_of(402, {}) == "78"


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


def test_of_several_step_daemons_above_a_process_slurms_own_is_the_outermost(tmp_path: Path) -> None:
    process(tmp_path, 300, command="slurmstepd: [7.batch]\0")
    process(tmp_path, 301, 300)
    process(tmp_path, 400, 301, command="slurmstepd: [4242.batch]\0")
    process(tmp_path, 401, 400)
    assert Owners(tmp_path).job_of(401, {}) == "7"


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
