"""The tests as a whole: one name a file, no skip unseen by ``.ci/run``, no more than tests/ceiling.toml says, and no
part of the product without a room of ``make e2e FOR=path…``."""

from __future__ import annotations

import subprocess
import tomllib
from collections import Counter
from pathlib import Path

import pytest
import rooms

import skips

TESTS = Path(__file__).parents[1]


def test_no_two_files_of_tests_have_one_name() -> None:
    """Folders of tests are no packages: pytest imports a file by its bare name, and refuses the second of a name."""
    count = Counter(path.name for path in TESTS.rglob("test_*.py"))
    assert [name for name, times in count.items() if times > 1] == []


@pytest.mark.parametrize(
    ("reason", "online", "offline"),
    [
        ("no muri*.json in /shared/vectors (set LUCID_VECTORS)", True, True),
        ("the testbed needs root (chroot, mount, mknod): run it as root", True, True),
        ("no browser: /usr/bin/chromium is not installed (apt install chromium)", False, True),
        ("could not import 'interpret': No module named 'interpret'", False, False),
        ("unconditional skip", False, False),
    ],
)
def test_what_may_be_skipped(reason: str, online: bool, offline: bool) -> None:
    assert (skips.allowed_by(reason, "online") is not None) is online
    assert (skips.allowed_by(reason, "offline") is not None) is offline


ROOT = Path(__file__).parents[2]
CEILING = tomllib.loads((ROOT / "tests/ceiling.toml").read_text())


def _files(pattern: str) -> list[Path]:
    """Those that git knows; without git (an unpacked sdist) those that are there."""
    listed = subprocess.run(["git", "ls-files", pattern], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        return sorted(ROOT.glob(pattern.replace("/", "/**/")))
    return [path for line in listed.stdout.splitlines() if (path := ROOT / line).exists()]


@pytest.mark.parametrize("folder", ["lucid", "slurm", "tests", "tools"])
def test_code_is_below_its_ceiling(folder: str) -> None:
    files = _files(f"{folder}/*.py")
    found = {"lines": sum(path.read_bytes().count(b"\n") for path in files), "files": len(files)}
    assert [f"{size} {kind}" for kind, size in found.items() if size > CEILING[folder][kind]] == [], CEILING[folder]


def test_docs_are_below_their_ceiling() -> None:
    words = sum(len(path.read_text(encoding="utf-8").split()) for path in _files("docs/*.md"))
    assert words <= CEILING["docs"]["words"]


def test_every_path_of_the_product_leads_to_a_live_test_or_says_why_it_needs_none() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("no checkout: git says which files there are")
    product = [str(path.relative_to(ROOT)) for folder in ("lucid", "slurm") for path in _files(f"{folder}/*")]
    assert product
    table = rooms.rooms()
    assert [path for path in product if not any(room.has(path) for room in table)] == []
    assert all(bool(room.ask) != bool(room.none) for room in table)
    named = {file for room in table for file in room.ask} | {*rooms.STORY}
    assert named == {path.name for path in rooms.HERE.glob("test_*.py")}


def test_make_mutants_copies_what_tests_read() -> None:
    copied = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mutmut"]["also_copy"]
    visible = {path.relative_to(ROOT).parts[0] for path in _files("*") if path.relative_to(ROOT).parts[0][0] != "."}
    assert visible - {*copied} == {"lucid", "tests", "pyproject.toml", "CITATION.cff", "MANIFEST.in"}
