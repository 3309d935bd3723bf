"""Replays with the manners of the live daemon, and how far a replay is from what really happened."""

from __future__ import annotations

import pytest

from builders import a_trace, by
from demo_realism import RealTimes, realism
from lucid.config.load import Settings, settings_from
from lucid.core.job import Job, JobProfile
from lucid.errors import TraceError
from lucid.simulator.cluster.state import JobOutcome
from lucid.simulator.layout import NodeShape
from lucid.simulator.scenario import Scenario, simulate
from lucid.simulator.traces.record import Trace, TraceJob

LIGHT = JobProfile(20.0, 10.0, 1000.0)
JUMBO = JobProfile(99.0, 95.0, 1000.0)
SETTINGS = settings_from(
    {
        "policy": {
            "profiling": {"t_prof_s": 80.0, "carry_on_share": 0.0, "restarts": "allowed"},
            "packing": {"least_partner_remaining_s": 0.0},
        },
        "overheads": {"requeue_s": 10.0, "start_s": 4.0},
    },
    "test",
)


def job(n: int, at_s: float, name: str, profile: JobProfile, user: str = "ada", lasts_s: float = 1000.0) -> TraceJob:
    return TraceJob(Job(str(n), "vc", 1, at_s, n, user, "", name), lasts_s, "COMPLETED", profile)


def ran(*jobs: TraceJob, gpus: int = 2, settings: Settings = SETTINGS, as_live: bool = True) -> dict[str, JobOutcome]:
    scenario = Scenario(
        Trace("t", jobs), {"vc": 2}, NodeShape(gpus), settings=settings, profiling_nodes=1, as_live=as_live
    )
    return {outcome.job.id: outcome for outcome in simulate(scenario, "lucid").outcomes}


def test_a_job_like_one_measured_before_skips_profiling() -> None:
    jobs = (job(1, 0.0, "bert", LIGHT), job(2, 200.0, "bert", LIGHT), job(3, 200.0, "bert", LIGHT, user="bob"))
    known = ran(*jobs)
    assert [known[n].profiled_s for n in "123"] == [80.0, 0.0, 80.0], "likeness is the user's and the name's"
    assert known["2"].start_s == 200.0
    assert [ran(*jobs, as_live=False)[n].profiled_s for n in "123"] == [80.0, 80.0, 80.0]


def test_live_nobody_waits_for_a_profiling_node_while_there_is_room_at_home() -> None:
    found = ran(*(job(n, 0.0, "bert", LIGHT) for n in range(1, 5)))
    assert [(found[n].start_s, found[n].profiled_s) for n in "1234"] == [(0.0, 80.0)] * 2 + [(0.0, 0.0)] * 2


def test_those_that_wait_for_a_profiling_node_go_home_once_one_of_them_is_measured() -> None:
    jobs = tuple(job(n, 0.0, "bert", LIGHT) for n in range(1, 5))
    profiling = SETTINGS.policy.profiling.model_copy(update={"home_if_room": False})
    policy = SETTINGS.policy.model_copy(update={"profiling": profiling})
    found = ran(*jobs, settings=SETTINGS.model_copy(update={"policy": policy}))
    profiled = [n for n, outcome in found.items() if outcome.profiled_s]
    assert profiled == ["1", "2"], "as many as fit on the profiling node"
    assert all(found[n].start_s == 80.0 and found[n].packed for n in "34")


def test_jobs_without_a_user_are_like_nobody() -> None:
    found = ran(job(1, 0.0, "", LIGHT, user=""), job(2, 200.0, "", LIGHT, user=""))
    assert [found[n].profiled_s for n in "12"] == [80.0, 80.0]


def test_a_start_takes_a_moment_each_time() -> None:
    (outcome,) = ran(job(1, 0.0, "bert", LIGHT)).values()
    assert outcome.end_s == pytest.approx(80.0 + 4.0 + 1000.0 + 10.0)
    short = ran(job(1, 0.0, "bert", LIGHT, lasts_s=30.0))["1"]
    assert (short.ended_in_profiling, short.end_s) == (True, 34.0)


def test_the_errors_are_those_of_each_job() -> None:
    run = simulate(Scenario(a_trace(by("a", 1, 100.0), by("b", 1, 50.0, 10.0)), {"vc": 1}), "fifo")
    assert [(o.start_s, o.end_s) for o in run.outcomes] == [(0.0, 100.0), (10.0, 60.0)]
    found = realism(run, {"a": RealTimes(2.0, 110.0), "b": RealTimes(9.0, 56.0)})
    assert [(row.start_error_s, row.jct_error_s) for row in found.rows] == [(-2.0, -10.0), (1.0, 4.0)]
    assert found.figures == {
        "jobs": 2,
        "start_mae_s": 1.5,
        "start_bias_s": -0.5,
        "jct_mae_s": 7.0,
        "jct_bias_s": -3.0,
        "jct_mae_share": 7.0 / 78.0,
        "predicted_avg_jct_s": 75.0,
        "real_avg_jct_s": 78.0,
        "predicted_makespan_s": 100.0,
        "real_makespan_s": 110.0,
    }


@pytest.mark.parametrize(
    ("real", "words"),
    [
        ({"a": RealTimes(0, 1)}, "job 'b' is in the trace but not in the truth"),
        (dict.fromkeys("abc", RealTimes(0, 1)), "job 'c' is in the truth but not in the trace"),
    ],
)
def test_other_jobs_cannot_be_compared(real: dict[str, RealTimes], words: str) -> None:
    run = simulate(Scenario(a_trace(by("a", 1, 100.0), by("b", 1, 50.0)), {"vc": 1}), "fifo")
    with pytest.raises(TraceError, match=words):
        realism(run, real)


def test_a_job_that_could_never_run_in_the_replay_is_said() -> None:
    run = simulate(Scenario(a_trace(by("a", 9, 100.0)), {"vc": 1}, NodeShape(8)), "fifo")
    with pytest.raises(TraceError, match="job 'a' ran on the cluster, but can never run in the replay"):
        realism(run, {"a": RealTimes(0, 1)})
