"""What a shorter time limit would have brought, by recorded plans, against replays with that limit."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from builders import a_trace
from lucid.daemon.reporting.limit_replay import recorded_s, replay_limits
from lucid.explain.time_limits import HeldBack, held_back
from lucid.profiler.waste import FittingLimit, JobUse, fitting_limits, round_limit_s
from lucid.simulator.cluster.state import JobOutcome
from lucid.simulator.traces.record import Trace
from lucid.store.plan_records import record_files
from scenes.limits import crowded, replayed

H = 3600.0


def as_used(outcome: JobOutcome) -> JobUse:
    job = outcome.job
    ran = (job.id, job.user, "", "vc", job.name, job.gpus, outcome.start_s, outcome.end_s)
    return JobUse(*ran, state="COMPLETED", time_limit_s=job.time_limit_s)


def with_limit(trace: Trace, one: FittingLimit) -> Trace:
    """The same, as if the job had asked for that limit when it was submitted."""
    return a_trace(
        *(
            replace(item, job=replace(item.job, time_limit_s=one.limit_s)) if item.job.id == one.job.job_id else item
            for item in trace.jobs
        )
    )


@pytest.mark.parametrize("name", ["backfill", "lucid"])
def test_what_is_told_is_what_a_replay_with_that_limit_does(name: str, tmp_path: Path) -> None:
    trace = crowded(3)
    before = replayed(name, trace, tmp_path)
    asked = fitting_limits(map(as_used, before.values()))
    found = replay_limits(record_files(tmp_path), asked)
    assert found.unlike == 0
    told = sorted(found.earlier.values(), key=lambda one: -one.earlier_s)[::4]
    assert len(told) >= 6
    for one in told:
        assert replayed(name, with_limit(trace, one.asked))[one.asked.job.job_id].start_s == pytest.approx(one.at_s)
    rest = [one for one in asked if one.job.job_id in found.waiting and one.job.job_id not in found.earlier]
    assert rest, "some would have started no sooner"
    for one in rest[:6]:
        assert replayed(name, with_limit(trace, one))[one.job.job_id].start_s >= one.job.begin_s
    assert (HeldBack.WINDOW, "upgrade") in {held_back(one.held) for one in found.earlier.values()}


def test_a_record_that_says_something_else_is_left_out_and_so_is_one_that_cannot_be_read(tmp_path: Path) -> None:
    asked = fitting_limits(map(as_used, replayed("backfill", crowded(3), tmp_path).values()))
    files = record_files(tmp_path)
    files[40].write_bytes(b"no record")
    for file in files[41:]:
        data = json.loads(gzip.decompress(file.read_bytes()))
        data["code"] = "another"
        data["plans"] = {
            name: text.replace('"decisions":[[', '"decisions":[["x",null],[') for name, text in data["plans"].items()
        }
        file.write_bytes(gzip.compress(json.dumps(data).encode()))
    found = replay_limits(files, asked)
    assert found.unlike > 40
    assert all(one.at_s <= recorded_s(files[40]) for one in found.earlier.values())


def used(job_id: str, ran_h: float, limit_h: float | None, state: str = "COMPLETED", name: str = "train") -> JobUse:
    limit_s = None if limit_h is None else limit_h * H
    return JobUse(job_id, "ada", "", "vc", name, 1, 0.0, ran_h * H, state=state, time_limit_s=limit_s)


def test_a_limit_is_proposed_where_three_jobs_are_far_below_theirs() -> None:
    likes = [used("1", 1.0, 24.0), used("2", 2.1, 24.0), used("3", 0.5, None)]
    assert [(one.job.job_id, one.limit_s / H) for one in fitting_limits(likes)] == [("1", 5), ("2", 5), ("3", 5)]
    assert fitting_limits(likes[:2]) == []
    assert fitting_limits([*likes, used("4", 4.0, 4.0, "TIMEOUT")]) == []
    assert fitting_limits([*likes, replace(used("4", 9.0, 10.0), running=True)])
    assert [one.job.job_id for one in fitting_limits([*likes, used("4", 1.0, 6.0)])] == ["1", "2", "3"]
    assert fitting_limits([replace(one, state="CANCELLED") for one in likes]) == []
    assert [one.job.job_id for one in fitting_limits(likes, 1.5 * H)] == ["1", "3"]


def test_a_limit_is_one_that_a_person_would_write() -> None:
    assert [round_limit_s(h * H) / H for h in (0.1, 0.25, 1.9, 2.1, 23.5, 25.0)] == [0.25, 0.25, 2.0, 3.0, 24.0, 30.0]
