"""A node refused a job, so Slurm holds it itself: Lucid tries again, ``START_TRIES`` times, and no more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from daemon_site import Site

MARK = "lucid:vc=vc;held=1;share=0;v=2"


def fails(site: Site, job_id: str) -> None:
    """What slurmctld makes of it: put back, and held by nobody but itself."""
    record = site.slurm.records[job_id]
    site.slurm.records[job_id] = replace(
        record, state="PENDING", held=True, reason="JobHeldUser", launch_failed=True, placement=(),
        restarts=record.restarts + 1,
    )  # fmt: skip


def test_it_is_tried_again_and_in_the_end_left_to_the_administrator_unless_it_runs(tmp_path: Path) -> None:
    site = Site(tmp_path, profiling_partition="")
    for job_id in ("1", "2"):
        site.submit(job_id, 4, mark=MARK, run_s=50.0)
    site.turns(5.0)
    fails(site, "2")
    starts = 0
    for _ in range(12):
        if site.slurm.records["1"].state == "RUNNING":
            starts += 1
            fails(site, "1")
        site.turns(12.0)
    assert site.slurm.records["1"].held
    assert starts == 3, "twice as Lucid asks, once as its user wrote it"
    assert site.slurm.records["2"].state == "COMPLETED"
