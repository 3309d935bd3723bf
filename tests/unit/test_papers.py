"""The numbers of the papers, the yardstick, the page of figures."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner

from benchmarks import page as figures_page
from benchmarks import yardstick
from benchmarks.papers import page
from benchmarks.papers.__main__ import PARTS
from benchmarks.yardstick import README, SEEDS


def test_the_page_of_figures_is_what_the_program_writes() -> None:
    text, kept = figures_page.PAGE.read_text(encoding="utf-8"), figures_page.DATA.read_text(encoding="utf-8")
    assert figures_page.written(text, json.loads(kept)) == text, "python -m benchmarks.page"


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
