"""Estimates by tables of hazards, asked anew while jobs wait."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from builders import LIGHT, FixedPredictor, a_job, decide, nodes, part, runs, snap, waits
from lucid.core.codec import from_json, to_json
from lucid.core.decision import Hold, Start
from lucid.core.job import Ended, Pending, Running
from lucid.core.prediction import JUMBO, Prediction
from lucid.core.reasons.queue import TellsOf
from lucid.explain.predictions import prediction_lines
from lucid.left_out import LeftOut
from lucid.models.duration.hazards import HazardTables
from lucid.orchestrator.annotate import Annotator
from lucid.orchestrator.planner import FollowingPredictions


def ends(ran_s: float, job_id: str = "past", **of: object) -> Ended:
    return Ended(a_job(job_id, **{"user": "ann", **of}), 0.0, ran_s)  # type: ignore[arg-type]


def test_before_any_job_has_ended_it_guesses() -> None:
    found = HazardTables(50.0).predict(a_job("new"), LIGHT, 0.0)
    assert (found.duration_s, found.share_score) == (50.0, JUMBO)
    assert found.duration_source == "tables: no job has ended yet"


@pytest.mark.parametrize("ran_s", [3.0, 70.0, 5000.0, 1e6])
def test_many_ends_alike_are_what_is_expected(ran_s: float) -> None:
    tables = HazardTables()
    tables.learn([ends(ran_s)] * 40)
    assert ran_s / 1.8 - 10 <= tables.predict(a_job("new", user="ann"), None, 0.0).duration_s <= ran_s * 1.8 + 10


def test_the_narrower_group_says_more() -> None:
    tables = HazardTables()
    tables.learn([ends(40_000.0, user="bob", gpus=1)] * 20 + [ends(100.0)] * 5 + [ends(1000.0, name="long")] * 5)
    said = [
        tables.predict(a_job("new", **of), None, 0.0).duration_s  # type: ignore[arg-type]
        for of in ({"user": "ann", "gpus": 1}, {"user": "ann", "name": "long-2"}, {"user": "eve"}, {"user": "bob"})
    ]
    assert said[0] < said[1] < said[2] < said[3]


def test_jobs_without_a_user_are_known_by_what_they_ask_for() -> None:
    tables = HazardTables()
    tables.learn([ends(60.0, user="", cpus=4)] * 9 + [ends(9000.0, user="", cpus=8)] * 9)
    short, long = (tables.predict(a_job("new", user="", cpus=cpus), None, 0.0).duration_s for cpus in (4, 8))
    assert 10 * short < long


def going(job_id: str, start_s: float = 0.0, ran_s: float = 0.0, **of: object) -> Running:
    return runs(job_id, "n1:0", start_s, job=of, ran_s=ran_s)


def burst(running: int = 5, waiting: int = 3) -> tuple[HazardTables, list[Pending]]:
    """Jobs of one request: three have ended after 4 to 6 min, others run since second 0 or wait."""
    tables, queue = HazardTables(), [waits(f"w{at}", user="ann") for at in range(waiting)]
    tables.learn([ends(30.0, user="bob")] * 20)
    tables.follow([*(going(f"r{at}", user="ann") for at in range(running)), *queue], ())
    tables.learn([ends(seconds) for seconds in (240.0, 300.0, 360.0)])
    return tables, queue


def test_jobs_that_run_on_count_as_far_as_they_have_come() -> None:
    (seen, queue), (alone, _) = burst(), burst(0)
    job = queue[0].job
    assert seen.predict(job, None, 540.0).duration_s > 1.5 * alone.predict(job, None, 540.0).duration_s
    assert seen.predict(job, None, 540.0).duration_s < seen.predict(job, None, 54_000.0).duration_s


def test_its_terms_are_counts() -> None:
    tables, queue = burst()
    found = tables.predict(queue[0].job, None, 540.0)
    said = "3 ended after 4 to 6 min, 5 still run after 9 min"
    assert found.duration_source == f"tables: of this very request, {said}"
    terms = found.duration_terms
    assert terms is not None
    assert sum(term.score for term in terms.terms) == pytest.approx(terms.score)
    lines = prediction_lines(found, "ann")
    assert lines[1].startswith("    of all jobs, 20 ended after 0 to 6 min, 5 still run after 9 min: ")
    assert any(line.startswith(f"    of the same user, {said}: ") for line in lines)
    assert len(lines) == 1 + len(terms.terms)
    assert from_json(Prediction, to_json(found)) == found


def test_estimates_are_made_anew_where_something_has_changed_and_not_sooner() -> None:
    tables, queue = burst()
    other = waits("other", user="bob")
    tables.follow([other], ())
    both = [*queue, other]
    assert tables.anew("vc", both, 400.0).keys() == {one.job.id for one in both}
    tables.learn([ends(500.0)])
    assert not tables.anew("vc", both, 600.0), "asked 200 s ago"
    assert tables.anew("vc", both, 700.0).keys() == {one.job.id for one in queue}, "nothing of bob's has changed"
    assert not tables.anew("vc", both, 1010.0)
    assert tables.anew("vc", both, 1500.0).keys() == {one.job.id for one in queue}, "ann's run on, past 1,280 s"


def test_the_first_of_a_batch_that_nobody_has_seen_run_counts_for_all() -> None:
    tables, queue = burst(waiting=4)
    batch = [waits(f"b{at}", user="ann", cpus=7) for at in range(4)]
    tables.follow(batch, ())
    said = tables.anew("vc", [*queue, *batch], 400.0)
    assert [said[one.job.id].alike for one in (*queue, *batch)] == [1, 1, 1, 1, 4, 1, 1, 1]
    tables.follow([going("b1", 500.0, user="ann", cpus=7)], ())
    assert tables.anew("vc", batch, 800.0)["b0"].alike == 1


def test_whoever_comes_late_says_the_same() -> None:
    """Whatever happened to jobs, only who waits, who runs and what has ended counts."""
    rng = random.Random(1)
    tables, past, now = HazardTables(), list[Ended](), dict[str, Pending | Running]()
    for at in range(400):
        job_id = f"{rng.randrange(30)}"
        user, cpus = f"u{int(job_id) % 3}", int(job_id) % 2
        what = rng.choice(("waits", "runs", "runs", "ends", "goes"))
        if what == "waits":
            now[job_id] = waits(job_id, user=user, cpus=cpus, submit_s=float(at))
        elif what == "runs":
            now[job_id] = going(job_id, float(at), user=user, cpus=cpus)
        elif now.pop(job_id, None) is not None and what == "ends":
            past.append(ends(rng.lognormvariate(6, 2), job_id, user=user, cpus=cpus))
            tables.learn(past[-1:])
        if what == "goes":
            tables.follow((), [job_id])
        elif what != "ends" and job_id in now:
            tables.follow([now[job_id]], ())
        tables.predict(a_job("new", user=user, cpus=cpus), None, float(at))
    late = HazardTables()
    late.learn(past)
    late.follow(now.values(), ())
    queue = [entry for entry in now.values() if isinstance(entry, Pending)]
    assert queue
    assert {e.job.id: tables.predict(e.job, None, 9000.0).duration_s for e in queue} == pytest.approx(
        {e.job.id: late.predict(e.job, None, 9000.0).duration_s for e in queue}
    )


def test_a_job_that_starts_again_counts_from_its_first_run() -> None:
    tables = HazardTables()
    tables.learn([ends(100.0)] * 3)
    tables.follow([going("r", 1000.0, 400.0, user="ann")], ())
    assert "1 still runs after 10 min" in tables.predict(a_job("new", user="ann"), None, 1200.0).duration_source


# -- in the cycle --------------------------------------------------------------------------------------------------


def test_jobs_that_wait_have_new_estimates_and_the_first_of_a_batch_goes_first() -> None:
    tables = HazardTables()
    tables.learn([ends(5000.0, user="bob")] * 5 + [ends(3000.0, user="eve")] * 5)
    annotate = Annotator(FixedPredictor({}), None, None, tables)
    annotate._by = {"": "history"}
    queue = [waits(f"b{at}", user="ann", submit_s=float(at)) for at in range(3)] + [waits("eve", user="eve")]
    room = part(nodes(1, 1), queue)
    assert annotate(snap(0.0, room)).predictions["b0"].alike == 3
    later = annotate(snap(400.0, part(nodes(1, 1), queue)))
    plan = decide("lucid", later)
    started = [(job_id, one) for job_id, one in plan.decisions.items() if isinstance(one, Start)]
    assert [job_id for job_id, _ in started] == ["b0"]
    assert TellsOf(3) in started[0][1].reasons
    assert all(TellsOf(3) not in one.reasons for one in plan.decisions.values() if isinstance(one, Hold))
    done = (ends(4.0, "b0", gpus=1),)
    after = annotate(replace(snap(800.0, part(nodes(1, 1), queue[1:])), ended=done)).predictions
    assert after["b1"].duration_s < later.predictions["b1"].duration_s
    assert after["b1"].alike == 1


def test_a_predictor_that_fails_says_nothing_new() -> None:
    class Broken(HazardTables):
        def anew(self, partition: str, pending: object, now_s: float) -> dict[str, object]:  # type: ignore[override]
            raise KeyError("table")

    left_out = LeftOut()
    guarded = FollowingPredictions(Broken(), left_out, 60.0)
    guarded.follow([waits("w")], ())
    assert guarded.anew("vc", [waits("w")], 0.0) == {}
