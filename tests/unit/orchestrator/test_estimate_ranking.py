"""Whether estimates rank jobs, and what follows from it."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from builders import LIGHT, FixedPredictor, a_job, decide, guess, nodes, part, runs, snap, waits
from lucid.core.decision import Hold, Start
from lucid.core.job import Ended
from lucid.core.node import Node
from lucid.core.reasons.queue import FairOrder, Priority, Unranked
from lucid.core.snapshot import Snapshot
from lucid.daemon.cycles import TrustLog
from lucid.models.history import HistoryPredictor
from lucid.orchestrator.annotate import Annotator
from lucid.orchestrator.order.estimate_ranking import HISTORY, TrustBook, gain_of
from lucid.store.sqlite import SqliteStore
from lucid.store.view import snapshot_from_dict, snapshot_to_dict

RNG = random.Random(1)
REAL = [RNG.lognormvariate(7.0, 2.0) for _ in range(300)]
BAD = Unranked("", 300, 0.0, 0.14)


@pytest.mark.parametrize(
    ("said", "least", "most"),
    [
        (REAL, 1.0, 1.0),
        ([1.0 / one for one in REAL], -1.0, -1.0),
        ([60.0] * 300, 0.0, 0.0),
        (RNG.sample(REAL, 300), -0.15, 0.15),
    ],
)
def test_the_gain_is_one_for_the_right_order_and_none_for_noise(said: list[float], least: float, most: float) -> None:
    assert least <= gain_of(np.array(said), np.array(REAL)) <= most


def ended(book: TrustBook, said: list[float], vc: str = "vc", naive_s: list[float] | None = None) -> Unranked:
    for at, (estimate_s, real_s) in enumerate(zip(said, REAL, strict=False)):
        book.ended(vc, estimate_s, None if naive_s is None else naive_s[at], real_s)
        if book.due:
            book.look(())
    return book.told[""]


def test_trust_is_lost_to_lies_and_won_back() -> None:
    book = TrustBook()
    lost = ended(book, [1.0 / one for one in REAL])
    assert lost
    assert lost.by == ""
    assert not ended(book, REAL)
    assert TrustBook.from_dict(book.to_dict()).told == book.told


LIES = [1.0 / one for one in REAL]
NOISE = random.Random(2).sample(REAL, 300)


@pytest.mark.parametrize(
    ("given", "naive", "by", "plain"),
    [
        (LIES, REAL, HISTORY, False),
        (LIES, LIES, "", True),
        (REAL, LIES, "", False),
        (REAL, REAL, "", False),
        (NOISE, LIES, "", True),
    ],
)
def test_the_history_is_followed_where_estimates_rank_worse(
    given: list[float], naive: list[float], by: str, plain: bool
) -> None:
    book = TrustBook()
    found = ended(book, given, naive_s=naive)
    assert (found.by, bool(found)) == (by, plain)
    assert TrustBook.from_dict(book.to_dict()).told == book.told


def test_better_estimates_win_their_place_back() -> None:
    book = TrustBook()
    assert ended(book, LIES, naive_s=REAL).by == HISTORY
    assert ended(book, REAL, naive_s=NOISE).by == ""


def test_all_jobs_get_estimates_by_the_history_once_it_ranks_better() -> None:
    lengths = [10.0 * 2**at for at in range(12)]
    given = FixedPredictor({f"{at}": 1e5 / length for at, length in enumerate(lengths)} | {"next": 7.0})
    naive = HistoryPredictor(geometric=True)
    naive.learn([Ended(a_job("before", 1, user=f"u{at}"), length, length) for at, length in enumerate(lengths)])
    book = TrustBook()
    annotate = Annotator(given, None, book, naive)
    jobs = [waits(f"{at}", user=f"u{at}") for at in range(12)]
    last = waits("next", user="u3", time_limit_s=70.0)
    room = part(nodes(1, 1), (*jobs, last))
    assert annotate(snap(0.0, room)).predictions["next"].duration_s == 7.0
    done = tuple(Ended(one.job, lengths[at], lengths[at]) for at, one in enumerate(jobs))
    after = annotate(replace(snap(1e5, part(nodes(1, 1), (last,))), ended=done))
    assert after.trust[""].by == HISTORY
    assert after.predictions["next"].duration_s == 70.0
    source = after.predictions["next"].duration_source
    assert source == "history: geometric mean of 1 job with the same user and GPUs; capped at its time limit"
    anew = Annotator(given, None, TrustBook.from_dict(book.to_dict()), naive)(snap(2e5, room))
    assert anew.predictions["next"].duration_s == 70.0


def test_nothing_is_concluded_before_ten_jobs_have_ended() -> None:
    book = TrustBook()
    for at in range(9):
        book.ended("vc", REAL[at], None, REAL[at])
    assert not book.due
    assert book.told == {}
    book.ended("vc", REAL[9], None, REAL[9])
    assert book.due


def test_a_vc_is_judged_by_its_own_jobs() -> None:
    book = TrustBook()
    ended(book, REAL[:200], vc="good")
    ended(book, [1.0 / one for one in REAL[:200]], vc="bad")
    seen = Snapshot(0.0, {}, trust=book.told)
    assert not seen.unranked("good")
    assert seen.unranked("bad")


QUEUE = (waits("long", submit_s=0.0), waits("short", submit_s=1.0))
SAID = {"long": guess(9000.0), "short": guess(10.0)}


def test_the_order_is_plain_where_estimates_do_not_rank() -> None:
    room = snap(2.0, part(nodes(1, 1), QUEUE), predictions=SAID)
    by_estimate, plain = decide("lucid", room), decide("lucid", replace(room, trust={"": BAD}))
    assert isinstance(by_estimate.decisions["short"], Start)
    assert isinstance(by_estimate.decisions["short"].reasons[0], Priority)
    assert isinstance(plain.decisions["long"], Start)
    assert plain.decisions["long"].reasons[:2] == (BAD, FairOrder(0.0))
    assert isinstance(plain.decisions["short"], Hold)


@pytest.mark.parametrize(("how", "first"), [("always", "short"), ("never", "long")])
def test_the_settings_may_say_which_order(how: str, first: str) -> None:
    room = replace(snap(2.0, part(nodes(1, 1), QUEUE), predictions=SAID), trust={"": BAD})
    assert [one.job_id for one in decide("lucid", room, fairness={"estimates": how}).actions] == [first]


def test_lucidd_keeps_it_over_a_restart(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "lucid.db")
    log = TrustLog(store)
    ended(log.book, [1.0 / one for one in REAL])
    log.keep(1000.0)
    assert TrustLog(store).book.told == log.book.told
    store.put_view("trust", {"rows": "of another version"})
    assert TrustLog(store).book.told == {}


def test_a_picture_tells_it() -> None:
    seen = replace(snap(2.0, part(nodes(1, 1), QUEUE), predictions=SAID), trust={"": BAD})
    assert snapshot_from_dict(snapshot_to_dict(seen)).trust == {"": BAD}


def test_a_job_that_can_never_start_says_only_that() -> None:
    seen = replace(
        snap(2.0, part(nodes(1, 1), (waits("wide", gpus=2),)), predictions={"wide": guess(10.0)}), trust={"": BAD}
    )
    hold = decide("lucid", seen).decisions["wide"]
    assert [type(one).__name__ for one in hold.reasons] == ["TooLarge"]


@pytest.mark.parametrize("how", ["always", "never"])
def test_a_job_that_starts_in_plain_order_takes_its_cpus_once(how: str) -> None:
    """Eight CPUs: two for the job that runs, three for the first that waits, and three for the next beside it."""
    room = part(
        (Node("n0", 2, 24576, cpus=8),),
        (waits("first", cpus=3), waits("next", submit_s=1.0, cpus=3, profile=LIGHT)),
        (runs("host", "n0:0", profile=LIGHT, job={"cpus": 2}),),
    )
    seen = snap(10.0, room, predictions={i: guess(7200.0, 0) for i in ("host", "first", "next")})
    made = decide("lucid", seen, FixedPredictor(speed=lambda *_: (0.95, 0.95)), fairness={"estimates": how})
    start = made.decisions["next"]
    assert isinstance(start, Start)
    assert start.beside == "host"
