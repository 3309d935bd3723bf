"""``efficiency --time-limits`` and ``explain``: who would have started earlier with a limit that fits."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from lucid.cli.main import lucidctl
from lucid.config.load import load_settings
from lucid.core.job import Ended
from lucid.daemon.process import say_checked
from lucid.store.sqlite import SqliteStore
from scenes.limits import crowded, replayed

DAEMON = '[daemon]\nstate_dir = "{0}"\nheartbeat = "{0}/heartbeat"\npartitions = {{ vc = "pack" }}\n'


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """State of a lucidd after two days: its records, and the jobs that ended."""
    folder = tmp_path_factory.mktemp("site")
    outcomes = replayed("backfill", crowded(3), folder / "plans")
    store = SqliteStore(folder / "lucid.db")
    lease = store.take_lease("test", 0.0, 1e9)
    assert lease is not None
    ended = [Ended(one.job, one.end_s, one.end_s - one.start_s) for one in outcomes.values()]
    store.put_ended(sorted(ended, key=lambda one: one.end_s), lease.token)
    store.put_view("status", {"at_s": max(one.end_s for one in ended), "modes": {"vc": "pack"}})
    store.close()
    config = folder / "lucid.toml"
    config.write_text(DAEMON.format(folder))
    say_checked(config, config.read_bytes(), load_settings(config))  # as lucidd does when it begins
    return folder


def ask(site: Path, *words: str, status: int = 0) -> str:
    made = CliRunner().invoke(lucidctl, [*words, "--config", str(site / "lucid.toml")])
    said = made.output + (str(made.exception) if status else "")
    assert made.exit_code == status, said
    return said


def test_the_table_the_json_and_explain_say_the_same(site: Path) -> None:
    told = json.loads(ask(site, "efficiency", "--time-limits", "--json"))["time_limits"]
    assert sum(row["earlier"] for row in told["rows"]) == len(told["jobs"]) > 20
    assert {row["user"] for row in told["rows"]} == {"u0", "u1", "u2", "u3"}
    first = told["jobs"][0]
    assert first["earlier_s"] == pytest.approx(first["started_s"] - first["would_have_started_s"])
    words = ask(site, "efficiency", "--time-limits")
    assert f"{len(told['jobs'])} would have started earlier" in words
    longest = max(told["jobs"], key=lambda one: one["earlier_s"])
    (line,) = [line for line in words.splitlines() if line.startswith(f"job {longest['job']} ")]
    assert "it would have started" in line
    story = json.loads(ask(site, "explain", longest["job"], "--json"))
    assert story["ended"]["time_limit"] == longest
    assert line.split(": ", 1)[1] in ask(site, "explain", longest["job"])
    rest = {str(n) for n in range(120)} - {one["job"] for one in told["jobs"]}
    assert json.loads(ask(site, "explain", min(rest), "--json"))["ended"]["time_limit"] is None


def test_one_user_and_a_limit_of_ones_own(site: Path) -> None:
    told = json.loads(ask(site, "efficiency", "--time-limits", "--user", "u0", "--time", "1:00:00", "--json"))[
        "time_limits"
    ]
    assert {(row["user"], row["limit_s"]) for row in told["rows"]} == {("u0", 3600.0)}
    assert "no time limit" in ask(site, "efficiency", "--time-limits", "--time", "soon", status=1)


def test_a_limit_without_time_limits_is_refused(site: Path) -> None:
    ask(site, "efficiency", "--time", "1:00", status=2)


def test_without_records_the_command_says_why(site: Path, tmp_path: Path) -> None:
    os.link(site / "lucid.db", tmp_path / "lucid.db")
    (tmp_path / "lucid.toml").write_text(DAEMON.format(tmp_path))
    assert "daemon.record_mib" in ask(tmp_path, "efficiency", "--time-limits", status=1)
