"""What the daemon planned on a real Slurm comes out the same, byte for byte, in another process; and with one job's
time limit changed, it comes out as Slurm would have had it."""

from __future__ import annotations

import time
from pathlib import Path

from box import Box
from daemon_box import Lucidd, with_constant
from test_windows_live import window

EVERY_PLAN = with_constant("lucid.store.plan_records", "EVERY_S", 0.0)
"""lucidd, which records each plan instead of one in 30 s."""
SHORT = ("-p", "vc-a", "--gres=gpu:1", "-J", "train", "-t", "60")


def test_plans_on_a_real_slurm_can_be_made_again(box: Box, tmp_path: Path) -> None:
    daemon = Lucidd(box, tmp_path / "lucid", restarts="", program=EVERY_PLAN)
    try:
        daemon.start()
        jobs = [box.sbatch("--gpus=2", "-J", f"pair{i % 2}", script="sleep 12") for i in range(6)]
        jobs += [box.sbatch("--gpus=4", "-J", "large", script="sleep 3", user="bob")]
        jobs += [box.sbatch(*SHORT, script="sleep 2") for _ in range(3)]
        box.wait_ended(*jobs, limit_s=240)
        with window(box, "now+30minutes", 5):
            held = box.sbatch(*SHORT, script="sleep 2")
            box.wait("a decision", lambda: bool(daemon.story(held)["decisions"]))
            held_s = time.time()
            time.sleep(20)
        box.wait_ended(held, limit_s=120)
        box.wait("it is told", lambda: daemon.story(held).get("ended") is not None)
    finally:
        daemon.close()
        box.stop_beating()
    told = daemon.json("replay")
    assert told["records"] == told["same"] > 3
    assert sum(item["jobs"] for item in told["found"]) > len(jobs)
    assert any(item["kept"] for item in told["found"])
    limits = daemon.json("efficiency", "--time-limits")["time_limits"]
    (one,) = [one for one in limits["jobs"] if one["job"] == held]
    assert (one["held_by"], one["limit_s"]) == ("window", 900.0)
    assert abs(one["would_have_started_s"] - held_s) < 10, "in the first plan that knew of it"
    assert one["earlier_s"] > 15
    assert "time limit: with --time 0:15:00 it would have started" in daemon.ctl("explain", held)
