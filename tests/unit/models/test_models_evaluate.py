"""How good a model is, as numbers and as plots."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from lucid.cli.learn.evaluate import evaluate
from lucid.errors import LucidError
from lucid.models.additive import AdditiveModel, Axis, Term
from lucid.models.packing.share_score import Node, ShareTree
from lucid.models.page import additive_page, tree_page
from scenes.models import light_training


@pytest.fixture(scope="module", autouse=True)
def light() -> Iterator[None]:
    with light_training():
        yield


def run(*args: object) -> str:
    result = CliRunner().invoke(evaluate, [str(arg) for arg in args], catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def refused(*args: object) -> LucidError:
    result = CliRunner().invoke(evaluate, [str(arg) for arg in args])
    assert isinstance(result.exception, LucidError)
    return result.exception


def write(path: Path, header: str, rows: list[list[object]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header.split(","), *rows])
    return path


@pytest.fixture
def measured(tmp_path: Path) -> tuple[Path, Path]:
    configs = [(w, b, 8.0 * i + 7 * j) for i, w in enumerate("abcdef") for j, b in enumerate((32, 64, 128))]
    profiles = [
        [w, "data", b, 0, util, util / 2, 2000, 0 if util < 20 else 1 if util < 40 else 2] for w, b, util in configs
    ]
    rng = np.random.default_rng(0)
    pairs = []
    for one, two in itertools.combinations_with_replacement(configs, 2):
        speeds = 1 - one[2] * two[2] / 1e4 + rng.normal(scale=0.02, size=2)
        pairs.append([one[0], "data", one[1], 0, speeds[0], two[0], "data", two[1], 0, speeds[1]])
    sides = ",".join(f"model{s},dataset{s},batchsize{s},amp{s},speed{s}" for s in "12")
    return (
        write(tmp_path / "profiles.csv", "model,dataset,batchsize,amp,gpu_util,gmem_util,gmem,label", profiles),
        write(tmp_path / "pairs.csv", sides, pairs),
    )


def test_packing_prints_every_figure(measured: tuple[Path, Path]) -> None:
    profiles, pairs = measured
    figures = json.loads(run("packing", profiles, pairs, "--json"))
    for kind, way in itertools.product(("precision", "recall"), ("lomo", "loco", "loco_both")):
        assert 0.7 <= figures[f"pair_{kind}_{way}"] <= 1
    assert 0 <= figures["accuracy_lomo"] <= 1
    assert (figures["configurations"], figures["pairs"]) == (18, 171)


def test_throughput_trains_only_on_what_was_before(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    hours = [datetime(2024, 1, 1) + timedelta(hours=n) for n in range(1500)]
    counts = [int(rng.poisson(3 + time.hour / 4)) for time in hours]
    rows: list[list[object]] = [[time, n, 2 * n] for time, n in zip(hours, counts, strict=True)]
    path = write(tmp_path / "bins.csv", "time,submit_gpu_job,submit_gpu_num", rows)
    figures = json.loads(run("throughput", path, "--test-from", hours[1300], "--newest-bin", "2", "--json"))
    assert (figures["trained_bins"], figures["tested_bins"], figures["newest_bin"]) == (1300, 200, 2)
    later = np.array(counts[1300:])
    assert figures["mae_jobs"] < np.abs(later - np.median(later)).mean()
    assert "no bin starts at or after" in str(refused("throughput", path, "--test-from", "2030-01-01"))
    # a date with a zone is no reason to fall over bins without one
    assert "no bin starts" in str(refused("throughput", path, "--test-from", "2030-01-01T00:00:00+02:00"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("duration a.csv", "duration needs --test-from"),
        ("duration a.csv b.csv --test-from 1", "duration takes 1 file, and 2 are given"),
        ("packing a.csv", "packing takes 2 files, and 1 are given"),
        ("packing a.csv b.csv --test-from 1", "--test-from is not for packing"),
        ("throughput a.csv --test-from 1 --refits 2", "--refits is not for throughput"),
        ("speed a.csv", "'speed' is not one of 'duration', 'throughput', 'packing'"),
    ],
)
def test_each_kind_has_its_own_files_and_options(words: str, said: str) -> None:
    result = CliRunner().invoke(evaluate, words.split())
    assert result.exit_code == 2
    assert said in result.stderr


GPUS = Axis("gpus", "continuous", cuts=(1.5, 4.5, 64.0))
USER = Axis("user", "categorical", categories={"ann": 1, "<b>bob</b>": 2, "cy": 3})
NONE = Axis("nothing", "continuous")


def term(*axes: Axis, seed: int = 0) -> Term:
    rng = np.random.default_rng(seed)
    shape = tuple(axis.size for axis in axes)
    return Term(
        " & ".join(axis.feature for axis in axes),
        axes,
        rng.normal(size=shape),
        rng.integers(1, 9, shape) * 1.0,
    )


MODEL = AdditiveModel(1.5, "identity", (term(GPUS), term(USER), term(USER, GPUS), term(GPUS, GPUS), term(NONE)))
TREE = ShareTree((Node(0, (1, 1, 1), "gmem_util", 30.0, 1, 2), Node(0, (1, 1, 0)), Node(2, (0, 0, 1))))


def test_the_page_has_a_picture_of_each_term_and_escapes_names(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    additive_page(MODEL, path, "<script>alert(1)</script>", "s", {"rows": 12})
    text = path.read_text(encoding="utf-8")
    assert text.count('role="img"') == 1 + len(MODEL.terms)
    assert "<img" not in text
    assert "<script>alert" not in text
    assert "rows: <b>12</b>" in text
    assert "&lt;b&gt;bob&lt;/b&gt;" in text


def test_the_tree_on_a_page_names_every_node(tmp_path: Path) -> None:
    tree_page(TREE, tmp_path / "tree.html", "Model packing", {"rows": 5})
    text = (tmp_path / "tree.html").read_text(encoding="utf-8")
    for words in ("gmem_util", "&lt;= 30 %?", "Jumbo (2)", "rows: <b>5</b>", 'data-tip="1 Tiny, 1 Medium"'):
        assert words in text, words
