"""A site whose own Prolog fails where a GPU is busy and keeps a file for each GPU, beside pairs on a real Slurm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from box import OVER, Box
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


def pairs(box: Box, lucidd: Lucidd) -> list[str]:
    """Seven jobs for the GPUs of four: three begin beside another. Each runs until ``ends``, as one does that keeps
    the room for profiling full."""
    script = "touch /tmp/began.$SLURM_JOB_ID; while ! test -e /tmp/over.$SLURM_JOB_ID; do sleep 0.2; done"
    full = box.sbatch("--gres=gpu:4", "-p", "prof", script=script)
    box.wait("a full room", lambda: began(box, full))
    lucidd.start()
    return [full, *(box.sbatch("--gres=gpu:2", "-J", "train", script=script) for _ in range(7))]


def began(box: Box, *jobs: str) -> bool:
    """Their prologs have ended."""
    return all((box.root / f"tmp/began.{number}").exists() for number in jobs)


def ends(box: Box, *jobs: str) -> None:
    for number in jobs:
        (box.root / f"tmp/over.{number}").touch()
    box.wait_ended(*jobs, limit_s=120)
    box.wait("epilogs", lambda: "COMPLETING" not in box.run("squeue", "-h", "-a", "-o", "%T").stdout)


@pytest.mark.slow
def test_beside_pairs_the_sites_scripts_see_first_and_last_jobs_and_no_node_is_drained(
    box: Box, prologs: Wrapped, lucidd: Lucidd
) -> None:
    with prologs(True):
        whole = box.sbatch("-p", "vc-b", "--gres=gpu:3")  # without Lucid: Slurm tells a prolog GPU 2 only
        box.wait_ended(whole)
        box.wait("its epilog", lambda: f"epi {whole} n3 0,1,2 0,1,2" in said(box))
        assert f"pro {whole} n3 0,1,2 0,1,2" in said(box)
        jobs = pairs(box, lucidd)
        box.wait("three pairs", lambda: began(box, *jobs))
        kept, first = files(box), sorted({*files(box).values()})
        later = sorted({*jobs} - {*first})
        assert (len(kept), len(first), len(later)) == (12, 5, 3), said(box)
        ends(box, *later)
        assert files(box) == kept, "the file of a job that still runs stays"
        assert not [line for line in said(box) if line.split()[1] in later]
        ends(box, *first)
        assert (files(box), drained(box)) == ({}, [])
        assert {box.state(n) for n in (whole, *jobs)} == {"COMPLETED"}
        # one that is on another node may be noted without GPUs: all slurmd are on one host here
        assert not [path for path in (box.root / "run/lucid-site").glob("*/jobs/*") if path.read_text().strip()]


@pytest.mark.slow
def test_without_the_wrapper_lucidd_stops_pairing_and_doctor_says_why(
    box: Box, prologs: Wrapped, lucidd: Lucidd
) -> None:
    with prologs(False):
        jobs = pairs(box, lucidd)
        once: list[str] = []

        def doctor_says(words: str) -> None:
            box.wait(words, lambda: words in " ".join(lucidd.ctl("doctor").split()))

        def held(number: str) -> bool:
            job = box.job(number)
            return job["job_state"][0] in {"RUNNING", *OVER} or bool(job["waits"])

        def resumed() -> bool:
            for name in drained(box):
                assert name not in once, "a second pair on a node that a first one drained"
                doctor_says(f"no more pairs are made on {name} since")
                doctor_says("was to share GPUs there, and Slurm drained the node with 'Prolog error")
                box.wait("lucidd to take back what it released there", lambda: all(map(held, jobs)))
                once.append(name)
                box.run("scontrol", "update", f"NodeName={name}", "State=RESUME")
            return bool(once)

        box.wait("a drained node", resumed)
        for number in jobs:
            (box.root / f"tmp/over.{number}").touch()
        box.wait("the end of all", lambda: resumed() and all(box.state(n) in OVER for n in jobs), 120)
        assert {box.state(n) for n in jobs} == {"COMPLETED"}
        assert ("no more pairs are made in vc-a" in lucidd.ctl("doctor")) is (len(once) == 2)
