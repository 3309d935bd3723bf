"""Explanations of a small scripted run, word for word: text and JSON.

After a change of words, look at what this writes before it is committed:
``LUCID_WRITE_GOLDEN=1 make golden``.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from builders import HEAVY, LIGHT, a_trace, by
from kept import HERE, same_as
from lucid.cli.main import lucidctl
from lucid.core.job import JobProfile
from lucid.simulator.traces.formats.own import write_trace

GOLDEN = HERE / "explain"
MIDDLE = JobProfile(gpu_util=40.0, mem_util=20.0, gpu_mem_mib=9000.0)
SHAKY = JobProfile(gpu_util=12.0, mem_util=4.0, gpu_mem_mib=3000.0, unstable=True)

job = partial(by, vc="vision")
TRACE = a_trace(
    job("alone", 2, 5400.0, 0.0, profile=HEAVY, label=2, user="ann", name="train-llm"),
    job("host", 1, 9000.0, 10.0, profile=LIGHT, label=0, user="bob", name="embed"),
    job("debug", 1, 30.0, 20.0, profile=LIGHT, label=0, user="bob", name="debug"),
    job("guest", 1, 4000.0, 600.0, profile=MIDDLE, label=1, user="eve", name="finetune-a-rather-long-name"),
    job("other", 1, 9000.0, 640.0, profile=LIGHT, label=0, user="bob", name="embed"),
    job("shaky", 1, 3000.0, 740.0, profile=SHAKY, label=0, user="eve"),
    job("big", 8, 3000.0, 1000.0, profile=HEAVY, label=2, user="sam", name="pretrain"),
    job("held", 1, 20000.0, 1200.0, profile=HEAVY, label=2, user="ann"),
    job("short", 4, 600.0, 4000.0, profile=HEAVY, label=2, user="tim"),
)
"""On three nodes of four GPUs, one of which profiles."""

CASES = {
    "started_alone": ("lucid", "alone"),
    "packed": ("lucid", "guest"),
    "joined": ("lucid", "host"),
    "profiled_and_ended": ("lucid", "debug"),
    "parted": ("lucid", "shaky"),
    "large_with_a_reservation": ("lucid", "big"),
    "held_by_a_reservation": ("lucid", "held"),
    "preempted": ("srtf", "big"),
    "behind_the_head": ("fifo", "held"),
    "between_rounds": ("tiresias", "debug"),
}


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("golden")
    write_trace(TRACE, folder / "trace.csv")
    (folder / "vcs.csv").write_text(",num\nvision,3\n")
    # every job is profiled first, so that there is a profiling run to explain
    (folder / "lucid.toml").write_text("[policy.profiling]\nenabled = true\nhome_if_room = false\n")
    command = [
        "simulate", str(folder / "trace.csv"), "--vcs", str(folder / "vcs.csv"), "--gpus-per-node", "4",
        "--predictor", "oracle", "--config", str(folder / "lucid.toml"),
    ]  # fmt: skip
    for policy in sorted({policy for policy, _ in CASES.values()}):
        command += ["--policy", policy]
    made = CliRunner().invoke(lucidctl, [*command, "--out", str(folder / "run")], catch_exceptions=False)
    assert made.exit_code == 0
    return folder / "run"


def told(run_dir: Path, name: str, *more: str) -> str:
    policy, job = CASES[name]
    command = ["explain", "--run", str(run_dir), "--policy", policy, job, *more]
    said = CliRunner(env={"COLUMNS": "100"}).invoke(lucidctl, command, catch_exceptions=False)
    assert said.exit_code == 0
    return said.stdout


@pytest.mark.parametrize("name", CASES)
def test_the_text_of_an_explanation(run_dir: Path, name: str) -> None:
    text = told(run_dir, name)
    assert max(map(len, text.splitlines())) <= 100
    same_as(GOLDEN / f"{name}.txt", text)


@pytest.mark.parametrize("name", CASES)
def test_the_json_of_an_explanation(run_dir: Path, name: str) -> None:
    text = told(run_dir, name, "--json")
    json.loads(text, parse_constant=pytest.fail)  # Infinity and NaN are not JSON
    same_as(GOLDEN / f"{name}.json", text)


def test_the_stories_are_about_what_their_names_say(run_dir: Path) -> None:
    """Golden files that were written anew may have lost their subject."""

    def verbs(name: str) -> list[str]:
        return [d["verb"] for d in json.loads(told(run_dir, name, "--json"))["decisions"]]

    def kinds(name: str) -> set[str]:
        return {r["kind"] for d in json.loads(told(run_dir, name, "--json"))["decisions"] for r in d["reasons"]}

    last = json.loads(told(run_dir, "packed", "--json"))["decisions"][-1]
    assert last["beside"] == "host"
    assert json.loads(told(run_dir, "joined", "--json"))["joined_by"]
    assert json.loads(told(run_dir, "started_alone", "--json"))["decisions"][-1]["beside"] is None
    assert verbs("profiled_and_ended") == ["start"]
    assert "ends in profiling" in told(run_dir, "profiled_and_ended")
    assert "part" in verbs("parted")
    assert "requeue" in verbs("preempted")
    assert "Reserved" in kinds("held_by_a_reservation")
    assert "BehindHead" in kinds("behind_the_head")
    assert "NextRound" in kinds("between_rounds")
