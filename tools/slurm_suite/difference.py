"""What Slurm's tests say of a Slurm with Lucid, against what they say of plain Slurm."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

HEADING = "## Slurm's own tests"
"""Of the section of docs/differences.md which names the tests that fail under Lucid."""
LEAST_S = 300.0
"""A test that takes longer is ended."""
SLOWER_S, SLOWER_TIMES = 3.0, 1.5
"""A test is notably slower where it takes both so many seconds and so many times longer."""


@dataclass(frozen=True, slots=True)
class Result:
    """``result``: pass, fail, skip or timeout; ``why``: the test's own last word; ``left``: what it left behind."""

    result: str
    seconds: float
    why: str = ""
    left: str = ""


class Kept:
    """The results of one side, written after each test: an interrupted run loses none."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.results: dict[str, Result] = {}
        if path.exists():
            self.results = {name: Result(**each) for name, each in json.loads(path.read_text()).items()}

    @property
    def logs(self) -> Path:
        """What each test printed."""
        return self.path.with_suffix(".logs")

    def drop(self, names: Iterable[str]) -> None:
        """Forget these: they are run anew."""
        for name in names:
            self.results.pop(name, None)

    def put(self, name: str, result: Result, log: str) -> None:
        self.logs.mkdir(parents=True, exist_ok=True)
        (self.logs / f"{name}.log").write_text(log)
        self.results[name] = result
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps({name: asdict(each) for name, each in self.results.items()}, indent=1) + "\n")
        new.rename(self.path)


@dataclass(frozen=True, slots=True)
class Difference:
    """``failing``: pass on plain Slurm, fail under Lucid, and are not named; ``named``: do so, and are; ``unsteady``:
    failed once and passed when they were run again; ``mended``: are named, and pass; ``slower``: seconds on both
    sides; ``both``: tests that passed on plain Slurm and were run under Lucid."""

    both: int
    failing: dict[str, Result] = field(default_factory=dict)
    named: dict[str, Result] = field(default_factory=dict)
    unsteady: list[str] = field(default_factory=list)
    mended: list[str] = field(default_factory=list)
    slower: dict[str, tuple[float, float]] = field(default_factory=dict)
    plain_s: float = 0.0
    lucid_s: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def compare(
    plain: Mapping[str, Result],
    lucid: Mapping[str, Result],
    named: Mapping[str, str],
    again: Mapping[str, Result] | None = None,
) -> Difference:
    """``named``: the reasons of docs/differences.md, by test; ``again``: the second runs of those that failed."""
    tests = [name for name in lucid if name in plain and plain[name].result == "pass"]
    last = {**lucid, **(again or {})}
    bad = {name: last[name] for name in tests if last[name].result != "pass"}
    return Difference(
        both=len(tests),
        failing={name: result for name, result in bad.items() if name not in named},
        named={name: result for name, result in bad.items() if name in named},
        unsteady=[name for name in tests if name not in bad and lucid[name].result != "pass"],
        mended=[name for name in tests if name in named and name not in bad],
        slower={
            name: (plain[name].seconds, last[name].seconds)
            for name in tests
            if name not in bad
            and last[name].seconds > plain[name].seconds + SLOWER_S
            and last[name].seconds > plain[name].seconds * SLOWER_TIMES
        },
        plain_s=sum(plain[name].seconds for name in tests if name not in bad),
        lucid_s=sum(last[name].seconds for name in tests if name not in bad),
    )


def limit_of(plain: Result) -> float:
    """Seconds that a test may take with Lucid: one that is slow on plain Slurm too is not ended for that."""
    return max(LEAST_S, 2 * plain.seconds)


def named_in(page: str) -> dict[str, str]:
    """Test and reason of each entry below ``HEADING``; entries begin with the test's number."""
    _, _, rest = page.partition(f"{HEADING}\n")
    section = re.split(r"^## ", rest, maxsplit=1, flags=re.M)[0]
    entries = (" ".join(text.split()) for text in re.split(r"^- ", section, flags=re.M))
    found = (re.match(r"(\d+\.\d+): .*\*Why:\* (.*)", text) for text in entries)
    return {entry[1]: entry[2] for entry in found if entry}


def as_text(found: Difference, named: Mapping[str, str]) -> str:
    """For people."""
    lines = [f"{found.both} tests pass on plain Slurm and were run with Lucid"]
    for title, group in (
        ("pass on plain Slurm and fail with Lucid", found.failing),
        ("fail with Lucid, as docs/differences.md says", found.named),
    ):
        if group:
            lines += ["", f"{len(group)} {title}:"]
            lines += [
                f"  {name:8} {result.result:8} {named.get(name) or result.why}"[:200]
                for name, result in group.items()
            ]
    if found.mended:
        lines += ["", f"named in docs/differences.md, and pass: {', '.join(found.mended)}: take these rows away"]
    if found.unsteady:
        lines += ["", f"failed once with Lucid and passed when run again: {', '.join(found.unsteady)}"]
    if found.slower:
        lines += ["", "notably slower with Lucid:", f"  {'test':8} {'plain, s':>9} {'Lucid, s':>9}"]
        lines += [f"  {name:8} {before:9.1f} {after:9.1f}" for name, (before, after) in found.slower.items()]
    lines += [
        "",
        f"those that pass on both sides: {found.plain_s:.0f} s on plain Slurm, {found.lucid_s:.0f} s with Lucid",
    ]
    return "\n".join(lines)
