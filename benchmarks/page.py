"""docs/figures.md: its tables are written from benchmarks/figures.json, where the results of each part are kept with
the command, the commit and the machine. ``python -m benchmarks.page`` writes them; so does ``--keep`` of a run."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.figure import Figure, number

__all__ = ["DATA", "PAGE", "commit", "keep", "machine", "written"]

REPO: Final = Path(__file__).resolve().parents[1]
DATA: Final = Path(__file__).with_name("figures.json")
PAGE: Final = REPO / "docs/figures.md"
_TABLE: Final = re.compile(r"(<!-- figures of: ([\w -]+) -->\n).*?(<!-- end -->)", re.DOTALL)
"""The names are of parts, in the order of their rows."""
_HEADER: Final = "| | ours | beside | asked for | command | measured at |\n|---|---|---|---|---|---|\n"


def written(page: str, kept: Mapping[str, Any]) -> str:
    """The page with its tables made anew; what stands around them stays.

    Raises:
        KeyError: a table names a part of which nothing is kept.
    """
    return _TABLE.sub(lambda found: found[1] + _table(found[2].split(), kept) + found[3], page)


def keep(found: Mapping[str, Iterable[Figure]]) -> None:
    """Keep what was measured now in the place of what was kept of these parts, and write the page."""
    kept = json.loads(DATA.read_text(encoding="utf-8"))
    for part, figures in found.items():
        kept[part] = {
            "command": f"python -m benchmarks --only {part}",
            "commit": commit(),
            "date": datetime.now(UTC).date().isoformat(),
            "machine": machine(),
            "rows": [_row(figure) for figure in figures],
        }
    DATA.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), kept), encoding="utf-8")


def machine() -> str:
    """Processor, cores and Python."""
    try:
        told = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        told = ""
    model = re.search(r"model name\s*: (.+)", told)
    name = model[1].strip() if model else platform.machine()
    return f"{os.cpu_count()} cores of {name}, Python {platform.python_version()}"


def commit() -> str:
    """The commit that is checked out, and whether the program was changed since."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=REPO, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", "lucid", "benchmarks")
    return git("rev-parse", "--short", "HEAD") + (" with changes" if changed else "")


def _row(figure: Figure) -> dict[str, str]:
    def told(value: float) -> str:
        return f"{number(value)} {figure.unit}".strip()

    ratio = "" if figure.ratio is None else f" ({figure.ratio:.2f} x)"
    return {
        "what": figure.what + (f" ({figure.note})" if figure.note else ""),
        "ours": told(figure.value),
        "beside": "" if figure.baseline is None else f"{figure.baseline_name} {told(figure.baseline)}{ratio}",
        "asked": figure.target + {None: "", True: ", met", False: ", **missed**"}[figure.met],
    }


def _table(parts: Iterable[str], kept: Mapping[str, Any]) -> str:
    lines, machines = [], dict[str, str]()
    for part in parts:
        group = kept[part]
        mark = machines.setdefault(group["machine"], chr(ord("A") + len(machines)))
        when = f"{group['commit']}, {group['date']}, {mark}"
        command = f"`{group['command']}`"
        for row in group["rows"]:
            cells = [row["what"], row["ours"], row["beside"], row["asked"], command, when]
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n")
            command, when = "the same", ""
    told = "; ".join(f"**{mark}**: {name}" for name, mark in machines.items())
    return f"{_HEADER}{''.join(lines)}\nMachines: {told}.\n"


def main() -> None:
    """Write the page from what is kept."""
    kept = json.loads(DATA.read_text(encoding="utf-8"))
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), kept), encoding="utf-8")


if __name__ == "__main__":
    main()
