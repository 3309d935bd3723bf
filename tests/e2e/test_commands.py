"""What Slurm makes of the daemon's own commands, where its manual leaves room for doubt."""

from __future__ import annotations

import time

from box import Box

from lucid.adapters.slurm_cli import CommandClient
from lucid.adapters.slurm_client import Breaker


def test_a_job_that_has_just_ended_is_not_run_again_by_a_requeue_that_comes_late(box: Box) -> None:
    slurm = CommandClient(["chroot", "--userspec=lucid", str(box.root)], Breaker(time.monotonic))
    job = box.sbatch("--gres=gpu:1", script="true")
    box.wait_ended(job)
    slurm.requeue_hold(job)
    assert (box.state(job), box.job(job)["restart_cnt"]) == ("COMPLETED", 0)
    box.scontrol("requeuehold", job)
    assert box.job(job)["restart_cnt"] == 1, "the control: without 'Incomplete' it would"
    box.run("scancel", job)
