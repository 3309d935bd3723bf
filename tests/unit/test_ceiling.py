"""The repository is no larger than tests/ceiling.toml says."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

import pytest

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
    assert {
        kind: f"{size} above {CEILING[folder][kind]}" for kind, size in found.items() if size > CEILING[folder][kind]
    } == {}


def test_docs_are_below_their_ceiling() -> None:
    words = sum(len(path.read_text(encoding="utf-8").split()) for path in _files("docs/*.md"))
    assert words <= CEILING["docs"]["words"]
