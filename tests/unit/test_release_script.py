"""lucid-release with a Slurm that is a shell script: what it does when Slurm is slow, or is asked at a bad moment.
What it does with a real one: tests/e2e/test_fail_open.py and test_restart.py."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "slurm/lucid-release"
JOBS = 120
SLURM = r"""#!/bin/sh
[ "$1" != env ] || shift 2
echo "$*" >> {0}/calls
case "$1 $*" in
squeue*%k*) ;;
squeue*) mark=$(echo "$*" | grep -o 'row-[0-9a-f]*')
  [ ! -f {0}/jobs ] || {{ sed "/^[0-9]/s/ / $mark /" {0}/jobs; exit; }}
  tag="lucid:vc=vc;held=1;node=gres/gpu:1;v=2"
  for n in $(seq {1}); do echo "$n $mark 0 vc 0 N/A gres/gpu:1 $n 1000 900 $tag"; done ;;
sbatch*) cat {0}/said >&2; exit 1 ;;
scontrol*release*) {2} ;;
esac
"""


class Fake:
    """``releasing``: shell words run where a batch is let go."""

    def __init__(self, folder: Path, said: str = "no plugin\n", releasing: str = ":") -> None:
        self.folder = folder
        self.list = folder / "released"
        (folder / "said").write_text(said)
        program = folder / "slurm"
        program.write_text(SLURM.format(folder, JOBS, releasing))
        program.chmod(0o755)

    def release(self, *options: str) -> subprocess.CompletedProcess[str]:
        own = {"LUCID_HEARTBEAT": self.folder / "none", "LUCID_SLURM_PREFIX": self.folder / "slurm"}
        environ: dict[str, str | Path] = {"PATH": "/usr/bin:/bin", "LUCID_STATE": self.folder, **own}
        words: list[str | Path] = ["/bin/sh", SCRIPT, *options]
        return subprocess.run(words, env=environ, capture_output=True, text=True, check=False, timeout=60)

    def written(self, *jobs: str) -> list[str]:
        """What is written of these jobs (number, priority, partition, restarts, earliest start, request, number of
        the array, user, submit time, AdminComment)."""
        (self.folder / "jobs").write_text("".join(f"{job}\n" for job in jobs))
        done = self.release()
        assert done.returncode == 0, done.stderr
        return [line for line in (self.folder / "calls").read_text().splitlines() if line.startswith("scontrol")]

    def let_go(self) -> int:
        calls = (self.folder / "calls").read_text().splitlines()
        return sum(line.count(",") + 1 for line in calls if line.startswith("scontrol release"))


def listed(text: str) -> set[int]:
    return {int(line.split()[0]) for line in text.splitlines()}


UNREACHED = (
    "Socket timed out on send/recv operation", "Unable to contact slurm controller (connect failure)",
    "Connection reset by peer", "Connection refused", "Zero Bytes were transmitted or received",
    "Slurm backup controller in standby mode", "Controller is in standby mode, try a different controller",
)  # fmt: skip


@pytest.mark.parametrize("said", UNREACHED)
def test_a_slurmctld_that_does_not_say_who_lives_is_asked_again(tmp_path: Path, said: str) -> None:
    fake = Fake(tmp_path, f"allocation failure: {said}\n")
    done = fake.release()
    assert (done.returncode, fake.let_go()) == (1, 0)
    assert "trying again at the next call" in done.stderr
    assert fake.release("--all").returncode == 0
    assert fake.let_go() == JOBS, "--all asks nobody"


@pytest.mark.parametrize(
    ("said", "count"),
    [
        ("sbatch: error: lucid-alive heartbeat={now} now={now}", 0),
        ("sbatch: error: Connection refused, retrying\nsbatch: error: lucid-alive heartbeat={now} now={now}", 0),
        ("sbatch: error: lucid-alive heartbeat={then} now={now}", JOBS),
        ("sbatch: error: lucid-alive heartbeat=0 now={now}", JOBS),
        ("sbatch: Job 9 to start at 2026-11-22T04:00:00 using 1 processors on nodes n1 in partition vc", JOBS),
        ("allocation failure: Invalid account or account/partition combination specified", JOBS),
        ("/bin/sh: sbatch: not found", JOBS),
    ],
)
def test_what_slurmctld_answers_decides(tmp_path: Path, said: str, count: int) -> None:
    now = int(time.time())
    fake = Fake(tmp_path, said.format(now=now, then=now - 1000) + "\n")
    assert fake.release().returncode == 0
    assert fake.let_go() == count


def test_what_is_let_go_is_listed_before_and_after(tmp_path: Path) -> None:
    """Before: whoever kills it in between leaves no job out. After: lucidd may have done with the list in between."""
    fake = Fake(tmp_path, "no plugin\n", f"cat {tmp_path}/released >> {tmp_path}/before; rm -f {tmp_path}/released")
    assert fake.release().returncode == 0
    assert listed((tmp_path / "before").read_text()) == set(range(1, JOBS + 1))
    assert len(listed(fake.list.read_text())) == JOBS % 50, "the last batch"
    assert Fake(tmp_path).release().returncode == 0
    assert listed(fake.list.read_text()) == set(range(1, JOBS + 1))


STARTED = "Job is no longer pending execution for job 34"
DECLINED = {
    STARTED: 0, "slurm_update error: Job/step already completing or completed": 0,
    "Access/permission denied for job 34": 1, f"{STARTED}\nUnable to contact slurm controller": 1,
}  # fmt: skip


@pytest.mark.parametrize(("words", "code"), DECLINED.items())
def test_a_job_that_has_started_meanwhile_is_no_failure(tmp_path: Path, words: str, code: int) -> None:
    (tmp_path / "words").write_text(words + "\n")
    done = Fake(tmp_path, "", f"cat {tmp_path}/words >&2; exit 1").release("--all")
    assert done.returncode == code
    assert ("no longer" in done.stderr, bool(done.stderr)) == (False, bool(code))


def test_the_nodes_that_lucid_chose_for_a_job_that_ran_bind_it_no_longer(tmp_path: Path) -> None:
    """Its node may be gone, and nobody else would ever choose another. A user's own choice stays."""
    writes = Fake(tmp_path).written(
        "1 0 vc 2 N/A gres/gpu:4 7 1000 900 lucid:vc=vc;held=1;node=gres/gpu:1;restart=1;elastic=1;v=2",
        "2 0 vc 0 N/A gres/gpu:1 7 1000 900 lucid:vc=vc;held=1;node=gres/gpu:1;v=2",
        "3 0 vc 1 N/A gres/gpu:1 7 1000 900 lucid:vc=vc;held=1;node=gres/gpu:1;share=0;why=nodes;v=2",
        "4 7 vc 1 N/A gres/gpu:1 7 1000 900 lucid:vc=vc;held=1;node=gres/gpu:1;v=2",
    )
    assert [line for line in writes if "ReqNodeList" in line] == ["scontrol update JobId=1 ReqNodeList="]
    assert "scontrol release 1,2,3" in writes


def test_no_text_of_a_site_behind_the_tag_says_anything_of_another_job(tmp_path: Path) -> None:
    """A site's plugin may copy there what a user wrote, with line breaks."""
    writes = Fake(tmp_path).written(
        "1 0 vc 0 N/A gres/gpu:1 7 1000 900 lucid:vc=vc;held=1;v=2 {;held=0;",
        " 2 0 vc 0 N/A gres/gpu:1 2 1000 900 lucid:vc=vc;held=1;v=2",
    )
    assert "scontrol release 1" in writes


def test_a_parked_job_need_not_wait_for_its_lease(tmp_path: Path) -> None:
    """One whose user set the begin time waits for that, and one that was let go already is left alone."""
    now, fake = int(time.time()), Fake(tmp_path)
    writes = fake.written(
        f"1 9 vc 0 {now + 200} gres/gpu:1 7 1000 900 lucid:vc=vc;held=1;park={now + 200};node=gres/gpu:1;v=2",
        f"2 9 vc 0 {now + 300} gres/gpu:1 7 1000 900 lucid:vc=vc;held=1;park={now + 300};begin={now + 50};v=2",
        f"3 9 vc 0 {now + 500} gres/gpu:1 7 1000 900 lucid:vc=vc;held=1;park={now + 500};begin={now + 500};v=2",
        f"4 9 vc 0 {now - 5} gres/gpu:1 7 1000 900 lucid:vc=vc;held=1;park={now + 200};node=gres/gpu:1;v=2",
    )
    assert writes == [f"scontrol update JobId=2 StartTime=uts{now + 50}", "scontrol update JobId=1 StartTime=now"]
    assert listed(fake.list.read_text()) == {1, 2}


def test_a_request_goes_back_with_a_begin_time_or_the_plugin_takes_it_for_its_users_change(tmp_path: Path) -> None:
    """A job whose size its user changed leaves Lucid's queue for good. Slurm's begin time after a requeue stays."""
    now = int(time.time())
    writes = Fake(tmp_path).written(
        f"1 9 vc 0 {now - 5} gres/shard:g0:1 7 1000 900 lucid:vc=vc;held=1;node=gres/gpu:1;v=2",
        "2 0 vc 0 N/A gres/shard:g0:1 7 1000 900 lucid:vc=vc;held=1;node=gres/gpu:1;v=2",
        f"3 9 vc 1 {now + 90} gres/shard:g0:1 7 1000 900 lucid:vc=vc;held=1;node=gres/gpu:1;v=2",
        f"4 0 vc 0 N/A gres/shard:g0:1 7 1000 900 lucid:vc=vc;held=1;node=gres/gpu:1;begin={now + 50};v=2",
    )
    begins = [line.rpartition(" ")[2] for line in writes if "TresPerNode=gres/gpu:1" in line]
    assert begins == ["StartTime=now", "StartTime=now", f"StartTime=uts{now + 90}", f"StartTime=uts{now + 50}"]


SITES = '[{"vm_size": "x"}]'


def test_a_job_that_lost_its_tag_is_told_by_lucidds_list(tmp_path: Path) -> None:
    """Number, submit time and user agree; of an array each task. It gets its request back as its user wrote it."""
    fake = Fake(tmp_path)
    (tmp_path / "ours").write_text(
        "1 900 1000 lucid:vc=vc;held=1;node=gres/gpu:2;cpg=gres/gpu:4;v=2\n"
        "2 900 1000 lucid:vc=vc;held=1;v=2\n3 900 1000 lucid:vc=vc;held=1;v=2\n4 900 1000 lucid:vc=vc;held=1;v=2\n"
        "5 900 - lucid:vc=vc;held=1;v=2\n7 900 1000 lucid:vc=vc;held=1;v=2\n"
    )
    writes = fake.written(
        f"1 0 vc 1 N/A gres/shard:g0:1,gres/shard:g2:1 1 1000 950 {SITES}",
        f"2 0 vc 0 N/A gres/gpu:1 2 1001 900 {SITES}",  # another user's
        f"3 0 vc 0 N/A gres/gpu:1 3 1000 901 {SITES}",  # the number came again
        "4 0 vc 0 N/A gres/gpu:1 4 1000 900 (null)",
        "5 0 vc 0 N/A gres/gpu:1 5 1009 900",
        f"6 0 vc 0 N/A gres/gpu:1 6 1000 900 {SITES}",  # held by others
        f"17 0 vc 0 N/A gres/gpu:1 7 1000 900 {SITES}",
    )
    assert writes == [
        "scontrol update JobId=1 TresPerNode=gres/gpu:2 TresPerJob= TresPerTask= CpusPerTres=gres/gpu:4 ReqNodeList= "
        "Extra= StartTime=now",
        "scontrol update JobId=1 ReqNodeList=",
        "scontrol update JobId=1 StartTime=now",
        "scontrol release 1,17,4,5",
    ]
    assert listed(fake.list.read_text()) == {1, 17, 4, 5}


@pytest.mark.parametrize("harm", ["none", "nonsense", "folder", "link to a pipe"])
def test_without_tag_and_list_a_held_job_in_slots_is_ours(tmp_path: Path, harm: str) -> None:
    fake = Fake(tmp_path)
    if harm == "nonsense":
        (tmp_path / "ours").write_bytes(
            b"\xff\x00\n8 0\n9 900 1000 lucid:a b\n9 900 1000 rm;held=1\n9 1e9 1000 lucid:held=1;\njob 9 0 vc 0 N\n"
        )
    elif harm == "folder":
        (tmp_path / "ours").mkdir()
    elif harm == "link to a pipe":
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "ours").symlink_to(tmp_path / "pipe")
    writes = fake.written(
        f"1 0 vc 0 N/A gres/shard:g0:1,gres/shard:g2:1 1 1000 900 {SITES}",
        f"2 5 vc 0 N/A gres/shard:g0:1 2 1000 900 {SITES}",
        f"9 0 vc 0 N/A gres/gpu:1 9 1000 900 {SITES}",
        f"4 0 vc 0 N/A gres/shard:4 4 1000 900 {SITES}",
    )
    assert writes == [
        "scontrol update JobId=1 TresPerNode=gres/gpu:2 TresPerJob= TresPerTask= ReqNodeList= Extra= StartTime=now",
        "scontrol release 1",
    ]


@pytest.mark.parametrize("comment", ["lucid:held", r"a\nrow-0 9 b\n2 c,lucid:held", f"{'long ' * 300} lucid:held"])
def test_what_a_user_holds_is_not_let_go_by_the_list(tmp_path: Path, comment: str) -> None:
    """job_submit.lua noted it in the comment, before the tag was lost. Without comments nobody is let go."""
    fake, program = Fake(tmp_path), tmp_path / "slurm"
    (tmp_path / "ours").write_text("1 900 1000 lucid:vc=vc;held=1;v=2\n")
    asked = f'squeue*%k*) printf "${{6%% *}} 2 lucid:off\\n${{6%% *}} 1 {comment}\\n" ;;'
    program.write_text(program.read_text().replace("squeue*%k*) ;;", asked))
    assert fake.written(f"1 0 vc 0 N/A gres/gpu:1 1 1000 900 {SITES}") == []
    program.write_text(program.read_text().replace(asked, "squeue*%k*) exit 1 ;;"))
    assert (fake.release().returncode, fake.let_go()) == (1, 0)


def test_for_good_lists_nothing_and_takes_the_list_away(tmp_path: Path) -> None:
    fake = Fake(tmp_path)
    fake.list.write_text("7 0 900\n")
    (tmp_path / "ours").write_text("1 900 1000 lucid:vc=vc;held=1;v=2\n")
    assert fake.release("--all", "--dry-run").returncode == 0
    assert (tmp_path / "ours").exists()
    assert fake.release("--all").returncode == 0
    assert fake.list.read_text() == ""
    assert not (tmp_path / "ours").exists()
