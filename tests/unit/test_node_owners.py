"""Finding out whose process it is, from /proc alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lucid.node.owners import Owners


def process(
    proc: Path, pid: int, parent: int = 1, cgroup: str = "0::/user.slice\n", command: str = "python\0a.py"
) -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    rest = " ".join(["0"] * 17)
    (folder / "stat").write_text(f"{pid} (a) b) S {parent} {rest} 4242 0\n")
    (folder / "cgroup").write_text(cgroup)
    (folder / "cmdline").write_text(command)


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


def test_by_first_processes_that_were_given(tmp_path: Path) -> None:
    process(tmp_path, 400)
    process(tmp_path, 401, 400)
    owners = Owners(tmp_path)
    assert owners.job_of(401, {400: "a"}) == "a"
    assert owners.job_of(400, {400: "a"}) == "a"
    assert owners.job_of(401, {}) is None


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
