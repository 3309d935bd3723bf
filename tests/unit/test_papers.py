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
from benchmarks.yardstick import README, SEEDS, Beside
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


def test_readme_names_months_that_were_not_tuned_on() -> None:
    assert not set(SEEDS) & set(TUNED_ON)
    text = README.read_text(encoding="utf-8")
    assert "python -m benchmarks.yardstick" in text
    assert f"seeds {', '.join(map(str, SEEDS[:-1]))} and {SEEDS[-1]}" in " ".join(text.split())


def test_readme_has_at_most_900_words_and_no_sentence_above_30() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.split()) <= 900
    prose = re.sub(r"```.*?```|<!--.*?-->|^\|.*?$", "", text, flags=re.DOTALL | re.MULTILINE)
    prose = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", prose)
    sentences = re.split(r"(?<=[.?!])[*)]*\s+|\n\n+|\n- |^#+ ", prose, flags=re.MULTILINE)
    assert len(sentences) > 30
    assert [one for one in sentences if len(one.split()) > 30] == []


@pytest.mark.slow
def test_readme_is_what_the_command_prints() -> None:
    done = CliRunner().invoke(yardstick.main, [])
    text = README.read_text(encoding="utf-8")
    assert set(done.output.splitlines()) <= set(text.splitlines())


def test_the_table_has_the_median_and_both_ends_of_each_row() -> None:
    rows = {
        "months": [Beside(0.5, 1.3, 1.004), Beside(0.7, 1.0, 0.5), Beside(0.9, 0.9, 2.0)],
        "a log": [Beside(1, 1, 1)],
    }
    *_, month, log = yardstick.table(rows).splitlines()
    assert month == "| months | 0.70 (0.50 to 0.90) | 1.00 (0.90 to 1.30) | 1.00 (0.50 to 2.00) |"
    assert log == "| a log | 1.00 | 1.00 | 1.00 |"


def test_other_months_are_printed_and_never_written_into_readme(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yardstick, "measured", lambda _scenario: Beside(0.5, 0.9, 1.1))
    monkeypatch.setattr(yardstick, "synthetic", lambda preset, seed: (preset, seed))
    monkeypatch.setattr(yardstick, "in_pool", lambda scenario: scenario)
    done = CliRunner().invoke(yardstick.main, ["--preset", "month-logs", "--seed", "41", "--seed", "42"])
    assert "| 2 synthetic months, in one pool | 0.50 (0.50 to 0.50) |" in done.output
    for others in (["--seed", "41"], ["--preset", "month-logs"]):
        assert "for README's own months" in CliRunner().invoke(yardstick.main, ["--write", *others]).output
