"""docs/papers.md and docs/papers-peers.md: their tables are written from benchmarks/papers/kept.json, where the rows
of each part are kept with the commit and the machine. ``python -m benchmarks.papers.page`` writes them anew."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.page import commit, machine
from benchmarks.papers.row import Row, as_dict, from_dict, table

__all__ = ["DATA", "PAGES", "keep", "recorded", "write", "written"]

DATA: Final = Path(__file__).with_name("kept.json")
_DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
PAGES: Final = tuple(_DOCS / f"papers{name}.md" for name in ("", "-peers"))
_TABLE: Final = re.compile(r"(<!-- rows of: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def keep(part: str, rows: Sequence[Row]) -> None:
    """Keep these rows in the place of those that were kept of the part, and write the pages."""
    kept = json.loads(DATA.read_text(encoding="utf-8")) if DATA.is_file() else {}
    kept[part] = {
        "commit": commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "rows": [as_dict(row) for row in rows],
    }
    DATA.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    write()


def write() -> None:
    """Write the tables of all pages."""
    kept = json.loads(DATA.read_text(encoding="utf-8"))
    for page in PAGES:
        page.write_text(written(page.read_text(encoding="utf-8"), kept), encoding="utf-8")


def recorded(parts: Sequence[str]) -> str:
    """The tables that are kept of these parts, those of no page too."""
    kept = json.loads(DATA.read_text(encoding="utf-8"))
    return "\n".join(f"### {part}\n\n{_part(part, kept.get(part))}" for part in parts)


def written(text: str, kept: Mapping[str, Any]) -> str:
    """A page with its tables made anew; a part of which nothing is kept says so."""
    return _TABLE.sub(lambda found: found[1] + _part(found[2], kept.get(found[2])) + found[3], text)


def _part(name: str, group: Mapping[str, Any] | None) -> str:
    command = f"`python -m benchmarks.papers --only {name}`"
    if group is None:
        return f"Not run yet: {command}.\n"
    made = table([from_dict(row) for row in group["rows"]])
    return f"{made}\n{command}, {group['commit']}, {group['date']}, {group['machine']}.\n"


if __name__ == "__main__":
    write()
