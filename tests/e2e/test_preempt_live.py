"""Jobs that may be preempted, on a real Slurm: scavengers of a partition of low tier over the nodes of the VCs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from box import Box
from daemon_box import Lucidd, has_measured

ALONE = "--comment=lucid:exclusive"


@contextmanager
def scavenged(box: Box, kind: str = "partition_prio") -> Iterator[Box]:
    """Partition scav of tier 1 over the nodes of vc-a and vc-b, which have tier 10. All is as it was afterwards."""
    lines = f"PreemptType=preempt/{kind}\nPreemptMode=REQUEUE\nPartitionName=scav Nodes=n[1-3] PriorityTier=1\n"
    with box.configured(more=lines):
        try:
            for vc in ("vc-a", "vc-b"):
                box.run("scontrol", "update", f"PartitionName={vc}", "PriorityTier=10")
            yield box
        finally:
            box.clear()


@pytest.fixture
def scav(box: Box) -> Iterator[Box]:
    with scavenged(box) as found:
        yield found


def scavenger(box: Box, node: str, gpus: int, *options: str) -> str:
    return box.sbatch("-p", "scav", "-w", node, f"--gres=gpu:{gpus}", "-t", "60", *options, script="sleep 3000")


def started_after(box: Box, number: str) -> float:
    """Seconds from its submission until it was seen to run."""
    began = time.monotonic()
    box.wait("the owner's job runs", lambda: box.runs(number), 30)
    return time.monotonic() - began


@pytest.fixture
def packs(scav: Box, tmp_path: Path) -> Iterator[Lucidd]:
    with Lucidd(scav, tmp_path / "lucidd", restarts="") as one:
        yield one


def test_an_owners_job_starts_as_soon_as_under_plain_slurm_and_the_youngest_go(scav: Box, packs: Lucidd) -> None:
    box, one = scav, packs
    victims = [scavenger(box, node, 2) for node in ("n1", "n2", "n3", "n3", "n1")]
    box.wait("scavengers run", lambda: box.runs(*victims))
    time.sleep(15)
    young = scavenger(box, "n2", 2)
    box.wait("scavengers fill n1 to n3", lambda: box.runs(young))
    off = ("--comment=lucid:off", "-t", "60")
    plain = started_after(box, box.sbatch("-p", "vc-b", "--gres=gpu:4", *off, script="sleep 3000"))
    owner = box.sbatch("-p", "vc-a", "--gpus=1", ALONE, "-t", "60", script="srun env | grep CUDA_VIS; sleep 3000")
    lucid = started_after(box, owner)
    print(f"plain {plain:.1f} s, lucid {lucid:.1f} s")
    story = one.ctl("explain", owner)
    print(story, one.ctl("explain", young), one.log()[-2000:], sep="\n")
    assert lucid <= plain + 2
    assert box.job(owner)["nodes"] == "n2"
    again = {number: box.job(number)["restart_cnt"] for number in [*victims, young]}
    assert again == {
        **dict.fromkeys([victims[2], victims[3], young], 1),
        **dict.fromkeys(victims[:2], 0),
        victims[4]: 0,
    }
    assert f"preempts job {young}" in story
    assert f"claimed by job {owner} of vc-a, which gets n2:" in one.ctl("explain", young)
    box.wait("its output", lambda: "CUDA_VISIBLE_DEVICES" in box.output(owner), 10)
    four = box.sbatch("-p", "vc-a", "--gpus-per-node=4", ALONE, "-t", "60", script="srun -n1 true && sleep 3000")
    print(f"four GPUs: {started_after(box, four):.1f} s")
    assert box.job(four)["nodes"] == "n1"
    assert box.runs(owner)
    box.run("scontrol", "requeue", four)  # by an administrator: it queues again, as its user wrote it
    box.wait("it runs again", lambda: box.runs(four) and box.job(four)["restart_cnt"] == 1, 40)


def test_packed_scavengers_go_when_their_gpus_are_claimed(scav: Box, tmp_path: Path) -> None:
    """Partition scav in pack mode, over the nodes of the VCs: its jobs share GPUs, in pairs, and both halves go."""
    box = scav
    one = Lucidd(box, tmp_path / "lucidd", restarts="")
    toml = one.folder / "lucid.toml"
    toml.write_text(toml.read_text() + 'scav = "pack"\n')
    has_measured(one, "wrap")
    with one:
        jobs = [box.sbatch("-p", "scav", "--gres=gpu:4", "-t", "60", script="sleep 3000") for _ in range(7)]
        box.wait("pairs on n1 to n3, and one on the profiling node", lambda: box.runs(*jobs), 40)
        where = {number: box.job(number)["nodes"] for number in jobs}
        pairs = [number for number in jobs if where[number] != "n4"]
        assert sorted(where[number] for number in pairs) == ["n1", "n1", "n2", "n2", "n3", "n3"]
        owner = box.sbatch("-p", "vc-a", "--gres=gpu:1", ALONE, "-t", "60", script="sleep 3000")
        print(f"beside pairs: {started_after(box, owner):.1f} s", one.ctl("explain", owner))
        node = box.job(owner)["nodes"]
        gone = [number for number in pairs if where[number] == node]
        assert len(gone) == 2
        box.wait("they wait as jobs of Lucid's", lambda: all(box.job(n)["waits"] for n in gone), 40)
        box.wait(
            "the request of each is its user's",
            lambda: not any("shard" in box.job(n)["tres_per_node"] for n in gone),
            40,
        )
        print(one.ctl("explain", gone[0]), one.ctl("queue"))
        assert box.runs(*(number for number in pairs if number not in gone))
        box.run("scancel", owner)
        box.wait("they run again, as a pair", lambda: box.runs(*pairs), 60)
        plain = box.sbatch("-p", "vc-b", "--gres=gpu:4", "--comment=lucid:off", "-t", "60", script="sleep 3000")
        print(f"a plain job over a pair: {started_after(box, plain):.1f} s")
        gone = [number for number in pairs if where[number] == "n3"]
        box.wait("those wait as jobs of Lucid's, too", lambda: all(box.job(n)["waits"] for n in gone), 60)
        box.run("scancel", plain)
        box.wait("they run again", lambda: box.runs(*pairs), 60)
        assert not any("resized" in box.job(number)["comment"] for number in pairs)


def test_by_qos_jobs_of_the_same_partition_are_claimed(box: Box, tmp_path: Path) -> None:
    """QOS four-gpus may preempt QOS normal."""
    box.run("sacctmgr", "-i", "modify", "qos", "four-gpus", "set", "preempt=normal")
    try:
        with scavenged(box, "qos"), Lucidd(box, tmp_path / "lucidd", restarts="") as one:
            plain = ("-p", "vc-a", "--comment=lucid:off", "-t", "60")
            jobs = [box.sbatch(*plain, f"--gres=gpu:{gpus}", script="sleep 3000") for gpus in (4, 3, 1)]
            box.wait("vc-a is full", lambda: box.runs(*jobs))
            low = box.sbatch("-p", "vc-a", "--gres=gpu:1", ALONE, "-t", "60", script="true")
            owner = box.sbatch("-p", "vc-a", "--qos=four-gpus", "--gres=gpu:1", ALONE, "-t", "60", script="sleep 99")
            print(f"by QOS: {started_after(box, owner):.1f} s", one.ctl("explain", owner))
            assert [box.job(number)["restart_cnt"] for number in jobs] == [0, 0, 1]
            assert not box.runs(low)
    finally:
        box.run("sacctmgr", "-i", "modify", "qos", "four-gpus", "set", "preempt=")
