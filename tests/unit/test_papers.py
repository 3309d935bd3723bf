"""The rows of the papers: how one is judged and shown, one that is cheap, and the pages that hold what is kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.papers import page, peers
from benchmarks.papers.__main__ import PARTS, main
from benchmarks.papers.pictures import gini_importances
from benchmarks.papers.row import Row, as_dict, from_dict, table
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
        assert sum(f"<!-- rows of: {name} -->" in text for text in texts) == 1, name
    assert set(kept) <= set(PARTS)
