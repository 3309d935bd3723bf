"""Nobody is started over who did not ask for it: lucidd with its defaults, on a real Slurm."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from box import Box
from daemon_box import Lucidd

ONCE = {
    "mkdir": "set -e; mkdir /tmp/out-$SLURM_JOB_ID; sleep 9",
    "count": 'set -e; test -z "$SLURM_RESTART_COUNT"; sleep 9',
}
"""Scripts that cannot be started over."""


@pytest.fixture
def lucidd(box: Box, tmp_path: Path) -> Iterator[Lucidd]:
    daemon = Lucidd(box, tmp_path / "state", restarts="")
    daemon.start()
    yield daemon
    daemon.close()


def shards(box: Box, number: str) -> str:
    return str(box.job(number)["tres_per_node"])


def test_a_script_that_cannot_be_started_over_runs_once(box: Box, lucidd: Lucidd) -> None:
    ids = [box.sbatch("--gres=gpu:1", "-J", name, script=script) for name, script in ONCE.items()]
    box.wait_ended(*ids)
    assert {number: (box.state(number), box.job(number)["restart_cnt"]) for number in ids} == dict.fromkeys(
        ids, ("COMPLETED", 0)
    )
    for number in ids:
        assert [entry["verb"] for entry in lucidd.story(number)["decisions"] if entry["verb"] != "hold"] == ["start"]
        assert "shard" in shards(box, number), "in slots from the start, though nobody had measured it"


def test_a_job_measured_where_it_runs_is_joined_without_a_restart(box: Box, lucidd: Lucidd) -> None:
    host = box.sbatch("--gpus=2", "-J", "train-1", script="sleep 45")
    box.wait("the profile", (lucidd.profiles / f"{host}.json").exists)
    guest = box.sbatch("--gpus=2", "-J", "train-2", script="sleep 20")
    box.wait("the guest", lambda: box.state(guest) == "RUNNING")
    assert box.state(host) == "RUNNING"
    assert shards(box, guest) == shards(box, host), "on the same GPUs"
    assert re.search(rf"beside job {host}", lucidd.ctl("explain", guest))
    box.wait_ended(host, guest)
    assert [(box.state(n), box.job(n)["restart_cnt"]) for n in (host, guest)] == [("COMPLETED", 0)] * 2


def test_who_asks_to_be_started_over_is_known_by_the_tag(box: Box) -> None:
    box.beat()
    tags = {
        words: box.tag(box.sbatch("--gres=gpu:1", *words.split(), script="sleep 1"))
        for words in (
            "",
            "--requeue",
            "--no-requeue",
            "--comment=lucid:restart",
            "--no-requeue --comment=lucid:restart",
        )
    }
    assert {words: ("restart=1" in tag, "requeue=0" in tag) for words, tag in tags.items()} == {
        "": (False, False),
        "--requeue": (True, False),
        "--no-requeue": (False, True),
        "--comment=lucid:restart": (True, False),
        "--no-requeue --comment=lucid:restart": (False, True),
    }
    box.clear()
