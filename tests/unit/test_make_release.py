"""What stands against a release, and the checksums; ``make release DRY=1`` is the whole of it."""

from __future__ import annotations

import hashlib
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest
from click.testing import CliRunner

import release
from lucid.cli.main import lucidctl

LOG = "# Changelog\n\n## Unreleased\n\n## 1.2.3 (2026-01-02)\n- All.\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "CHANGELOG.md").write_text(LOG)
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    (tmp_path / "CITATION.cff").write_text("title: Lucid\nversion: 1.2.3\ntype: software\n")
    (tmp_path / "Makefile").write_text("deb:\n")
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


def git(tree: Path, *words: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *who, "-C", str(tree), *words], check=True, capture_output=True)


def commit(tree: Path) -> None:
    git(tree, "add", "--all")
    git(tree, "commit", "--quiet", "--message", "x")


def test_a_tree_that_is_ready_can_be_released(tree: Path) -> None:
    assert release.version_of(tree) == "1.2.3"
    assert release.obstacles(tree, "1.2.3") == []
    assert ["make", "deb"] in release.steps(tree, tree / "out", quick=False)
    assert ["make", "rpm"] not in release.steps(tree, tree / "out", quick=False)
    assert release.steps(tree, tree / "out", quick=False)[0] == ["make", "test"]


def test_each_obstacle_is_named(tree: Path) -> None:
    (tree / "left").write_text("over")
    assert "not clean: 1 files" in release.obstacles(tree, "1.2.3")[0]
    (tree / "left").unlink()
    assert "1.2" in release.obstacles(tree, "1.2")[0]
    cited, logged = release.obstacles(tree, "1.2.4")
    assert cited == "CITATION.cff names another version than 1.2.4"
    assert "no '## 1.2.4 (YYYY-MM-DD)'" in logged
    (tree / "CHANGELOG.md").write_text(LOG.replace("Unreleased\n", "Unreleased\n- News.\n"))
    commit(tree)
    assert "under 'Unreleased'" in release.obstacles(tree, "1.2.3")[0]
    git(tree, "tag", "v1.2.3")
    assert any("there already" in words for words in release.obstacles(tree, "1.2.3"))


def test_an_address_that_is_still_to_be_filled_in_stops_a_release(tree: Path) -> None:
    address = '[project.urls]\nHomepage = "https://lucid.invalid/"\n'
    (tree / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n' + address)
    commit(tree)
    assert ["Homepage" in words for words in release.obstacles(tree, "1.2.3")] == [True]


def test_checksums_are_as_sha256sum_reads_them(tmp_path: Path) -> None:
    (tmp_path / "b.whl").write_bytes(b"b")
    (tmp_path / "a.deb").write_bytes(b"a")
    text = release.checksums(tmp_path)
    assert text.splitlines()[0] == f"{hashlib.sha256(b'a').hexdigest()}  a.deb"
    (tmp_path / "SHA256SUMS").write_text(text)
    assert release.checksums(tmp_path) == text
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=tmp_path, check=True)


def test_the_version_stands_in_one_place() -> None:
    assert release.version_of(release.ROOT) == version("lucid-scheduler")
    assert version("lucid-scheduler") in CliRunner().invoke(lucidctl, ["--version"]).output
