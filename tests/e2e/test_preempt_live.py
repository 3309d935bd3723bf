"""Jobs that may be preempted, on a real Slurm: scavengers of a partition of low tier over the nodes of the VCs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from box import Box
from daemon_box import Lucidd

ALONE = "--comment=lucid:exclusive"


@contextmanager
def scavenged(box: Box, *more: str, mode: str = "REQUEUE") -> Iterator[Box]:
    """Partition scav of tier 1 over the nodes of vc-a and vc-b, which have tier 10. ``more``: further lines of
    slurm.conf. All is as it was afterwards."""
    conf = box.root / "etc/slurm/slurm.conf"
    before = conf.read_text()
    lines = ["PreemptType=preempt/partition_prio", f"PreemptMode={mode}", *more]
    conf.write_text(before + "\n".join([*lines, "PartitionName=scav Nodes=n[1-3] PriorityTier=1", ""]))
    box.run("scontrol", "reconfigure")
    try:
        for vc in ("vc-a", "vc-b"):
            box.run("scontrol", "update", f"PartitionName={vc}", "PriorityTier=10")
        yield box
    finally:
        box.clear()
        conf.write_text(before)
        box.run("scontrol", "reconfigure")


@pytest.fixture
def scav(box: Box) -> Iterator[Box]:
    with scavenged(box) as found:
        yield found


def scavenger(box: Box, node: str, gpus: int, *options: str) -> str:
    return box.sbatch("-p", "scav", "-w", node, f"--gres=gpu:{gpus}", "-t", "60", *options, script="sleep 3000")


def runs(box: Box, *numbers: str) -> bool:
    jobs = box.jobs()
    return all(jobs[number]["job_state"] == ["RUNNING"] for number in numbers)


def started_after(box: Box, number: str) -> float:
    """Seconds from its submission until it was seen to run."""
    began = time.monotonic()
    box.wait("the owner's job runs", lambda: runs(box, number), 30)
    return time.monotonic() - began


def test_an_owners_job_starts_as_soon_as_under_plain_slurm(scav: Box, tmp_path: Path) -> None:
    box = scav
    one = Lucidd(box, tmp_path / "lucidd", restarts="")
    one.start()
    try:
        victims = [scavenger(box, node, 2) for node in ("n1", "n1", "n2", "n2", "n3", "n3")]
        box.wait("scavengers fill n1 to n3", lambda: runs(box, *victims))
        plain = started_after(box, box.sbatch("-p", "vc-b", "--gres=gpu:4", "--comment=lucid:off", script="sleep 60"))
        owner = box.sbatch("-p", "vc-a", "--gres=gpu:4", ALONE, script="sleep 60")
        lucid = started_after(box, owner)
        print(f"plain {plain:.1f} s, lucid {lucid:.1f} s")
        print(one.ctl("explain", owner))
        assert lucid <= plain + 2
    finally:
        one.close()
