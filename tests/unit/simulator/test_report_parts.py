"""Units, scales, downsampling: the parts of the report that a wrong figure would come from."""

from __future__ import annotations

from array import array

import numpy as np
import pytest

from lucid.pages.charts import Scale, Tick, duration_ticks, even_ticks, log_duration_ticks, placed, time_ticks
from lucid.pages.page import HOUR, show_change, show_duration
from lucid.simulator.engine import Run, Series
from lucid.simulator.report.charts import MOST_POINTS, bar_chart, completion_grid, time_lines
from lucid.simulator.report.summary import styles


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "–"),
        (0, "0 s"),
        (0.25, "0.25 s"),
        (99, "99 s"),
        (150, "2.50 min"),
        (5400, "90.0 min"),
        (47890, "13.3 h"),
        (5.951 * 3600, "5.95 h"),
        (203 * 3600, "203 h"),
        (10.5 * 86400, "10.5 d"),
        (2419 * 86400, "2,419 d"),
    ],
)
def test_durations_read_well(seconds: float | None, shown: str) -> None:
    assert show_duration(seconds) == shown


def test_a_column_keeps_its_unit_until_a_value_would_vanish() -> None:
    assert show_duration(1800, HOUR) == "0.50 h"
    assert show_duration(38, HOUR) == "38 s"
    assert show_duration(400 * 3600, HOUR) == "400 h"


@pytest.mark.parametrize(
    ("value", "reference", "shown"),
    [(75, 100, "25.0 % less"), (110, 100, "10.0 % more"), (100.01, 100, "the same"), (5, 0, "")],
)
def test_changes_are_relative_to_the_reference(value: float, reference: float, shown: str) -> None:
    assert show_change(value, reference) == shown


def test_scale_is_linear_or_logarithmic_and_clips() -> None:
    linear = Scale(0, 100, 300, 100)
    assert [linear(v) for v in (0, 25, 100, 150, -3)] == [300, 250, 100, 100, 300]
    log = Scale(1, 10_000, 0, 400, log=True)
    assert [log(v) for v in (1, 10, 100, 10_000, 0)] == [0, 100, 200, 400, 0]
    assert Scale(5, 5, 0, 400)(5) == 0


@pytest.mark.parametrize(
    ("high", "whole", "ticks"),
    [
        (490, False, [0, 100, 200, 300, 400, 500]),
        (1, True, [0, 1]),
        (0, False, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (3, True, [0, 1, 2, 3]),
    ],
)
def test_even_ticks_are_round_and_reach_the_top(high: float, whole: bool, ticks: list[float]) -> None:
    assert even_ticks(high, whole=whole) == pytest.approx(ticks)


def test_duration_ticks_share_one_unit() -> None:
    assert [tick.label for tick in duration_ticks(42 * 3600)] == ["0", "10 h", "20 h", "30 h", "40 h", "50 h"]


def test_log_ticks_are_durations_people_know_and_do_not_touch() -> None:
    ticks = log_duration_ticks(30, 400 * 86400)
    assert [tick.label for tick in ticks] == ["1 min", "10 min", "1 h", "6 h", "1 d", "7 d", "30 d", "180 d"]
    assert [tick.label for tick in placed(Scale(0, 100, 0, 100), [Tick(0, "a"), Tick(30, "b"), Tick(60, "c")])] == [
        "a",
        "c",
    ]


@pytest.mark.parametrize(
    ("span_s", "labels"),
    [
        (3600.0, ["0", "10", "20", "30", "40", "50", "60"]),
        (10 * 3600.0, ["0", "2", "4", "6", "8", "10"]),
        (30 * 86400.0, ["0", "7", "14", "21", "28"]),
        (5 * 86400.0, ["0", "1", "2", "3", "4", "5"]),
    ],
)
def test_trace_time_is_labelled_in_what_fits_its_span(span_s: float, labels: list[str]) -> None:
    assert [tick.label for tick in time_ticks(span_s)] == labels


def _run(samples: list[int], pending: dict[str, list[int]]) -> Run:
    series = Series(
        busy_gpus=array("l", samples),
        shared_gpus=array("l", [0] * len(samples)),
        pending_jobs={name: array("l", values) for name, values in pending.items()},
    )
    return Run("p", "history", [], series, 8, 0, 0.0, 0.0)


def test_lines_are_means_of_equal_spans_on_one_grid() -> None:
    long = _run(list(range(1000)), {"a": [1] * 1000, "profiling": [2] * 1000})
    short = _run([7] * 10, {"a": [4] * 9 + [40]})
    lines = time_lines([long, short])
    assert len(lines.at_s) == 334 <= MOST_POINTS
    assert lines.bucket_s == 3 * 600
    assert lines.at_s[:2] == [600, 2400]
    assert lines.busy[0][:2].tolist() == [1, 4]
    assert lines.busy[0][-1] == 999, "the last span holds one sample, and is its own mean"
    assert set(lines.pending[0].tolist()) == {3}
    assert lines.pending[1].tolist() == [4, 4, 4, 40]
    assert lines.peak_pending == [3, 40]


def test_short_runs_are_not_thinned_and_none_is_no_error() -> None:
    assert time_lines([_run([1, 2, 3], {})]).busy[0].tolist() == [1, 2, 3]
    assert time_lines([_run([], {})]).at_s == []


def test_grid_spans_all_completion_times() -> None:
    grid = completion_grid([np.array([0.0, 50.0]), np.array([]), np.array([3e6])])
    assert (grid[0], grid[-1]) == (1.0, 3e6)
    alike = completion_grid([np.array([60.0])])
    assert alike[0] < 60 < alike[-1]
    assert not len(completion_grid([np.array([])]))


def test_styles_do_not_clash_and_own_ones_stay() -> None:
    assert styles(["lucid", "mine", "fifo", "yours"]) == [0, 6, 1, 7]
    many = styles(["fifo", *(f"p{i}" for i in range(7))])
    assert sorted(many) == list(range(8))


def test_bars_are_as_long_as_the_delay_and_start_at_zero() -> None:
    def figures(delay_s: float) -> dict[str, float]:
        return {"jobs": 3, **{f"{key}_queue_s": delay_s for key in ("avg", "median", "p90")}}

    groups = [{"a": figures(36000), "b": figures(0)}, {"a": figures(18000), "b": {"jobs": 0}}]
    chart = bar_chart("t", ["a", "b", "c"], ["fifo", "lucid"], [1, 0], groups)
    assert chart is not None
    (first, second), (zero,), none = (group.bars for group in chart.groups)
    assert first.width == pytest.approx(2 * second.width, abs=0.2)
    assert zero.width == 1
    assert none == []
    assert (first.value, second.value) == ("10.0 h", "5.00 h")
    assert "a, fifo: 3 jobs, waiting 10.0 h on average" in first.tip


def test_long_names_are_shortened_in_the_middle() -> None:
    names = [f"virtual-cluster-of-team-{i}" for i in range(2)]
    figures = {name: {"jobs": 1, "avg_queue_s": 1.0, "median_queue_s": 1.0, "p90_queue_s": 1.0} for name in names}
    chart = bar_chart("t", names, ["fifo"], [1], [figures])
    assert chart is not None
    labels = [group.label for group in chart.groups]
    assert len(set(labels)) == 2
    assert all(len(label) <= 15 for label in labels)
    assert [group.name for group in chart.groups] == names
