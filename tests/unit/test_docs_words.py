"""Words: the glossary's are used, phrases that were given up stay away, and modules that docs name exist."""

from __future__ import annotations

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
TERMS, _, REPLACED = GLOSSARY.read_text(encoding="utf-8").partition("## Words that were used otherwise")

GIVEN_UP = (
    "lets nobody pass",
    "could be luck of the days",
    "gets on with Slurm",
    "get on with Slurm",
    "taken by itself",
    "is no job id of Slurm",
    "not met a GPU",
    "of Lucid's",
    "nothing else starts there",
    "knows lucid as no operator",
    "enough was written in this cycle",
    "its Extra is the user's",
    "shares with nobody",
    "nobody waits for",
    "nobody waits in",
    "nobody stands by",
    "nobody holds the lease",
    "nobody passes",
    "nobody can say",
    "for want of",
    "to whom they bring",
    "to whom it saves",
    "what stands in for",
    "groups that stand",
    "foretold",
    "who waits waits",
    "is anybody's",
    "drawn by lot",
    "behind everybody's back",
    "starts nothing and asks nobody",
    "with the manners of",
)


@cache
def texts() -> list[tuple[str, str]]:
    """Every text that a person reads, with its path; the glossary names what it replaces."""
    found = [*(ROOT / "lucid").rglob("*.py"), *(p for p in (ROOT / "slurm").rglob("*") if p.suffix != ".pyc")]
    paths = [path for path in [*found, *PAGES] if path.is_file() and path not in (GLOSSARY, ROOT / "CHANGELOG.md")]
    return [(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8", errors="replace")) for path in paths]


def test_every_term_of_the_glossary_is_used() -> None:
    everything = "\n".join(text for path, text in texts()).lower()
    terms = re.findall(r"^\| (.+?) \|", TERMS, re.MULTILINE)
    terms = [term for term in terms if term != "term"]
    assert len(terms) > 40
    assert len(set(terms)) == len(terms), "one meaning a word"
    assert [term for term in terms if term.lower() not in everything] == []


@pytest.mark.parametrize("phrase", GIVEN_UP)
def test_phrases_that_were_given_up_do_not_come_back(phrase: str) -> None:
    """A line may break within a phrase."""
    pattern = re.compile(r"[\s\"#]+".join(map(re.escape, phrase.split())), re.IGNORECASE)
    assert [path for path, text in texts() if pattern.search(text)] == []


@pytest.mark.parametrize(
    "page", [p for p in PAGES if p.name != "CHANGELOG.md"], ids=lambda p: str(p.relative_to(ROOT))
)
def test_modules_and_files_that_docs_name_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    paths = re.findall(r"(?<![\w/.-])((?:lucid|slurm|tests|benchmarks)/[\w./-]*\w)", text)
    own = tuple(f"lucid/{name}" for name in ("slurm", "lucid", "wake", "testbed", "samples"))  # folders of a host
    own += ("tests/e2e/FILE",)
    missing = [path for path in paths if not (ROOT / path).exists() and not path.startswith(own)]
    assert [path for path in missing if not list(ROOT.glob(f"{path}*"))] == []
    modules = re.findall(r"`(lucid(?:\.\w+)+)[`(]", text)
    assert [name for name in modules if not _exists(name)] == []


def _exists(name: str) -> bool:
    """A module, or a name in one; ``lucid.policies`` is a group of entry points; files are none."""
    module, _, last = name.rpartition(".")
    if name == "lucid.policies" or last in ("toml", "db", "conf", "py"):
        return True
    try:
        if find_spec(name) is not None:
            return True
    except ModuleNotFoundError:
        pass  # the module has no such module in it
    spec = find_spec(module)
    return (
        spec is not None
        and spec.origin is not None
        and re.search(rf"\b{last}\b", Path(spec.origin).read_text(encoding="utf-8")) is not None
    )
