"""The regret report: what it counts, who loses, what it says of itself."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lucid.adapters.store.leased import IN_MEMORY
from lucid.adapters.store.snapshot_json import snapshot_to_dict
from lucid.adapters.store.sqlite import SqliteStore
from lucid.cli.main import lucidctl
from lucid.config import settings_from
from lucid.core.job import Ended, Job, JobProfile
from lucid.core.node import Node
from lucid.core.snapshot import Partition, Snapshot
from lucid.errors import ConfigError, TraceError
from lucid.simulator.gains import Held
from lucid.simulator.layout import NodeShape
from lucid.simulator.scenario import Scenario
from lucid.simulator.traces import Trace, TraceJob
from lucid.tuner.past import floorplan, stored_trace
from lucid.tuner.regret import PLAIN, Figures, Group, Regret, regret
from lucid.tuner.regret_page import regret_sentence, write_regret_page

DAY_S = 86400.0
HOUR_S = 3600.0


def item(name: str, user: str, at_s: float, hours: float, gpus: int = 8, waited_s: float | None = 0.0) -> TraceJob:
    return TraceJob(Job(name, "vc", gpus, at_s, 0, user), hours * HOUR_S, "COMPLETED", waited_s=waited_s)


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


def test_who_loses_is_named_with_how_much() -> None:
    found = regret(scenario(*LONG_AGO, *WEEK), 5.0, workers=1)
    assert found.everybody.jobs == 6  # the weeks before teach, and are not counted
    ann, bob = found.users
    assert (ann.name, bob.name) == ("ann", "bob")
    assert ann.lost_s == pytest.approx(2 * HOUR_S, abs=60)  # four half-hour jobs go before hers
    assert bob.lost_s == pytest.approx(-40 * HOUR_S, abs=60)
    assert [loss.job for loss in found.worst] == ["long"]
    assert found.worst[0].lost_s == pytest.approx(2 * HOUR_S, abs=60)
    assert ann.longer == 1
    assert bob.longer == 0
    assert found.everybody.lost_s == pytest.approx(ann.lost_s + bob.lost_s)
    assert found.everybody.losing_s == pytest.approx(ann.lost_s)


def made_up(**lost_h_of_10: float) -> Regret:
    """Users of two jobs each, of 10 h mean JCT in plain order, who lose so many hours a job."""

    def group(name: str, lost_h: float) -> Group:
        plain, lucid = (Figures(h * HOUR_S, 1.0, 1.0, 1.0) for h in (10.0, 10.0 + lost_h))
        return Group(name, 2, {PLAIN: plain, "lucid": lucid}, 2 * lost_h * HOUR_S, 1, max(lost_h, 0.0))

    users = sorted((group(name, lost) for name, lost in lost_h_of_10.items()), key=lambda g: -g.lost_s)
    everybody = group("everybody", sum(lost_h_of_10.values()) / len(users))
    return Regret("t", 0.0, 1.0, None, (PLAIN, "lucid"), everybody, (), tuple(users), (), None, ())


def test_users_who_lose_are_those_who_lose_enough_to_see_the_most_first(tmp_path: Path) -> None:
    found = made_up(ann=0.6, bob=0.4, cy=3.0, dan=-9.0, eve=0.01)
    assert [user.name for user in found.losers] == ["cy", "ann"]  # bob's 0.4 h are 4 %
    said = regret_sentence(found)
    assert said.index("saved the site 2 h") < said.index("2 of 5 users lose more than 5% of the mean JCT and")
    assert "most of all cy, 3.00 h a job (+30%)" in said
    write_regret_page(tmp_path / "r.html", found, [])
    page = (tmp_path / "r.html").read_text()
    assert page.index("What the site gains") < page.index("Users who lose") < page.index("Everybody else")
    losers = page[page.index("Users who lose") : page.index("Jobs that would have come out later")]
    assert losers.index(">cy<") < losers.index(">ann<")
    assert not any(f">{name}<" in losers for name in ("bob", "dan", "eve"))


def test_less_than_a_tenth_of_an_hour_is_no_loss() -> None:
    short = Group("u", 1, {PLAIN: Figures(60.0, 1, 1, 1), "lucid": Figures(400.0, 1, 1, 1)}, 340.0, 1, 340.0)
    assert not short.loses
    assert replace(short, by={**short.by, "lucid": Figures(420.0, 1, 1, 1)}).loses


def test_where_the_site_loses_that_is_said_first() -> None:
    assert "would have cost the site 8 h" in regret_sentence(made_up(ann=4.0))
    nobody = "None of 1 users loses more than 5% of the mean JCT and at least 0.1 h a job."
    assert regret_sentence(made_up(ann=-4.0)).endswith(nobody)


def test_what_really_was_is_what_the_log_says() -> None:
    found = regret(scenario(*LONG_AGO, *WEEK), 5.0, workers=1)
    assert found.orders[0] == "really"
    really = found.users[0].by["really"]
    assert really.avg_jct_s == pytest.approx(11 * HOUR_S)
    assert really.avg_wait_s == pytest.approx(HOUR_S)
    plain, was = found.everybody.by[PLAIN].avg_jct_s, found.everybody.by["really"].avg_jct_s
    assert found.realism == pytest.approx(plain / was - 1)
    assert "differences smaller than that say nothing" in regret_sentence(found)
    assert found.held is not None
    assert found.held.baseline_gpu_h > 0
    shown = regret_sentence(replace(found, held=Held(100.0, 124.0, 8, 1.0)))
    assert "as if the cluster of 8 GPUs had 1 more, day and night" in shown


def test_a_log_without_starts_is_not_given_any() -> None:
    silent = [replace(i, waited_s=None) for i in WEEK[:1]]
    found = regret(scenario(*LONG_AGO, *silent, *WEEK[1:]), 5.0, workers=1)
    assert "really" not in found.orders
    assert found.realism is None
    assert any("does not say when each job started" in note for note in found.notes)


def test_more_policies_stand_beside_them() -> None:
    assert regret(scenario(*LONG_AGO, *WEEK), 5.0, ["tiresias"], 1).orders[-1] == "tiresias"


def test_a_cluster_too_small_for_profiling_is_replayed_without_and_says_so() -> None:
    whole = replace(scenario(*LONG_AGO, *WEEK), settings=settings_from({}, "test"))
    found = regret(whole, 5.0, workers=1)
    assert found.everybody.jobs == 6
    assert any(note.startswith("no job is profiled first") for note in found.notes)


def with_a_node_to_profile_on(*jobs: TraceJob) -> Scenario:
    return replace(scenario(*jobs), vcs={"vc": 2}, settings=settings_from({}, "test"), profiling_nodes=1)


def test_what_starting_nobody_over_would_cost_is_shown_by_rule() -> None:
    found = regret(with_a_node_to_profile_on(*LONG_AGO, *WEEK), 5.0, workers=1)
    assert list(found.restarts) == ["never", "asked", "allowed"]
    assert found.restarts["asked"] == found.restarts["never"], "nobody asked"
    assert found.restarts["allowed"] != found.restarts["never"]
    assert any("does not say who asked" in note for note in found.notes)
    asking = [replace(i, job=replace(i.job, restart_asked=True)) for i in WEEK]
    asked = regret(with_a_node_to_profile_on(*LONG_AGO, *asking), 5.0, workers=1)
    assert asked.restarts["never"] == found.restarts["never"]
    assert asked.restarts["asked"] != asked.restarts["never"]
    assert not any("does not say who asked" in note for note in asked.notes)


def test_an_oracle_reports_nothing() -> None:
    with pytest.raises(ConfigError, match="oracle"):
        regret(replace(scenario(*WEEK), predictor="oracle"), 5.0, workers=1)


def test_the_page_holds_everything_and_nothing_from_outside(tmp_path: Path) -> None:
    found = regret(scenario(*LONG_AGO, *WEEK), 5.0, workers=1)
    write_regret_page(tmp_path / "r.html", found, ["a note <b>"])
    page = (tmp_path / "r.html").read_text()
    assert page.count('role="img"') == 2
    assert "src=" not in page
    assert "a note &lt;b&gt;" in page
    for name in ("ann", "bob", "long", "1970-01-06 00:00 to 1970-01-11 00:00"):
        assert name in page


SACCT = "JobID|User|Partition|Submit|Start|ElapsedRaw|State|AllocTRES\n"


def log(folder: Path) -> Path:
    lines = [
        f"{n}|{user}|vc|2024-03-0{day}T10:0{minute}:00|2024-03-0{day}T11:00:00|{run_s}|COMPLETED|gres/gpu=8"
        for n, (user, day, minute, run_s) in enumerate(
            [("ann", 1, 0, 36000), ("bob", 1, 1, 600), ("ann", 5, 0, 36000), ("bob", 5, 1, 600)]
        )
    ]
    path = folder / "sacct.txt"
    path.write_text(SACCT + "\n".join(lines) + "\n")
    return path


def run(*words: Any) -> Any:
    return CliRunner().invoke(lucidctl, ["report", *map(str, words)])


def test_the_command_on_sacct_lines(tmp_path: Path) -> None:
    words = ("--days", 2, "--jobs", log(tmp_path), "--nodes", 1, "--workers", 1)
    done = run(*words, "--json", "--html", tmp_path / "r.html")
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    assert data["everybody"]["jobs"] == 2
    assert data["orders"][0] == "really"
    assert {g["name"] for g in data["users"]} == {"ann", "bob"}
    assert (tmp_path / "r.html").exists()
    text = run(*words)
    assert text.exit_code == 0, text.output
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
    assert data["everybody"]["jobs"] == 3
    assert data["everybody"]["by"]["really"]["avg_jct_s"] == pytest.approx(DAY_S)
    assert data["everybody"]["by"]["fifo"]["avg_wait_s"] == pytest.approx(2 * HOUR_S, abs=10)  # two nodes, three jobs
    assert not any("no --vcs" in note for note in data["notes"])


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


def test_the_store_is_a_log_of_its_own() -> None:
    store, profile = SqliteStore(IN_MEMORY), JobProfile(20.0, 10.0, 4000.0)
    lease = store.take_lease("me", 0.0, 1e9)
    assert lease is not None
    ended = [
        Ended(Job("2", "vc", 2, 5000.0, 1, "ann"), 9000.0, 3000.0, "COMPLETED"),
        Ended(Job("1", "vc", 1, 4000.0, 0, "bob"), 9500.0, 5000.0, "FAILED"),
        Ended(Job("3", "vc", 0, 4500.0, 0, "bob"), 9600.0, 10.0, "COMPLETED"),
    ]
    store.put_ended(ended, lease.token)
    trace = stored_trace(store, 0.0)
    assert [i.job.id for i in trace.jobs] == ["1", "2"]
    assert trace.epoch_s == 4000.0
    assert [i.job.submit_s for i in trace.jobs] == [0.0, 1000.0]
    assert [i.waited_s for i in trace.jobs] == [500.0, 1000.0]
    assert trace.skipped == (("asked for no GPU", 1),)
    assert profile not in [i.profile for i in trace.jobs]
    with pytest.raises(TraceError, match="no GPU job that ended"):
        stored_trace(store, 1e6)


def test_nodes_that_profile_are_counted_to_the_largest_vc_and_lent_from_there() -> None:
    def nodes(prefix: str, count: int, gpus: int = 4) -> tuple[Node, ...]:
        return tuple(Node(f"{prefix}{i}", gpus) for i in range(count))

    plan = floorplan(
        [Partition("a", nodes("a", 2)), Partition("b", nodes("b", 3)), Partition("p", nodes("p", 1), profiling=True)]
    )
    assert plan.vcs == {"a": 2, "b": 4}
    assert (plan.profiling_nodes, plan.shape.gpus, plan.alike) == (1, 4, True)
    mixed = floorplan([Partition("a", (*nodes("a", 2), Node("x", 8)))])
    assert (mixed.shape.gpus, mixed.alike) == (4, False)
    assert floorplan([Partition("p", nodes("p", 1), profiling=True)]) is None
