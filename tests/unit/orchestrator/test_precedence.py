"""What the site and users say of a job's place: the priority of its QOS, and ``--nice`` among its user's own jobs."""

from __future__ import annotations

from typing import Any

import pytest

from builders import a_job, decide, nodes, part, snap, waits
from lucid.core.decision import Start
from lucid.core.job import Job
from lucid.errors import ClusterError, ClusterUnavailable
from lucid.orchestrator.order.queue_order import in_precedence
from lucid.slurm.records.configuration import QosTiers, tiers_from
from scenes.slurm import MINE, Scene


def named(*jobs: Job) -> list[str]:
    return [job.id for job in in_precedence(jobs, jobs)]


def test_a_higher_tier_goes_first_whatever_the_policy_thinks_of_it() -> None:
    assert named(a_job("a"), a_job("b", tier=1), a_job("c", tier=10), a_job("d", tier=1)) == ["c", "b", "d", "a"]


def test_nice_gives_the_places_of_one_users_jobs_out_among_them() -> None:
    mine = {"user": "ada"}
    jobs = a_job("a", nice=50, **mine), a_job("b", user="bo"), a_job("c", **mine), a_job("d", nice=9, **mine)
    assert named(*jobs) == ["c", "b", "d", "a"]
    assert named(*reversed(jobs)) == ["c", "d", "b", "a"], "places of others stay"
    assert named(a_job("a", nice=50, tier=1, **mine), a_job("b", **mine)) == ["a", "b"], "within a tier"


@pytest.mark.parametrize("name", ["lucid", "fifo", "sjf", "srtf", "backfill", "tiresias"])
@pytest.mark.parametrize("more", [{"tier": 5}, {"nice": -5}])
def test_policies_go_by_it(name: str, more: dict[str, Any]) -> None:
    jobs = [waits("early", 8, 0.0, user="ada"), waits("late", 8, 1.0, user="ada", **more)]
    plan = decide(name, snap(600.0, part(nodes(1), jobs)))
    started = [job_id for job_id, decision in plan.decisions.items() if isinstance(decision, Start)]
    assert started == ["late"]


@pytest.mark.parametrize("more", [{"tier": 5}, {"nice": -5}])
def test_nodes_are_kept_for_the_large_job_that_goes_first(more: dict[str, Any]) -> None:
    jobs = [waits("early", 16, 0.0, user="ada"), waits("late", 16, 1.0, user="ada", **more)]
    plan = decide("lucid", snap(600.0, part(nodes(2), jobs)))
    assert [job_id for job_id, decision in plan.decisions.items() if isinstance(decision, Start)] == ["late"]


def test_the_tier_of_a_job_is_the_priority_of_its_qos_and_nice_is_its_users() -> None:
    stage = Scene()
    stage.slurm.qos = {"urgent": 1000}
    stage.slurm.submit("a", "vc", mark=MINE, qos="urgent", nice=5)
    stage.slurm.submit("b", "vc", mark=MINE, qos="normal")
    assert [(e.job.tier, e.job.nice) for e in stage.look().pending] == [(1000, 5), (0, 0)]


def test_priorities_of_qos_count_where_slurm_counts_them() -> None:
    rows = "normal|0\nurgent|10000\nodd|x\nshort\n"
    assert tiers_from(rows, {"PriorityWeightQOS": "1000"}) == {"urgent": 10000}
    assert tiers_from(rows, {"PriorityWeightQOS": "0"}) == {}
    assert tiers_from(rows, {}) == {}


def test_what_was_read_before_counts_where_it_cannot_be_read() -> None:
    answers: list[Any] = [{"a": 1}, ClusterError("no slurmdbd"), {"a": 2}]

    def ask() -> dict[str, int]:
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    tiers = QosTiers(ask)
    assert [tiers(at_s) for at_s in (0.0, 300.0, 700.0, 1400.0)] == [{"a": 1}, {"a": 1}, {"a": 1}, {"a": 2}]
    answers[:] = [ClusterUnavailable("down")]
    with pytest.raises(ClusterUnavailable):
        tiers(9000.0)
