"""Which jobs the account of GPU-hours is of, and what is known of each."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders import LIGHT, a_job
from daemon_site import Site
from lucid.core.job import Ended
from lucid.daemon.reporting.waste_inputs import job_accounts, job_uses
from lucid.node.reports import UseFolder, write_summary
from lucid.profiler.summary import Summary
from lucid.profiler.use import GpuUse
from lucid.slurm.records.request import EXCLUSIVE, NOT_TO_SHARE

WEEK_S = 7 * 86400.0


def test_jobs_that_run_are_in_it_up_to_lucidds_last_look_and_those_that_wait_are_not(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.submit("1", 2, run_s=100.0, user="ada", account="lab", time_limit_s=7200.0)
    site.turns(400.0)
    for number in range(2, 8):
        site.submit(str(number), 4, run_s=5000.0)
    site.turns(600.0)
    found = {one.job_id: one for one in job_uses(site.store, {}, site.settings, 0.0)}
    picture = site.store.view("snapshot")
    running = {e["job"]["id"] for part in picture["partitions"].values() for e in part["running"]}
    assert set(found) == {"1", *running}
    assert set(map(str, range(2, 8))) > running > set()
    at_s = site.store.view("status")["at_s"]
    assert at_s > picture["now_s"], "a picture is drawn where something has changed"
    one = found["1"]
    assert (one.user, one.account, one.vc, one.gpus, one.time_limit_s) == ("ada", "lab", "vc", 2, 7200.0)
    assert (one.running, one.state) == (False, "COMPLETED")
    assert one.ran_s > 0
    for name in running:
        assert (found[name].running, found[name].end_s) == (True, at_s)


def test_only_jobs_of_the_window_count(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.daemon.turn()
    lease = site.store.lease()
    now_s = 3 * WEEK_S
    jobs = [("old", now_s - WEEK_S - 1.0), ("new", now_s - WEEK_S + 1.0)]
    site.store.put_ended([Ended(a_job(name, gpus=1), end_s, 60.0) for name, end_s in jobs], lease.token)
    uses = UseFolder(tmp_path / "none")
    assert [one.job.job_id for one in job_accounts(site.store, uses, site.settings, now_s)] == ["new"]
    assert len(job_accounts(site.store, uses, site.settings, now_s, 30.0)) == 2


@pytest.mark.parametrize("why", ["", EXCLUSIVE, "it asks for 2 nodes", "its comment says lucid:exclusive"])
def test_whose_wish_it_was_not_to_share(tmp_path: Path, why: str) -> None:
    site = Site(tmp_path)
    site.daemon.turn()
    lease = site.store.lease()
    job = a_job("1", gpus=1, shareable=not why, whole_because=why)
    site.store.put_ended([Ended(job, 5000.0, 60.0, profile=LIGHT)], lease.token)
    (found,) = job_uses(site.store, {}, site.settings, 0.0)
    assert found.wants_alone is (why in (EXCLUSIVE, "its comment says lucid:exclusive"))
    assert found.profile == LIGHT
    assert len(NOT_TO_SHARE) == 3


def test_what_was_read_of_an_earlier_run_does_not_count_for_this_one(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.daemon.turn()
    lease = site.store.lease()
    site.store.put_ended([Ended(a_job("1", gpus=1), 5000.0, 1000.0)], lease.token)
    folder = tmp_path / "profiles"
    folder.mkdir()
    for begin_s, end_s, known in ((2000.0, 3000.0, 0), (4000.0, 5000.0, 1)):
        use = (GpuUse("g", begin_s, end_s, end_s - begin_s, 10.0),)
        write_summary(folder, Summary("1", "n1", ("g",), begin_s, end_s, 1000, use=use))
        (found,) = job_uses(site.store, UseFolder(folder).uses(), site.settings, 0.0)
        assert len(found.use) == known
