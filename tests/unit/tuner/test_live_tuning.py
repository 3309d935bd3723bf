"""The tuner beside the daemon: when it searches, what it leaves, and that it changes nothing unless told to."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from click.testing import CliRunner

from lucid.adapters.store.sqlite import SqliteStore
from lucid.cli.main import lucidctl
from lucid.config import Settings, load_settings
from lucid.core.job import Ended, Job
from lucid.errors import ConfigError, ModelError
from lucid.live.learning.child_process import Children
from lucid.live.learning.tuner_reports import latest_report, reports_folder
from lucid.live.learning.tuning import TuneTick, tune_timer

HOUR_S = 3600.0
DAY_S = 86400.0


class Child:
    """Stands for the child process: writes what ``lucidctl tune`` would."""

    def __init__(self, worth_it: bool = True, code: int = 0) -> None:
        self.worth_it, self.code = worth_it, code
        self.calls: list[list[str]] = []

    def __call__(self, words: Sequence[str], timeout: timedelta) -> CompletedProcess[str]:
        self.calls.append(list(words))
        if self.code == 0 and words[1] != "apply":
            out = Path(words[words.index("--out") + 1])
            out.mkdir(parents=True)
            (out / "summary.json").write_text(json.dumps({"worth_it": self.worth_it, "verdict": "so it is."}))
        return CompletedProcess(list(words), self.code, "", "a line\nthe last words\n")


def a_config(folder: Path, tuner: str = "every_h = 24") -> Path:
    config = folder / "lucid.toml"
    text = f'[daemon]\nstate_dir = "{folder}"\n[daemon.partitions]\nvc = "observe"\n[tuner]\n{tuner}\n'
    config.write_text(text)
    return config


def a_past(folder: Path) -> None:
    """Fifty jobs that ended in the last twelve days."""
    store, now_s = SqliteStore(folder / "lucid.db"), time.time()
    lease = store.take_lease("me", now_s, 60.0)
    assert lease is not None
    jobs: list[Ended] = []
    for n in range(50):
        at_s = now_s - (12 - n / 5) * DAY_S
        jobs.append(Ended(Job(str(n), "vc", 1 + n % 4, at_s, n, "ab"[n % 2]), at_s + DAY_S, 5e4))
    store.put_ended(jobs, lease.token)
    store.close()


def tick(config: Path, child: Child, at_s: float) -> list[dict[str, Any]]:
    return TuneTick(load_settings(config), config, child, lambda: at_s)()


def test_it_searches_when_the_last_search_is_long_enough_ago(tmp_path: Path) -> None:
    config, child = a_config(tmp_path), Child()
    assert tick(config, child, 100 * HOUR_S)[0]["verdict"] == "so it is."
    for hours in (101, 110, 123):
        assert tick(config, child, hours * HOUR_S) == []
    assert len(tick(config, child, 125 * HOUR_S)) == 1
    assert len(child.calls) == 2
    assert child.calls[0][:3] == ["tune", "--history", "30d"]
    assert child.calls[0][child.calls[0].index("--config") + 1] == str(config)


def test_it_is_a_report_only(tmp_path: Path) -> None:
    config, child = a_config(tmp_path), Child(worth_it=True)
    before = config.read_bytes()
    tick(config, child, 0.0)
    assert [call[1] for call in child.calls] == ["--history"]
    assert config.read_bytes() == before


@pytest.mark.parametrize("worth_it", [True, False])
def test_told_to_it_applies_what_is_worth_it_and_nothing_else(tmp_path: Path, worth_it: bool) -> None:
    config, child = a_config(tmp_path, "every_h = 24\napply = true"), Child(worth_it)
    found = tick(config, child, 0.0)[0]
    assert found.get("applied", False) is worth_it
    assert [call[:2] for call in child.calls[1:]] == ([["tune", "apply"]] if worth_it else [])


def test_a_child_that_fails_is_told_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="status 2: the last words"):
        tick(a_config(tmp_path), Child(code=2), 0.0)


def test_old_reports_go(tmp_path: Path) -> None:
    config = a_config(tmp_path, "every_h = 1")
    for hours in range(12):
        tick(config, Child(), hours * HOUR_S)
    kept = [path.name for path in sorted(reports_folder(load_settings(config)).iterdir())]
    assert kept == [f"19700101-{hours:02}0000" for hours in range(2, 12)], "the newest ten"


def test_settings_go_to_the_child(tmp_path: Path) -> None:
    child = Child()
    config = a_config(tmp_path, 'every_h = 1\ntrials = 9\nonly = ["packing", "n_prof"]')
    tick(config, child, 0.0)
    words = " ".join(child.calls[0])
    assert "--history 30d" in words
    assert "--trials 9 --workers 1" in words
    assert "--only packing --only n_prof" in words


def test_without_every_h_there_is_no_timer(tmp_path: Path) -> None:
    assert tune_timer(Settings(), tmp_path / "c") is None
    assert tune_timer(load_settings(a_config(tmp_path)), tmp_path / "c") is not None


def test_the_latest_whole_report_is_found(tmp_path: Path) -> None:
    settings = load_settings(a_config(tmp_path))
    assert latest_report(settings) is None
    for name, text in (("1", '{"verdict": "a"}'), ("2", '{"verdict": "b"}'), ("3", "torn")):
        (reports_folder(settings) / name).mkdir(parents=True)
        (reports_folder(settings) / name / "summary.json").write_text(text)
    (reports_folder(settings) / "4").mkdir()
    found = latest_report(settings)
    assert (found[0].name, found[1]) == ("2", {"verdict": "b"})


def test_a_search_of_the_store_is_found_by_status_and_show(tmp_path: Path) -> None:
    """The whole way but for the child: lucidctl tune on the store, then its report."""
    config = a_config(tmp_path)
    a_past(tmp_path)
    run = CliRunner()
    assert isinstance(run.invoke(lucidctl, ["tune", "show", "--config", str(config)]).exception, ConfigError)
    out = reports_folder(load_settings(config)) / "20260101-000000"
    words = ["tune", "--history", "30d", "--config", config, "--out", out, "--trials", 2, "--only", "gss"]
    done = run.invoke(lucidctl, [*map(str, words), "--workers", "1", "--nodes", "4"])
    assert done.exit_code == 0, done.output
    shown = run.invoke(lucidctl, ["tune", "show", "--config", str(config)])
    assert shown.exit_code == 0, shown.output
    assert "Nothing that was tried beats the present settings" in shown.output
    status = run.invoke(lucidctl, ["status", "--config", str(config)])
    assert "tuner (20260101-000000 UTC): Nothing that was tried" in status.output
    seen = json.loads(run.invoke(lucidctl, ["status", "--json", "--config", str(config)]).output)
    assert seen["tuner"]["worth_it"] is False


def test_a_real_child_searches_the_store_and_leaves_a_report(tmp_path: Path) -> None:
    config = a_config(tmp_path, 'every_h = 24\ntrials = 2\nonly = ["gss"]')
    a_past(tmp_path)
    found = TuneTick(load_settings(config), config, Children().run)()
    assert found[0]["worth_it"] is False
    report = latest_report(load_settings(config))
    assert str(report[0]) == found[0]["folder"]
    assert (report[0] / "proposal.html").exists()
    assert TuneTick(load_settings(config), config, Children().run)() == []
