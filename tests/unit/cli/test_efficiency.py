"""Waste is found where it was planted, and nowhere else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest

from lucid.cli.site.efficiency import tell_accounts
from lucid.config.other import EfficiencySettings
from lucid.profiler.waste import ADVICE, TITLES, WasteKind, judge, judged, total_of, totals
from waste_readings import MadeJob, Phase, at_work, ordinary, planted

RULES = EfficiencySettings()
H = 3600.0
KINDS = [str(kind) for kind in WasteKind]


@pytest.mark.parametrize("kind", KINDS)
def test_planted_waste_is_all_found_and_called_what_it_is(kind: str) -> None:
    for number in range(12):
        jobs, gpu_h = planted(kind, number)
        for account in judged([job.job_use() for job in jobs], RULES):
            assert [str(waste.kind) for waste in account.waste] == [kind], account
            if gpu_h:
                assert account.waste[0].gpu_h == pytest.approx(gpu_h, rel=0.1), account


@pytest.mark.slow
def test_no_alarm_among_a_thousand_ordinary_jobs() -> None:
    accounts = judged([ordinary(number, seed=16).job_use() for number in range(1000)], RULES)
    assert [(a.job.job_id, waste) for a in accounts for waste in a.waste] == []
    assert sum(a.measured for a in accounts) > 990
    states = Counter(a.job.wants_alone for a in accounts)
    assert states[True] > 50, "some of them keep their GPUs to themselves, and need them"


def test_no_alarm_among_some_ordinary_jobs_either() -> None:
    accounts = judged([ordinary(number, seed=1).job_use(step_s=20.0) for number in range(60)], RULES)
    assert [waste for a in accounts for waste in a.waste] == []
    assert all(a.measured for a in accounts)


def test_a_job_without_readings_is_not_measured_and_accused_of_nothing() -> None:
    (job,), _ = planted("idle_from_start", 1)
    whole = job.job_use()
    for use in ((), whole.use[:0], tuple(replace(one, measured_s=0.4 * one.measured_s) for one in whole.use)):
        account = judge(replace(whole, use=use), RULES)
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


@pytest.mark.parametrize(
    ("idle_s", "kinds"),
    [(1700.0, []), (1900.0, ["idle_from_start"]), (900.0, [])],
    ids=["below", "above", "far below"],
)
def test_the_bound_of_idle_from_the_start(idle_s: float, kinds: list[str]) -> None:
    job = MadeJob("b", [[Phase(idle_s, 0.0), *at_work(2 * H)[1:]] for _ in range(4)])
    assert [str(waste.kind) for waste in judge(job.job_use(), RULES).waste] == kinds


@pytest.mark.parametrize(("idle_s", "kinds"), [(3500.0, []), (3700.0, ["idle_after_activity"])])
def test_the_bound_of_idle_after_activity(idle_s: float, kinds: list[str]) -> None:
    job = MadeJob("b", [[*at_work(2 * H)[:-1], Phase(idle_s, 0.0)]])
    assert [str(waste.kind) for waste in judge(job.job_use(), RULES).waste] == kinds


def test_a_job_that_works_for_a_second_in_twenty_is_not_idle_and_one_that_keeps_itself_alive_is() -> None:
    def bursts(every_s: int) -> MadeJob:
        return MadeJob("bursts", [[Phase(1.0, 60.0), Phase(every_s - 1.0, 0.0)] * int(3 * H / every_s)])

    assert judge(bursts(20).job_use(step_s=1.0), RULES).waste == ()
    assert [w.kind for w in judge(bursts(600).job_use(step_s=1.0), RULES).waste] == [WasteKind.IDLE_START]


def test_a_light_job_that_may_share_or_does_not_fit_is_no_waste() -> None:
    (job,), _ = planted("could_have_shared", 0)
    for other in (
        replace(job, wants_alone=False),
        replace(job, mem_mib=15000.0),
        replace(job, unstable=True),
        replace(job, phases=[at_work(3 * H, 60.0)]),
    ):
        assert judge(other.job_use(), RULES).waste == (), other
    assert judge(replace(job.job_use(), nodes=2), RULES).waste == ()


def test_limits_are_judged_over_several_jobs_that_completed() -> None:
    jobs, _ = planted("time_limit_too_long", 0)
    uses = [job.job_use() for job in jobs]
    assert all(not account.waste for account in judged(uses[:2], RULES))
    assert all(not account.waste for account in judged([replace(one, state="FAILED") for one in uses], RULES))
    one_needs_it = [*uses, replace(uses[0], job_id="long", end_s=uses[0].begin_s + 30 * H)]
    assert all(not account.waste for account in judged(one_needs_it, replace_limit(one_needs_it)))
    found = judged(uses, RULES)
    assert found[0].wasted_gpu_h == 0.0, "the hours went to others"


def replace_limit(_: object) -> EfficiencySettings:
    return RULES.model_copy(update={"least_measured": 0.01})


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


def test_the_table_says_no_limit_where_there_was_none(capsys: pytest.CaptureFixture[str]) -> None:
    limited = replace(MadeJob("a", [at_work(2 * H)], user="bob").job_use(), time_limit_s=4 * H)
    endless = replace(MadeJob("b", [at_work(2 * H)], user="cyd").job_use(), time_limit_s=None)
    tell_accounts(judged([limited, endless, replace(endless, job_id="c", user="bob")], RULES), 7.0, "user")
    lines = {line.split()[1]: line for line in capsys.readouterr().out.splitlines() if len(line.split()) > 1}
    assert "4.0 (1 without limit)" in lines["bob"]
    assert "no limit" in lines["cyd"]


def test_every_kind_has_a_title_and_advice() -> None:
    everything: list[Mapping[WasteKind, str]] = [TITLES, ADVICE]
    assert all(set(one) == set(WasteKind) for one in everything)


def test_energy_and_host_memory_are_summed_where_they_were_counted(capsys: pytest.CaptureFixture[str]) -> None:
    made = MadeJob("a", [at_work(2 * H)], user="bob").job_use()
    seen = replace(
        made, asked_host_mib=8192.0, use=tuple(replace(u, energy_j=3.6e6, host_mib=2048.0) for u in made.use)
    )
    accounts = judged([seen, replace(made, job_id="b"), replace(made, job_id="c", user="cyd")], RULES)
    bob, cyd = sorted(totals(accounts, lambda one: one.job.user), key=lambda one: one.name)
    assert (bob.energy_kwh, bob.host_asked_gib, bob.host_peak_gib) == (1.0, 8.0, 2.0)
    assert (cyd.energy_kwh, cyd.host_asked_gib) == (None, 0.0)
    tell_accounts(accounts, 7.0, "user")
    lines = {line.split()[1]: line for line in capsys.readouterr().out.splitlines() if len(line.split()) > 1}
    assert "1.0" in lines["bob"]
    assert "25%" in lines["bob"]
    assert "%" not in lines["cyd"]
