"""Documentation that points somewhere points at something."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from benchmarks.__main__ import PARTS

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
GENERATED = ("settings.md", "commands.md", "figures.md")
WIDE = ("figures.md", "0055-own-first.md", "administrator.md", "user.md", "researcher.md", "models.md", "metrics.md")
"""Pages whose lines may still be longer, and of those in docs/tutorials."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    files = [link for link in links if "://" not in link]
    assert [link for link in files if not (page.parent / link).exists()] == []


@cache
def anchors(page: Path) -> frozenset[str]:
    """As a forge makes them of headings: small letters, hyphens for spaces, a number behind each repeated one."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    found, seen = set(), Counter[str]()
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower().strip()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return frozenset(found)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_headings(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", page.read_text(encoding="utf-8"))
    own = [(path, name) for path, name in links if "://" not in path]
    targets = [((page.parent / path).resolve() if path else page, name) for path, name in own]
    assert [f"{at.name}#{name}" for at, name in targets if name not in anchors(at)] == []


def test_every_page_is_in_the_index() -> None:
    index = [ROOT / "docs/README.md", ROOT / "docs/decisions/README.md"]
    texts = {page: page.read_text(encoding="utf-8") for page in index}
    linked = {
        (page.parent / path).resolve() for page, text in texts.items() for path in re.findall(r"\]\(([^)#\s]+)", text)
    }
    assert [str(page) for page in (ROOT / "docs").rglob("*.md") if page.resolve() not in linked | set(index)] == []


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_fits_on_three_screens_and_a_record_on_one(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    if page.name not in WIDE or page == ROOT / "docs/models.md":
        assert [(number, len(line)) for number, line in enumerate(lines, 1) if len(line) > 160] == []
    if page.name not in GENERATED:
        assert len(lines) <= (60 if page.parent.name == "decisions" and page.name != "README.md" else 155)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_merge_left_its_marks(page: Path) -> None:
    assert re.findall(r"^(?:<{7}|>{7}) .*|^={7}$", page.read_text(encoding="utf-8"), re.MULTILINE) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert set(re.findall(r"python -m benchmarks --only (\w+)", text)) <= set(PARTS)
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
