"""A job that Slurm never starts, and holds itself ('BadConstraints'), keeps nobody waiting."""

from __future__ import annotations

import pytest

from lucid.core.snapshot import Partition
from lucid.slurm.records.job import SlurmJob
from scenes.slurm import MINE, Scene

NEVER = "BadConstraints"


class Site(Scene):
    """Slurm holds the jobs of ``never`` itself as soon as it is to start them."""

    def __init__(self) -> None:
        super().__init__()
        self.never = {"1"}
        self.slurm.limits = lambda job: NEVER if job.id in self.never else ""

    def turn(self, seconds: float = 1.0) -> Partition:
        """One look, what it leads to, and a while of Slurm's own."""
        seen = self.look()
        self.mend()
        self.slurm.advance(seconds)
        for job_id in self.never:
            record = self.slurm.records[job_id]
            if record.pending and not record.held:
                self.slurm._set(job_id, held=True, reason=NEVER)
        return seen

    def released(self, job_id: str) -> int:
        return sum(action.verb == "let go" for action in self.store.actions(job_id))


@pytest.fixture
def site() -> Site:
    return Site()


def opted_out(site: Site, job_id: str, gpus: int = 1) -> SlurmJob:
    return site.slurm.submit(job_id, "vc", gpus, mark="lucid:vc=vc;held=1;skip=socket;v=2")


def test_an_opt_out_that_never_runs_is_let_go_at_growing_pauses(site: Site) -> None:
    opted_out(site, "1")
    for _ in range(3600):
        site.turn()
    assert 4 <= site.released("1") <= 12, "seconds to minutes, not every look, and not never"


def test_an_opt_out_that_never_runs_keeps_nobody_waiting(site: Site) -> None:
    opted_out(site, "1")
    opted_out(site, "2")
    site.slurm.submit("3", "vc", 1, mark="lucid:vc=vc;held=1;wait=1;v=2")
    for _ in range(10):
        seen = site.turn()
    assert site.released("2") == 1
    assert [entry.job.id for entry in seen.pending] == ["3"], "and who joined late is in the queue"


def test_what_could_not_run_for_a_while_runs_once_it_can(site: Site) -> None:
    opted_out(site, "1")
    for _ in range(60):
        site.turn()
    site.never.clear()
    for _ in range(700):
        site.turn()
    assert site.slurm.records["1"].state == "RUNNING"


def test_an_ordinary_job_that_never_runs_is_given_up_and_tried_again_at_growing_pauses(site: Site) -> None:
    site.slurm.submit("1", "vc", 1, mark=MINE)
    starts = 0
    for _ in range(3600):
        seen = site.look()
        if any(entry.job.id == "1" and not entry.barred for entry in seen.pending):
            starts += 1
            assert site.start("1", "n1:0") is None
        site.turn()
    assert starts == 2, "START_TRIES; then Slurm alone decides"
    assert 4 <= site.released("1") <= 12
    assert site.look().pending == ()
    assert "Slurm holds it itself (BadConstraints)" in site.cluster.aside()["1"]
    site.never.clear()
    for _ in range(700):
        site.turn()
    assert site.slurm.records["1"].state == "RUNNING", "it was a passing state of the cluster"


def test_a_job_that_breaks_the_mending_leaves_the_others(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.never.clear()
    opted_out(site, "1", gpus=2)
    opted_out(site, "2")
    done = site.slurm.release

    def release(job_id: str) -> None:
        if job_id == "1":
            raise OverflowError("a number of no size")
        done(job_id)

    monkeypatch.setattr(site.slurm, "release", release)
    told = []
    for _ in range(5):
        site.look()
        told += site.mend()
        site.slurm.advance(1.0)
    assert site.slurm.records["2"].state == "RUNNING"
    assert "job 1: cannot be repaired yet (OverflowError: a number of no size)" in told
