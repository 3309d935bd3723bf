"""Reports of a week: how well GPUs were used, who let them idle."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec import structs

from daemon_site import Site
from lucid.cli.console import answer
from lucid.cli.learn.report import REALLY, PastWeek, past_week
from lucid.cli.main import lucidctl
from lucid.cli.site.efficiency import accounts_words
from lucid.config.live import EfficiencySettings
from lucid.config.load import profiles_folder, settings_from
from lucid.core.decision import Plan
from lucid.core.job import Ended, Job
from lucid.core.node import Node
from lucid.core.snapshot import Partition, Snapshot
from lucid.errors import ConfigError
from lucid.node.reports import write_summary
from lucid.profiler.summary import Summary
from lucid.profiler.use import GpuUse, IdleStretch
from lucid.profiler.waste import ADVICE, TITLES, WasteKind, idle_since, judge, judged, total_of, totals
from lucid.simulator.layout import NodeShape
from lucid.simulator.metrics import BASELINE, Party
from lucid.simulator.scenario import Scenario
from lucid.simulator.traces.record import Trace, TraceJob
from lucid.store.sqlite import SqliteStore
from lucid.store.view import view_to_dict
from waste_readings import H, MadeJob, Phase, at_work, ordinary, planted

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


@pytest.fixture(scope="module")
def found() -> PastWeek:
    return past_week(scenario(*LONG_AGO, *WEEK), 5.0, workers=1)


def test_the_answer_is_of_the_last_days_and_names_who_loses_the_most_hours_first(found: PastWeek) -> None:
    assert found.gains.everybody.jobs == 6  # the weeks before teach, and are not counted
    ann, bob = sorted(found.gains.users, key=lambda user: user.name)
    assert ann.jct_s - ann.baseline_s == pytest.approx(2 * HOUR_S, abs=60)  # four half-hour jobs go before hers
    assert (bob.jct_s - bob.baseline_s) * bob.jobs == pytest.approx(-40 * HOUR_S, abs=60)
    assert [(user.name, user.later) for user in found.losers] == [("ann", 1)]
    assert [job.job for job in found.gains.losing] == ["long"]
    loses = "1 of 2 users loses more than 5% of the mean JCT and at least 0.1 h a job; most of all ann, 2.0 h"
    assert [words in found.answer for words in ("saved the site 38 h", loses)] == [True, True]
    users = (Party("cy", 2, 40_000, 36_000, 1), Party("dan", 1, 400, 60, 1), Party("eve", 9, 39_000, 36_000, 9))
    many = replace(found, gains=replace(found.gains, users=(*users, Party("fay", 9, 36_400, 36_000, 9))))
    assert [user.name for user in many.losers] == ["eve", "cy"], "340 s, and 400 s of 10 h, are nothing anybody sees"
    nobody = replace(found, gains=replace(found.gains, users=users[1:2]))
    assert "None of 1 users loses more than 5%" in nobody.answer


def test_what_really_was_is_what_the_log_says(found: PastWeek) -> None:
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
    with pytest.raises(ConfigError, match="oracle"):
        past_week(replace(scenario(*WEEK), predictor="oracle"), 5.0, workers=1)


SACCT = "JobID|User|Partition|Submit|Start|ElapsedRaw|State|AllocTRES"


def run(*words: Any) -> Any:
    return CliRunner().invoke(lucidctl, ["report", *map(str, words)])


def test_the_command_on_sacct_lines(tmp_path: Path) -> None:
    log = tmp_path / "sacct.txt"
    jobs = [("ann", 1, 0, 36000), ("bob", 1, 1, 600), ("ann", 5, 0, 36000), ("<bob>", 5, 1, 600)]
    lines = [
        f"{n}|{user}|vc|2024-03-0{day}T10:0{minute}:00|2024-03-0{day}T11:00:00|{run_s}|COMPLETED|gres/gpu=8"
        for n, (user, day, minute, run_s) in enumerate(jobs)
    ]
    log.write_text("\n".join([SACCT, *lines, ""]))
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
    assert not re.search("<bob>|src=", page)
    text = run(*words)
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
    store.put_view("snapshot", view_to_dict(seen, Plan(seen.now_s)))
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


WRONG = {
    "": "give --jobs FILE", "--history --jobs x": "give --jobs FILE",
    "--week --days 3 --jobs x": "--week and --days", "--jobs x --policy fif": "did you mean 'fifo'",
}  # fmt: skip


@pytest.mark.parametrize("words", WRONG)
def test_wrong_options_are_named(words: str) -> None:
    assert WRONG[words] in str(run(*words.split()).exception)


RULES = EfficiencySettings()
KINDS = [str(kind) for kind in WasteKind]


@pytest.mark.parametrize("kind", KINDS)
def test_planted_waste_is_all_found_and_called_what_it_is_with_a_title_and_advice(kind: str) -> None:
    assert kind in TITLES.keys() & ADVICE.keys()
    for number in range(12):
        jobs, gpu_h = planted(kind, number)
        for account in judged([job.job_use() for job in jobs], RULES):
            assert [str(waste.kind) for waste in account.waste] == [kind], account
            assert account.waste[0].gpu_h == pytest.approx(gpu_h, rel=0.1), account


def test_no_alarm_among_ordinary_jobs() -> None:
    uses = [ordinary(number, seed=1).job_use(step_s=20.0) for number in range(60)]
    accounts = judged(uses, RULES)
    assert [waste for a in accounts for waste in a.waste] == []
    assert all(a.measured for a in accounts)
    assert [job.job_id for job in uses if idle_since(structs.replace(job, running=True)) is not None] == []


def test_a_job_without_readings_is_not_measured_and_accused_of_nothing() -> None:
    (job,), _ = planted("idle_from_start", 1)
    whole = job.job_use()
    for use in ((), whole.use[:0], tuple(replace(one, measured_s=0.4 * one.measured_s) for one in whole.use)):
        account = judge(structs.replace(whole, use=use), RULES)
        assert (account.measured, account.worked_gpu_h, account.waste) == (False, None, ())
        assert account.held_gpu_h > 0
    lost = MadeJob("lost", [[Phase(4 * H, 0.0, known=False)]])
    assert not judge(lost.job_use(), RULES).measured


def test_what_is_not_known_is_no_idle_time() -> None:
    """Half of the readings are missing in the middle of an idle job: what was not read is not told as waste."""
    job = MadeJob("gap", [[Phase(H, 0.0), Phase(2 * H, 0.0, known=False), Phase(1.5 * H, 0.0)]])
    account = judge(job.job_use(), RULES)
    assert account.measured
    assert sum(waste.gpu_h for waste in account.waste) == pytest.approx(2.5, rel=0.05)


@pytest.mark.parametrize(("before_s", "after_s"), [(1700.0, 3500.0), (1900.0, 3700.0)])
def test_the_bounds_of_idle_time(before_s: float, after_s: float) -> None:
    begins, ends = [Phase(before_s, 0.0), *at_work(2 * H)[1:]], [*at_work(2 * H)[:-1], Phase(after_s, 0.0)]
    found = [judge(MadeJob("b", [phases] * 4).job_use(), RULES).waste for phases in (begins, ends)]
    wanted = [[], []] if before_s < 1800.0 else [["idle_from_start"], ["idle_after_activity"]]
    assert [[str(waste.kind) for waste in one] for one in found] == wanted


def test_a_job_that_works_for_a_second_in_twenty_is_not_idle_and_one_that_keeps_itself_alive_is() -> None:
    def bursts(every_s: int) -> MadeJob:
        return MadeJob("bursts", [[Phase(1.0, 60.0), Phase(every_s - 1.0, 0.0)] * int(3 * H / every_s)])

    assert judge(bursts(20).job_use(step_s=1.0), RULES).waste == ()
    assert [w.kind for w in judge(bursts(600).job_use(step_s=1.0), RULES).waste] == [WasteKind.IDLE_START]


def test_a_light_job_that_may_share_or_does_not_fit_is_no_waste() -> None:
    (job,), _ = planted("could_have_shared", 0)
    busy = [at_work(3 * H, 60.0)]
    for other in ({"wants_alone": False}, {"mem_mib": 15000.0}, {"unstable": True}, {"phases": busy}):
        assert judge(replace(job, **other).job_use(), RULES).waste == (), other  # type: ignore[arg-type]
    assert judge(structs.replace(job.job_use(), nodes=2), RULES).waste == ()


def test_limits_are_judged_over_several_jobs_that_completed() -> None:
    jobs, _ = planted("time_limit_too_long", 0)
    uses = [job.job_use() for job in jobs]
    one_needs_it = [*uses, structs.replace(uses[0], job_id="long", end_s=uses[0].begin_s + 30 * H)]
    for fine in (uses[:2], [structs.replace(one, state="FAILED") for one in uses], one_needs_it):
        assert not any(account.waste for account in judged(fine, RULES))
    assert judged(uses, RULES)[0].wasted_gpu_h == 0.0, "the hours went to others"


def test_sums_and_shares() -> None:
    (idle,), gpu_h = planted("idle_from_start", 1)
    good = MadeJob("good", [at_work(4 * H)], user="bob")
    dark = MadeJob("dark", [[Phase(3 * H, 0.0, known=False)]], user="cyd")
    accounts = judged([job.job_use() for job in (idle, good, dark)], RULES)
    by_user = {one.name: one for one in totals(accounts, lambda account: account.job.user)}
    assert next(iter(by_user)) == "ada", "most wasted first"
    assert by_user["ada"].wasted_gpu_h == {WasteKind.IDLE_START: pytest.approx(gpu_h, rel=0.02)}
    assert by_user["bob"].wasted_share == 0.0
    assert (by_user["cyd"].wasted_share, by_user["cyd"].not_measured_jobs) == (None, 1)
    whole = total_of("", accounts)
    assert whole.held_gpu_h == pytest.approx(sum(one.held_gpu_h for one in by_user.values()))
    assert whole.not_measured_gpu_h == pytest.approx(3.0)


def test_energy_host_memory_and_limits_are_summed_where_there_were_some(capsys: pytest.CaptureFixture[str]) -> None:
    made = MadeJob("a", [at_work(2 * H)], user="bob").job_use()
    limited, endless = (structs.replace(made, time_limit_s=limit_s) for limit_s in (4 * H, None))
    seen = structs.replace(
        limited, asked_host_mib=8192.0, use=tuple(replace(u, energy_j=3.6e6, host_mib=2048.0) for u in made.use)
    )
    others = (structs.replace(endless, job_id="b"), structs.replace(endless, job_id="c", user="cyd"))
    accounts = judged([seen, *others], RULES)
    bob, cyd = sorted(totals(accounts, lambda one: one.job.user), key=lambda one: one.name)
    assert (bob.energy_kwh, bob.host_asked_gib, bob.host_peak_gib) == (1.0, 8.0, 2.0)
    assert (cyd.energy_kwh, cyd.host_asked_gib) == (None, 0.0)
    answer(None, False, accounts_words(accounts, 7.0, "user"))
    lines = {line.split()[1]: line for line in capsys.readouterr().out.splitlines() if len(line.split()) > 1}
    assert [word in lines["bob"] for word in ("4.0 (1 without limit)", "1.0", "25%")] == [True] * 3
    assert "no limit" in lines["cyd"]
    assert "%" not in lines["cyd"]


JOB = structs.replace(MadeJob("j", [[Phase(9000.0, 0.0)]]).job_use(0.0), begin_s=0.0, end_s=9000.0, running=True)
USE = GpuUse("g", 0.0, 9000.0, 9000.0, 0.0, (IdleStretch(1000.0, 8990.0),))
LATER = replace(USE, gpu="h", idle=(IdleStretch(0.0, 500.0), IdleStretch(4000.0, 9000.0)))


@pytest.mark.parametrize(
    ("use", "gpus", "since_s"),
    [
        ((USE,), 1, 1000.0),
        ((USE, LATER), 2, 4000.0),
        ((USE,), 2, None),  # one not seen
        ((replace(USE, idle=(IdleStretch(5500.0, 9000.0),)),), 1, None),  # for less than an hour
        ((), 0, None),  # none seen
        ((USE, replace(LATER, idle=())), 2, None),  # one works
        ((replace(USE, measured_s=3599.0),), 1, None),  # measured for less than an hour
        ((replace(USE, idle=(IdleStretch(1000.0, 8800.0),)),), 1, None),  # silent, or at work
    ],
)
def test_a_job_is_idle_where_fresh_readings_of_all_its_gpus_say_so(
    use: tuple[GpuUse, ...], gpus: int, since_s: float | None
) -> None:
    assert idle_since(structs.replace(JOB, use=use, gpus=gpus)) == since_s
    assert idle_since(structs.replace(JOB, use=use, gpus=gpus, running=False)) is None


def test_efficiency_lists_the_running_jobs_whose_gpus_do_nothing(tmp_path: Path) -> None:
    site = Site(tmp_path)
    for job, user in (("1", "ada"), ("2", "bob")):
        site.submit(job, user=user)
    site.turns(120.0)
    site.turns(5 * H, every_s=600.0)
    now_s = site.slurm.now
    folder = profiles_folder(site.settings)
    folder.mkdir(parents=True, exist_ok=True)
    for job, idle in (("1", (IdleStretch(now_s - 5 * H, now_s),)), ("2", ())):
        use = (GpuUse("n1/0", now_s - 5 * H, now_s, 5 * H, 0.0 if idle else 600.0, idle),)
        write_summary(folder, Summary(job, "n1", (), now_s - 5 * H, now_s, 30, use=use))
    (row,) = json.loads(site.ctl("efficiency", "--json"))["idle"]
    assert (row["job"], row["user"], row["vc"]) == ("1", "ada", "vc")
    assert row["since_s"] == pytest.approx(now_s - 5 * H, abs=150.0)
    words = site.ctl("efficiency")
    assert "1 running jobs whose GPUs do nothing now" in words
    assert "1 (ada, vc)" in words
    assert json.loads(site.ctl("efficiency", "--user", "bob", "--json"))["idle"] == []
