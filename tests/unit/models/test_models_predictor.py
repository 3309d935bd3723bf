"""The learned predictor: its terms add up, it matches the models it is made of, and it cannot see the future."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from builders import LIGHT, a_job
from examples import examples
from lucid.cli.jobs.commands import explain
from lucid.cli.replay.simulate import compare, write_run
from lucid.core.codec import from_json
from lucid.core.job import Ended, Job, JobProfile
from lucid.core.prediction import JUMBO, DurationTerms, Prediction, Split, Term, prediction_to_dict
from lucid.explain.predictions import effects_s, prediction_data, prediction_lines
from lucid.left_out import LeftOut
from lucid.models.additive import AdditiveModel, Axis
from lucid.models.additive import Term as Table
from lucid.models.duration.estimate import Choice
from lucid.models.duration.fit import fit_durations
from lucid.models.duration.history import DurationHistory
from lucid.models.duration.jobtable import JobTable
from lucid.models.duration.model import DurationModel
from lucid.models.history import HistoryPredictor, PriorPredictor
from lucid.models.kinds import Served
from lucid.models.library import Library
from lucid.models.packing.pair_speed import fit_pairs
from lucid.models.packing.share_score import Node, ShareTree
from lucid.models.predictor import LearnedPredictor, RowScorer, ended_table, usage_of
from lucid.orchestrator.planner import Predictions
from lucid.simulator import predictors
from lucid.simulator.predictors import WalkForward
from lucid.simulator.scenario import Scenario
from lucid.simulator.traces.presets import preset, vc_layout
from lucid.simulator.traces.synth import synthesise
from scenes.models import cluster, light, measured  # noqa: F401 - of the whole module

pytest.importorskip("interpret")
GOLDEN = Path(__file__).parents[2] / "golden"
PROFILE = JobProfile(20.0, 10.0, 2000.0)
TREE = ShareTree((Node(1, (1, 1, 0), "gpu_util", 25.0, 1, 2), Node(0, (1, 0, 0)), Node(2, (0, 0, 1))))


@pytest.fixture(scope="module")
def past() -> list[Ended]:
    table, rest = cluster(600), {"time_limit_s": 172800.0}
    rows = zip(table.user, table.name, table.cpus, table.submit_s, table.end_s, table.duration_s, strict=True)
    return [
        Ended(Job(str(i), "gpu", 1, float(at), user=user, name=name, cpus=int(cpus), **rest), float(end), float(ran))
        for i, (user, name, cpus, at, end, ran) in enumerate(rows)
    ]


@pytest.fixture(scope="module")
def model(past: list[Ended]) -> DurationModel:
    return fit_durations(ended_table(past))


@pytest.fixture(scope="module")
def learned(past: list[Ended], model: DurationModel) -> LearnedPredictor:
    predictor = LearnedPredictor(model, DurationHistory(), HistoryPredictor(), share=TREE, profiled_s=80.0)
    predictor.learn(past)
    return predictor


@settings(max_examples=examples(200), deadline=None)
@given(
    st.sampled_from([*(f"user{i:02d}" for i in range(12)), "somebody new", ""]),
    st.sampled_from(["train-big-3", "train-small-9", "what", ""]),
    st.integers(0, 64),
    st.integers(1, 16),
    st.one_of(st.none(), st.floats(60, 1e6)),
    st.booleans(),
)
def test_terms_and_intercept_are_the_estimate(
    learned: LearnedPredictor, user: str, name: str, cpus: int, gpus: int, limit_s: float | None, profiled: bool
) -> None:
    job = a_job("x", gpus, 2e6, user=user, name=name, cpus=cpus, time_limit_s=limit_s)
    found = learned.predict(job, PROFILE if profiled else None, 2e6)
    terms = found.duration_terms
    assert terms is not None
    total = terms.intercept + math.fsum(term.score for term in terms.terms)
    assert total == pytest.approx(terms.score, abs=1e-9)
    summed_s = math.exp(total) - terms.offset_s
    assert max(summed_s, 1.0) == pytest.approx(found.duration_s, rel=1e-9, abs=1e-5)
    assert sum(effects_s(terms).values()) == pytest.approx(summed_s, rel=1e-9, abs=1e-5)
    assert terms.low_s <= found.duration_s
    assert terms.high_s is None or found.duration_s <= max(terms.high_s, 80.0)
    if profiled:
        assert found.duration_s >= 80.0  # it has run that long without ending
    assert from_json(Prediction, json.loads(json.dumps(prediction_to_dict(found)))) == found


def test_it_says_what_the_model_says(learned: LearnedPredictor, model: DurationModel, past: list[Ended]) -> None:
    history = DurationHistory.from_jobs(ended_table(past))
    for item in past[::97]:
        table = ended_table([item])
        whole = model.predict(table, history)
        assert learned.predict(item.job, None, 0.0).duration_s == pytest.approx(float(whole.point_s[0]), rel=1e-9)


def test_pair_speeds_are_the_pair_models() -> None:
    usages, pairings = measured(9)
    pairs = fit_pairs(pairings)
    predictor = LearnedPredictor(DurationModel.untrained(), DurationHistory(), HistoryPredictor(), pairs=pairs)
    known = [
        JobProfile(u.gpu_util, u.gmem_util, u.gmem_mib, workload=f"{u.workload}|d|{n}|0")
        for n, u in enumerate(usages)
    ]
    for a in known:
        for b in known:
            one, other = pairs.speeds([(usage_of(a), usage_of(b))])[0].tolist()
            for _ in range(2):  # the second time from what is kept
                assert predictor.pair_speed(a, b) == pytest.approx((min(one, 1.0), min(other, 1.0)), abs=1e-12)


@given(st.sampled_from(["a", "b", "never seen", None]), st.one_of(st.none(), st.floats(-1e3, 1e3)))
def test_the_row_scorer_knows_missing_and_unknown(name: str | None, number: float | None) -> None:
    axes = (Axis("name", "categorical", categories={"a": 1, "b": 2}), Axis("number", "continuous", cuts=(0.0, 10.0)))
    one = Table("name", axes[:1], np.array([0.5, 1.0, 2.0, 4.0]), np.ones(4))
    both = Table("name & number", axes, np.arange(20.0).reshape(4, 5), np.ones((4, 5)))
    model = AdditiveModel(0.25, "identity", (one, both))
    whole = model.score({"name": [name], "number": [number]})
    assert RowScorer(model)({"name": name, "number": number}) == pytest.approx(float(whole[0]), abs=1e-12)


LOADS = """
import sys, pathlib, lucid.models.throughput.model, lucid.models.training
from lucid.core.job import Job, JobProfile
from lucid.models.history import HistoryPredictor
from lucid.models.predictor import DurationHistory, LearnedPredictor
from lucid.models.kinds import Library, Served
s = Served(Library(pathlib.Path(sys.argv[1])))
p = LearnedPredictor.from_served(s, DurationHistory(), HistoryPredictor())
p.predict(Job('1', 'vc', 1, 0.0, user='user01'), JobProfile(1.0, 1.0, 1.0), 0.0)
p.pair_speed(JobProfile(1.0, 1.0, 1.0), JobProfile(2.0, 1.0, 1.0))
large = {'sklearn', 'interpret', 'pandas', 'matplotlib', 'rapidfuzz'}
assert not (large | {'scipy'}) & set(sys.modules)
import lucid.cli.main
assert not large & set(sys.modules)
"""


def test_the_library_gives_what_serves_and_nothing_suspended_without_the_libraries_of_learning(
    tmp_path: Path, model: DurationModel
) -> None:
    library = Library(tmp_path)
    empty = LearnedPredictor.from_served(Served(library), DurationHistory(), HistoryPredictor())
    assert empty.duration is None
    assert empty.predict(a_job("x"), None, 0.0).duration_source == "history: no job has ended yet"
    library.promote("duration", library.add("duration", model.to_json(), {}))
    library.promote("share", library.add("share", TREE.to_json(), {}))
    served = LearnedPredictor.from_served(Served(library), DurationHistory(), HistoryPredictor())
    assert served.duration.trained_jobs == model.trained_jobs
    found = served.predict(a_job("x"), PROFILE, 0.0)
    assert (found.share_source, found.duration_source[:12]) == ("share tree v1", "learned v1: ")
    library.promote("pairs", library.add("pairs", fit_pairs(measured(9)[1]).to_json(), {}))
    subprocess.run([sys.executable, "-c", LOADS, str(tmp_path)], check=True)
    library.suspend("duration", "it drifted")
    again = LearnedPredictor.from_served(Served(library), DurationHistory(), HistoryPredictor())
    assert again.duration is None
    assert again.predict(a_job("x"), None, 0.0).duration_source.startswith("history: ")


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[JobTable]:
    """What each fit was given. In its stead the overall mean stands for a model, so that a leak would show."""
    seen: list[JobTable] = []

    def fit(jobs: JobTable) -> DurationModel:
        seen.append(jobs)
        told = {"default_log": float(np.log(jobs.duration_s + 10.0).mean()), "choice": Choice("mean")}
        return structs.replace(DurationModel.untrained(), trained_jobs=len(jobs), **told)

    monkeypatch.setattr(predictors, "fit_durations", fit)
    return seen


def test_refits_weekly_and_only_on_what_has_ended(past: list[Ended], fits: list[JobTable]) -> None:
    predictor = WalkForward(HistoryPredictor())
    events = [(item.end_s, 0, item) for item in past] + [(item.job.submit_s, 1, item) for item in past]
    fitted_at: list[float] = []
    for at_s, kind, item in sorted(events, key=lambda e: e[:2]):
        if kind == 0:
            predictor.learn([item])
        else:
            before = len(fits)
            predictor.predict(item.job, None, at_s)
            fitted_at += [at_s] * (len(fits) - before)
    assert len(fits) == 2  # two weeks of jobs: once 200 had ended, and a week later
    assert fitted_at[1] - fitted_at[0] >= 7 * 86400.0
    for at_s, table in zip(fitted_at, fits, strict=True):
        assert table.end_s.max() <= at_s
        assert len(table) == sum(item.end_s <= at_s for item in past)


TERMS = (
    Term("user median", "12 jobs", math.log(14400.0 + 10.0)),
    Term("user", "alice", -0.4), Term("name", "train-resnet-#*", -0.2), Term("same_request_recent", "-0.6931", -0.35),
    Term("same_name", "missing", 0.0001), Term("hour", "14.5", 0.08), Term("weekday", "4", 0.03),
    Term("limit_s", "8.64e+04", math.log(5410.0 / 14410.0) + 0.05 + 0.4 + 0.2 + 0.35 - 0.0001 - 0.08 - 0.03),
)  # fmt: skip
WHY = DurationTerms(-0.05, TERMS, math.log(5410.0), 10.0, 700.0, 30000.0)
SPLITS = (Split("gmem_util", 12.0, True, 30.0), Split("gpu_util", 41.0, False, 25.0))
TOLD = Prediction(5400.0, "learned: habit model × 1", 1, "share tree", duration_terms=WHY, share_splits=SPLITS)


def test_an_explanation_is_as_recorded() -> None:
    assert "\n".join(prediction_lines(TOLD, "alice")) + "\n" == (GOLDEN / "prediction.txt").read_text()
    assert json.loads(json.dumps(prediction_data(TOLD))) == json.loads((GOLDEN / "prediction.json").read_text())


ANCHORS = {
    ("demand mean", "4 GPUs"): "mean of all jobs with 4 GPUs",
    ("near limit", "9 users"): "median of 9 users who had jobs with such a time limit",
    ("default", "1 GPUs"): "nothing has finished yet",
}


@pytest.mark.parametrize("anchor", ANCHORS)
def test_an_anchor_in_words(anchor: tuple[str, str]) -> None:
    only = structs.replace(TOLD, duration_terms=DurationTerms(0.0, (Term(*anchor, 5.0),), 5.0, 10.0, 0.0, None))
    assert ANCHORS[anchor] in prediction_lines(only, "alice")[1]
    assert "in 8 of 10 cases" not in prediction_lines(only, "alice")[0]


def test_explain_tells_the_terms_of_a_run(tmp_path: Path, fits: list[JobTable]) -> None:
    trace = synthesise(replace(preset("month-small"), jobs=300, days=2.1), 3)
    scenario = Scenario(trace, vc_layout("month-small"), predictor="learned")
    metrics, runs, logs = compare(scenario, ["lucid"], keep_decisions=True)
    write_run(tmp_path, scenario, runs, metrics, logs, [])
    job = trace.jobs[150].job
    said = CliRunner().invoke(explain, [job.id, "--run", str(tmp_path), "--json"], catch_exceptions=False)
    data = json.loads(said.output)
    terms = data["prediction"]["duration_terms"]
    total = terms["intercept"] + math.fsum(term["score"] for term in terms["terms"])
    assert total == pytest.approx(terms["score"], abs=1e-9)
    assert math.exp(total) - terms["offset_s"] == pytest.approx(data["prediction"]["duration_s"], abs=1e-5)
    assert data["prediction"]["duration_source"].startswith("learned: ")
    # told as it was decided: the queue was ordered by the same number
    priority = [r for d in data["decisions"] for r in d["reasons"] if r["kind"] == "Priority"]
    assert priority[-1]["estimate_s"] == pytest.approx(data["prediction"]["duration_s"])


def test_history_means_that_a_job_outlived_while_it_was_profiled_are_no_longer_believed(tmp_path: Path) -> None:
    """Means over many one-second jobs would have every partner nearly done, and leave all GPUs to one job each."""
    nothing = Served(Library(tmp_path)), DurationHistory(), HistoryPredictor()
    learned = LearnedPredictor.from_served(*nothing, share=TREE, profiled_s=80.0)
    job = Job("1", "vc", 1, 0.0, user="ada", name="train")
    learned.learn([Ended(job, 50.0, 1.0)])
    assert learned.predict(job, None, 100.0).duration_s == 1.0
    found = learned.predict(job, PROFILE, 100.0)
    assert found.duration_s == 160.0, "as long again as it has run"
    assert "outlived" in found.duration_source
    learned.learn([Ended(job, 900.0, 799.0)])
    assert learned.predict(job, PROFILE, 1000.0).duration_s == 400.0, "a mean above T_prof stands"


# -- durations from the history of jobs alone


def ended(ran_s: float, **of: object) -> Ended:
    return Ended(a_job("past", **of), 0.0, ran_s)  # type: ignore[arg-type]


ENDED = [
    ended(100.0, user="ann", name="train", gpus=4, vc="a"),
    ended(200.0, user="ann", name="other", gpus=2, vc="a"),
    ended(400.0, user="bob", name="train", gpus=2, vc="b"),
    ended(800.0, user="", name="", gpus=8, vc="b"),
]


ALIKE = {
    ("ann", "train", 2, "a"): (100.0, "mean of 1 job with the same user and name"),
    ("ann", "new", 2, "b"): (200.0, "mean of 1 job with the same user and GPUs"),
    ("ann", "new", 8, "b"): (150.0, "mean of 2 jobs with the same user"),
    ("new", "train", 2, "b"): (400.0, "mean of 1 job with the same VC and GPUs"),
    ("new", "train", 2, "c"): (300.0, "mean of 2 jobs with the same GPUs"),
    ("new", "train", 16, "c"): (375.0, "mean of 4 jobs"),
    ("", "train", 8, "b"): (800.0, "mean of 1 job with the same VC and GPUs"),
}


@pytest.mark.parametrize("asked", ALIKE)
def test_L20_the_most_alike_jobs_count(asked: tuple[str, str, int, str]) -> None:
    predictor, (user, name, gpus, vc) = HistoryPredictor(), asked
    predictor.learn(ENDED)
    found = predictor.predict(a_job("new", gpus, vc=vc, user=user, name=name), None, 0.0)
    assert found.duration_s == ALIKE[asked][0]
    assert ALIKE[asked][1] in found.duration_source


def test_the_newest_jobs_of_a_group_count_where_it_is_asked_for() -> None:
    recent, all_of_them = HistoryPredictor(newest=2), HistoryPredictor()
    for predictor in (recent, all_of_them):
        predictor.learn([ended(ran_s, user="ann") for ran_s in (9000.0, 100.0, 200.0)])
    found = recent.predict(a_job("new", user="ann"), None, 0.0)
    assert found.duration_s == 150.0
    assert found.duration_source == "history: mean of the last 2 jobs with the same user and GPUs"
    assert all_of_them.predict(a_job("new", user="ann"), None, 0.0).duration_s == 3100.0


def test_before_any_job_has_ended_there_is_a_first_guess_and_an_unmodelled_job_is_jumbo_once_measured() -> None:
    predictor = HistoryPredictor(first_guess_s=50.0)
    found = predictor.predict(a_job("new"), None, 0.0)
    assert found == Prediction(50.0, "history: no job has ended yet", None, "history")
    assert predictor.predict(a_job("new"), LIGHT, 0.0).share_score == JUMBO
    assert predictor.pair_speed(LIGHT, LIGHT) is None


@pytest.mark.parametrize(("ran_s", "left_s"), [(0.0, 100.0), (60.0, 40.0), (100.0, 100.0), (250.0, 250.0)])
def test_a_job_that_outlived_its_estimate_goes_on_as_long_again(ran_s: float, left_s: float) -> None:
    assert Prediction(100.0, "test").remaining_s(ran_s) == left_s


def asks_for(limit_s: float | None, **of: object) -> Job:
    return replace(a_job("new", **of), time_limit_s=limit_s)  # type: ignore[arg-type]


@pytest.mark.parametrize(("ran_s", "state"), [(0.0, "FAILED"), (40.0, "BOOT_FAIL"), (40.0, "LAUNCH_FAILED")])
def test_what_did_not_run_teaches_no_duration(ran_s: float, state: str) -> None:
    guarded = Predictions(PriorPredictor(), LeftOut(), 3600.0)
    guarded.learn([replace(ended(ran_s), state=state)])
    found = guarded.predict(asks_for(7200.0), None, 0.0)
    assert found == Prediction(7200.0, "history: the time limit; no job like it has ended yet", None, "history")


def test_without_a_time_limit_the_first_guess_is_the_prior() -> None:
    found = PriorPredictor(50.0).predict(asks_for(None), None, 0.0)
    words = "history: a first guess, since it has no time limit; no job like it has ended yet"
    assert found == Prediction(50.0, words, None, "history")


def test_others_tell_how_much_of_a_limit_jobs_use_and_the_user_how_long_his_run() -> None:
    predictor = PriorPredictor()
    predictor.learn([Ended(asks_for(10_000.0, user="ann", name="a"), 1000.0, 1000.0)] * 500)
    of_others = predictor.predict(asks_for(100_000.0, user="bob", name="b"), None, 0.0).duration_s
    assert of_others == pytest.approx(10_000.0, rel=0.05)
    own = predictor.predict(asks_for(100_000.0, user="ann", name="other"), None, 0.0).duration_s
    assert own == pytest.approx(1000.0, rel=0.05)


def test_a_group_forgets_its_oldest_jobs() -> None:
    predictor, job = PriorPredictor(), asks_for(86_400.0, user="ann", name="train")
    predictor.learn([Ended(job, 60.0, 60.0)] * 1000 + [Ended(job, 6000.0, 6000.0)] * 1000)
    assert predictor.predict(job, None, 0.0).duration_s == pytest.approx(6000.0, rel=0.02)


@pytest.mark.parametrize("made", [HistoryPredictor, PriorPredictor])
def test_names_of_one_job_each_do_not_add_up_for_ever(monkeypatch: pytest.MonkeyPatch, made: Any) -> None:
    """As many names as jobs: those of which a job ended last are remembered."""
    monkeypatch.setattr("lucid.models.history.GROUPS_KEPT", 20)
    predictor = made()
    often = a_job("often", user="ada", name="often")
    for n in range(200):
        predictor.learn([Ended(a_job(f"{n}", user="ada", name=f"once-{n}"), 1.0, 50.0), Ended(often, 1.0, 500.0)])
    groups = getattr(predictor, "_means", None) or predictor._known
    assert len(groups) == 20
    assert "same user and name" in predictor.predict(often, None, 0.0).duration_source
