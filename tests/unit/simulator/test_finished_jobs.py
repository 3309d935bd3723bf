"""``models`` reads whatever ``trace`` reads, and one option says where judging begins."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from lucid.cli.main import lucidctl
from lucid.errors import TraceError
from lucid.simulator.traces.formats.own import write_trace
from lucid.simulator.traces.presets import preset
from lucid.simulator.traces.read import read_trace
from lucid.simulator.traces.synth import synthesise
from lucid.simulator.traces.window import finished_jobs, read_finished

glassbox = pytest.importorskip("interpret.glassbox")

ASSETS = Path(__file__).parents[2] / "assets" / "traces"
LOG = "job_id,user,submit_time,start_time,end_time,duration_s,gpus,time_limit_s\n"


@pytest.mark.parametrize("file", ["pack.csv", "philly.csv", "helios.csv", "helios_full.csv", "swf.txt", "sacct.txt"])
def test_every_trace_is_read_as_finished_jobs(file: str) -> None:
    table, trace = read_finished(ASSETS / file), read_trace(ASSETS / file, keep_cpu_jobs=True)
    assert len(table) >= len(trace.jobs)
    assert np.isfinite(table.submit_s).all()
    assert set(table.gpus.tolist()) >= {float(item.job.gpus) for item in trace.jobs}


def test_a_trace_keeps_users_sizes_waits_and_calendar(tmp_path: Path) -> None:
    made = synthesise(preset("month-small").resized(300, None), 4)
    write_trace(made, tmp_path / "month.csv")
    table = read_finished(tmp_path / "month.csv")
    assert table.user.tolist() == [item.job.user or None for item in made.jobs]
    assert table.duration_s.tolist() == [item.duration_s for item in made.jobs]
    assert made.epoch_s is not None
    assert table.submit_s[0] == made.jobs[0].job.submit_s + made.epoch_s
    assert (table.end_s >= table.submit_s + table.duration_s).all()
    assert np.array_equal(finished_jobs(made).end_s, table.end_s)


def test_what_is_neither_names_what_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "what.csv"
    path.write_text("what,is,this\n1,2,3\n")
    with pytest.raises(TraceError, match="give output of sacct"):
        read_finished(path)


def rows(users: bool) -> str:
    begin, lines = datetime(2026, 1, 1, tzinfo=UTC), []
    for n in range(160):
        at = begin + timedelta(hours=n)
        user = f"u{n % 2}" if users else ""
        ran = 300 * (n % 2 + 1)
        lines.append(f"{n},{user},{at:%F %T},{at:%F %T},{at + timedelta(seconds=ran):%F %T},{ran},1,3600")
    return LOG + "\n".join(lines) + "\n"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training boosts a few rounds: where judging begins and of whom it tells, not how well."""
    whole = glassbox.ExplainableBoostingRegressor
    few = {"outer_bags": 1, "max_rounds": 5, "n_jobs": 1}
    monkeypatch.setattr(glassbox, "ExplainableBoostingRegressor", lambda **rest: whole(**{**rest, **few}))


def evaluated(path: Path, test_from: str) -> dict[str, object]:
    words = ["models", "evaluate", "duration", str(path), "--test-from", test_from, "--refits", "1", "--json"]
    result = CliRunner().invoke(lucidctl, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    found: dict[str, object] = json.loads(result.stdout)
    return found


@pytest.mark.usefixtures("quick")
def test_a_row_and_a_time_begin_the_same_test(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(rows(users=True))
    by_row, by_time = evaluated(path, "120"), evaluated(path, "2026-01-06")
    assert by_row == by_time
    assert (by_row["jobs"], by_row["users_tested"], by_row["jobs_of"]) == (40, 2, "user")


@pytest.mark.usefixtures("quick")
def test_a_log_without_users_is_judged_by_account_or_partition(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    for column in ("account", "partition"):
        lines = rows(users=False).splitlines()
        path.write_text(
            "\n".join([f"{lines[0]},{column}", *(f"{line},x{n % 4}" for n, line in enumerate(lines[1:]))])
        )
        found = evaluated(path, "120")
        assert (found["jobs_of"], found["users_tested"]) == (column, 4)


@pytest.mark.parametrize("words", ["0", "-1", "September"])
def test_what_is_neither_row_nor_time_is_refused(words: str) -> None:
    for kind in ("duration", "throughput"):
        result = CliRunner().invoke(lucidctl, ["models", "evaluate", kind, "x.csv", f"--test-from={words}"])
        assert result.exit_code == 2
        assert "Invalid value for '--test-from'" in result.stderr
