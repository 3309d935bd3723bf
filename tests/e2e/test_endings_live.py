"""``explain`` of jobs that ended badly, on a real Slurm with accounting: the cause, as each was made."""

from __future__ import annotations

from box import Box
from daemon_box import Lucidd

LUCIDD = {"mode": "observe"}


def test_the_cause_of_each_end_is_named(box: Box, lucidd: Lucidd) -> None:
    made = {
        "time_limit": box.sbatch("--gres=gpu:1", "-t", "1", script="sleep 600"),
        "exit_code": box.sbatch("--gres=gpu:1", script="sleep 3; exit 3"),
        "signal": box.sbatch("--gres=gpu:1", script="sleep 3; kill -SEGV $$"),
        "cancelled": box.sbatch("--gres=gpu:1", script="sleep 600"),
        None: box.sbatch("--gres=gpu:1", script="sleep 3"),
    }
    box.wait("it runs", lambda: box.state(made["cancelled"]) == "RUNNING", 60)
    box.run("scancel", made["cancelled"])
    box.wait_ended(*made.values(), limit_s=240)

    def causes() -> dict[str | None, object]:
        return {cause: (lucidd.story(job).get("ended") or {}).get("cause", "?") for cause, job in made.items()}

    box.wait("lucidd and accounting to know", lambda: causes() == {cause: cause for cause in made}, 60)
    told = lucidd.ctl("explain", made["exit_code"])
    assert "why it ended: Its program ended with exit code 3." in told
    assert "what would help: The program itself reported this" in told
    assert "--time=0:02:00" in lucidd.ctl("explain", made["time_limit"])
