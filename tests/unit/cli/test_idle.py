"""Running jobs whose GPUs do nothing are listed, and no other."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from daemon_site import Site
from lucid.node.reports import write_summary
from lucid.places import profiles_folder
from lucid.profiler.summary import Summary
from lucid.profiler.use import GpuUse, IdleStretch
from lucid.profiler.waste import idle_since
from waste_readings import H, MadeJob, Phase, ordinary

JOB = replace(MadeJob("j", [[Phase(9000.0, 0.0)]]).job_use(0.0), begin_s=0.0, end_s=9000.0, running=True)
USE = GpuUse("g", 0.0, 9000.0, 9000.0, 0.0, (IdleStretch(1000.0, 8990.0),))
LATER = replace(USE, gpu="h", idle=(IdleStretch(0.0, 500.0), IdleStretch(4000.0, 9000.0)))


@pytest.mark.parametrize(
    ("use", "gpus", "since_s"),
    [
        ((USE,), 1, 1000.0),
        ((USE, LATER), 2, 4000.0),
        ((USE,), 2, None),
        ((replace(USE, idle=(IdleStretch(5500.0, 9000.0),)),), 1, None),
        ((), 0, None),
        ((USE, replace(LATER, idle=())), 2, None),
        ((replace(USE, measured_s=3599.0),), 1, None),
        ((replace(USE, idle=(IdleStretch(1000.0, 8800.0),)),), 1, None),
    ],
    ids=[
        "idle",
        "both",
        "one not seen",
        "idle for less than an hour",
        "none seen",
        "one works",
        "under an hour",
        "silent or at work",
    ],
)
def test_a_job_is_idle_where_fresh_readings_of_all_its_gpus_say_so(
    use: tuple[GpuUse, ...], gpus: int, since_s: float | None
) -> None:
    assert idle_since(replace(JOB, use=use, gpus=gpus)) == since_s
    assert idle_since(replace(JOB, use=use, gpus=gpus, running=False)) is None


def test_no_ordinary_job_is_idle_at_its_end() -> None:
    made = [ordinary(number, seed=5).job_use(step_s=20.0) for number in range(20)]
    assert [job.job_id for job in made if idle_since(replace(job, running=True)) is not None] == []


def test_efficiency_lists_the_running_jobs_whose_gpus_do_nothing(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.submit("1", user="ada")
    site.submit("2", user="bob")
    site.turns(120.0)
    site.turns(5 * H, every_s=600.0)
    now_s = site.slurm.now
    folder = profiles_folder(site.settings)
    folder.mkdir(parents=True, exist_ok=True)
    for job, idle in (("1", (IdleStretch(now_s - 5 * H, now_s),)), ("2", ())):
        use = (GpuUse("n1/0", now_s - 5 * H, now_s, 5 * H, 0.0 if idle else 600.0, idle),)
        write_summary(folder, Summary(job, "n1", (), now_s - 5 * H, now_s, 30, use=use))
    listed = json.loads(site.ctl("efficiency", "--json"))["idle"]
    assert [(row["job"], row["user"], row["vc"]) for row in listed] == [("1", "ada", "vc")]
    assert listed[0]["since_s"] == pytest.approx(now_s - 5 * H, abs=150.0)
    words = site.ctl("efficiency")
    assert "1 running jobs whose GPUs do nothing now" in words
    assert "1 (ada, vc)" in words
    assert json.loads(site.ctl("efficiency", "--user", "bob", "--json"))["idle"] == []
