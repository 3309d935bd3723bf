"""What the pages tell a reader to type can be typed."""

from __future__ import annotations

import sys

from typed import first_page


def test_the_demonstration_starts_and_serves_its_page() -> None:
    page = first_page([sys.executable, "-m", "lucid.cli.main", "web", "--demo", "--port", "0"], 120)
    assert "Lucid (demonstration)" in page
