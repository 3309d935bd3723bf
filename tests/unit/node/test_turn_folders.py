"""The folders in which jobs that share GPUs agree on turns: made and removed by the prolog's and epilog's shell."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[3]
HOOK = REPO / "slurm/node_hook.sh"

pytestmark = pytest.mark.skipif(shutil.which("flock") is None, reason="no flock here")


class Node:
    def __init__(self, folder: Path) -> None:
        self.base = folder / "turns"
        self.conf = folder / "node.conf"
        self.conf.write_text(f"turns-dir {self.base}\n")
        self.own = self.base / "n1"

    def call(self, verb: str, job: str, gpus: str = "", turns: str = "1") -> None:
        words = (
            f". {HOOK}; lucid_conf={self.conf}; limit=5; job={job}; gpus={gpus}; turns={turns}; lucid_turns {verb}"
        )
        done = subprocess.run(
            ["sh", "-c", words],
            capture_output=True,
            text=True,
            check=False,
            env={"SLURMD_NODENAME": "n1", "PATH": PATH},
        )
        assert (done.stdout, done.stderr) == ("", "")

    def task(self, job: str) -> str:
        """What the task prolog prints of it."""
        environ = {"SLURM_SHARDS_ON_NODE": "1", "SLURM_JOB_ID": job, "SLURMD_NODENAME": "n1", "PATH": PATH}
        done = subprocess.run(
            ["sh", str(REPO / "slurm/task_prolog")],
            capture_output=True, text=True, check=True, env={**environ, "LUCID_TURNS_DIR": str(self.base)},
        )  # fmt: skip
        return "".join(line for line in done.stdout.splitlines() if "LUCID_TURNS" in line)

    @property
    def sets(self) -> list[str]:
        return sorted(path.name for path in self.own.glob("g*")) if self.own.exists() else []


PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_jobs_on_the_same_gpus_have_one_folder_that_goes_with_the_last_of_them(node: Node) -> None:
    for job in ("1", "2", "3"):
        node.call("start", job, "0,1" if job != "3" else "2")
    assert node.sets == ["g0-1", "g2"]
    assert (node.own / "g0-1").stat().st_mode & 0o7777 == 0o1777
    assert node.own.stat().st_mode & 0o022 == 0
    assert node.task("1") == node.task("2") == f"export LUCID_TURNS={node.own}/g0-1"
    node.call("stop", "1")
    assert node.sets == ["g0-1", "g2"]
    assert node.task("1") == ""
    node.call("stop", "2")
    node.call("stop", "3")
    assert node.sets == []


def test_jobs_that_take_no_turns_leave_nothing(node: Node) -> None:
    node.call("start", "1", "0", turns="")
    node.call("stop", "1")
    assert not node.base.exists()
    assert node.task("1") == ""


def test_a_job_that_starts_again_elsewhere_leaves_its_old_folder(node: Node) -> None:
    node.call("start", "1", "0")
    node.call("start", "1", "1,2")
    assert node.sets == ["g1-2"]
    node.call("start", "1", "3", turns="")
    assert node.sets == []


def test_links_are_never_followed(node: Node, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    node.call("start", "1", "0")
    (node.own / "g0/link").symlink_to(kept)
    (node.own / "g0/deep").mkdir()
    node.call("stop", "1")
    assert node.sets == []
    assert (kept / "file").exists()
    shutil.rmtree(node.base)
    node.base.symlink_to(kept)
    node.call("start", "2", "0")
    assert [path.name for path in kept.iterdir()] == ["file"]


def test_rubbish_in_a_record_removes_nothing(node: Node) -> None:
    node.call("start", "1", "0")
    node.call("start", "2", "1")
    (node.own / "jobs/1").write_text("/etc\n../g1\n")
    node.call("stop", "1")
    assert "g1" in node.sets
