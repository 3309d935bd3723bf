"""``import lucid``: replays from Python say what the commands say, and the notebooks run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import lucid
from lucid.cli.main import lucidctl
from lucid.config.policy import PolicySettings
from lucid.core.ports import Predictor
from lucid.errors import ConfigError
from lucid.orchestrator.policies.queue import QueuePolicy
from lucid.orchestrator.registry import known_policies
from lucid.simulator.traces.read import read_trace

ROOT = Path(__file__).parents[3]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


@pytest.fixture(scope="module")
def month(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("month")
    words = ["trace", "synth", "month-small", "--jobs", "250", "--seed", "3"]
    words += ["--out", str(folder / "month.csv"), "--vcs-out", str(folder / "vcs.csv")]
    done = CliRunner().invoke(lucidctl, words)
    assert done.exit_code == 0, done.output
    return folder


def widest(settings: PolicySettings, predictor: Predictor) -> QueuePolicy:
    return QueuePolicy(
        "widest", "most GPUs first", lambda entries, predictions, now_s: [-one.job.gpus for one in entries]
    )


def test_a_replay_says_what_the_command_says(month: Path) -> None:
    runs = lucid.replay(month / "month.csv", vcs=month / "vcs.csv", predictor="oracle", pool=True)
    words = [
        "simulate",
        f"{month}/month.csv",
        "--vcs",
        f"{month}/vcs.csv",
        "--predictor",
        "oracle",
        "--pool",
        "--json",
    ]
    said = json.loads(CliRunner().invoke(lucidctl, [*words, "--forecasts", "off"]).stdout)
    assert list(runs) == ["backfill", "lucid"]
    assert runs.notes == said["notes"]
    for name, run in runs.items():
        cost = {"wall_s", "cpu_s"}
        assert {key: run.metrics[key] for key in run.metrics.keys() - cost} == {
            key: value for key, value in said["results"][name].items() if key not in cost
        }
    table = runs.table()
    assert table.loc["lucid", "average JCT (h)"] == pytest.approx(runs["lucid"].metrics["avg_jct_s"] / 3600)
    assert table.loc["backfill", "average JCT, times backfill"] == 1.0
    jobs = runs["lucid"].jobs()
    assert jobs.jct_s.mean() == pytest.approx(runs["lucid"].metrics["avg_jct_s"])
    assert f"job {jobs.index[5]}" in runs["lucid"].explain(jobs.index[5])
    with pytest.raises(ConfigError, match="the trace has no job 'x'"):
        runs["lucid"].explain("x")


def test_a_policy_of_ones_own_runs_beside_the_others_and_is_forgotten(month: Path) -> None:
    trace = read_trace(month / "month.csv")
    runs = lucid.replay(trace, policies=["fifo", widest], vcs=month / "vcs.csv")
    assert list(runs) == ["fifo", "widest"]
    assert list(lucid.replay(trace, policies="fifo", vcs=month / "vcs.csv")) == ["fifo"]
    assert "most GPUs first" in runs["widest"].explain(runs["widest"].jobs().queue_s.idxmax())
    assert "widest" not in known_policies()
    fifo = widest
    fifo.__name__ = "fifo"
    try:
        with pytest.raises(ConfigError, match="there is a policy 'fifo' already"):
            lucid.replay(trace, policies=[fifo], vcs=month / "vcs.csv")
    finally:
        fifo.__name__ = "widest"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"polices": 1}, "no option 'polices'"),
        ({"node": 3}, "no option 'node'; did you mean 'nodes'"),
        ({"nodes": "many"}, "'many' is not a valid integer"),
        ({"predictor": "magic"}, "'magic' is not one of"),
        ({"vcs": "a", "nodes": 3}, "--vcs and --nodes each say how many nodes there are"),
    ],
)
def test_wrong_options_are_named(month: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        lucid.replay(month / "month.csv", **options)


def test_importing_lucid_loads_none_of_it() -> None:
    code = "import lucid, sys; print(lucid.__version__, [name for name in sys.modules if name.startswith('lucid.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [lucid.__version__, "[]"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_the_notebooks_run(path: Path, month: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(month)
    known: dict[str, Any] = {}
    cells = json.loads(path.read_text())["cells"]
    for cell in cells:
        assert not cell.get("outputs"), "kept without what it printed"
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), path.name, "exec"), known)
    assert "lucid" in known["runs"]
