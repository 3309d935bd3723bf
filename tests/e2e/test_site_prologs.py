"""A site whose own Prolog fails where a GPU is busy and keeps a file for each GPU, beside pairs on a real Slurm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from box import Box
from daemon_box import Lucidd, has_measured

WRAPPER = "/etc/slurm/lucid/site_scripts"
# In own words what jobstats, and checks that a GPU is idle, do. All nodes of a testbed have one file system.
PROLOG = """#!/bin/sh
echo "pro $SLURM_JOB_ID $SLURMD_NODENAME $SLURM_JOB_GPUS $CUDA_VISIBLE_DEVICES" >> /opt/site/log
mkdir -p /opt/site/$SLURMD_NODENAME
for gpu in $(echo "$SLURM_JOB_GPUS" | tr , ' '); do
    [ ! -e /opt/site/$SLURMD_NODENAME/$gpu ] || exit 1
    echo $SLURM_JOB_ID > /opt/site/$SLURMD_NODENAME/$gpu
done
"""
EPILOG = """#!/bin/sh
echo "epi $SLURM_JOB_ID $SLURMD_NODENAME $SLURM_JOB_GPUS $CUDA_VISIBLE_DEVICES" >> /opt/site/log
for gpu in $(echo "$SLURM_JOB_GPUS" | tr , ' '); do rm -f /opt/site/$SLURMD_NODENAME/$gpu; done
"""
GATE = "while test -e /tmp/{}; do sleep 0.2; done"
Wrapped = Callable[[bool], AbstractContextManager[None]]


@pytest.fixture
def prologs(box: Box) -> Iterator[Wrapped]:
    """Slurm runs the site's scripts: through the wrapper, or itself."""
    folder, conf = box.root / "opt/site", box.root / "etc/slurm/slurm.conf"
    node = box.root / "etc/slurm/lucid/node.conf"
    folder.mkdir()
    for name, text in (("prolog", PROLOG), ("epilog", EPILOG)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    before = conf.read_text()

    def told(key: str) -> str:
        return box.run("scontrol", "show", "config").stdout.split(f"\n{key}[0]", 1)[-1]

    @contextmanager
    def runs(wrapped: bool) -> Iterator[None]:
        node.write_text(
            "site-prolog /opt/site/prolog\nsite-epilog /opt/site/epilog\n"
            "site-run first-last /opt/site/prolog\nsite-run first-last /opt/site/epilog\n"
        )
        names = (WRAPPER, WRAPPER) if wrapped else ("/opt/site/prolog", "/opt/site/epilog")
        conf.write_text(f"Prolog={names[0]}\nEpilog={names[1]}\n{before}")
        box.run("scontrol", "reconfigure")
        box.wait("the prolog", lambda: names[0] in told("Prolog"))
        box.wait("idle nodes", lambda: {*box.run("sinfo", "-h", "-o", "%t").stdout.split()} == {"idle"})
        yield

    yield runs
    box.clear()
    conf.write_text(before)
    node.unlink(missing_ok=True)
    box.run("scontrol", "reconfigure")
    box.run("rm", "-rf", "/opt/site", "/run/lucid-site")
    for name in drained(box):
        box.run("scontrol", "update", f"NodeName={name}", "State=RESUME")


def drained(box: Box) -> list[str]:
    return box.run("sinfo", "-h", "-N", "-t", "drain", "-o", "%N").stdout.split()


def files(box: Box) -> dict[str, str]:
    """What the site keeps of each GPU, ``n1/0``: a job."""
    found = (box.root / "opt/site").glob("n*/*")
    return {f"{path.parent.name}/{path.name}": path.read_text().strip() for path in found}


def said(box: Box) -> list[str]:
    path = box.root / "opt/site/log"
    return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def lucidd(box: Box, tmp_path: Path) -> Iterator[Lucidd]:
    one = Lucidd(box, tmp_path / "lucidd", restarts="")
    has_measured(one, "train")
    yield one
    one.close()
    box.stop_beating()


def hosts(box: Box, lucidd: Lucidd) -> list[str]:
    """Jobs in slots on all GPUs of n1 and n2."""
    (box.root / "tmp/hosts").touch()
    (box.root / "tmp/guests").touch()
    lucidd.start()
    jobs = [box.sbatch("--gres=gpu:2", "-J", "train", script=GATE.format("hosts")) for _ in range(4)]
    box.wait("four jobs", lambda: all(box.state(n) == "RUNNING" for n in jobs))
    return jobs


def guests(box: Box) -> list[str]:
    return [box.sbatch("--gres=gpu:2", "-J", "train", script=GATE.format("guests")) for _ in range(3)]


@pytest.mark.slow
def test_beside_pairs_the_sites_scripts_see_first_and_last_jobs_and_no_node_is_drained(
    box: Box, prologs: Wrapped, lucidd: Lucidd
) -> None:
    with prologs(True):
        whole = box.sbatch("-p", "vc-b", "--gres=gpu:3")  # without Lucid: Slurm tells a prolog GPU 2 only
        box.wait_ended(whole)
        box.wait("its epilog", lambda: f"epi {whole} n3 0,1,2 0,1,2" in said(box))
        assert f"pro {whole} n3 0,1,2 0,1,2" in said(box)
        first = hosts(box, lucidd)
        kept = files(box)
        assert sorted(kept) == [f"{node}/{gpu}" for node in ("n1", "n2") for gpu in range(4)]
        assert sorted(set(kept.values())) == sorted(first)
        second = guests(box)
        box.wait("three pairs", lambda: all(box.state(n) == "RUNNING" for n in second))
        assert all("gres/shard" in str(box.job(n)["tres_per_node"]) for n in second)
        (box.root / "tmp/guests").unlink()
        box.wait_ended(*second)
        box.wait("completed guests", lambda: "COMPLETING" not in box.run("squeue", "-h", "-a", "-o", "%T").stdout)
        assert files(box) == kept, "the file of a job that still runs stays"
        assert drained(box) == []
        assert not [line for line in said(box) if line.split()[1] in second]
        (box.root / "tmp/hosts").unlink()
        box.wait_ended(*first)
        box.wait("no file", lambda: files(box) == {})
        assert {box.state(n) for n in (whole, *first, *second)} == {"COMPLETED"}
        assert [*(box.root / "run/lucid-site").glob("*/jobs/*")] == []


@pytest.mark.slow
def test_without_the_wrapper_lucidd_stops_pairing_and_doctor_says_why(
    box: Box, prologs: Wrapped, lucidd: Lucidd
) -> None:
    with prologs(False):
        first = hosts(box, lucidd)
        second = guests(box)
        box.wait("a drained node", lambda: drained(box) != [])
        off = drained(box)
        box.wait("lucidd to see it", lambda: f"no more pairs are made on {off[0]}" in lucidd.ctl("doctor"))
        told = lucidd.ctl("doctor")
        assert "was to share GPUs there, and Slurm drained the node with 'Prolog error" in " ".join(told.split())
        box.wait("both", lambda: len(drained(box)) == 2 or "no more pairs are made in vc-a" in told, 5)
        for name in drained(box):
            box.run("scontrol", "update", f"NodeName={name}", "State=RESUME")
        box.wait("their jobs again", lambda: all(box.job(n)["waits"] for n in second))
        for _ in range(20):
            box.run("sleep", "1")
            assert drained(box) == []
        assert all(box.state(n) == "RUNNING" for n in first)
        (box.root / "tmp/guests").unlink()
        (box.root / "tmp/hosts").unlink()
        box.wait_ended(*first, *second, limit_s=120)
        assert {box.state(n) for n in (*first, *second)} == {"COMPLETED"}
