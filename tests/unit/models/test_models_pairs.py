"""Models of pairs: the additive one, the table and packing."""

from __future__ import annotations

import csv
import itertools
import json
import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from benchmarks.calibrate.__main__ import calibrate
from benchmarks.calibrate.measure import steps_between
from examples import examples
from lucid.binder.contention import contention_speeds
from lucid.cli.learn.models import models
from lucid.core.job import JobProfile
from lucid.errors import ConfigError, ModelError, TraceError
from lucid.models.packing.evaluate import leave_workload_out
from lucid.models.packing.measured import Pairing, Usage, read_pairs, read_profiles, shipped
from lucid.models.packing.pair_speed import (
    FallingRidge,
    Honest,
    PairDesign,
    PairModel,
    fit_pairs,
    free_pairs,
    judge,
    leave_out,
    pair_columns,
    recall_threshold,
    sides_by,
)
from lucid.models.packing.share_score import Node, ShareTree, fit_share, share_labels
from lucid.simulator.cluster.truth import read_pairs as read_truth
from scenes.models import damaged


@cache
def measured() -> tuple[Pairing, ...]:
    """Five workloads of three configurations; workload 'e' suffers more than its utilisation tells."""
    rng = np.random.default_rng(1)
    usages = [
        Usage(util, util / 2, 2000.0, False, w, f"{w}{util}")
        for w, low in zip("abcde", (5, 20, 40, 60, 30), strict=True)
        for util in (low, low + 15.0, low + 30.0)
    ]

    def speed(own: Usage, other: Usage) -> float:
        harm = 0.5 * own.gpu_util * other.gpu_util / 1e4 + (0.1 if own.workload == "e" else 0.0)
        return float(1 - harm + rng.normal(scale=0.01))

    pairs = itertools.combinations_with_replacement(usages, 2)
    return tuple(Pairing(a, b, speed(a, b), speed(b, a)) for a, b in pairs)


@cache
def trained() -> PairModel:
    return fit_pairs(measured())


def stranger(util: float) -> Usage:
    return Usage(util, util / 2, 2000.0, None, "never seen", "never seen/1")


def explained(model: PairModel, first: Usage, second: Usage) -> dict[str, float]:
    row = {name: values[0] for name, values in pair_columns([(first, second)]).items()}
    return {term.name: term.score for term in model.model.explain_one(row)}


def test_tables_are_the_regression_that_was_fitted() -> None:
    design = PairDesign(measured())
    coefficients = design.solver.fit()
    rows = np.arange(2 * design.pairings)
    fitted = design.solver.predict(coefficients, rows).reshape(2, -1).T
    model = PairModel(design.tables(coefficients), 0.9)
    np.testing.assert_allclose(model.speeds([(p.first, p.second) for p in measured()]), fitted, atol=1e-9)


@given(st.floats(0, 100), st.floats(0, 100), st.floats(0, 100))
def test_a_busier_stranger_never_helps(own: float, one: float, other: float) -> None:
    low, high = sorted((one, other))
    speeds = trained().speeds([(stranger(own), stranger(low)), (stranger(own), stranger(high))])
    assert speeds[1, 0] <= speeds[0, 0] + 1e-12
    assert speeds[1, 1] <= speeds[0, 1] + 1e-12


def test_a_sensitive_workload_is_recognised_and_names_never_measured_add_exactly_nothing() -> None:
    terms = explained(trained(), stranger(50), stranger(60))
    assert {name for name, score in terms.items() if score != 0} == {"overlap"}
    known = next(p.first for p in measured() if p.first.workload == "e")
    alike = replace(known, workload=None, config=None)
    speeds = trained().speeds([(known, stranger(50)), (alike, stranger(50))])
    assert speeds[0, 0] < speeds[1, 0] - 0.05


@settings(max_examples=examples(200))
@given(st.integers(0, 119), st.integers(0, 119))
def test_terms_and_intercept_are_the_speed(one: int, other: int) -> None:
    first, second, model = measured()[one].first, measured()[other].second, trained()
    total = model.model.intercept + sum(explained(model, first, second).values())
    assert total == pytest.approx(model.speeds([(first, second)])[0, 0], abs=1e-9)


def test_json_comes_back_equal_whoever_is_named_first_and_damage_is_refused() -> None:
    data = json.loads(json.dumps(trained().to_json()))
    pairs = [(p.first, p.second) for p in measured()]
    assert (PairModel.from_json(data).speeds(pairs) == trained().speeds(pairs)).all()
    turned = trained().speeds([(second, first) for first, second in pairs])
    assert (trained().speeds(pairs) == turned[:, ::-1]).all()
    for key, value in (("format", "x"), ("threshold", "high"), ("threshold", True), ("model", {})):
        with pytest.raises(ModelError, match="somewhere"):
            PairModel.from_json({**data, key: value}, source="somewhere")


def test_ridge_reaches_the_constrained_optimum() -> None:
    rng = np.random.default_rng(4)
    falling = rng.normal(size=(80, 6))
    target = falling @ np.array([-1, 0.5, -0.2, 1, -2, 0]) + rng.normal(size=80)
    got = FallingRidge(falling, np.empty((80, 0)), target, np.ones(6), np.empty(0)).fit()
    beta, slope = got[:6], falling.T @ (falling @ got[:6] + got[6] - target) + got[:6]
    assert (beta <= 0).all()
    assert np.abs(slope[beta < 0]).max() < 1e-6  # stationary where free
    assert (slope[beta == 0] <= 1e-6).all()  # and held back only where it wants to rise


@given(st.lists(st.tuples(st.integers(0, 20), st.booleans()), min_size=1, max_size=60), st.floats(0.05, 1.0))
def test_the_bar_finds_the_wanted_share(rows: list[tuple[int, bool]], recall: float) -> None:
    scores, free = np.array([r[0] for r in rows], dtype=float), np.array([r[1] for r in rows])
    if not free.any():
        with pytest.raises(ModelError, match="no measured pair"):
            recall_threshold(scores, free, recall)
        return
    bar = recall_threshold(scores, free, recall)
    assert (scores[free] >= bar).mean() >= recall - 1e-9
    higher = scores[scores >= bar].min() + 0.5  # any higher bar finds less than wanted
    assert (scores[free] >= higher).mean() < recall or not (scores >= bar).any()


def test_what_is_left_out_moves_no_prediction() -> None:
    """Change the speeds of every pairing that touches the held-out group: its predictions must stay."""
    pairings = measured()
    sides = sides_by(pairings, "workload")
    touched = (sides == 2).any(axis=1)
    spoilt = [replace(p, speed_first=0.1, speed_second=0.1) for p in pairings]
    changed = [bad if hit else p for p, bad, hit in zip(pairings, spoilt, touched.tolist(), strict=True)]
    designs = PairDesign(pairings), PairDesign(changed)
    one, other = (leave_out(design, sides, "one") for design in designs)
    sizes = [int((sides == group).any(axis=1).sum()) for group in range(sides.max() + 1)]  # cells come group by group
    assert sum(sizes) == len(one.pairs)
    cell = slice(sum(sizes[:2]), sum(sizes[:3]))
    np.testing.assert_allclose(one.scores[cell], other.scores[cell], atol=1e-9)
    one, other = (leave_out(design, sides, "both") for design in designs)
    within = touched[one.pairs]
    np.testing.assert_allclose(one.scores[within], other.scores[within], atol=1e-9)
    assert np.abs(one.scores[~within] - other.scores[~within]).max() > 0.01


def test_precision_and_recall_at_the_bars() -> None:
    free = np.array([True, False, True, True, False])
    honest = Honest(np.array([0.9, 0.8, 0.8, 0.7, 0.1]), np.full(5, 0.75), free)
    assert (honest.precision, honest.recall) == (2 / 3, 2 / 3)


@pytest.mark.parity
@pytest.mark.slow
def test_figures_on_measured_pairs() -> None:
    data = Path(os.environ.get("LUCID_SHARED", "../shared")) / "data"
    if not (data / "pairs.csv").exists():
        pytest.skip(f"no measured pairs in {data}; set LUCID_SHARED")
    profiles = read_profiles(data / "profiles.csv")
    pairings = read_pairs(data / "pairs.csv", profiles)
    assert free_pairs(pairings).mean() == pytest.approx(0.711, abs=0.001)
    design = PairDesign(pairings)
    for by, way, precision, recall in (("workload", "both", 0.90, 0.80), ("config", "one", 0.945, 0.86)):
        found = judge(design, pairings, sides_by(pairings, by), way, 0.87)
        assert found.precision >= precision, by
        assert found.recall >= recall, by
    labels = [u.label for u in profiles if u.label is not None]
    accuracy = float(np.mean(np.equal(leave_workload_out(profiles, labels), labels)))
    assert accuracy >= 0.78  # measured 52 of 66; the goal, 0.80, would be 53


GOLDEN = Path(__file__).parents[2] / "golden"
FIRST, SECOND = Node(0, (3, 2, 1), "gmem_util", 30.0, 1, 4), Node(0, (3, 1, 0), "gpu_util", 25.0, 2, 3)
TREE = ShareTree((FIRST, SECOND, Node(0, (3, 0, 0)), Node(1, (0, 1, 0)), Node(2, (0, 1, 1))), 0.06)


def usage(gpu_util: float, gmem_util: float = 10.0, config: str | None = None) -> Usage:
    return Usage(gpu_util, gmem_util, 2000.0, False, "a", config or f"a/{gpu_util}/{gmem_util}")


def test_labels_average_both_sides_over_all_pairings() -> None:
    a, b, c = (usage(util, config=name) for util, name in ((10, "a"), (50, "b"), (90, "c")))
    pairings = [Pairing(a, b, 1.0, 0.92), Pairing(a, c, 1.0, 0.9), Pairing(b, c, 0.8, 0.69)]
    # a: (0.96 + 0.95) / 2 = 0.955, b: (0.96 + 0.745) / 2 = 0.8525, c: (0.95 + 0.745) / 2 = 0.8475
    assert share_labels([a, b, c], pairings) == [0, 1, 2]


def test_text_and_json_are_as_recorded_and_json_comes_back_equal() -> None:
    assert TREE.to_text() + "\n" == (GOLDEN / "share_tree.txt").read_text(encoding="utf-8")
    text = json.dumps(TREE.to_json(), indent=1) + "\n"
    assert text == (GOLDEN / "share_tree.json").read_text(encoding="utf-8")
    assert ShareTree.from_json(json.loads(text)) == TREE


def test_agrees_with_the_library_where_thresholds_are_not_rounded() -> None:
    from sklearn.tree import DecisionTreeClassifier

    table = [[util, util / 2, 2000.0 + i % 8] for i, util in enumerate(np.random.default_rng(11).uniform(5, 95, 48))]
    labels = [0 if row[0] <= 30 else 1 if row[0] <= 70 else 2 for row in table]
    usages = [Usage(*row, False, "abcdef"[i // 8], f"{i}") for i, row in enumerate(table)]
    ours = fit_share(usages, labels, alpha=0.0)
    theirs = DecisionTreeClassifier(random_state=0).fit(table, labels)
    assert ours.predict(usages).tolist() == theirs.predict(table).tolist()


def test_thresholds_are_whole_where_the_data_leave_room() -> None:
    far, close = ([usage(20.2, 1.0), usage(above, 1.0)] for above in (30.1, 20.4))
    assert fit_share(far, [0, 2], alpha=0.0).nodes[0].threshold == 25.0
    assert 20.2 < fit_share(close, [0, 2], alpha=0.0).nodes[0].threshold < 20.4


def test_too_few_pairs_and_labels_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ModelError, match="measure some pairs"):
        fit_pairs([])
    for labels in ([0], [0, 3], [0, 1, 2]):
        with pytest.raises(ModelError, match="labels must be"):
            fit_share([usage(1), usage(2)], labels, alpha=0.0)


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        (("format",), "x", r"'x' - at `\$.format`"),
        (("nodes", 0, "feature"), "colour", "splits on 'colour'"),
        (("nodes", 0, "below"), 0, "not later nodes"),
        (("nodes", 0, "above"), 9, "not later nodes"),
        (("nodes", 2, "label"), 5, r"nodes\[2\].label"),
        (("nodes", 0, "threshold"), "high", r"nodes\[0\].threshold"),
        (("nodes", 1, "counts"), [1, 2], r"nodes\[1\].counts"),
    ],
)
def test_a_damaged_tree_is_refused(where: tuple[str | int, ...], value: object, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        ShareTree.from_json(damaged(TREE.to_json(), where, value))


HEAD = "model,dataset,batchsize,amp,gpu_util,gmem_util,gmem\nN,D,32,0,1,1,1\n"
BAD = {
    f"{HEAD}M,D,32,0,101,1,1\n": "line 3.*between 0 and 100",
    f"{HEAD}M,D,32,0,x,1,1\n": "line 3.*not a number",
    f"{HEAD}M,D,32,0,nan,1,1\n": "line 3.*not a number between",
    f"{HEAD}M,D,32,0\n": "line 3.*fewer fields",
    "model\nx\n": "no column dataset",
}


def test_bad_profiles_missing_files_columns_and_profiles_are_named(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    with pytest.raises(TraceError, match="cannot be read"):
        read_profiles(path)
    for text, says in BAD.items():
        path.write_text(text)
        with pytest.raises(TraceError, match=says):
            read_profiles(path)
    columns = [f"{name}{side}" for side in "12" for name in ("model", "dataset", "batchsize", "amp", "speed")]
    path.write_text(f"{','.join(columns)}\nA,d,1,0,1,B,d,1,0,1\n")
    with pytest.raises(TraceError, match="A/d/1/0 has no profile"):
        read_pairs(path, [])


def test_the_shipped_tables_are_what_the_command_makes_and_say_they_are_synthetic(tmp_path: Path) -> None:
    done = CliRunner().invoke(calibrate, ["--synthetic", "--out", str(tmp_path)])
    assert done.exit_code == 0
    assert done.output.count("(synthetic)") == 3
    for name in ("share.json", "profiles.csv", "pairs.csv"):
        made = (tmp_path / name).read_text()
        assert shipped(name).read_text() == made
        rows = csv.DictReader(made.splitlines() if name.endswith(".csv") else [])
        assert all(row["source"] == "synthetic: contention model" for row in rows)
    profiles = read_profiles(shipped("profiles.csv"))
    pairs = read_pairs(shipped("pairs.csv"), profiles)
    assert (len(profiles), len(pairs)) == (32, 526)
    assert len(read_truth(shipped("pairs.csv"))) == len(pairs)
    one = pairs[40]
    a, b = (JobProfile(u.gpu_util, u.gmem_util, u.gmem_mib) for u in (one.first, one.second))
    assert (one.speed_first, one.speed_second) == pytest.approx(contention_speeds(a, b), abs=1e-4)


def test_speed_is_read_between_whole_steps() -> None:
    report = "1.0 10\n2.0 20\n3.0 40\n4.0 60\n5.5 70\nbroken line\n6"
    assert steps_between(report, 1.5, 4.2) == 20.0
    assert steps_between(report, 4.5, 9.0) is None
    assert steps_between("1.0 1\n2.0 3\n", 0, 9) is None


def test_share_scores_are_trained_on_the_synthetic_table_and_it_shows(tmp_path: Path) -> None:
    library = ["--library", str(tmp_path)]
    done = CliRunner().invoke(models, ["train", "share", "--synthetic", *library, "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)
    assert "synthetic" in "".join(path.read_text() for path in tmp_path.rglob("*.json*"))
    both = CliRunner().invoke(models, ["train", "--synthetic", "--pairs", "x.csv", *library])
    assert isinstance(both.exception, ConfigError)
