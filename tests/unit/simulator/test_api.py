"""Lucid as a library, and what replays are given as truth."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import lucid
from builders import HEAVY, LIGHT, FixedPredictor, a_job, a_trace, by
from lucid.binder.contention import contention_score, contention_speeds
from lucid.cli.main import lucidctl
from lucid.config.policy import PolicySettings
from lucid.core.job import JobProfile
from lucid.core.ports import Predictor
from lucid.core.prediction import Prediction, StageTimes
from lucid.errors import ConfigError, TraceError
from lucid.orchestrator.policies.queue import QueuePolicy
from lucid.orchestrator.registry import known_policies
from lucid.simulator.cluster.truth import OraclePredictor, PairsTable, read_pairs, workload_label
from lucid.simulator.predictors import DryRunPredictor, GivenPredictor, read_estimates
from lucid.simulator.traces.read import read_trace

ROOT = Path(__file__).parents[3]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


@pytest.fixture(scope="module")
def month(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("month")
    words = f"trace synth month-small --jobs 250 --seed 3 --out {folder}/month.csv --vcs-out {folder}/vcs.csv"
    done = CliRunner().invoke(lucidctl, words.split())
    assert done.exit_code == 0, done.output
    return folder


def widest(settings: PolicySettings, predictor: Predictor) -> QueuePolicy:
    return QueuePolicy(
        "widest", "most GPUs first", lambda entries, predictions, now_s: [-one.job.gpus for one in entries]
    )


def test_a_replay_says_what_the_command_says(month: Path) -> None:
    runs = lucid.replay(month / "month.csv", vcs=month / "vcs.csv", predictor="oracle", pool=True)
    words = f"simulate {month}/month.csv --vcs {month}/vcs.csv --predictor oracle --pool --json --forecasts off"
    said = json.loads(CliRunner().invoke(lucidctl, words.split()).stdout)
    assert list(runs) == ["backfill", "lucid"]
    assert runs.notes == said["notes"]
    for name, run in runs.items():
        cost = {key: run.metrics[key] for key in ("wall_s", "cpu_s")}
        assert run.metrics == said["results"][name] | cost
    table = runs.table()
    assert table.loc["lucid", "average JCT (h)"] == pytest.approx(runs["lucid"].metrics["avg_jct_s"] / 3600)
    assert table.loc["backfill", "average JCT, times backfill"] == 1.0
    jobs = runs["lucid"].jobs()
    assert jobs.jct_s.mean() == pytest.approx(runs["lucid"].metrics["avg_jct_s"])
    assert f"job {jobs.index[5]}" in runs["lucid"].explain(jobs.index[5])
    with pytest.raises(ConfigError, match="the trace has no job 'x'"):
        runs["lucid"].explain("x")


def test_a_policy_of_ones_own_runs_beside_the_others_and_is_forgotten(
    month: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = read_trace(month / "month.csv")
    runs = lucid.replay(trace, policies=["fifo", widest], vcs=month / "vcs.csv")
    assert list(runs) == ["fifo", "widest"]
    assert list(lucid.replay(trace, policies="fifo", vcs=month / "vcs.csv")) == ["fifo"]
    assert "most GPUs first" in runs["widest"].explain(runs["widest"].jobs().queue_s.idxmax())
    assert "widest" not in known_policies()
    monkeypatch.setattr(widest, "__name__", "fifo")
    with pytest.raises(ConfigError, match="there is a policy 'fifo' already"):
        lucid.replay(trace, policies=[widest], vcs=month / "vcs.csv")


WRONG: dict[str, dict[str, Any]] = {
    "no option 'polices'": {"polices": 1},
    "no option 'node'; did you mean 'nodes'": {"node": 3},
    "'many' is not a valid integer": {"nodes": "many"},
    "'magic' is not one of": {"predictor": "magic"},
    "--vcs and --nodes each say how many nodes there are": {"vcs": "a", "nodes": 3},
}


@pytest.mark.parametrize("says", WRONG)
def test_wrong_options_are_named(month: Path, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        lucid.replay(month / "month.csv", **WRONG[says])


def test_importing_lucid_loads_none_of_it() -> None:
    code = "import lucid, sys; print(lucid.__version__, [name for name in sys.modules if name.startswith('lucid.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [lucid.__version__, "[]"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_the_notebooks_run(path: Path, month: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(month)
    known: dict[str, Any] = {}
    for cell in json.loads(path.read_text())["cells"]:
        assert not cell.get("outputs"), "kept without what it printed"
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), path.name, "exec"), known)
    assert "lucid" in known["runs"]


def test_the_first_example_of_a_policy_runs(
    month: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(month)
    code = (ROOT / "docs/write-a-policy.md").read_text(encoding="utf-8").split("```python\n", 1)[1].split("```")[0]
    assert sum(map(bool, code.splitlines())) == 6
    exec(compile(code, "write-a-policy.md", "exec"), {})
    assert "widest" in capsys.readouterr().out


A, B = JobProfile(1.0, 1.0, 1.0, workload="a|x|64|0"), JobProfile(1.0, 1.0, 1.0, workload="b|x|64|1")
PAIR_HEADER = "model1,dataset1,batchsize1,amp1,speed1,model2,dataset2,batchsize2,amp2,speed2\n"


def test_a_table_of_pairs_is_read_by_workload(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text("\ufeff" + PAIR_HEADER + "a,x,64,0,0.9,b,x,64,1,0.7\na,x,64,0,1.02,a,x,64,0,0.5\n")
    table = read_pairs(path)
    assert (len(table), table(B, A), table(A, A)) == (2, (0.7, 0.9), (1.02, 0.5))
    assert workload_label("a", "x", "64", "0") == A.workload


@pytest.mark.parametrize("speed", ["", "nan", "0", "-0.5", "10", "fast"])
def test_a_speed_that_is_none_is_refused_with_its_place(tmp_path: Path, speed: str) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text(PAIR_HEADER + "a,x,64,0,0.9,b,x,64,1,0.7\n" + f"a,x,64,0,{speed},a,x,64,0,0.5\n")
    with pytest.raises(TraceError, match=f"pairs.csv: line 3: column speed1: '{speed}'"):
        read_pairs(path)
    path.write_text("model,speed\na,1\n")
    with pytest.raises(TraceError, match=r"line 1: no column model1, .*\(found: model, speed\)"):
        read_pairs(path)
    with pytest.raises(TraceError, match="cannot be read"):
        read_pairs(tmp_path / "none.csv")


def test_the_oracle_knows_durations_at_once_and_labels_once_measured() -> None:
    trace = a_trace(by("a", 1, 123.0, label=1), by("b", 1, 5.0))
    oracle = OraclePredictor(trace, PairsTable({}, (0.6, 0.5)))
    assert oracle.predict(a_job("a"), None, 0.0) == Prediction(123.0, "oracle", None, "oracle")
    assert oracle.predict(a_job("a"), LIGHT, 0.0) == Prediction(123.0, "oracle", 1, "oracle")
    unlabelled = [oracle.predict(a_job("b"), profile, 0.0) for profile in (None, LIGHT, HEAVY)]
    assert [found.share_score for found in unlabelled] == [None, contention_score(LIGHT), contention_score(HEAVY)]
    assert unlabelled[1].share_source == "contention model"
    assert oracle.pair_speed(A, B) == (0.6, 0.5)
    assert OraclePredictor(trace).pair_speed(A, B) is None


def test_given_durations_come_first_and_share_scores_are_the_traces_own_or_the_contention_models() -> None:
    other = FixedPredictor(otherwise_s=777.0)
    predictor = GivenPredictor("file", {"a": 50.0}, a_trace(by("a", label=1), by("b")), other)
    assert (predictor.predict(a_job("a"), None, 0.0), other.asked) == (Prediction(50.0, "file"), 0)
    assert predictor.predict(a_job("b"), None, 0.0) == Prediction(777.0, "fixed")
    assert predictor.predict(a_job("a"), HEAVY, 0.0).share_score == 1
    found = predictor.predict(a_job("b"), HEAVY, 0.0)
    assert (found.share_score, found.share_source) == (contention_score(HEAVY), "contention model")
    assert predictor.pair_speed(LIGHT, HEAVY) == contention_speeds(LIGHT, HEAVY)


TRACE = a_trace(by("1"), by("2"))


@pytest.mark.parametrize("column", ["duration_s", "priority"])
def test_estimates_are_read_by_job_and_are_at_least_a_second(tmp_path: Path, column: str) -> None:
    (tmp_path / "e.csv").write_text(f"other,job_id,{column}\nx,1,12.5\nx,2,-3\nx,9,4\n")
    assert read_estimates(tmp_path / "e.csv", TRACE) == {"1": 12.5, "2": 1.0, "9": 4.0}


@pytest.mark.parametrize("value", ["nan", "inf", "", "soon"])
def test_an_estimate_that_is_none_is_refused_with_its_place(tmp_path: Path, value: str) -> None:
    (tmp_path / "e.csv").write_text(f"job_id,duration_s\n1,5\n2,{value}\n")
    with pytest.raises(TraceError, match=f"e.csv: line 3: column duration_s: '{value}' is not a number of seconds"):
        read_estimates(tmp_path / "e.csv", TRACE)


def test_jobs_without_an_estimate_are_refused_unless_some_are_enough(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("job_id,duration_s\n2,5\n")
    with pytest.raises(TraceError, match="1 of 2 jobs of trace 'test' have no row \\(the first is '1'\\)"):
        read_estimates(tmp_path / "e.csv", TRACE)
    assert read_estimates(tmp_path / "e.csv", TRACE, partial=True) == {"2": 5.0}
    (tmp_path / "e.csv").write_text("job_id,duration_s\n77,5\n")
    with pytest.raises(TraceError, match="none of its 1 job ids is in trace 'test'"):
        read_estimates(tmp_path / "e.csv", TRACE, partial=True)


def test_a_model_is_run_dry_once_and_later_jobs_reuse_what_that_showed() -> None:  # M1
    names = {"first": "bert", "again": "bert", "wide": "bert", "other": "gpt", "unnamed1": "", "unnamed2": ""}
    shown = {job_id: StageTimes((s, s, s, 0.0), 3.0 * s) for s, job_id in enumerate(names, start=1)}
    items = [by(i, 2 if i == "wide" else 1, 50.0, name=name) for i, name in {**names, "never": ""}.items()]
    trace = a_trace(*(replace(item, stages=shown.get(item.job.id)) for item in items))
    jobs = {item.job.id: item.job for item in trace.jobs}
    made = DryRunPredictor(trace, FixedPredictor({"again": 70.0}))
    found = {job_id: made.predict(job, None, 0.0) for job_id, job in jobs.items()}
    expected = {**shown, "again": shown["first"], "never": None}  # the same model on as many GPUs
    assert {job_id: told.stages for job_id, told in found.items()} == expected
    assert found["again"].duration_s == 70.0, "the rest is the other predictor's"
    last_first = DryRunPredictor(trace, FixedPredictor())
    for asked in ("again", "first"):
        assert last_first.predict(jobs[asked], None, 0.0).stages == shown["again"], "whoever is asked about first"
