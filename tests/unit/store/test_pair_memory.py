"""Pairs are remembered by what their jobs are, over restarts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builders import runs
from lucid.core.job import JobProfile, Running
from lucid.daemon.learning.models import WithContention
from lucid.left_out import LeftOut
from lucid.models.history import HistoryPredictor
from lucid.models.packing.pair_memory import PAIRS_KEPT, PairMemory, PairMemoryFile, WithMemory
from lucid.slurm.view.profiles import labelled, says_more


def seen(name: str, partner: str, workload: str, speed: float | None, beside: str | None = None) -> Running:
    profile = JobProfile(50, 20, 1000, workload=workload, seen_speed=speed, seen_beside=beside or partner)
    return runs(name, "n1:0", profile=profile, partner=partner)


def test_a_pair_is_remembered_whichever_side_is_asked_and_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "pairs.json"
    PairMemoryFile(path).take([seen("1", "2", "u/zebra", 0.4), seen("2", "1", "u/ape", 0.9)])
    memory = PairMemoryFile(path)
    assert memory.speeds("u/zebra", "u/ape") == (0.4, 0.9)
    assert memory.speeds("u/ape", "u/zebra") == (0.9, 0.4)
    assert memory.speeds("u/ape", "u/ape") is None


def test_the_mean_of_several_pairs_counts_and_the_latest_of_each() -> None:
    memory = PairMemory()
    for speed in (0.9, 0.5):
        memory.take([seen("1", "2", "a", speed), seen("2", "1", "b", speed)])
    memory.take([seen("3", "4", "a", 0.7), seen("4", "3", "b", 0.9)])
    assert memory.speeds("a", "b") == (pytest.approx(0.6), pytest.approx(0.7))
    for job in range(10, 40, 2):
        memory.take([seen(str(job), str(job + 1), "a", 1.0), seen(str(job + 1), str(job), "b", 1.0)])
    assert memory.speeds("a", "b") == (1.0, 1.0)


@pytest.mark.parametrize(
    "second",
    [
        seen("2", "1", "b", None),
        seen("2", "1", "", 0.5),
        seen("2", "1", "b", 0.5, beside="9"),
        runs("2", "n1:0", partner="1"),
    ],
)
def test_what_is_not_known_of_both_is_not_noted(second: Running) -> None:
    memory = PairMemory()
    memory.take([seen("1", "2", "a", 0.5), second])
    assert len(memory) == 0


def test_the_predictor_says_what_was_seen_and_else_guesses() -> None:
    memory = PairMemory()
    plain = WithContention(HistoryPredictor(3600.0))
    predictor = WithMemory(plain, memory)
    a, b = JobProfile(90, 50, 1, workload="a"), JobProfile(90, 50, 1, workload="b")
    assert predictor.pair_speed(a, b) == plain.pair_speed(a, b)
    memory.take([seen("1", "2", "a", 0.3), seen("2", "1", "b", 0.6)])
    assert predictor.pair_speed(a, b) == (0.3, 0.6)
    assert predictor.pair_speed(b, a) == (0.6, 0.3)
    assert predictor.pair_speed(a, JobProfile(90, 50, 1))[0] < plain.pair_speed(a, b)[0], "this one ran slower"
    assert predictor.name == plain.name


def test_workloads_of_which_no_pair_is_left_are_forgotten() -> None:
    memory = PairMemory()
    predictor = WithMemory(WithContention(HistoryPredictor(3600.0)), memory)
    new = JobProfile(50, 20, 1000, workload="new")
    for n in range(0, 4 * PAIRS_KEPT, 2):
        memory.take([seen(f"{n}", f"{n + 1}", f"a{n}", 0.5), seen(f"{n + 1}", f"{n}", f"b{n}", 0.5)])
        predictor.pair_speed(new, new)
    assert len(predictor._misses._by) == 2 * PAIRS_KEPT


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "pairs.json"
    for text in ("{}", "nil", "[" * 100_000, b"\xff"):
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        left_out = LeftOut()
        assert len(PairMemoryFile(path, left_out)) == 0
        assert left_out.told()["pairs.json"]["now"] == 1
        assert path.with_name("pairs.json.damaged").exists(), "it is kept for whoever wants to look at it"
        assert not path.exists()


def test_a_damaged_pair_leaves_the_others(tmp_path: Path) -> None:
    path, left_out = tmp_path / "pairs.json", LeftOut()
    good = ["u/a", "u/b", {"1 2": [0.5, 0.75]}]
    bad = [["u/a", "u/c", {"1 3": [1e400, 1]}], ["u/a", "u/d", {"1": [float("nan"), 1]}], 5, [1], ["a", "b", []]]
    path.write_text(json.dumps([*bad, good]))
    assert PairMemoryFile(path, left_out).speeds("u/a", "u/b") == (0.5, 0.75)
    assert left_out.told()["pairs.json"]["now"] == len(bad)


def test_a_profile_is_labelled_by_user_and_name_and_news_of_a_pair_is_news() -> None:
    plain = JobProfile(50, 20, 1000)
    assert labelled(plain, "ann", "train").workload == "ann/train"
    assert labelled(JobProfile(50, 20, 1000, workload="x"), "ann", "train").workload == "x"
    assert labelled(plain, "", "train").workload == ""
    slow = JobProfile(50, 20, 1000, seen_speed=0.6, seen_beside="2")
    assert says_more(plain, slow)
    assert says_more(slow, plain)
    assert not says_more(slow, JobProfile(50, 20, 1000, seen_speed=0.62, seen_beside="2"))
    assert says_more(slow, JobProfile(50, 20, 1000, seen_speed=0.4, seen_beside="2"))
    assert says_more(slow, JobProfile(50, 20, 1000, seen_speed=0.6, seen_beside="3"))


def test_pairs_never_seen_are_expected_as_slow_as_the_newest_came_true_after_a_restart_too(tmp_path: Path) -> None:
    """The contention model expects 0.9 of either; here pairs run at half speed."""
    path = tmp_path / "pairs.json"
    memory, plain = PairMemoryFile(path), WithContention(HistoryPredictor(100.0))
    predictor = WithMemory(plain, memory)
    a, b, new = (JobProfile(50, 20, 1000, workload=name) for name in ("a", "b", "new"))
    guess = plain.pair_speed(new, new)
    assert predictor.pair_speed(new, new) == guess
    for number in range(20):  # jobs without a label count as well
        one, other = str(2 * number), str(2 * number + 1)
        memory.take([seen(one, other, "a", 0.5), seen(other, one, "" if number % 2 else "b", 0.5)])
    expected = predictor.pair_speed(new, new)
    miss = (0.5 - guess[0]) * 40 / 45
    assert expected == pytest.approx((guess[0] + miss, guess[1] + miss))
    assert predictor.pair_speed(a, new)[0] < expected[0], "what is known of the workload counts beside that"
    assert predictor.pair_speed(a, b) == (0.5, 0.5)
    again = WithMemory(plain, PairMemoryFile(path))
    assert again.pair_speed(new, new) == expected
    for number in range(50, 50 + PAIRS_KEPT):
        one, other = str(2 * number), str(2 * number + 1)
        memory.take([seen(one, other, "x", guess[0]), seen(other, one, "y", guess[0])])
    assert predictor.pair_speed(new, new) == pytest.approx(guess), "the newest pairs count"
