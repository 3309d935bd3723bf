"""Nobody is started over who did not ask for it: lucidd with its defaults, on a real Slurm."""

from __future__ import annotations

from box import Box
from daemon_box import Lucidd

ONCE = {
    "mkdir": "set -e; mkdir /tmp/out-$SLURM_JOB_ID; sleep 9",
    "count": 'set -e; test -z "$SLURM_RESTART_COUNT"; sleep 9',
}
"""Scripts that cannot be started over."""


LUCIDD = {"restarts": ""}


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
