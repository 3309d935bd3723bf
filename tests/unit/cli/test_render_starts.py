"""When a job starts, in words: no more than the range is worth, and why it is not when the nodes for it are free."""

from __future__ import annotations

import math

import pytest

from lucid.core.decision import DecisionRow
from lucid.core.reasons.queue import Reserved
from lucid.explain.queue_rows import guess_words, kept_words, start_words

H, D = 3600, 86400


@pytest.mark.parametrize(
    ("starts_in_s", "words"),
    [
        ((0, 0, 0), "now"),
        ((50 * 60, 60 * 60, 70 * 60), "in 1.0 h (50 min to 1.2 h)"),
        ((1, 1, 1), "within a minute"),
        ((1, 20, 100), "within 2 min"),
        ((1, 264, 5400), "within 2 h, most likely in minutes"),
        ((1, 30 * 60, 50 * 60), "within the hour, most likely in 30 min"),
        ((60, 6600, int(5.4 * H)), "within 6 h, most likely in 2 h"),
        ((1, 4 * H, 4 * H), "within 4 h"),
        ((int(0.4 * D), int(7.4 * D), int(16.7 * D)), "within 17 d, most likely in 7 d"),
        ((1, H, 23 * H), "within a day, more is not known yet"),
        (None, "in more than 12.0 h"),
    ],
)
def test_a_range_is_said_as_narrow_as_it_is(starts_in_s: tuple[int, int, int] | None, words: str) -> None:
    assert start_words(starts_in_s, 12.0 * H) == words


def test_a_start_that_is_not_foreseen_is_a_dash() -> None:
    assert (start_words(None, math.inf), start_words(None, 60.0, barred=True)) == ("-", "-")


@pytest.mark.parametrize(
    ("holder", "likely_s", "words"),
    [
        ("1", 8 * D, "by the estimates of the jobs there its nodes are free in 2.0 d; it is expected later"),
        ("1", 600, "by the estimates of the jobs there its nodes are free in 2.0 d; it is expected earlier"),
        ("1", int(2.2 * D), ""),
        ("2", 8 * D, ""),
    ],
)
def test_why_a_start_is_not_when_the_nodes_are_free_is_said(holder: str, likely_s: int, words: str) -> None:
    kept = Reserved(holder, 100.0 + 2 * D, 2.0 * D, 4)
    row = DecisionRow(100.0, "1", "vc", "hold", (kept,))
    told = kept_words(row, "1", (1, likely_s, 9 * D), 100.0)
    assert told.startswith(words)
    assert bool(told) is bool(words)


def test_a_start_before_any_wait_has_ended_is_a_first_guess() -> None:
    assert [guess_words(seen)[:31] for seen in (0, 3, 10)] == [
        "a first guess: no wait has ende", "a first guess: only 3 waits hav", "",
    ]  # fmt: skip
