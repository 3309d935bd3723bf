"""The numbers of the papers, the yardstick, the page of figures."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import yardstick
from benchmarks.papers import page, peers
from benchmarks.papers.__main__ import PARTS, main
from benchmarks.papers.pictures import gini_importances
from benchmarks.papers.row import Row, as_dict, from_dict, table
from benchmarks.yardstick import README, SEEDS, Beside, cells, measured, written
from benchmarks.yardstick import table as yardstick_table
from lucid.models.packing.share_score import Node, ShareTree

JCT = "avg JCT, h"


@pytest.mark.parametrize(
    ("row", "met"),
    [
        (Row("near", {JCT: 1.01}, {JCT: 1.0}, within=0.02), True),
        (Row("far", {JCT: 0.97}, {JCT: 1.0}, within=0.02), False),
        (Row("a claim", {"ratio": 1.2}, {"ratio": 1.3}, at_least=True), False),
        (Row("a bound", {JCT: 0.9}, {JCT: 1.0}, at_most=True), True),
        (Row("what decides", {JCT: 1.0, "p99": 9.0}, {JCT: 1.0, "p99": 1.0}, within=0.1, decides=(JCT,)), True),
        (Row("nothing asked", {JCT: 1.0}, {JCT: 2.0}), None),
        (Row("none of ours", {}, {JCT: 2.0}, within=0.1), None),
    ],
)
def test_a_row_knows_whether_what_was_published_holds(row: Row, met: bool | None) -> None:
    assert row.met is met
    assert from_dict(json.loads(json.dumps(as_dict(row)))) == row


def test_the_table_has_published_and_ours_in_one_cell() -> None:
    rows = [
        Row("a", {JCT: 5.913, "free, %": 97.2}, {JCT: 5.951, "free, %": 98.1}, within=0.01, decides=(JCT,)),
        Row("b|c", {JCT: 2.0}, {JCT: 2.0}, note="why"),
        Row("d", {}, {JCT: 1234.5}),
    ]
    assert table(rows).splitlines() == [
        "|  | avg JCT, h | free, % | met | note |",
        "|---|---|---|---|---|",
        "| a | 5.951 / 5.913 (-0.6 %) | 98.1 / 97.2 (-0.9) | yes |  |",
        "| b\\|c | 2.000 / = |  |  | why |",
        "| d | 1,234 / – |  |  |  |",
    ]


def test_the_elastic_platform_gains_over_both_baselines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "_SETS", 1)
    monkeypatch.setattr(peers, "CASES", (("workload4", 15.0),))
    case, mean = peers.elastic()
    assert all(value < 0 for value in case.ours.values())
    assert mean.published == {"JCT to FCFS, %": -40, "JCT to EF, %": -58, "makespan to FCFS, %": -30,
                              "makespan to EF, %": -35}  # fmt: skip


def test_gini_importances_are_shares_of_the_lost_impurity() -> None:
    leaves = [Node(0, (4, 0, 0)), Node(2, (0, 1, 5))]
    tree = ShareTree((Node(2, (4, 1, 5), "gpu_util", 50.0, 1, 2), *leaves))
    assert gini_importances(tree) == {"gpu_util": 1.0}


def test_rows_without_their_data_are_skipped_and_say_what_they_need(tmp_path: Path) -> None:
    without = {name for name in PARTS if not name.startswith(("elastic", "lucid-parts", "lucid-calm"))}
    words = [word for name in sorted(without) for word in ("--only", name)]
    env = {"LUCID_SHARED": str(tmp_path), "LUCID_MURI_TRACES": "", "LUCID_POLLUX_WORKLOADS": ""}
    done = CliRunner().invoke(main, [*words, "--json"], env=env, catch_exceptions=False)
    told = json.loads(done.stdout)
    assert set(told["skipped"]) == without
    assert told["rows"] == {}
    assert all(str(tmp_path) in why and "LUCID_SHARED" in why for why in told["skipped"].values())


def test_the_pages_are_what_the_program_writes() -> None:
    kept = json.loads(page.DATA.read_text(encoding="utf-8"))
    texts = [path.read_text(encoding="utf-8") for path in page.PAGES]
    for text in texts:
        assert page.written(text, kept) == text, "python -m benchmarks.papers.page"
        assert len(text.splitlines()) <= 155
    for name in PARTS:
        assert sum(f"<!-- rows of: {name} -->" in text for text in texts) <= 1, name
        assert name not in kept or kept[name]["commit"] in page.recorded([name])
    assert set(kept) <= set(PARTS)


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
    made = yardstick_table(*([measured(seed, pool=pool) for seed in SEEDS] for pool in (False, True)))
    text = README.read_text(encoding="utf-8")
    assert written(text, made) == text


def test_the_words_under_the_table_count_months_that_are_longer() -> None:
    walls = [Beside(2.0, 1.9, 0.95, 1.3, 1.004)] * 5 + [Beside(2.0, 1.0, 0.5, 0.9, 2.0)]
    pool = [Beside(1.5, 1.0, 0.7, 0.8, 0.9)] * 6
    said = yardstick_table(walls, pool)
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
