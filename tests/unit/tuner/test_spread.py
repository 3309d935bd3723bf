"""A search shared out: shares, journals of elements, the job array, what happens when an element is lost."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lucid.adapters.slurm.clients import job_array as slurm_array
from lucid.adapters.slurm.clients.job_array import array_left, submit_array
from lucid.cli.main import lucidctl
from lucid.errors import ActionRefused, ClusterUnavailable, ConfigError, LucidError
from lucid.simulator.scenario import Scenario
from lucid.simulator.traces import write_trace
from lucid.tuner.search import Journal, Trial, search
from lucid.tuner.space import choose
from lucid.tuner.spread import Spread, gather, load_spread, run_element, save_spread, short_elements
from scenes.tuning import sparse_week

TRIALS = 5


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return sparse_week(80, 3)


def spread(scenario: Scenario, elements: int = 2) -> Spread:
    return Spread(scenario, choose(["gss", "t_prof_s"]), TRIALS, elements, 1, {"history": "x"})


@pytest.mark.parametrize("elements", [1, 2, 3, 7])
def test_shares_add_up(scenario: Scenario, elements: int) -> None:
    made = spread(scenario, elements)
    assert sum(made.share(k) for k in range(elements)) == TRIALS


def test_elements_do_their_share_once_and_the_first_tries_the_present_settings(
    tmp_path: Path, scenario: Scenario
) -> None:
    made = spread(scenario)
    save_spread(tmp_path, made)
    assert short_elements(tmp_path, made) == {0: 3, 1: 2}
    assert run_element(tmp_path, 1, 1) == 2
    assert short_elements(tmp_path, made) == {0: 3}
    before = (tmp_path / "trials-1.jsonl").read_bytes()
    assert run_element(tmp_path, 1, 1) == 2
    assert (tmp_path / "trials-1.jsonl").read_bytes() == before
    assert run_element(tmp_path, 0, 1) == 3
    gather(tmp_path, made)
    trials = Journal.read(tmp_path / "trials.jsonl")
    assert len(trials) == TRIALS
    assert trials[0].values == {"policy.packing.gss": 2, "policy.profiling.t_prof_s": 80.0}
    with pytest.raises(ConfigError, match="no search with an element 2"):
        run_element(tmp_path, 2, 1)


def test_what_others_have_found_is_used(tmp_path: Path, scenario: Scenario) -> None:
    """Twenty trials of others change what is asked for next."""
    space = choose(["t_prof_s"])
    known = [Trial({"policy.profiling.t_prof_s": 300.0 + i}, 1.0 if i < 5 else 1e6) for i in range(20)]
    alone, together = Journal(tmp_path / "a", {}), Journal(tmp_path / "b", {})
    search(scenario, space, alone, 3, 1, 1, simplify=False)
    search(scenario, space, together, 3, 1, 1, others=lambda: known, simplify=False)
    assert alone.trials[0] == together.trials[0]
    assert alone.trials[1:] != together.trials[1:]


def test_a_pickle_of_somebody_else_is_not_read(
    tmp_path: Path, scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_spread(tmp_path) is None
    save_spread(tmp_path, spread(scenario))
    owner = (tmp_path / "search.pickle").stat().st_uid
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    with pytest.raises(ConfigError, match="another user"):
        load_spread(tmp_path)
    monkeypatch.undo()
    (tmp_path / "search.pickle").write_bytes(b"no pickle")
    with pytest.raises(ConfigError, match="new folder"):
        load_spread(tmp_path)


class Slurm:
    """sbatch runs the elements at once, but for those it was told to lose; squeue knows of none."""

    def __init__(self) -> None:
        self.arrays: list[list[int]] = []
        self.words: list[str] = []
        self.lost: set[int] = set()
        self.waits = False

    def __call__(self, words: Sequence[str], **rest: Any) -> subprocess.CompletedProcess[str]:
        words = list(words)[1:]  # the prefix
        if words[0] == "squeue":
            return subprocess.CompletedProcess(words, 0, "7_0\n" if self.waits else "", "")
        self.words = words
        numbers = next(w for w in words if w.startswith("--array=")).removeprefix("--array=")
        self.arrays.append([int(n) for n in numbers.split(",")])
        command = rest["input"].splitlines()[1].split()
        assert command[-1] == '"$SLURM_ARRAY_TASK_ID"'
        for number in self.arrays[-1]:
            if number not in self.lost and not self.waits:
                done = CliRunner().invoke(lucidctl, [*command[command.index("tune") : -1], str(number)])
                assert done.exit_code == 0, done.output
        return subprocess.CompletedProcess(words, 0, "7;cluster\n", "")


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    made = Slurm()
    monkeypatch.setattr(slurm_array.subprocess, "run", made)
    return made


def tune(folder: Path, scenario: Scenario, *more: str) -> Any:
    folder.mkdir(exist_ok=True)
    log, config = folder / "t.csv", folder / "c.toml"
    write_trace(scenario.trace, log)
    config.write_text('[slurm]\nprefix = ["chroot"]\n')
    words = ["tune", "--history", log, "--config", config, "--only", "gss", "--trials", TRIALS, "--nodes", 15]
    return CliRunner().invoke(lucidctl, [*map(str, words), "--slurm", "2", "--out", str(folder / "o"), *more])


def test_the_command_submits_waits_and_judges(tmp_path: Path, scenario: Scenario, slurm: Slurm) -> None:
    done = tune(tmp_path, scenario, "--wait", "--json", "--sbatch", "-p cpu --time=10", "--workers", "1")
    assert done.exit_code == 0, done.output
    assert slurm.arrays == [[0, 1]]
    assert slurm.words[-3:] == ["-p", "cpu", "--time=10"]
    assert json.loads(done.stdout)["trials"] == TRIALS
    assert (tmp_path / "o" / "proposal.html").exists()


def test_what_was_lost_is_submitted_again_and_nothing_else(tmp_path: Path, scenario: Scenario, slurm: Slurm) -> None:
    slurm.lost = {1}
    first = tune(tmp_path, scenario, "--wait")
    assert isinstance(first.exception, LucidError)
    assert "trials of elements 1 are missing" in str(first.exception)
    slurm.lost = set()
    again = tune(tmp_path, scenario, "--wait", "--json", "--workers", "1")
    assert again.exit_code == 0, again.output
    assert slurm.arrays == [[0, 1], [1]]
    assert json.loads(again.stdout)["trials"] == TRIALS


def test_while_the_array_waits_the_command_says_how_far_it_is(
    tmp_path: Path, scenario: Scenario, slurm: Slurm
) -> None:
    slurm.waits = True
    for _ in range(2):
        done = tune(tmp_path, scenario)
        assert done.exit_code == 0, done.output
        assert f"0 of {TRIALS} trials done" in done.stderr
    assert slurm.arrays == [[0, 1]]  # submitted once
    other = tune(tmp_path, scenario, "--seed", "9")
    assert "another search" in str(other.exception)


def answers(monkeypatch: pytest.MonkeyPatch, code: int, out: str, err: str) -> None:
    done = subprocess.CompletedProcess([], code, out, err)
    monkeypatch.setattr(slurm_array.subprocess, "run", lambda *_, **__: done)


def test_slurm_s_words_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, 1, "", "sbatch: error: invalid partition specified: x")
    with pytest.raises(ActionRefused, match="invalid partition"):
        submit_array([], [0], ["a"], [], "log")
    answers(monkeypatch, 0, "", "")
    with pytest.raises(ActionRefused, match="no answer"):
        submit_array([], [0], ["a"], [], "log")
    answers(monkeypatch, 1, "", "slurm_load_jobs error: Invalid job id specified")
    assert array_left([], "7") == 0
    answers(monkeypatch, 1, "", "slurm_load_jobs error: Unable to contact slurm controller")
    with pytest.raises(ClusterUnavailable, match="Unable to contact"):
        array_left([], "7")
    answers(monkeypatch, 0, "7_0\n7_1\n", "")
    assert array_left([], "7") == 2
