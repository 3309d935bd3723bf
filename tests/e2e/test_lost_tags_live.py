"""A site whose prolog writes AdminComment at each start of a job, where the tag is: nothing is held at the end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from box import Box
from daemon_box import LIGHT, Lucidd, has_measured
from test_fail_open import release

from lucid.profiler.summary import Summary

SITES = '[{"vm_size": "Standard_NC24"}]'
PROLOG = f"#!/bin/sh\n/usr/bin/scontrol update JobId=$SLURM_JOB_ID 'AdminComment={SITES}' >&2\nexit 0\n"


@pytest.fixture
def site(box: Box, tmp_path: Path) -> Iterator[Lucidd]:
    prolog = box.root / "etc/slurm/lucid/prolog.d/90-site"
    prolog.write_text(PROLOG)
    prolog.chmod(0o755)
    lucidd = Lucidd(box, tmp_path / "state")
    has_measured(lucidd, "light")
    with lucidd:
        yield lucidd
    prolog.unlink()


def asked(box: Box, number: str) -> str:
    return str(box.job(number)["tres_per_node"])


def pair(box: Box) -> list[str]:
    """Two jobs that share their GPUs, the only ones that were free, and whose tags are lost."""
    others = [box.sbatch("-p", "vc-a", f"--gres=gpu:{n}", "--comment=lucid:off", script="sleep 900") for n in (4, 2)]
    box.wait("two free GPUs", lambda: all(box.state(number) == "RUNNING" for number in others), 60)
    jobs = [box.sbatch("-p", "vc-a", "--gres=gpu:2", "-J", "light", script="sleep 900") for _ in range(2)]
    box.wait("a pair", lambda: all(box.state(n) == "RUNNING" and "shard" in asked(box, n) for n in jobs), 90)
    assert asked(box, jobs[0]) == asked(box, jobs[1])
    box.wait("the site's words", lambda: [box.tag(number) for number in jobs] == [SITES] * 2, 20)
    box.run("scancel", *others)
    return jobs


def runs_again(box: Box, number: str, restarts: int) -> None:
    def runs() -> bool:
        job = box.job(number)
        return job["job_state"] == ["RUNNING"] and job["restart_cnt"] >= restarts

    box.wait(f"{number} runs again", runs, 150)


def held(box: Box) -> list[str]:
    return [number for number, job in box.jobs().items() if job["job_state"] == ["PENDING"] and job["hold"]]


def test_what_is_started_over_queues_again_whoever_wrote_its_admin_comment(box: Box, site: Lucidd) -> None:
    """Parted by Lucid, requeued by Slurm, with lucidd restarted on its store, and on its list alone."""
    first, second = pair(box)
    box.wait("doctor's word", lambda: "jobs of ours is somebody else's" in site.ctl("doctor"), 30)
    site.tell(Summary(second, "n", (), 0.0, 90.0, 90, replace(LIGHT, unstable=True)))
    box.wait("parted", lambda: any(box.job(n)["restart_cnt"] == 1 for n in (first, second)), 60)
    for number in (first, second):
        runs_again(box, number, int(box.job(number)["restart_cnt"]))
    parted = [number for number in (first, second) if box.job(number)["restart_cnt"]]
    assert any(action["verb"] == "part" for number in parted for action in site.story(number)["actions"])

    site.kill()
    box.scontrol("requeue", first)
    site.start()
    runs_again(box, first, 1)
    told = [action["verb"] for action in site.story(first)["actions"]]
    assert told.count("start") >= 2, "started by Lucid, not past its queue"

    site.kill()
    for file in site.folder.glob("lucid.db*"):
        file.unlink()
    box.scontrol("requeuehold", second)
    site.start()
    runs_again(box, second, 1)
    assert "start" in [action["verb"] for action in site.story(second)["actions"]]
    assert not held(box)


def test_lucid_release_leaves_nothing_held(box: Box, site: Lucidd) -> None:
    """lucidd is gone for good, having just started both jobs of a pair over; its list is what is left."""
    jobs = pair(box)
    site.kill()
    for file in site.folder.glob("lucid.db*"):
        file.unlink()
    listed = [line.split()[0] for line in (site.folder / "ours").read_text().splitlines()]
    assert set(jobs) <= set(listed), listed
    for number in jobs:
        box.scontrol("requeuehold", "Incomplete", number)
    box.wait("both held, in slots", lambda: sorted(held(box)) == sorted(jobs), 30)
    assert all("shard" in asked(box, number) for number in jobs)
    time.sleep(1)
    said = release(box, LUCID_BOUND_S="0", LUCID_STATE=str(site.folder))
    assert (said.returncode, said.stderr) == (0, "")
    assert not held(box)
    assert [asked(box, number) for number in jobs] == ["gres/gpu:2"] * 2
    for number in jobs:
        runs_again(box, number, 1)
