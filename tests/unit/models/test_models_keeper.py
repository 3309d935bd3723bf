"""Upkeep of the library: what is judged on what, when training is due, falling back, crashes, and its commands."""

from __future__ import annotations

import itertools
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from lucid.cli.learn.models import models
from lucid.errors import ConfigError, LucidError, ModelError
from lucid.models.additive import AdditiveModel, Axis, Term
from lucid.models.duration import evaluate
from lucid.models.duration.evaluate import DURATION
from lucid.models.duration.jobtable import JobTable
from lucid.models.duration.model import DurationModel
from lucid.models.kinds import Keeper, Source, find_kind
from lucid.models.library import Library, TrainingRuns
from lucid.models.packing.kind import PAIRS, SHARE
from lucid.models.packing.measured import shipped
from lucid.models.page import additive_page
from lucid.models.throughput.bins import Bins
from lucid.models.throughput.fit import fit_throughput
from lucid.models.throughput.forecaster import THROUGHPUT
from lucid.models.training import Action, Rules
from scenes.models import cluster, job_log, light, measured  # noqa: F401 - of the whole module

pytest.importorskip("interpret")
NOW = datetime(2024, 5, 8, tzinfo=UTC)


@pytest.fixture(scope="module")
def jobs() -> JobTable:
    return cluster(600)


def by_end(jobs: JobTable, count: int) -> JobTable:
    return jobs.select(np.argsort(jobs.end_s)[:count])


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[JobTable]:
    """Training that keeps what it was given and fits nothing; the running median answers."""
    seen: list[JobTable] = []

    def fit(jobs: JobTable) -> DurationModel:
        seen.append(jobs)
        return replace(DurationModel.untrained(), trained_jobs=len(jobs))

    monkeypatch.setattr(evaluate, "fit_durations", fit)
    return seen


def learned(library: Library, kind: str, version: int | None = None) -> tuple[int, int]:
    """From how much a version learned, and on how much it was judged."""
    facts = library.show(kind, version).facts
    return facts["learned_from"], facts["judged_on"]


def test_a_version_learns_only_from_before_what_judges_it(
    jobs: JobTable, tmp_path: Path, quick: list[JobTable]
) -> None:
    library = Library(tmp_path)
    assert DURATION.train(library, by_end(jobs, 300)).promoted
    assert len(quick[0]) == 240
    assert learned(library, "duration") == (240, 60)
    assert quick[0].end_s.max() == library.show("duration").facts["learned_until"]
    # the next one learns half of what is new, and both are judged on the other half
    DURATION.train(library, by_end(jobs, 500))
    assert learned(library, "duration", 2) == (240 + 130, 130)
    facts = library.show("duration", 2).facts
    assert facts["loss_in_service"] == pytest.approx(facts["loss"])


def test_a_model_worse_than_the_median_is_kept_but_never_promoted(
    jobs: JobTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: list[JobTable]
) -> None:
    monkeypatch.setattr(DurationModel, "point_log", lambda self, jobs, facts: np.full(len(jobs), 2.0))
    trained = DURATION.train(Library(tmp_path), jobs)
    assert not trained.promoted
    assert "at most 1.01 is promoted" in trained.reason
    assert Library(tmp_path).serving("duration") is None


def test_drift_of_error_and_inputs_is_measured_on_what_is_new(
    jobs: JobTable, tmp_path: Path, quick: list[JobTable]
) -> None:
    library = Library(tmp_path)
    DURATION.train(library, by_end(jobs, 300))
    calm = DURATION.evidence(library, jobs, NOW)
    assert calm.new_jobs == 360
    assert calm.drift.ratio is not None
    assert 0.3 < calm.drift.ratio < 0.8  # requests tell, which needs no training; held against the running median
    assert calm.drift.inputs["cpus"] < 0.1
    late = jobs.end_s > float(library.show("duration").facts["learned_until"])
    moved = replace(jobs, cpus=np.where(late, 64.0, jobs.cpus))
    assert DURATION.evidence(library, moved, NOW).drift.worst_input[0] == "cpus"  # type: ignore[index]


def keeper(library: Library, jobs: JobTable, **rules: object) -> Keeper:
    return Keeper(library, {"jobs": Source(lambda: jobs)}, Rules(**rules))  # type: ignore[arg-type]


def test_a_tick_trains_when_due_and_only_then(jobs: JobTable, tmp_path: Path, quick: list[JobTable]) -> None:
    library = Library(tmp_path, lambda: NOW)
    (outcome,) = keeper(library, by_end(jobs, 300)).tick(NOW)
    assert outcome.decision.action is Action.TRAIN
    assert outcome.trained.promoted
    later = keeper(library, by_end(jobs, 330), psi_train=9.0)
    (outcome,) = later.tick(NOW)
    assert outcome.decision.action is Action.NOTHING
    assert len(library.versions("duration")) == 1
    (outcome,) = later.tick(NOW + timedelta(days=8))
    assert "old, at most 7.0 days" in outcome.to_json()["reasons"][0]
    assert outcome.to_json()["version"] == 2


def test_a_drifted_model_is_suspended_until_a_better_one_is_promoted(
    jobs: JobTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: list[JobTable]
) -> None:
    library = Library(tmp_path, lambda: NOW)
    DURATION.train(library, by_end(jobs, 300))
    honest = DurationModel.point_log
    monkeypatch.setattr(DurationModel, "point_log", lambda self, jobs, facts: honest(self, jobs, facts) + 1.0)
    (outcome,) = keeper(library, jobs).tick(NOW)
    assert outcome.decision.action is Action.FALL_BACK
    assert not outcome.trained.promoted
    assert "history means" in str(library.suspended("duration"))
    assert [e["action"] for e in library.trail("duration")][-3:] == ["suspend", "add", "keep"]
    monkeypatch.setattr(DurationModel, "point_log", honest)
    assert DURATION.train(library, jobs).promoted
    assert library.suspended("duration") is None


def test_trouble_with_one_kind_leaves_the_others(jobs: JobTable, tmp_path: Path, quick: list[JobTable]) -> None:
    def broken() -> Bins:
        raise ModelError("bins.csv: cannot be read")

    kept = Keeper(Library(tmp_path), {"jobs": Source(lambda: jobs), "bins": Source(broken)})
    assert [outcome.trouble for outcome in kept.tick(NOW)] == [None, "bins.csv: cannot be read"]
    with pytest.raises(ModelError, match="no data to train share"):
        kept.train("share")


def test_a_tick_beside_a_training_is_skipped(jobs: JobTable, tmp_path: Path, quick: list[JobTable]) -> None:
    library = Library(tmp_path)
    with library.training():
        (outcome,) = keeper(library, jobs).tick(NOW)
        assert "skipped" in outcome.decision.reasons[-1]
        with pytest.raises(TrainingRuns):
            keeper(library, jobs).train("duration")
    assert library.names() == []


def test_measured_models_are_judged_on_new_measurements_and_then_learn_them(tmp_path: Path) -> None:
    library, some, more = Library(tmp_path), measured(9), measured(10)
    assert PAIRS.train(library, some).promoted
    assert SHARE.train(library, some).promoted
    assert learned(library, "pairs") == (45, 15)
    with pytest.raises(ModelError, match="0 new measurements"):
        PAIRS.train(library, some)
    for name in ("share", "pairs"):
        assert "written:" in invoke("show", name, "--plots", tmp_path / "plots" / name, "--library", tmp_path)
        assert len(list((tmp_path / "plots" / name).rglob("*.html"))) == 1, "one page"
    assert [kind.evidence(library, more, NOW).new_jobs for kind in (PAIRS, SHARE)] == [10, 1]
    PAIRS.train(library, more)
    assert learned(library, "pairs", 2) == (55, 4)
    assert library.show("pairs", 2).facts["loss_in_service"] is not None


def hourly(count: int) -> tuple[tuple[datetime, ...], np.ndarray]:
    """How many jobs came in each hour: more, the later in the day."""
    start = tuple(datetime(2024, 1, 1) + timedelta(hours=n) for n in range(count))
    return start, np.random.default_rng(0).poisson(3 + np.array([time.hour / 4 for time in start])).astype(float)


def test_throughput_is_judged_on_later_bins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def fit(bins: Bins, age: int) -> object:
        seen.append(len(bins.start))
        return fit_throughput(Bins(bins.start[:1200], bins.jobs[:1200], bins.gpus[:1200]), age)

    monkeypatch.setattr("lucid.models.throughput.forecaster.fit_throughput", fit)
    start, counts = hourly(2000)
    bins, library = Bins(start, counts, 2 * counts), Library(tmp_path)
    THROUGHPUT.train(library, bins.upto(start[1500]))
    assert seen == [1200]
    evidence = THROUGHPUT.evidence(library, bins, NOW)
    assert evidence.new_jobs == 800
    assert (evidence.drift.ratio or 9.0) < 1.0  # noise round a daily rhythm: better than 'as in the last hour'
    THROUGHPUT.train(library, bins)
    assert seen == [1200, 1600]


def invoke(*args: object) -> str:
    result = CliRunner().invoke(models, [str(arg) for arg in args], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def error(*args: object) -> LucidError:
    found = CliRunner().invoke(models, [str(arg) for arg in args]).exception
    assert isinstance(found, LucidError)
    return found


@pytest.fixture
def log(tmp_path: Path, jobs: JobTable) -> Path:
    return job_log(tmp_path / "jobs.csv", jobs)


def test_train_list_show_promote_rollback(tmp_path: Path, log: Path, quick: list[JobTable]) -> None:
    library = ("--library", tmp_path / "library")
    assert "no versions yet" in invoke("list", *library)
    assert "v1 in service" in invoke("train", "--jobs", log, *library)
    Library(tmp_path / "library").add("duration", DurationModel.untrained().to_json(), {})
    listed = json.loads(invoke("list", "--json", *library))
    assert [(row["version"], row["in_service"]) for row in listed] == [(1, True), (2, False)]
    assert "inputs" not in listed[0]["facts"]
    assert "v2 is in service" in invoke("promote", "duration", 2, *library)
    assert "v1 is in service again" in invoke("rollback", "duration", "--why", "a test", *library)
    shown = json.loads(invoke("show", "duration", "--json", *library))
    assert (shown["version"], shown["in_service"]) == (1, True)
    assert shown["trail"][-1]["why"] == "a test; was v2"
    assert "the best statistic" in invoke("show", "duration", "--version", 2, *library)


def test_due_from_a_configuration_file(tmp_path: Path, log: Path, quick: list[JobTable]) -> None:
    config = tmp_path / "lucid.toml"
    config.write_text('[models]\njobs = "jobs.csv"\nlibrary = "kept"\n')
    assert "no version is in service" in invoke("train", "--due", "--config", config)
    assert (tmp_path / "kept" / "duration" / "v0001.json").exists()
    assert "nothing calls for training" in invoke("train", "--due", "--config", config)
    found, _ = json.loads(invoke("status", "--json", "--config", config))
    assert (found["action"], found["new"], found["suspended"]) == ("nothing", 120, None)
    assert 0.3 < found["drift"]["error_ratio"] < 0.8
    assert "duration" in invoke("status", "--config", config)


def test_wrong_use_says_what_to_give(tmp_path: Path, log: Path) -> None:
    for words, kind, says in (
        ("train", ConfigError, "give --jobs"),
        (f"train pairs --jobs {log}", ConfigError, "there is data for: duration"),
        (f"train --profiles {log}", ConfigError, "belong together"),
        ("show duration", ModelError, "no version of duration is in service"),
    ):
        with pytest.raises(kind, match=says):
            invoke(*words.split(), "--library", tmp_path / "library")
    with pytest.raises(ModelError, match="known are duration, share"):
        find_kind("weather")


# -- how good a model is, as numbers and as plots


def test_packing_prints_every_figure(tmp_path: Path) -> None:
    head, *rows = shipped("profiles.csv").read_text().splitlines()
    labelled = [f"{head},label", *(f"{row},{number % 3}" for number, row in enumerate(rows))]
    (tmp_path / "profiles.csv").write_text("\n".join(labelled))
    figures = json.loads(invoke("evaluate", "packing", tmp_path / "profiles.csv", shipped("pairs.csv"), "--json"))
    for kind, way in itertools.product(("precision", "recall"), ("lomo", "loco", "loco_both")):
        assert 0.7 <= figures[f"pair_{kind}_{way}"] <= 1
    assert 0 <= figures["accuracy_lomo"] <= 1
    assert (figures["configurations"], figures["pairs"]) == (32, 526)


def test_throughput_trains_only_on_what_was_before(tmp_path: Path) -> None:
    (hours, counts), path = hourly(1500), tmp_path / "bins.csv"
    rows = [f"{time},{n:.0f},{2 * n:.0f}\n" for time, n in zip(hours, counts, strict=True)]
    path.write_text("time,submit_gpu_job,submit_gpu_num\n" + "".join(rows))
    words = ("evaluate", "throughput", path, "--test-from")
    figures = json.loads(invoke(*words, hours[1300], "--newest-bin", "2", "--json"))
    assert (figures["trained_bins"], figures["tested_bins"], figures["newest_bin"]) == (1300, 200, 2)
    assert figures["mae_jobs"] < np.abs(counts[1300:] - np.median(counts[1300:])).mean()
    for later in ("2030-01-01", "2030-01-01T00:00:00+02:00"):  # a date with a zone does not fail on bins without one
        assert "no bin starts at or after" in str(error(*words, later))


WRONG = {
    "duration a.csv": "duration needs --test-from",
    "duration a.csv b.csv --test-from 1": "duration takes 1 file, and 2 are given",
    "packing a.csv": "packing takes 2 files, and 1 are given",
    "packing a.csv b.csv --test-from 1": "--test-from is not for packing",
    "throughput a.csv --test-from 1 --refits 2": "--refits is not for throughput",
    "speed a.csv": "'speed' is not one of 'duration', 'throughput', 'packing'",
}


@pytest.mark.parametrize("words", WRONG)
def test_each_kind_has_its_own_files_and_options(words: str) -> None:
    result = CliRunner().invoke(models, ["evaluate", *words.split()])
    assert (result.exit_code, WRONG[words] in result.stderr) == (2, True)


GPUS = Axis("gpus", "continuous", cuts=(1.5, 4.5, 64.0))
USER = Axis("user", "categorical", categories={"ann": 1, "<b>bob</b>": 2, "cy": 3})
NONE = Axis("nothing", "continuous")


def term(*axes: Axis) -> Term:
    rng, shape = np.random.default_rng(0), tuple(axis.size for axis in axes)
    name = " & ".join(axis.feature for axis in axes)
    return Term(name, axes, rng.normal(size=shape), rng.integers(1, 9, shape) * 1.0)


MODEL = AdditiveModel(1.5, "identity", (term(GPUS), term(USER), term(USER, GPUS), term(GPUS, GPUS), term(NONE)))


def test_the_page_has_a_picture_of_each_term_and_escapes_names(tmp_path: Path) -> None:
    additive_page(MODEL, tmp_path / "page.html", "<script>alert(1)</script>", "s", {"rows": 12})
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert text.count('role="img"') == 1 + len(MODEL.terms)
    assert "<img" not in text
    assert "<script>alert" not in text
    assert "rows: <b>12</b>" in text
    assert "&lt;b&gt;bob&lt;/b&gt;" in text
