"""Pools: VCs as quotas of GPUs over common nodes, borrowing beyond them, and what lenders are promised."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from lucid.cli.replay.replay_options import with_lending_by_default
from lucid.config.load import settings_from
from lucid.config.policy import LendingSettings
from lucid.core.decision import Hold, PartitionPlan, Start
from lucid.core.reasons.queue import BehindHead, Borrows, OwnTurn, Quota, Reserved, TooLarge
from lucid.core.snapshot import Partition, Snapshot
from lucid.errors import ConfigError
from lucid.orchestrator.order.queue_order import QueuedJob
from lucid.orchestrator.order.quotas import Quotas
from lucid.orchestrator.order.starvation_bound import own_turns
from lucid.orchestrator.policies.lucid.start import Starts
from lucid.orchestrator.registry import make_policy
from lucid.simulator.cluster.state import Semantics
from lucid.simulator.cluster.usage import LentBook
from lucid.simulator.metrics import run_metrics
from lucid.simulator.scenario import Scenario, simulate, with_promise
from scenes.jobs import LIGHT, at, by, nodes, runs, waits
from scenes.plans import FixedPredictor, guess, kinds, part, policy, reason, settings, snap
from scenes.replays import a_trace

ALONE: dict[str, Any] = {"profiling": {"enabled": False}, "packing": {"gss": 0}}
BORROW = {"lending": {"mode": "borrow"}}
QUOTA = {"lending": {"mode": "quota"}}
FULL = runs("r", "n1:0-7", job={"vc": "a"})
BOTH = [FULL, runs("q", "n2:0-3", job={"vc": "b"})]
HALVES = [runs("r", "n1:0-3", job={"vc": "a"}), runs("q", "n2:0-3", job={"vc": "a"})]
LONG = {"r": guess(9000.0), "q": guess(8000.0)}


def pool(machines: Any, pending: Any = (), running: Any = (), **quotas: int) -> Partition:
    return replace(part(machines, pending, running, name="pool"), quotas=quotas)


def plan_of(name: str, snapshot: Snapshot, **sections: Any) -> PartitionPlan:
    return policy(name, FixedPredictor(), **sections).plan(snapshot).partitions["pool"]


def two_vcs(seconds: float = 500.0) -> Snapshot:
    """VC a holds its whole quota and wants more; VC b has nothing to do."""
    return snap(0.0, pool(nodes(2), [waits("j", 4, vc="a")], [FULL], a=8, b=8), predictions={"j": guess(seconds)})


def test_a_job_borrows_idle_gpus_and_says_whose_and_those_within_their_quota_go_first() -> None:
    """VC a's short job would be first in line; VC b, whose 4 idle GPUs they are, wants them for a long job."""
    for estimate_s in (500.0, 9e9):
        made = plan_of("lucid", two_vcs(estimate_s), **ALONE, **BORROW).decisions["j"]
        assert not reason(made, Quota, Start)
        assert reason(made, Borrows) == Borrows(estimate_s, ("b",), 4)
    pending = [waits("j", 4, vc="a"), waits("own", 4, 1.0, vc="b")]
    seen = snap(1.0, pool(nodes(2), pending, BOTH, a=8, b=8), predictions={"j": guess(10.0), "own": guess(9e9)})
    both = plan_of("lucid", seen, **ALONE, **BORROW).decisions
    assert isinstance(both["own"], Start)
    assert reason(both["j"], Borrows, Hold)


@pytest.mark.parametrize(("waited_s", "kept"), [(3600.0, True), (3599.0, False)])
def test_a_job_within_its_quota_that_has_waited_keeps_nodes_from_borrowers(waited_s: float, kept: bool) -> None:
    """4 GPUs of each node are idle, and VC b's job needs a whole node: VC a would borrow them over and over."""
    pending = [waits("own", 8, vc="b"), waits("j", 4, 1.0, vc="a"), waits("k", 4, 1.0, vc="a")]
    guesses = {"own": guess(10.0), "j": guess(5000.0), "k": guess(5000.0), **LONG}
    seen = snap(waited_s, pool(nodes(2), pending, HALVES, a=8, b=8), predictions=guesses)
    made = plan_of("lucid", seen, **ALONE, lending={"mode": "borrow", "turn_s": 3600.0})
    assert {name for name in "jk" if isinstance(made.decisions[name], Start)} == ({"j"} if kept else {"j", "k"})
    if kept:
        assert reason(made.decisions["own"], OwnTurn, Hold) == OwnTurn("b", 3600.0, 3600.0)
    else:
        assert made.wake_s == 3600.0


def test_a_job_beyond_its_quota_has_no_turn_of_its_own_however_long_it_has_waited() -> None:
    """a holds all of its quota, and b would hold 9 of 8."""
    for gpus, due in ((5, []), (4, ["own"])):
        seen = pool(nodes(2), [waits("j", 8, vc="a"), waits("own", gpus, vc="b")], BOTH, a=8, b=8)
        turns, changes_s = own_turns(seen, Quotas(seen, LendingSettings(mode="borrow")), 1e6, 3600.0)
        assert ([turn.entry.job.id for turn in turns], changes_s) == (due, None)


def test_one_job_of_a_vc_at_a_time_keeps_nodes_in_its_own_turn_and_the_others_queue() -> None:
    """All of VC b's jobs have waited for their turn. The second would go before the third if all had it."""
    pending = [waits("own", 8, vc="b"), waits("next", 4, 1.0, vc="b"), waits("short", 4, 2.0, vc="b")]
    guesses = {"own": guess(10.0), "next": guess(9e5), "short": guess(60.0), **LONG}
    seen = snap(7200.0, pool(nodes(2), pending, HALVES, a=8, b=12), predictions=guesses)
    made = plan_of("lucid", seen, **ALONE, lending={"mode": "borrow", "turn_s": 3600.0}).decisions
    assert reason(made["own"], OwnTurn, Hold)
    assert [type(made[job]) for job in ("short", "next")] == [Start, Hold]
    assert "OwnTurn" not in kinds(made["short"])


def test_whether_a_job_may_start_is_the_same_with_and_without_the_comparisons() -> None:
    seen = pool(nodes(2), (), [runs("r", "n1:0-5", job={"vc": "a"})], a=8, b=8)
    for mode, keeps, lends in itertools.product(("quota", "borrow"), (False, True), (False, True)):
        quotas = Quotas(seen, LendingSettings(mode=mode))
        if keeps:
            quotas.keep(waits("kept", 2, vc="a").job, 100.0)
        if lends:
            quotas.lend()
        for gpus, estimate_s in itertools.product((1, 2, 3, 8, 9), (50.0, 500.0)):
            job = waits("j", gpus, vc="a").job
            assert quotas.open_to(job, estimate_s) == bool(quotas.tests(job, estimate_s)[-1]), (gpus, estimate_s)


def test_the_large_job_that_waits_longest_borrows_before_jobs_within_their_quota_start() -> None:
    """VC a holds 4 GPUs of its quota of 16, and its large jobs want 16; 32 GPUs of VCs b and c are idle. Other loans
    are given out once all jobs within their VC's quota have been tried."""
    jobs = [waits("j", 16, vc="a"), waits("k", 8, 1.0, vc="a"), waits("own", 16, 2.0, vc="b")]
    known = dict.fromkeys(["r", "j", "k", "own"], guess(90_000.0))

    def made(rules: dict[str, Any], *pending: Any) -> PartitionPlan:
        seen = snap(3600.0, pool(nodes(6), pending, HALVES[:1], a=16, b=16, c=16), predictions=known)
        return plan_of("lucid", seen, **ALONE, **rules)

    assert reason(made(BORROW, *jobs).decisions["j"], Borrows, Start) == Borrows(90_000.0, ("b", "c"), 4)
    assert [action.job_id for action in made(BORROW, *jobs).actions] == ["j", "own", "k"]
    assert isinstance(made(QUOTA, jobs[0]).decisions["j"], Hold)


def test_a_large_job_waits_for_free_nodes_and_not_for_its_quota_and_its_reasons_say_so() -> None:
    running = [runs("r", "n1:0-7", job={"vc": "b"}), runs("q", "n2:0-3", job={"vc": "a"})]
    known = {"j": guess(90_000.0), "r": guess(7200.0), "q": guess(80_000.0)}
    seen = snap(3600.0, pool(nodes(3), [waits("j", 16, vc="a")], running, a=16, b=8), predictions=known)
    made = plan_of("lucid", seen, **ALONE, **BORROW).decisions["j"]
    assert reason(made, Borrows, Hold)
    assert reason(made, Reserved).room_s == pytest.approx(3600.0), "when VC b's job ends, not when VC a's does"


def test_with_quotas_alone_nobody_borrows_and_a_job_larger_than_its_quota_never_runs_not_even_on_loan() -> None:
    made = plan_of("lucid", two_vcs(), **ALONE, **QUOTA).decisions["j"]
    assert reason(made, Quota, Hold) == Quota("a", 4, 8, 8)
    assert not {"Borrows", "FreeGpus"} & {*kinds(made)}, "there are free GPUs"
    seen = snap(0.0, pool(nodes(2), [waits("j", 8, vc="a")], a=4, b=12), predictions={"j": guess(10.0)})
    for name in ("lucid", "fifo", "backfill"):
        made = plan_of(name, seen, **ALONE, **BORROW).decisions["j"]
        assert reason(made, TooLarge, Hold).partition_gpus == 4


def test_a_guest_takes_no_quota_and_the_survivor_of_a_pair_holds_its_gpus() -> None:
    host, survivor = (runs("h", "n1:0-3", job={"vc": vc}, profile=LIGHT) for vc in "ba")
    full, guest = runs("r", "n2:0-7", job={"vc": "a"}), waits("g", 4, vc="a", profile=LIGHT)
    seen = snap(0.0, pool(nodes(2), [guest], [host, full], a=8, b=8), predictions={"g": guess(9999.0, 0)})
    assert plan_of("lucid", seen, profiling={"enabled": False}, **BORROW).decisions["g"].beside == "h"
    alone = snap(0.0, pool(nodes(2), [waits("x", 1, vc="a")], [survivor, full], a=12, b=4))
    assert isinstance(plan_of("fifo", alone).decisions["x"], Hold)


def test_while_its_quota_is_kept_for_a_large_job_nobody_of_the_vc_joins_for_longer() -> None:
    """What outlasts its host counts as held: the large job would wait for that, too."""
    running = [FULL, runs("h", "n4:0-3", job={"vc": "b"}, profile=LIGHT)]
    pending = [waits("big", 16, 0.0, vc="a"), waits("s", 4, 1.0, vc="a", profile=LIGHT)]
    known = {"r": guess(500.0), "h": guess(9999.0, 0), "big": guess(5000.0)}
    short, long = (
        snap(1.0, pool(nodes(4), pending, running, a=16, b=16), predictions={**known, "s": guess(seconds, 0)})
        for seconds in (400.0, 900.0)
    )
    rules = {"profiling": {"enabled": False}, **QUOTA}
    assert isinstance(plan_of("lucid", short, **rules).decisions["s"], Start)
    assert reason(plan_of("lucid", long, **rules).decisions["s"], Quota, Hold).keeper == "big"


def test_a_job_that_would_wait_takes_no_slow_partner_where_vcs_lend() -> None:
    seen = snap(0.0, pool(nodes(1, 1), [waits("j", profile=LIGHT)], [runs("r", "n1:0", profile=LIGHT)], vc=1))
    for mode, joins in (("borrow", False), ("quota", True)):
        made = policy("lucid", FixedPredictor(speed=lambda a, b: (0.7, 0.7)), lending={"mode": mode}).plan(seen)
        assert isinstance(made.partitions["pool"].decisions["j"], Start) == joins


def test_each_vc_of_a_pool_has_a_line_of_its_own() -> None:
    pending = [waits("a1", 8, 1.0, vc="a"), waits("b1", 8, 2.0, vc="b"), waits("a2", 1, 3.0, vc="a")]
    made = plan_of("fifo", snap(5.0, pool(nodes(2), pending, [FULL], a=8, b=8))).decisions
    assert not reason(made["a1"], Quota)
    assert isinstance(made["b1"], Start)
    assert reason(made["a2"], BehindHead).head == "a1"


def test_other_policies_refuse_a_pool() -> None:
    made = Scenario(a_trace(by("j", label=1)), settings=settings_from({"policy": QUOTA}, "a test"))
    with pytest.raises(ConfigError, match="knows no quotas"):
        simulate(made, "pollux")
    assert not make_policy("pollux", made.settings.policy, FixedPredictor()).rules.quotas


def two_vc_scenario(**lending: Any) -> Scenario:
    """VC a has more than it can do, VC b nothing but one job later."""
    items = [by(f"a{i}", 8, 400.0, 10.0 * i, vc="a", rank=i) for i in range(6)]
    trace = a_trace(*items, by("b", 8, 100.0, 450.0, vc="b", rank=99))
    policy = {"profiling": {"enabled": False}, "lending": lending}
    return Scenario(trace, {"a": 1, "b": 1}, settings=settings_from({"policy": policy}, "a test"))


def test_vcs_lend_by_default_under_a_policy_that_can_borrow_and_stay_apart_under_others() -> None:
    """Not where that is not asked for, or makes no sense."""
    scenario, lends = with_lending_by_default(two_vc_scenario())
    assert lends
    assert [bool(simulate(scenario, name).lent) for name in ("lucid", "backfill", "fifo")] == [True, False, False]
    assert not simulate(two_vc_scenario(), "lucid").lent, "figures of the library and of papers stay as they are"
    apart = [{"semantics": semantics} for semantics in (Semantics.AS_LIVE, Semantics.PUBLISHED)]
    for but in ({"settings": two_vc_scenario(mode="off").settings}, {"vcs": {"a": 2}}, *apart):
        scenario, lends = with_lending_by_default(replace(two_vc_scenario(), **but))
        assert (lends, scenario.lends) == (False, False)


def test_what_lending_costs_is_measured_against_the_same_replay_without() -> None:
    scenario = replace(two_vc_scenario(), lends=True)
    run = with_promise(scenario, simulate(scenario, "lucid"))
    found = run_metrics(run)
    assert found["promise"]["walls_avg_jct_s"] > found["avg_jct_s"]
    cost = found["by_vc"]["b"]["promise"]
    # without lending b would start at once; its GPUs are lent until 810 s, when a's second job ends
    assert (cost["jobs"], cost["p999_s"]) == (1, cost["worst_s"])
    assert 0 < cost["worst_s"] == {o.job.id: o for o in run.outcomes}["b"].queue_s < 400.0
    assert found["by_vc"]["a"]["promise"]["worst_s"] == 0.0
    backfill = simulate(scenario, "backfill")
    assert with_promise(scenario, backfill) is backfill


def test_the_books_of_what_was_lent() -> None:
    book = LentBook({"a": 4, "b": 8, "c": 2})
    book.hold(at("n1:0-5"), "a", 1)
    book.wait(10.0)
    book.hold(at("n1:0-5"), "b", 1)  # a guest
    book.hold(at("n1:0-5"), "a", -1)  # the guest outlasts its host
    book.wait(100.0)
    found = book.by_vc()
    assert (found["a"].borrowed_gpu_s, found["b"].borrowed_gpu_s) == (20.0, 0.0)
    assert (found["b"].lent_gpu_s, found["c"].lent_gpu_s) == (16.0, 4.0)


def test_what_is_expected_to_be_free_is_worked_out_again_once_a_job_starts() -> None:
    seen = replace(two_vcs(), predictions={"r": guess(900.0), "j": guess(500.0)})
    starts = Starts(seen.partitions["pool"], seen, settings(**ALONE, **BORROW), FixedPredictor(), None)
    starts.quotas.lend()  # type: ignore[union-attr]
    whole = waits("w", 8).job
    assert starts.room().find(whole, 0.0).start_s == 0.0  # type: ignore[union-attr]
    assert starts.alone(QueuedJob(waits("j", 4, vc="a"), guess(500.0)), 0, ())
    assert starts.room().find(whole, 0.0).start_s == 500.0  # type: ignore[union-attr]
