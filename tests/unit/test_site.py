"""The site of the documentation: no warning, every page in its navigation, and words that its search finds."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPHINX = ROOT / "build/docs/bin/sphinx-build"
"""Where ``make docs`` puts it."""


@pytest.mark.slow
@pytest.mark.skipif(not SPHINX.exists(), reason="no Sphinx: make docs")
def test_the_site_is_made_without_a_warning(tmp_path: Path) -> None:
    words = ["-q", "-W", "--keep-going", "-n", "-c", "docs/site", "-b", "html", "-d", str(tmp_path / "trees"), "."]
    done = subprocess.run(
        [SPHINX, *words, str(tmp_path / "site")], cwd=ROOT, capture_output=True, text=True, check=False, timeout=600
    )
    assert (done.returncode, done.stderr) == (0, "")
    site = tmp_path / "site"
    assert "docs/README.html" in (site / "index.html").read_text(encoding="utf-8")
    front = (site / "docs/README.html").read_text(encoding="utf-8")
    for door in ("Administrators", "Users", "Researchers"):
        assert f'<span class="caption-text">{door}</span>' in front
    assert "starvation" in (site / "searchindex.js").read_text(encoding="utf-8")
