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


@pytest.fixture
def config(box: Box, tmp_path: Path) -> Path:
    """lucidd has never run: its own state is told as missing, and is not what these tests look at."""
    wait_idle(box)
    prefix = json.dumps(["chroot", "--userspec=lucid", str(box.root)])
    (tmp_path / "lucid.toml").write_text(
        f'[slurm]\nprefix = {prefix}\n[daemon]\nstate_dir = "{tmp_path}/state"\n'
        f'heartbeat = "{box.root}/run/lucid/heartbeat"\nprofiling_partition = "prof"\n'
        '[daemon.partitions]\nvc-a = "pack"\nvc-b = "pack"\n'
    )
    return tmp_path / "lucid.toml"


def wait_idle(box: Box) -> None:
    """Until every node answers: for a while after slurmctld was restarted, or a node resumed, none does."""
    box.wait("idle nodes", lambda: set(box.run("sinfo", "-h", "-N", "-o", "%T").stdout.split()) == {"idle"})


def ill(config: Path) -> list[str]:
    """All but what it says of lucidd's own state and heartbeat."""
    done = CliRunner().invoke(lucidctl, ["doctor", "--json", "--config", str(config)])
    assert done.exit_code == 1, done.output
    found = [item for item in json.loads(done.output)["findings"] if item["level"] != "ok"]
    assert all(item["remedy"] for item in found)
    own = ("lucid.db", "heartbeat", "profiles")
    return [item["what"] for item in found if not any(word in item["what"] for word in own)]


@contextmanager
def updated(box: Box, words: str, back: str) -> Iterator[None]:
    box.run("scontrol", "update", *words.split())
    try:
        yield
    finally:
        box.run("scontrol", "update", *back.split())


def test_what_is_put_wrong_is_found_and_nothing_else(config: Path, box: Box) -> None:
    assert ill(config) == []
    with updated(box, "PartitionName=vc-a OverSubscribe=EXCLUSIVE", "PartitionName=vc-a OverSubscribe=NO"):
        (words,) = ill(config)
        assert "none shares" in words
    wrong = "PartitionName=prof AllowGroups=bob MaxTime=10 State=DRAIN"
    with updated(box, wrong, "PartitionName=prof AllowGroups=ALL MaxTime=INFINITE State=UP"):
        words = " / ".join(ill(config))
        assert all(part in words for part in ("is DRAIN", "allows groups bob", "MaxTime 10 min"))
    with updated(box, "NodeName=n3 State=DRAIN Reason=fan", "NodeName=n3 State=RESUME"):
        (words,) = ill(config)
        assert "n3 (fan)" in words
    wait_idle(box)
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
    """Slots count against a limit of their own only."""
    slots = ",".join(f"shard:g{number}:2" for number in range(4))
    with box.unrefused("alice"):
        first = box.sbatch("--qos=four-gpus", "-w", "n1", f"--gres={slots}", script="sleep 60")
        waiting = box.sbatch("--qos=four-gpus", "-p", "vc-b", "--gres=shard:g0:1")
    whole = box.sbatch("--qos=four-gpus", "-w", "n2", "--gres=gpu:4", script="sleep 60")
    box.wait("both run", lambda: {box.state(first), box.state(whole)} == {"RUNNING"})
    box.wait("Slurm's word", lambda: box.reason(waiting) == "QOSGrpGRES", 20)
    box.clear()
    wait_idle(box)
    box.run("sacctmgr", "-i", "modify", "qos", "four-gpus", "set", "GrpTRES=gres/shard=-1")
    try:
        (words,) = ill(config)
        assert words.startswith("QOS four-gpus (gres/gpu=4): a limit on gres/gpu")
    finally:
        box.run("sacctmgr", "-i", "modify", "qos", "four-gpus", "set", "GrpTRES=gres/shard=8")
