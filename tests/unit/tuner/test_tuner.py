"""The tuner, and the past that it looks at."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from builders import nodes
from lucid.cli.main import lucidctl
from lucid.config.load import Settings, load_settings
from lucid.core.job import Ended, Job
from lucid.core.node import Node
from lucid.core.snapshot import Partition
from lucid.core.times import DAY_S
from lucid.errors import ConfigError, TraceError
from lucid.simulator.scenario import Scenario
from lucid.simulator.traces.presets import preset
from lucid.simulator.traces.synth import synthesise
from lucid.store.lease import IN_MEMORY
from lucid.store.sqlite import SqliteStore
from lucid.tuner.evidence import LEAST_DAYS, compare_days
from lucid.tuner.past import floorplan, stored_trace
from lucid.tuner.proposal import Proposal, apply_proposal, changed_values, load_proposal, rollback, save_proposal
from lucid.tuner.search import SPACE, JobTimes, Journal, Trial, choose, search, value_at, with_values


def times(jct_s: np.ndarray, days: int, users: int = 3) -> JobTimes:
    n = len(jct_s)
    submit_s = np.sort(np.random.default_rng(0).uniform(0, days * DAY_S, n))
    gpus = np.where(np.arange(n) % 20 == 0, 16, 1)
    return JobTimes(submit_s, jct_s, jct_s / 2, gpus, tuple(f"u{i % users}" for i in range(n)))


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    """Few jobs, spread over enough days to keep some for the judgement, so that a replay takes no time."""
    dense = synthesise(preset("month-small").resized(100, None), seed=5)
    longer = 7 * DAY_S / dense.jobs[-1].job.submit_s
    spread = (replace(item, job=replace(item.job, submit_s=longer * item.job.submit_s)) for item in dense.jobs)
    return Scenario(replace(dense, jobs=tuple(spread)), dict.fromkeys(dense.vcs, 4))


def test_every_dimension_is_a_setting_with_bounds_that_the_settings_allow() -> None:
    for dimension in SPACE:
        value_at(Settings(), dimension.key)
        for value in dimension.choices or (dimension.low, dimension.high):
            assert value_at(with_values(Settings(), {dimension.key: value}), dimension.key) == value


def test_a_table_names_all_its_keys_and_an_unknown_key_lists_the_known() -> None:
    assert {d.key for d in choose(["packing"])} == {d.key for d in SPACE if ".packing." in d.key}
    assert [d.key for d in choose(["n_prof", "policy.profiling.n_prof"])] == ["policy.profiling.n_prof"]
    with pytest.raises(ConfigError, match=r"policy\.packing\.gss"):
        choose(["packing.gs"])


def test_a_sure_gain_survives() -> None:
    rng = np.random.default_rng(1)
    old = rng.lognormal(8, 1, 600)
    found = compare_days(times(old, 12), times(old * rng.uniform(0.7, 0.9, 600), 12), seed=1)
    assert found.survives, found.why
    assert found.changes[0].high < 0
    assert -0.25 < found.changes[0].relative < -0.15
    assert (found.days, found.losers) == (12, ())


def test_bounds_hold_what_they_promise_with_a_week_of_days() -> None:
    """Of many weeks in which nothing changed but luck, hardly more than one in twenty is taken for a change."""
    rng = np.random.default_rng(3)
    wrong = 0
    for trial in range(60):
        day = np.repeat(np.arange(7), 30)
        old = times(np.full(210, 1000.0), 7)
        old = replace(old, submit_s=day * DAY_S + 60.0 * np.tile(np.arange(30), 7))
        new = replace(old, jct_s=old.jct_s * np.exp(rng.normal(0, 0.2, 7))[day] / np.exp(0.02))
        average = compare_days(old, new, seed=trial).changes[0]
        wrong += not average.low <= 0 <= average.high
    assert wrong <= 4  # three are expected; with plain percentiles it is seven


def test_few_days_say_nothing_and_a_gain_that_large_jobs_pay_for_does_not_survive() -> None:
    few, before = times(np.full(100, 1000.0), LEAST_DAYS - 1), times(np.full(600, 1000.0), 12)
    for old, jct_s, why in (
        (few, few.jct_s / 2, f"{LEAST_DAYS - 1} days"),
        (before, np.where(before.gpus > 8, 3000.0, 500.0), "surely be worse"),
    ):
        found = compare_days(old, replace(old, jct_s=jct_s), seed=1)
        assert not found.survives
        assert why in found.why
    assert found.losers == ()  # each user still gains in sum


def test_losers_are_named_worst_first() -> None:
    before = times(np.full(600, 1000.0), 12)
    factor = np.array([{"u0": 0.5, "u1": 1.1, "u2": 1.3}[u] for u in before.user])
    losers = compare_days(before, replace(before, jct_s=before.jct_s * factor), seed=1).losers
    assert [loser.user for loser in losers] == ["u2", "u1"]
    assert losers[0].after_s == pytest.approx(1300.0)


def test_a_journal_survives_a_torn_line_and_refuses_another_search(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    first = Journal(path, {"seed": 1})
    first.add(Trial({"a": 1}, 10.0))
    first.add(Trial({"a": 2}, 9.0))
    path.write_text(path.read_text()[:-9])  # a crash while the last line was written
    again = Journal(path, {"seed": 1})
    assert again.trials == [Trial({"a": 1}, 10.0)]
    again.add(Trial({"a": 3}, 8.0))
    assert Journal.read(path) == [Trial({"a": 1}, 10.0), Trial({"a": 3}, 8.0)]
    with pytest.raises(ConfigError, match="another search"):
        Journal(path, {"seed": 2})


def test_a_search_goes_on_where_it_stopped_and_starts_with_the_present_settings(
    tmp_path: Path, scenario: Scenario
) -> None:
    dimensions = choose(["gss", "t_prof_s"])
    journal = Journal(tmp_path / "j", {})
    search(scenario, dimensions, journal, 3, 1, 1)
    assert journal.trials[0].values == {"policy.packing.gss": 2, "policy.profiling.t_prof_s": 80.0}
    again = Journal(tmp_path / "j", {})
    best = search(scenario, dimensions, again, 6, 1, 1)
    assert again.trials[:3] == journal.trials
    assert len(again.trials) == 6
    assert best.score_s <= min(t.score_s for t in again.trials) * 1.001


def test_the_number_of_processes_changes_nothing(tmp_path: Path, scenario: Scenario) -> None:
    one, two = Journal(tmp_path / "one", {}), Journal(tmp_path / "two", {})
    for processes, journal in ((1, one), (2, two)):
        search(scenario, choose(["packing"]), journal, 4, 1, processes)
    assert one.trials == two.trials


def proposal(changes: dict[str, int | float | str], present: dict[str, int | float | str]) -> Proposal:
    old = np.full(600, 1000.0)
    return Proposal(
        "t", changes, present, 9, 1, 3 * DAY_S, -0.2, compare_days(times(old, 12), times(0.8 * old, 12), 1)
    )


def test_a_proposal_is_applied_into_a_commented_file_and_taken_back(tmp_path: Path) -> None:
    config = tmp_path / "lucid.toml"
    text = "# ours\n[policy.packing]\ngss = 2  # as agreed\n"
    config.write_text(text)
    keys = "policy.packing.gss", "policy.profiling.t_prof_s"
    new, present = (dict(zip(keys, values, strict=True)) for values in ((1, 120.0), (2, 80.0)))
    found = proposal(new, present)
    save_proposal(tmp_path / "p.json", found)
    loaded = load_proposal(tmp_path / "p.json")
    assert loaded == found
    kept = apply_proposal(loaded, config)
    assert "# as agreed" in config.read_text()
    assert [value_at(load_settings(config), key) for key in keys] == [1, 120.0]
    assert kept.read_text() == text
    with pytest.raises(ConfigError, match="run lucidctl tune again"):
        apply_proposal(loaded, config)
    assert rollback(config) == kept
    assert config.read_text() == text
    with pytest.raises(ConfigError, match="nothing to roll back"):
        rollback(config)
    assert apply_proposal(loaded, tmp_path / "new.toml") is None, "where there is no file it makes one"
    assert value_at(load_settings(tmp_path / "new.toml"), keys[0]) == 1


@pytest.mark.parametrize("text", ["", "{}", '{"version": 9}', "[]"])
def test_what_is_no_proposal_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(ConfigError, match="proposal"):
        load_proposal(tmp_path / "p.json")


def test_changes_are_readable_numbers() -> None:
    asked: dict[str, int | float | str] = {"policy.profiling.t_prof_s": 123.4567, "policy.packing.gss": 2}
    assert changed_values(Settings(), asked) == {"policy.profiling.t_prof_s": 123.0}


def told(words: str) -> str:
    done = CliRunner().invoke(lucidctl, words.split())
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_command(tmp_path: Path) -> None:
    trace, out, config = tmp_path / "t.csv", tmp_path / "o", tmp_path / "c.toml"
    told(f"trace synth month-small --jobs 300 --out {trace}")
    data = json.loads(told(f"tune --history {trace} --only gss --trials 2 --workers 1 --out {out} --json"))
    assert (data["trials"], data["worth_it"]) == (2, False)
    assert json.loads(told(f"tune show {out} --json")) == data
    assert {"proposal.json", "proposal.toml", "proposal.html", "trials.jsonl"} <= {
        path.name for path in out.iterdir()
    }
    assert CliRunner().invoke(lucidctl, ["tune", "apply", str(out), "--config", str(config)]).exit_code != 0
    assert not config.exists()


def test_the_command_on_the_store_of_lucidd(tmp_path: Path) -> None:
    config, now_s = tmp_path / "lucid.toml", time.time()
    config.write_text(f'[daemon]\nstate_dir = "{tmp_path}"\n[daemon.partitions]\nvc = "observe"\n')
    store = SqliteStore(tmp_path / "lucid.db")
    lease = store.take_lease("me", now_s, 60.0)
    assert lease is not None
    begun_s = [now_s - (12 - n / 5) * DAY_S for n in range(50)]
    jobs = (Job(str(n), "vc", 1 + n % 4, at_s, n, "ab"[n % 2]) for n, at_s in enumerate(begun_s))
    store.put_ended([Ended(job, job.submit_s + DAY_S, 5e4) for job in jobs], lease.token)
    store.close()
    short = "--trials 2 --only gss --workers 1 --nodes 4"
    told(f"tune search --history 30d --config {config} --out {tmp_path}/o {short}")
    assert "Nothing that was tried beats the present settings" in told(f"tune show {tmp_path}/o")


def test_the_store_is_a_log_of_its_own() -> None:
    store = SqliteStore(IN_MEMORY)
    lease = store.take_lease("me", 0.0, 1e9)
    assert lease is not None
    ended = [
        Ended(Job("2", "vc", 2, 5000.0, 1, "ann"), 9000.0, 3000.0, "COMPLETED"),
        Ended(Job("1", "vc", 1, 4000.0, 0, "bob"), 9500.0, 5000.0, "FAILED"),
        Ended(Job("3", "vc", 0, 4500.0, 0, "bob"), 9600.0, 10.0, "COMPLETED"),
    ]
    store.put_ended(ended, lease.token)
    trace = stored_trace(store, 0.0)
    assert [(i.job.id, i.job.submit_s, i.waited_s) for i in trace.jobs] == [("1", 0.0, 500.0), ("2", 1000.0, 1000.0)]
    assert (trace.epoch_s, trace.skipped) == (4000.0, (("asked for no GPU", 1),))
    with pytest.raises(TraceError, match="no GPU job that ended"):
        stored_trace(store, 1e6)


def test_nodes_that_profile_are_counted_to_the_largest_vc_and_lent_from_there() -> None:
    a, b, profiling = (
        Partition(n, nodes(count, 4, n), profiling=n == "p") for n, count in (("a", 2), ("b", 3), ("p", 1))
    )
    plan = floorplan([a, b, profiling])
    assert plan.vcs == {"a": 2, "b": 4}
    assert (plan.profiling_nodes, plan.shape.gpus, plan.alike) == (1, 4, True)
    mixed = floorplan([Partition("a", (*a.nodes, Node("x", 8)))])
    assert (mixed.shape.gpus, mixed.alike) == (4, False)
    assert floorplan([profiling]) is None
