"""Documentation that points somewhere points at something."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from benchmarks.__main__ import PARTS
from lucid.cli.main import lucidctl

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    files = [link for link in links if "://" not in link]
    assert [link for link in files if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_merge_left_its_marks(page: Path) -> None:
    assert re.findall(r"^(?:<{7}|>{7}) .*|^={7}$", page.read_text(encoding="utf-8"), re.MULTILINE) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert set(re.findall(r"python -m benchmarks --only (\w+)", text)) <= set(PARTS)
    assert set(re.findall(r"`lucidctl ([a-z0-9-]+)", text)) <= set(lucidctl.list_commands(click.Context(lucidctl)))
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z0-9-]+)", text)) <= targets


def test_every_decision_is_in_the_list() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = (folder / "README.md").read_text(encoding="utf-8")
    assert [path.name for path in folder.glob("0*.md") if f"({path.name})" not in listed] == []


def test_every_dependency_has_its_line() -> None:
    said = (ROOT / "docs" / "decisions" / "0002-dependencies.md").read_text(encoding="utf-8").lower()
    declared = re.findall(r'"([a-z][a-z0-9-]+)[><=]+[^"]*"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert [name for name in declared if name not in said] == []
