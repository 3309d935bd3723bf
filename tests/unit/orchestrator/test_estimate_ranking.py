"""In which order jobs wait."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lucid.core.decision import Hold, PartitionPlan, Requeue, Start
from lucid.core.job import Ended, Job, Pending, Running
from lucid.core.reasons.queue import (
    BehindHead,
    EverFits,
    FairOrder,
    NextRound,
    PlainOrder,
    Preempted,
    Priority,
    TooLarge,
    Unranked,
    WaitOrder,
)
from lucid.core.snapshot import Snapshot
from lucid.daemon.cycles import TrustLog
from lucid.errors import ClusterError, ClusterUnavailable
from lucid.models.history import HistoryPredictor
from lucid.models.ranking import gain_of, queue_gain, queues_of
from lucid.orchestrator.annotate import Annotator
from lucid.orchestrator.order.estimate_ranking import HISTORY, TrustBook
from lucid.orchestrator.order.queue_order import in_precedence
from lucid.orchestrator.order.starvation_bound import Turn
from lucid.orchestrator.policies import queue as queue_policies
from lucid.orchestrator.policies.lucid.plain import WaitQueue, mostly_large
from lucid.slurm.records.configuration import Kept, tiers_from
from lucid.store.sqlite import SqliteStore
from scenes.jobs import a_job, by, nodes, runs, waits
from scenes.plans import FixedPredictor, decide, decided, guess, kinds, part, reason, snap
from scenes.replays import a_trace, replay
from scenes.slurm import MINE, Scene

RNG = random.Random(1)
REAL = [RNG.lognormvariate(7.0, 2.0) for _ in range(300)]
LIES = [1.0 / one for one in REAL]
NOISE = random.Random(2).sample(REAL, 300)
BAD = Unranked("", 300, 0.0, 0.14)


def test_the_gain_is_one_for_the_right_order_and_none_for_noise() -> None:
    for said, gain, off in ((REAL, 1.0, 0.0), (LIES, -1.0, 0.0), ([60.0] * 300, 0.0, 0.0), (NOISE, 0.0, 0.15)):
        assert abs(gain_of(np.array(said), np.array(REAL)) - gain) <= off


def test_in_a_queue_an_order_is_worth_the_seconds_that_it_saves() -> None:
    took, none = np.array(REAL), np.ones(0)
    assert queue_gain([(took, took), (took[:9], took[:9])]) == 1.0
    assert queue_gain([(-took, took)]) == -1.0
    assert abs(queue_gain([(np.array(NOISE), took)]) or 0.0) < 0.3
    assert queue_gain([(np.ones(2), np.array([9.0, 1.0])), (np.arange(2.0), np.array([0.0, 8.0]))]) == 0.5
    assert queue_gain([]) is queue_gain([(none, none)]) is None


def test_of_a_log_those_count_together_that_stood_in_the_queue_in_the_same_hour() -> None:
    submit_s = np.array([*range(12), 7000.0, 9000.0, np.nan])
    start_s = np.array([10.0, *[9000.0] * 11, 7000.0, 9000.0, 5.0])
    assert [rows.tolist() for rows in queues_of(submit_s, start_s)] == [[*range(12)], [*range(1, 13)]]
    assert queues_of(submit_s, submit_s) == []
    assert queues_of(np.ones(0), np.ones(0)) == []


def ended(book: TrustBook, said: list[float], vc: str = "vc", naive_s: list[float] | None = None) -> Unranked:
    for at, (estimate_s, real_s) in enumerate(zip(said, REAL, strict=False)):
        book.ended(vc, estimate_s, None if naive_s is None else naive_s[at], real_s)
        if book.due:
            book.check(lambda vc, least_s: iter(()))
    return book.unranked[""]


def test_trust_is_lost_to_lies_and_won_back() -> None:
    book = TrustBook()
    lost = ended(book, LIES)
    assert (bool(lost), lost.by) == (True, "")
    assert not ended(book, REAL)


def test_the_history_is_followed_where_estimates_rank_worse() -> None:
    rows = [(LIES, REAL, HISTORY), (LIES, LIES, None), (REAL, LIES, ""), (REAL, REAL, ""), (NOISE, LIES, None)]
    for given, naive, followed in rows:
        book = TrustBook()
        found = ended(book, given, naive_s=naive)
        assert (found.by, bool(found)) == (followed or "", followed is None)
        assert TrustBook.from_dict(book.to_dict()).unranked == book.unranked


def test_all_jobs_get_estimates_by_the_history_once_it_ranks_better() -> None:
    lengths = {f"{at}": 10.0 * 2**at for at in range(12)}
    given = FixedPredictor({job: 1e5 / length for job, length in lengths.items()} | {"next": 7.0})
    naive, book = HistoryPredictor(geometric=True), TrustBook()
    naive.learn([Ended(a_job("before", 1, user=f"u{job}"), length, length) for job, length in lengths.items()])
    annotate = Annotator(given, None, book, naive)
    last, jobs = waits("next", user="u3", time_limit_s=70.0), [waits(job, user=f"u{job}") for job in lengths]
    room = part(nodes(1, 1), (*jobs, last))
    assert annotate(snap(0.0, room)).predictions["next"].duration_s == 7.0
    done = tuple(Ended(one.job, lengths[one.job.id], lengths[one.job.id]) for one in jobs)
    after = annotate(replace(snap(1e5, part(nodes(1, 1), (last,))), ended=done))
    assert after.trust[""].by == HISTORY
    told = after.predictions["next"]
    assert told.duration_s == 70.0
    words = "history: geometric mean of 1 job with the same user and GPUs; capped at its time limit"
    assert told.duration_source == words
    anew = Annotator(given, None, TrustBook.from_dict(book.to_dict()), naive)(snap(2e5, room))
    assert anew.predictions["next"].duration_s == 70.0


def test_nothing_is_concluded_before_ten_jobs_have_ended() -> None:
    book, due = TrustBook(), []
    for real_s in REAL[:10]:
        due.append((book.due, book.unranked))
        book.ended("vc", real_s, None, real_s)
    assert due == [(False, {})] * 10
    assert book.due


def test_a_vc_is_judged_by_its_own_jobs() -> None:
    book = TrustBook()
    ended(book, REAL[:200], vc="good")
    ended(book, LIES[:200], vc="bad")
    seen = Snapshot(0.0, {}, trust=book.unranked)
    assert [bool(seen.unranked(vc)) for vc in ("good", "bad")] == [False, True]


class Asks(TrustBook):
    """Is always due, and asks for jobs of the cluster and of VC a that have run for over 100 s."""

    due = True

    def check(self, running: Any) -> None:
        self.found = [[row[0] for row in running(vc, 100.0)] for vc in ("", "a")]


def test_running_jobs_that_have_run_for_so_long_are_given_the_last_first() -> None:
    book, estimates = Asks(), {f"{at}": float(at) for at in range(5)}
    going = [runs(f"{at}", f"n{at}:0", 950.0, ran_s=51.0, job={"vc": "ab"[at % 2]}) for at in range(4)]
    young = runs("4", "n4:0", 950.0, ran_s=40.0, job={"vc": "a"})
    home, other = part(nodes(5), running=(going[0], young), name="a"), part(nodes(5), running=(going[1],), name="b")
    profiling = part(nodes(5), running=going[2:], name="prof", profiling=True)
    Annotator(FixedPredictor(estimates), None, book)(snap(1000.0, home, other, profiling))
    assert book.found == [[3.0, 2.0, 1.0, 0.0], [2.0, 0.0]]


def test_of_the_jobs_that_run_three_hundred_count_and_no_more_are_asked_for() -> None:
    book, asked = TrustBook(), []

    def running(vc: str, least_s: float) -> Iterator[tuple[float, float | None, float]]:
        for at in range(1000):
            asked.append((vc, least_s))
            yield 1.0 / (at + 1), None, 1e6 + at

    for length_s in range(10):
        book.ended("vc", float(length_s), None, float(length_s))
    book.check(running)
    assert asked == [(vc, 5.0) for vc in ("", "vc") for _ in range(300)]
    assert (book.unranked["vc"].jobs, book.unranked["vc"].gain < 0.0) == (310, True)


QUEUE = (waits("long", submit_s=0.0), waits("short", submit_s=1.0))
SAID = {"long": guess(9000.0), "short": guess(10.0)}


def test_the_order_is_plain_where_estimates_do_not_rank_unless_the_settings_say_which() -> None:
    room = snap(2.0, part(nodes(1, 1), QUEUE), predictions=SAID)
    by_estimate, plain = (decide("lucid", replace(room, trust=trust)).decisions for trust in ({}, {"": BAD}))
    assert reason(by_estimate["short"], Priority, Start) is by_estimate["short"].reasons[0]
    assert isinstance(plain["long"], Start)
    assert plain["long"].reasons[:2] == (BAD, FairOrder(0.0))
    assert isinstance(plain["short"], Hold)
    for how, first in (("always", "short"), ("never", "long")):
        made = decide("lucid", replace(room, trust={"": BAD}), fairness={"estimates": how})
        assert [one.job_id for one in made.actions] == [first]


def test_lucidd_keeps_it_over_a_restart(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "lucid.db")
    log = TrustLog(store)
    ended(log.book, LIES)
    log.keep(1000.0)
    assert TrustLog(store).book.unranked == log.book.unranked
    store.put_view("trust", {"rows": "of another version"})
    assert TrustLog(store).book.unranked == {}


EVERY = ["fifo", "sjf", "srtf", "tiresias", "backfill", "lucid"]
ESTIMATES = {"early": guess(300.0), "short": guess(100.0), "slim": guess(120.0)}
JOBS = [waits("early", 2, 0.0), waits("short", 4, 1.0), waits("slim", 1, 2.0)]


@pytest.mark.parametrize("policy", ["fifo", "sjf", "qssf"])
def test_the_head_of_the_line_blocks_the_rest(policy: str) -> None:
    room = part(nodes(1, 4), [waits("wide", 4, 0.0), waits("slim", 1, 1.0)], [runs("r", "n1:0")])
    plan = decide(policy, snap(5.0, room, predictions={"wide": guess(1.0), "slim": guess(100.0)}))
    assert not plan.actions
    assert plan.decisions["slim"] == Hold((BehindHead("wide"),))


HUGE, GREEDY = (waits("huge", 9), TooLarge(9, 8)), (waits("huge", cpus=9), EverFits(1, 9, 0, False))


@pytest.mark.parametrize(("huge", "why"), [HUGE, GREEDY])
@pytest.mark.parametrize("policy", [*EVERY, "qssf"])
def test_a_job_that_can_never_start_blocks_nobody_and_says_only_that(policy: str, huge: Pending, why: Any) -> None:
    estimates = {"huge": guess(1.0), "slim": guess(100.0)}
    room = part(nodes(1, 8, cpus=8), [huge, waits("slim", 1, 1.0, cpus=1)])
    plan = decide(policy, replace(snap(60.0, room, predictions=estimates), trust={"": BAD}))
    assert plan.decisions["huge"] == Hold((why,))
    assert isinstance(plan.decisions["slim"], Start)


def test_a_job_without_an_estimate_comes_last_and_not_out_and_equal_keys_go_by_order_of_arrival() -> None:
    """The reason of a start is the key it was sorted by."""
    full = snap(5.0, part(nodes(1, 8), JOBS), predictions=ESTIMATES)
    plan = decide("sjf", replace(full, predictions={name: ESTIMATES[name] for name in ("early", "slim")}))
    assert [a.job_id for a in plan.actions] == ["slim", "early", "short"]
    assert reason(plan.decisions["short"], FairOrder).submit_s == 1.0
    start = decide("qssf", full).decisions["short"]
    assert reason(start, Priority) == Priority("duration x GPUs", 400.0, 100.0, 4, "test")
    assert kinds(start) == ["Priority", "FreeGpus"]
    equal = snap(5.0, part(nodes(1, 8), [waits(name, 1, 0.0, rank=i) for i, name in enumerate("cab")]))
    for policy in ("fifo", "sjf", "qssf", "srtf"):
        assert [a.job_id for a in decide(policy, equal).actions] == ["c", "a", "b"], policy


@pytest.mark.parametrize(("now_s", "preempts"), [(50.0, True), (950.0, False)])
def test_srtf_preempts_the_job_with_more_left(now_s: float, preempts: bool) -> None:
    predictions = {"long": guess(1000.0), "short": guess(100.0)}
    room = part(nodes(1, 1), [waits("short")], [runs("long", "n1:0")])
    plan = decide("srtf", snap(now_s, room, predictions=predictions))
    acts = [("long", Requeue), ("short", Start)] if preempts else []
    assert [(a.job_id, type(a.decision)) for a in plan.actions] == acts
    if preempts:
        assert reason(plan.decisions["long"], Preempted) == Preempted(1, 0)
        assert plan.wake_s == 51.0


def test_srtf_counts_the_restarts_that_a_job_has_had() -> None:
    room = part(nodes(1, 1), [waits("fresh"), waits("again", ran_s=100.0, restarts=2)])
    for fresh_s, first in ((75.0, "fresh"), (85.0, "again")):
        snapshot = snap(0.0, room, predictions={"fresh": guess(fresh_s), "again": guess(100.0)})
        assert [a.job_id for a in decide("srtf", snapshot).actions] == [first]


DAY_S = 86400.0


def order(now_s: float, *pending: Pending, due: dict[str, Turn] | None = None, **estimates_s: float) -> list[str]:
    guesses = {entry.job.id: guess(estimates_s.get(entry.job.id, 3600.0)) for entry in pending}
    room = part(nodes(2, 4), pending)
    queue = WaitQueue(1.0).waiting_jobs(room, snap(now_s, room, predictions=guesses), due or {}, 4)
    return [row.id for row in queue]


def test_several_large_jobs_and_half_as_many_others_are_not_mostly_large() -> None:
    large, small = [waits(f"l{i}", 8) for i in range(3)], [waits(f"s{i}", 4) for i in range(3)]
    assert mostly_large([*large, *small[:1]], 4)
    assert not mostly_large([*large, *small[:2]], 4)
    assert not mostly_large(large[:1], 4)
    assert not mostly_large((), 4)


def test_the_longest_wait_for_its_estimate_goes_first_and_the_larger_of_equals() -> None:
    jobs = (waits("long", 8), waits("short", 8), waits("late", 8, submit_s=900.0), waits("small", 4))
    assert order(1000.0, *jobs, long=7200.0, short=600.0, late=600.0) == ["short", "small", "late", "long"]
    assert order(1000.0, waits("small", 5), waits("large", 8)) == ["large", "small"]


def test_after_two_days_the_oldest_goes_first_and_before_it_whose_turn_has_come() -> None:
    jobs = (waits("old", 8), waits("older", 8, submit_s=-10.0), waits("quick", 8, submit_s=10.0))
    estimates = {"old": 9e5, "older": 9e6, "quick": 60.0}
    assert order(2 * DAY_S - 20.0, *jobs, **estimates)[0] == "quick"
    assert order(2 * DAY_S, *jobs, **estimates) == ["older", "old", "quick"]
    due = {"quick": Turn(jobs[2], PlainOrder(0.0, 2 * DAY_S, DAY_S, DAY_S))}
    assert order(2 * DAY_S, *jobs, due=due, **estimates) == ["quick", "older", "old"]


def plan(*pending: Pending, gain: float | None = 0.5, **sections: Any) -> PartitionPlan:
    held = [runs("r0", "n1:0-3")]
    room = part(nodes(2, 4), pending, held)
    estimates = {entry.job.id: guess(600.0 if entry.job.gpus == 1 else 3600.0) for entry in (*pending, *held)}
    trust = {} if gain is None else {"": Unranked("", 100, gain, 0.25)}
    return decide("lucid", replace(snap(1000.0, room, predictions=estimates), trust=trust), **sections)


LARGE = [waits(f"l{i}", 8, time_limit_s=7200.0) for i in range(3)]
SMALL = waits("small", 1, 900.0, time_limit_s=90000.0)


def test_nobody_takes_the_nodes_of_several_large_jobs_for_longer_than_its_limit_allows() -> None:
    """By estimates that are all but right or unknown the small job is first, and starts."""
    assert WaitOrder(4, 600.0, 1, "test", 2 * DAY_S) in decided(plan(*LARGE, SMALL), "small", Hold).reasons
    always, unreserved = {"fairness": {"estimates": "always"}}, {"reservation": {"enabled": False}}
    rows = [(LARGE[:1], 0.5, {}), (LARGE, None, {}), (LARGE, 0.9, {}), (LARGE, 0.5, always), (LARGE, 0.5, unreserved)]
    for large, gain, sections in rows:
        assert isinstance(plan(*large, SMALL, gain=gain, **sections).decisions["small"], Start), (gain, sections)


def tiresias(snapshot: Snapshot) -> PartitionPlan:
    return decide("tiresias", snapshot, tiresias={"threshold_gpu_s": 600.0})


OLD, WIDE = runs("old", "n1:0"), runs("old", "n1:0-3")
NEW = waits("new", 1, 5.0)


@pytest.mark.parametrize(
    ("now_s", "waiting", "running", "acts", "wake_s"),
    [
        (61.0, [NEW], [], [], 120.0),
        (120.0, [NEW], [], ["new"], ...),
        # past the threshold of attained GPU-seconds a job gives way, at the round after it crossed it
        (600.0, [NEW], [OLD], [], 660.0),
        (660.0, [NEW], [OLD], ["old", "new"], ...),
        (120.0, [NEW], [OLD], [], 660.0),
        (180.0, [waits("new", 4, 5.0)], [WIDE], ["old", "new"], ...),
        (60.0, [waits("a", 1, 0.0, ran_s=601.0), waits("b", 1, 1.0)], [], ["b"], ...),
        # within a queue the first come is the first served
        (60.0, [waits("b", 1, 7.0), waits("a", 1, 3.0)], [], ["a"], ...),
    ],
)
def test_tiresias_decides_at_rounds_by_attained_service(
    now_s: float, waiting: list[Pending], running: list[Running], acts: list[str], wake_s: Any
) -> None:
    gpus = max(entry.job.gpus for entry in waiting)
    plan = tiresias(snap(now_s, part(nodes(1, gpus), waiting, running)))
    assert [a.job_id for a in plan.actions] == acts
    assert wake_s is ... or plan.wake_s == wake_s
    if now_s % 60.0:
        assert plan.decisions["new"] == Hold((NextRound(wake_s),))


@pytest.mark.parametrize("interval_s", [0.7, 7.3, 33.3, 60.0])
def test_rounds_of_any_length_come_to_an_end(interval_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_policies, "_ROUND_S", interval_s)
    trace = a_trace(*(by(f"j{i}", 1, 400.0, 10.0 * i) for i in range(4)))
    outcomes, _ = replay("tiresias", trace, {"vc": nodes(1, 1)}, tiresias={"threshold_gpu_s": 100.0})
    assert all(o.end_s > 0 for o in outcomes.values())


def test_a_higher_tier_goes_before_a_lower_one_whatever_service_its_jobs_have_had() -> None:
    """The site's word (QOS priority) goes before the policy's: among running and waiting jobs alike."""
    fresh, served = waits("fresh", 1, 1.0), waits("served", 1, 5.0, tier=10, ran_s=9000.0)
    plan = tiresias(snap(60.0, part(nodes(1, 1), [fresh, served], [runs("held", "n1:0")])))
    assert [(a.job_id, type(a.decision)) for a in plan.actions] == [("held", Requeue), ("served", Start)]
    assert isinstance(plan.decisions["fresh"], Hold)
    above = runs("held", "n1:0", job={"tier": 10}, ran_s=9000.0)
    assert not tiresias(snap(60.0, part(nodes(1, 1), [fresh], [above]))).actions


def test_jobs_of_other_partitions_on_its_nodes_are_not_its_to_stop() -> None:
    """Their own partition decides about them. Requeued in vain, they would keep jobs waiting that could have others'
    GPUs."""
    running = [runs("foreign", "n1:0", 0.0, job={"vc": "scav"}), runs("own", "n1:1", 1.0)]
    plan = tiresias(snap(1200.0, part(nodes(1, 2), [waits("new", 1, 1195.0)], running)))
    assert [(a.job_id, type(a.decision)) for a in plan.actions] == [("own", Requeue), ("new", Start)]


def named(*jobs: Job) -> list[str]:
    return [job.id for job in in_precedence(jobs, jobs)]


def test_nice_gives_the_places_of_one_users_jobs_out_among_them() -> None:
    mine = {"user": "ada"}
    jobs = a_job("a", nice=50, **mine), a_job("b", user="bo"), a_job("c", **mine), a_job("d", nice=9, **mine)
    assert named(*jobs) == ["c", "b", "d", "a"]
    assert named(*reversed(jobs)) == ["c", "d", "b", "a"], "places of others stay"
    assert named(a_job("a", nice=50, tier=1, **mine), a_job("b", **mine)) == ["a", "b"], "within a tier"


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("more", [{"tier": 5}, {"nice": -5}])
@pytest.mark.parametrize("count", [1, 2])
def test_policies_go_by_it(name: str, more: dict[str, Any], count: int) -> None:
    """Also where nodes are kept for the large job that goes first."""
    jobs = [waits(job, 8 * count, at_s, user="ada", **rest) for job, at_s, rest in (("a", 0.0, {}), ("b", 1.0, more))]
    plan = decide(name, snap(600.0, part(nodes(count), jobs)))
    assert [job_id for job_id, decision in plan.decisions.items() if isinstance(decision, Start)] == ["b"]


def test_the_tier_of_a_job_is_the_priority_of_its_qos_and_nice_is_its_users() -> None:
    stage = Scene()
    stage.slurm.qos = {"urgent": 1000}
    stage.slurm.submit("a", "vc", mark=MINE, qos="urgent", nice=5)
    stage.slurm.submit("b", "vc", mark=MINE, qos="normal")
    assert [(e.job.tier, e.job.nice) for e in stage.look().pending] == [(1000, 5), (0, 0)]


def test_priorities_of_qos_count_where_slurm_counts_them() -> None:
    rows = "normal|0\nurgent|10000\nodd|x\nshort\n"
    assert tiers_from(rows, {"PriorityWeightQOS": "1000"}) == {"urgent": 10000}
    assert tiers_from(rows, {"PriorityWeightQOS": "0"}) == {}
    assert tiers_from(rows, {}) == {}


def test_what_was_read_before_counts_where_it_cannot_be_read() -> None:
    answers: Any = iter([{"a": 1}, ClusterError("no slurmdbd"), {"a": 2}, ClusterUnavailable("down")])

    def ask() -> dict[str, int]:
        found = next(answers)
        if isinstance(found, Exception):
            raise found
        return found  # type: ignore[no-any-return]

    tiers = Kept(ask, {})
    assert [tiers(at_s) for at_s in (0.0, 300.0, 700.0, 1400.0)] == [{"a": 1}, {"a": 1}, {"a": 1}, {"a": 2}]
    with pytest.raises(ClusterUnavailable):
        tiers(9000.0)
