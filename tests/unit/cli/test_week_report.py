"""``lucidctl report``: what it counts, who loses, what it says of itself."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lucid.cli.learn.report import REALLY, past_week
from lucid.cli.main import lucidctl
from lucid.config.load import settings_from
from lucid.core.job import Ended, Job
from lucid.core.node import Node
from lucid.core.snapshot import Partition, Snapshot
from lucid.errors import ConfigError
from lucid.simulator.layout import NodeShape
from lucid.simulator.metrics import BASELINE, Party
from lucid.simulator.scenario import Scenario
from lucid.simulator.traces.record import Trace, TraceJob
from lucid.store.sqlite import SqliteStore
from lucid.store.view import snapshot_to_dict

DAY_S = 86400.0
HOUR_S = 3600.0


def item(name: str, user: str, at_s: float, hours: float, waited_s: float | None = 0.0) -> TraceJob:
    return TraceJob(Job(name, "vc", 8, at_s, 0, user), hours * HOUR_S, "COMPLETED", waited_s=waited_s)


def scenario(*jobs: TraceJob) -> Scenario:
    """One node of 8 GPUs: every job waits for all that go before it."""
    bare = settings_from({"policy": {"profiling": {"enabled": False}}}, "test")
    ordered = tuple(sorted(jobs, key=lambda i: i.job.submit_s))
    return Scenario(Trace("log", ordered, 0.0), {"vc": 1}, NodeShape(8), settings=bare)


LONG_AGO = [item("w1", "ann", 0.0, 10.0), item("w2", "bob", 1.0, 0.5)]
"""What teaches the estimates: ann's jobs are long, bob's are short."""
AT = 10 * DAY_S
WEEK = [
    item("first", "bob", AT, 1.0, waited_s=60.0),
    item("long", "ann", AT + 10.0, 10.0, waited_s=HOUR_S),
    *(item(f"short{i}", "bob", AT + 20.0 + i, 0.5, waited_s=11 * HOUR_S) for i in range(4)),
]


def test_the_answer_is_of_the_last_days_and_names_who_loses_the_most_hours_first() -> None:
    found = past_week(scenario(*LONG_AGO, *WEEK), 5.0, workers=1)
    assert found.gains.everybody.jobs == 6  # the weeks before teach, and are not counted
    ann, bob = sorted(found.gains.users, key=lambda user: user.name)
    assert ann.jct_s - ann.baseline_s == pytest.approx(2 * HOUR_S, abs=60)  # four half-hour jobs go before hers
    assert (bob.jct_s - bob.baseline_s) * bob.jobs == pytest.approx(-40 * HOUR_S, abs=60)
    assert [(user.name, user.later) for user in found.losers] == [("ann", 1)]
    assert [job.job for job in found.gains.losing] == ["long"]
    assert "saved the site 38 h" in found.answer
    assert (
        "1 of 2 users loses more than 5% of the mean JCT and at least 0.1 h a job; most of all ann, 2.0 h"
        in found.answer
    )
    users = (Party("cy", 2, 40_000, 36_000, 1), Party("dan", 1, 400, 60, 1), Party("eve", 9, 39_000, 36_000, 9))
    many = replace(found, gains=replace(found.gains, users=(*users, Party("fay", 9, 36_400, 36_000, 9))))
    assert [user.name for user in many.losers] == ["eve", "cy"], "340 s, and 400 s of 10 h, are nothing anybody sees"
    nobody = replace(found, gains=replace(found.gains, users=users[1:2]))
    assert "None of 1 users loses more than 5%" in nobody.answer


def test_what_really_was_is_what_the_log_says() -> None:
    found = past_week(scenario(*LONG_AGO, *WEEK), 5.0, workers=1)
    really, plain = found.metrics[REALLY], found.metrics[BASELINE]
    assert [*found.metrics] == [BASELINE, "fifo", "lucid", REALLY]
    assert really["avg_queue_s"] == pytest.approx((60 + HOUR_S + 44 * HOUR_S) / 6)
    assert really["avg_jct_s"] == pytest.approx(really["avg_queue_s"] + 13 * HOUR_S / 6)
    assert found.realism == pytest.approx(plain["avg_jct_s"] / really["avg_jct_s"] - 1)
    assert "differences smaller than that say nothing" in found.answer
    used = [plain["gpu_use"], really["gpu_use"]]
    assert used == pytest.approx([1.0, 13 / 11.5], abs=0.01), "the log is of a larger cluster"
    waiting, of_a_day = found.runs[-1].series.pending_jobs[""], int(DAY_S / found.runs[-1].series.step_s)
    assert [waiting[5 * of_a_day + at] for at in (3, 12)] == [5, 4], "after half an hour, and 2 h"


def test_a_log_without_starts_is_not_given_any_and_other_policies_stand_beside_them() -> None:
    silent = [replace(i, waited_s=None) for i in WEEK[:1]]
    found = past_week(scenario(*LONG_AGO, *silent, *WEEK[1:]), 5.0, ["tiresias"], workers=1)
    assert [*found.metrics] == [BASELINE, "fifo", "lucid", "tiresias"]
    assert found.realism is None
    assert any("does not say when each job started" in note for note in found.notes)


def test_an_oracle_reports_nothing() -> None:
    with pytest.raises(ConfigError, match="oracle"):
        past_week(replace(scenario(*WEEK), predictor="oracle"), 5.0, workers=1)


SACCT = "JobID|User|Partition|Submit|Start|ElapsedRaw|State|AllocTRES\n"


def run(*words: Any) -> Any:
    return CliRunner().invoke(lucidctl, ["report", *map(str, words)])


def test_the_command_on_sacct_lines(tmp_path: Path) -> None:
    log = tmp_path / "sacct.txt"
    lines = [
        f"{n}|{user}|vc|2024-03-0{day}T10:0{minute}:00|2024-03-0{day}T11:00:00|{run_s}|COMPLETED|gres/gpu=8"
        for n, (user, day, minute, run_s) in enumerate(
            [("ann", 1, 0, 36000), ("bob", 1, 1, 600), ("ann", 5, 0, 36000), ("<bob>", 5, 1, 600)]
        )
    ]
    log.write_text(SACCT + "\n".join(lines) + "\n")
    words = ("--days", 2, "--jobs", log, "--nodes", 1, "--workers", 1)
    done = run(*words, "--json", "--html", tmp_path / "r.html")
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    assert data["jobs"] == 2
    assert data["results"][REALLY]["jobs"] == 2
    assert {user["name"] for user in data["gains"]["lucid"]["users"]} == {"ann", "<bob>"}
    page = (tmp_path / "r.html").read_text()
    assert page.index("2 jobs: Lucid&#39;s order would have") < page.index("lucid against backfill")
    assert "2024-03-03 10:01 to 2024-03-05 10:01" in page
    assert "<bob>" not in page
    assert "src=" not in page
    text = run(*words)
    assert text.exit_code == 0, text.output
    assert text.stdout.index("order would have") < text.stdout.index("All jobs") < text.stdout.index("By VC")
    assert "note: users are taken to submit the same jobs" in text.stdout


def test_the_command_on_the_store_of_lucidd(tmp_path: Path) -> None:
    store, now_s = SqliteStore(tmp_path / "lucid.db"), time.time()
    lease = store.take_lease("me", now_s, 60.0)
    assert lease is not None
    ended = [
        Ended(Job(str(n), "vc", 4, now_s - 2 * DAY_S + n, n, user), now_s - DAY_S + n, 6 * HOUR_S, "COMPLETED")
        for n, user in enumerate(["ann", "bob", "ann"])
    ]
    store.put_ended(ended, lease.token)
    seen = Snapshot(now_s, {"vc": Partition("vc", (Node("n1", 4), Node("n2", 4)))})
    store.put_view("snapshot", snapshot_to_dict(seen))
    store.close()
    config = tmp_path / "lucid.toml"
    config.write_text(f'[daemon]\nstate_dir = "{tmp_path}"\n[daemon.partitions]\nvc = "observe"\n')
    done = run("--history", "--config", config, "--workers", 1, "--json")
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    assert data["results"][REALLY]["avg_jct_s"] == pytest.approx(DAY_S)
    assert data["results"]["fifo"]["avg_queue_s"] == pytest.approx(2 * HOUR_S, abs=10)  # two nodes, three jobs
    assert not any("no --vcs" in note for note in data["notes"])
    assert any(note.startswith("no job is profiled first") for note in data["notes"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give --jobs FILE"),
        (("--history", "--jobs", "x"), "give --jobs FILE"),
        (("--week", "--days", "3", "--jobs", "x"), "--week and --days"),
        (("--jobs", "x", "--policy", "fif"), "did you mean 'fifo'"),
    ],
)
def test_wrong_options_are_named(words: tuple[str, ...], said: str) -> None:
    assert said in str(run(*words).exception)
