"""The guard over hot figures: what is slower by half is red, what is noise is not, and a record says why it is so."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.guard import __main__ as guard
from benchmarks.guard.figures import COUNTS, HOT
from benchmarks.guard.measure import Between, Hot, Work, measured
from benchmarks.guard.record import RECORD, Entry, Verdict, read, renewed, verdict, write

WHY = "columns instead of objects"


class Machine:
    """Its clock goes by what is done on it; a busy one is slower, by other amounts each time."""

    def __init__(self, slower: float, noise: float) -> None:
        self.now_s, self._slower, self._noise = 0.0, slower, noise
        self._rng = random.Random(3)

    def does(self, seconds: float) -> None:
        self.now_s += seconds * self._slower * (1 + self._noise * self._rng.uniform(-1, 1))

    def ratio_of(self, seconds: float) -> float:
        """What is measured of work that takes so long on a quiet machine, beside a loop of 10 ms."""

        def work(between: Between) -> None:
            for _ in range(4):
                self.does(seconds / 4)
                between()

        def prepare() -> Work:
            return work

        loops = {"loop": lambda: self.does(0.01)}
        return measured([Hot("it", "", "loop", prepare)], clock=lambda: self.now_s, loops=loops)["it"].ratio


@pytest.mark.parametrize("slower", [1.0, 2.5])
@pytest.mark.parametrize(("work_s", "expected"), [(1.0, Verdict.OK), (1.5, Verdict.RED), (0.5, Verdict.STALE)])
def test_half_as_much_again_is_red_on_any_machine_and_noise_of_a_tenth_is_not(
    slower: float, work_s: float, expected: Verdict
) -> None:
    recorded = {"it": Entry(100.0, "loop", "abc", "2026-11-25", WHY)}
    assert verdict("it", Machine(slower, 0.1).ratio_of(work_s), "loop", recorded) is expected


def test_a_record_changes_where_it_differs_and_keeps_the_reason(tmp_path: Path) -> None:
    old = {name: Entry(10.0, "python", "abc", "2026-01-01", "first") for name in ("same", "slower", "unmeasured")}
    with pytest.raises(ValueError, match="reason"):
        renewed({"slower": (14.0, "python")}, old, "def", "2026-11-25", "yes")
    found = {"same": (10.9, "python"), "slower": (14.0, "python"), "new": (1.0, "numpy")}
    made = renewed(found, old, "def", "2026-11-25", WHY)
    assert made == old | {
        "slower": Entry(14.0, "python", "def", "2026-11-25", WHY),
        "new": Entry(1.0, "numpy", "def", "2026-11-25", WHY),
    }
    write(made, tmp_path / "record.json")
    assert read(tmp_path / "record.json") == made
    assert verdict("slower", 14.0, "numpy", made) is Verdict.NEW, "a multiple of another loop says nothing"


def test_a_heavy_module_where_none_was_is_red() -> None:
    recorded = {"modules": Entry(0.0, "count", "abc", "2026-11-25", WHY)}
    assert verdict("modules", 1.0, "count", recorded) is Verdict.RED
    assert verdict("modules", 0.0, "count", recorded) is Verdict.OK


@pytest.fixture
def run_guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[list[float], list[str]], tuple[int, str]]:
    """The command on one figure, whose measurements are given one after the other."""
    monkeypatch.setattr(guard, "LAST", tmp_path / "out/guard.json")
    monkeypatch.setattr(guard, "COUNTS", {})
    recorded = {"it": Entry(100.0, "loop", "abc", "2026-11-25", WHY)}
    monkeypatch.setattr(guard, "read", lambda: recorded)

    def run(seconds: list[float], words: list[str]) -> tuple[int, str]:
        left = iter(seconds)
        monkeypatch.setattr(guard, "HOT", [Hot("it", "what it is", "loop", lambda: lambda _between: None)])

        def ratio(_figures: object) -> dict[str, guard.Measured]:
            spent = next(left)
            return {"it": guard.Measured(spent, spent, (spent,))}

        monkeypatch.setattr(guard, "measured", ratio)
        done = CliRunner().invoke(guard.main, words)
        assert next(left, None) is None
        return done.exit_code, done.output

    return run


def test_red_is_measured_once_more_before_it_is_believed(
    run_guard: Callable[[list[float], list[str]], tuple[int, str]],
) -> None:
    assert run_guard([100.0], [])[0] == 0
    assert run_guard([150.0, 105.0], [])[0] == 0
    code, told = run_guard([150.0, 149.0], [])
    assert code == 1
    assert 'RED: it. Slower on purpose? make guard RECORD="why"' in told
    assert "RED: it; 0.0 h and 0 commits ago" in run_guard([], ["--last"])[1]
    assert "record is stale" in run_guard([50.0], [])[1]
    assert "green, stale: 1" in run_guard([], ["--last"])[1]


def test_every_figure_is_recorded_with_a_reason() -> None:
    recorded = read()
    assert {*COUNTS, *(figure.name for figure in HOT)} <= recorded.keys(), f"{RECORD}: make guard RECORD=…"
    assert all(entry.why and entry.commit for entry in recorded.values())
    assert RECORD.read_text() == json.dumps(json.loads(RECORD.read_text()), indent=1, ensure_ascii=False) + "\n"
