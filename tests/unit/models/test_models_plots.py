"""Pictures are real pictures, the page stands alone, and names from outside cannot break it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.papers.plots import (
    draw_importances,
    draw_pictures,
    draw_term,
    draw_tree,
    save_figure,
)
from lucid.models.additive import AdditiveModel, Axis, Term
from lucid.models.packing.share_score import Node, ShareTree
from lucid.models.page import additive_page, picture_of_term, tree_page

PNG = b"\x89PNG\r\n\x1a\n"
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


def test_every_term_becomes_a_picture(tmp_path: Path) -> None:
    paths = draw_pictures(MODEL, tmp_path / "plots", "Duration", "s")
    assert len(paths) == 1 + len(MODEL.terms)
    assert all(path.read_bytes().startswith(PNG) for path in paths)
    assert len({path.name for path in paths}) == len(paths)


def test_the_page_has_a_picture_of_each_term_and_escapes_names(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    additive_page(MODEL, path, "<script>alert(1)</script>", "s", {"rows": 12})
    text = path.read_text(encoding="utf-8")
    assert text.count('role="img"') == 1 + len(MODEL.terms)
    assert "<img" not in text
    assert "<script>alert" not in text
    assert "rows: <b>12</b>" in text
    assert "&lt;b&gt;bob&lt;/b&gt;" in text


def test_the_steps_on_the_page_are_the_scores() -> None:
    _, picture, _ = picture_of_term(MODEL.terms[0])
    touched = [mark.tip for mark in picture.marks if mark.kind == "touch"]
    scores, weights = MODEL.terms[0].scores, MODEL.terms[0].weights
    assert len(touched) == len(GPUS.cuts) + 1
    for i, tip in enumerate(touched, 1):
        assert f": {scores[i]:+.4g}, {weights[i] / weights.sum():.1%} of the data" in tip


def test_the_tree_on_a_page_names_every_node(tmp_path: Path) -> None:
    tree_page(TREE, tmp_path / "tree.html", "Model packing", {"rows": 5})
    text = (tmp_path / "tree.html").read_text(encoding="utf-8")
    for words in ("gmem_util", "&lt;= 30 %?", "Jumbo (2)", "rows: <b>5</b>", 'data-tip="1 Tiny, 1 Medium"'):
        assert words in text, words


def test_the_steps_drawn_are_the_scores() -> None:
    drawn = draw_term(MODEL.terms[0]).axes[0].patches[0].get_data()
    np.testing.assert_array_equal(drawn.values, MODEL.terms[0].scores[1:-1])
    np.testing.assert_array_equal(drawn.edges[1:-1], GPUS.cuts)


def test_importances_are_ranked() -> None:
    axes = draw_importances(MODEL, "x").axes[0]
    widths = [bar.get_width() for bar in axes.patches]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] == max(term.importance for term in MODEL.terms)


def test_many_categories_are_cut_to_what_matters() -> None:
    many = Axis("user", "categorical", categories={f"user{n}": n for n in range(1, 301)})
    axes = draw_term(term(many)).axes[0]
    assert len(axes.patches) == 20
    assert "20 that matter most of 300" in axes.get_title("left")


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_tree_names_every_node(tmp_path: Path, suffix: str) -> None:
    figure = draw_tree(TREE)
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert any("gmem_util" in text and "30 %" in text for text in texts)
    assert any("Jumbo (2)" in text for text in texts)
    path = tmp_path / f"tree.{suffix}"
    save_figure(figure, path)
    assert path.read_bytes().startswith(PNG) or re.search(b"<svg", path.read_bytes())
