"""docs/figures.md is what the program writes from the figures that are kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import page
from benchmarks.figure import Figure


def test_the_page_is_what_the_program_writes() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert text.count("<!-- figures of:") >= 2
    kept = json.loads(page.DATA.read_text(encoding="utf-8"))
    assert page.written(text, kept) == text, "python -m benchmarks.page"
    for part, group in kept.items():
        assert all(group[key] for key in ("command", "commit", "date", "machine", "rows")), part


def test_a_part_that_is_measured_anew_takes_the_place_of_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = {"command": "c", "commit": "abc", "date": "2026-01-01", "machine": "M", "rows": [{
        "what": "w", "ours": "1 s", "beside": "", "asked": ""}]}  # fmt: skip
    (tmp_path / "figures.json").write_text(json.dumps({"one": old, "other": old}))
    (tmp_path / "figures.md").write_text("Before.\n<!-- figures of: one other -->\n<!-- end -->\nAfter.\n")
    monkeypatch.setattr(page, "DATA", tmp_path / "figures.json")
    monkeypatch.setattr(page, "PAGE", tmp_path / "figures.md")
    page.keep({"one": [Figure("w|x", 2.0, "s", 3, 4.0, "fifo", at_most=1.0), Figure("v", 3.0, "MiB")]})
    first, second, other = (tmp_path / "figures.md").read_text().splitlines()[4:7]
    assert first.startswith(
        "| w\\|x | 2.000 s | fifo 4.000 s (0.50 x) | <= 1, **missed** | `python -m benchmarks --only"
    )
    assert second == "| v | 3.000 MiB |  |  | the same |  |"
    assert other == "| w | 1 s |  |  | `c` | abc, 2026-01-01, B |"
    assert (tmp_path / "figures.md").read_text().endswith("**B**: M.\n<!-- end -->\nAfter.\n")
