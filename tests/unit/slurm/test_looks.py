"""How soon lucidd looks again when a new job wakes it."""

from pathlib import Path

import pytest

from daemon_site import Site
from lucid.daemon.loop import STORED, Looks
from lucid.slurm.cluster import SlurmCluster


def test_after_a_quiet_time_a_chain_of_jobs_is_looked_at_at_once_and_a_storm_once_a_second() -> None:
    """Of jobs one after the other, as of srun in a loop, each met a lucidd that had looked for the one before, and
    waited for the rest of the second: Slurm's test 39.10 took 37 s in place of 3."""
    looks, now_s, waits = Looks(1.0), 1000.0, []
    for _ in range(STORED + 20):
        looks.looked(now_s)
        waits.append(looks.least_s)
        now_s += looks.least_s
    assert waits[:STORED] == [0.1] * STORED
    assert waits[-10:].count(1.0) >= 9


def test_looks_are_stored_up_to_a_number_while_it_is_quiet() -> None:
    looks = Looks(1.0)
    for n in range(STORED + 5):
        looks.looked(1000.0 + 0.1 * n)
    assert looks.least_s == 1.0
    looks.looked(1020.0)
    assert looks.least_s == 0.1
    for n in range(20):
        looks.looked(1020.1 + 0.01 * n)
    assert looks.least_s == 1.0, "what was earned in those seconds, and no more"


def test_a_slow_slurmctld_is_not_asked_sooner_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(tmp_path)
    site.daemon.turn()
    assert site.daemon.least_woken_s == 0.1
    monkeypatch.setattr(site.daemon.parts.breaker.calls, "last_s", 0.5)
    assert site.daemon.least_woken_s == 2.5


def test_gpus_that_come_free_for_a_job_are_looked_at_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(tmp_path)
    assert site.daemon.turn() >= site.daemon.least_wait_s
    monkeypatch.setattr(SlurmCluster, "emptying", True)
    assert site.daemon.turn() == 0.3
