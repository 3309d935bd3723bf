"""README's table of what Lucid gains over plain Slurm is what its command prints."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

from benchmarks import yardstick
from benchmarks.yardstick import README, SEEDS, Beside, cells, measured, table, written

TUNED_ON = range(1, 11)


def rows() -> dict[int, str]:
    """README's, by seed: the cells between walls, then those in a pool."""
    found = re.findall(r"^\| (\d+) \| (.*) \|$", README.read_text(encoding="utf-8"), re.MULTILINE)
    return {int(seed): text for seed, text in found}


def test_readme_has_a_row_for_each_month_and_none_is_one_that_was_tuned_on() -> None:
    assert tuple(rows()) == SEEDS
    assert not set(SEEDS) & set(TUNED_ON)
    assert "python -m benchmarks.yardstick" in README.read_text(encoding="utf-8")


def test_readme_says_what_is_measured_between_walls() -> None:
    assert rows()[SEEDS[0]].startswith(cells(measured(SEEDS[0], pool=False))), (
        "write README's table anew: python -m benchmarks.yardstick --write"
    )


@pytest.mark.slow
def test_readme_is_what_the_command_prints() -> None:
    made = table(*([measured(seed, pool=pool) for seed in SEEDS] for pool in (False, True)))
    text = README.read_text(encoding="utf-8")
    assert written(text, made) == text


def test_the_words_under_the_table_count_months_that_are_longer() -> None:
    walls = [Beside(2.0, 1.9, 0.95, 1.3, 1.004)] * 5 + [Beside(2.0, 1.0, 0.5, 0.9, 2.0)]
    pool = [Beside(1.5, 1.0, 0.7, 0.8, 0.9)] * 6
    said = table(walls, pool)
    assert "In 5 of the 6 months plain Slurm in a pool has a shorter average JCT than Lucid between walls" in said
    assert "0.90 to 1.30 of what they take under plain Slurm between walls (longer in 5 of 6 months)" in said
    assert "1.00 to 2.00 of plain Slurm's between walls (longer in 1 of 6 months)" in said


def test_other_months_are_printed_and_never_written_into_readme(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int, bool]] = []

    def made_up(seed: int, *, pool: bool, preset: str) -> Beside:
        asked.append((preset, seed, pool))
        return Beside(2.0, 1.0, 0.5, 0.9, 1.1)

    monkeypatch.setattr(yardstick, "measured", made_up)
    done = CliRunner().invoke(yardstick.main, ["--preset", "month-logs", "--seed", "41", "--seed", "42"])
    assert asked == [("month-logs", seed, pool) for pool in (False, True) for seed in (41, 42)]
    assert "| 42 | 2.0 h | 1.0 h (0.50)" in done.output
    assert "In 0 of the 2 months" in done.output
    for others in (["--seed", "41"], ["--preset", "month-logs"]):
        assert "for README's own months" in CliRunner().invoke(yardstick.main, ["--write", *others]).output
