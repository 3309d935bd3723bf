"""Doctor before a real Slurm that is put wrong, one thing after the other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from box import Box
from click.testing import CliRunner

from lucid.cli.main import lucidctl

SOUND = {"vc-a": "OverSubscribe=NO MaxTime=INFINITE State=UP", "prof": "AllowGroups=ALL MaxTime=INFINITE State=UP"}


def wait_idle(box: Box) -> None:
    """Until every node answers: for a while after slurmctld was restarted, or a node resumed, none does."""
    box.wait("idle nodes", lambda: set(box.run("sinfo", "-h", "-N", "-o", "%T").stdout.split()) == {"idle"})


@pytest.fixture
def config(box: Box, tmp_path: Path) -> Path:
    """lucidd has never run: its own state is told as missing, and is not what these tests look at."""
    wait_idle(box)
    prefix = ["chroot", "--userspec=lucid", str(box.root)]
    slurm = f"prefix = {json.dumps(prefix)}\n"
    (tmp_path / "lucid.toml").write_text(
        f'[slurm]\n{slurm}[daemon]\nstate_dir = "{tmp_path}/state"\nheartbeat = "{box.root}/run/lucid/heartbeat"\n'
        'profiling_partition = "prof"\n[daemon.partitions]\nvc-a = "pack"\nvc-b = "pack"\n'
    )
    return tmp_path / "lucid.toml"


def ill(config: Path) -> list[str]:
    """All but what it says of lucidd's own state and heartbeat."""
    done = CliRunner().invoke(lucidctl, ["doctor", "--json", "--config", str(config)])
    assert done.exit_code == 1, done.output
    found = [item for item in json.loads(done.output)["findings"] if item["level"] != "ok"]
    assert all(item["remedy"] for item in found)
    return [item["what"] for item in found if "lucid.db" not in item["what"] and "heartbeat" not in item["what"]
            and "profiles" not in item["what"]]  # fmt: skip


@contextmanager
def partition(box: Box, name: str, *changes: str) -> Iterator[None]:
    box.run("scontrol", "update", f"PartitionName={name}", *changes)
    try:
        yield
    finally:
        box.run("scontrol", "update", f"PartitionName={name}", *SOUND[name].split())


def test_what_is_put_wrong_is_found_and_nothing_else(config: Path, box: Box) -> None:
    assert ill(config) == []
    with partition(box, "vc-a", "OverSubscribe=EXCLUSIVE"):
        (words,) = ill(config)
        assert "none shares" in words
    with partition(box, "prof", "AllowGroups=bob", "MaxTime=10", "State=DRAIN"):
        words = " / ".join(ill(config))
        assert all(part in words for part in ("is DRAIN", "allows groups bob", "MaxTime 10 min"))
    box.run("scontrol", "update", "NodeName=n3", "State=DRAIN", "Reason=fan")
    try:
        (words,) = ill(config)
        assert "n3 (fan)" in words
    finally:
        box.run("scontrol", "update", "NodeName=n3", "State=RESUME")
        wait_idle(box)


def test_a_slurm_conf_that_is_not_in_force_is_found(config: Path, box: Box) -> None:
    path = box.root / "etc/slurm/lucid.slurm.conf"
    before = path.read_text()
    try:
        path.write_text(before.replace("/etc/slurm/lucid/task_prolog", "/etc/slurm/other_prolog"))
        words = " / ".join(ill(config))
        assert "slurm.conf has TaskProlog=/etc/slurm/other_prolog, slurmctld runs with" in words
        path.write_text(before.replace("shard:g1:2", "shard:g1:4"))
        assert any("not what gres.conf has" in words for words in ill(config))
    finally:
        path.write_text(before)


def test_a_limit_on_gpus_that_slots_get_round_is_found(config: Path, box: Box) -> None:
    box.run("sacctmgr", "-i", "modify", "qos", "four-gpus", "set", "GrpTRES=gres/shard=-1")
    try:
        (words,) = ill(config)
        assert words.startswith("QOS four-gpus (gres/gpu=4): a limit on gres/gpu")
    finally:
        box.run("sacctmgr", "-i", "modify", "qos", "four-gpus", "set", "GrpTRES=gres/shard=8")


def test_a_user_without_rights_is_told(box: Box, tmp_path: Path) -> None:
    prefix = json.dumps(["chroot", "--userspec=alice", str(box.root)])
    (tmp_path / "lucid.toml").write_text(
        f'[slurm]\nprefix = {prefix}\n[daemon]\nstate_dir = "{tmp_path}"\nheartbeat = "{tmp_path}/h"\n'
        '[daemon.partitions]\nvc-a = "order"\n'
    )
    assert any("alice has AdminLevel none" in words for words in ill(tmp_path / "lucid.toml"))


def test_a_job_longer_than_the_profiling_partition_allows_does_wait_there_for_ever(box: Box) -> None:
    """What doctor says of MaxTime, on the daemons."""
    number = box.sbatch("--gres=gpu:1", "-t", "60", "-H")
    with partition(box, "prof", "MaxTime=10"):
        box.run("scontrol", "update", f"JobId={number}", "Partition=prof", user="lucid", check=False)
        box.run("scontrol", "release", number, user="lucid", check=False)
        box.wait("the reason", lambda: box.job(number)["state_reason"] == "PartitionTimeLimit", 30)
