"""What a run of mutmut found, by room of the project."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from scipy.stats import binomtest

_NOTICED = frozenset({1, 3, 24, 36, 152, 255, -24})
"""Exit codes of mutmut for a mutant that a test failed for, or that ran into its time limit."""


@dataclass(frozen=True, slots=True)
class Score:
    """Mutants of one room: how many were tried, and how many made a test fail."""

    room: str
    tried: int
    noticed: int

    @property
    def share(self) -> float:
        """Between 0 and 1; 0 if none was tried."""
        return self.noticed / self.tried if self.tried else 0.0

    def interval(self) -> tuple[float, float]:
        """95 % interval (Wilson) of the share among all mutants of the room, of which these are a random sample."""
        if not self.tried:
            return 0.0, 1.0
        found = binomtest(self.noticed, self.tried).proportion_ci(method="wilson")
        return float(found.low), float(found.high)


def verdicts(folder: Path) -> dict[str, int | None]:
    """mutmut's exit code by name of each mutant below ``folder``; None for those not tried."""
    found: dict[str, int | None] = {}
    for path in sorted(folder.rglob("*.meta")):
        found.update(json.loads(path.read_text())["exit_code_by_key"])
    return found


def noticed(code: int | None) -> bool:
    """Did a test fail, or run into its time limit?"""
    return code in _NOTICED


def by_room(names: Iterable[str], codes: Mapping[str, int | None]) -> list[Score]:
    """A score for each package below ``lucid`` among ``names``, and one of all of them last. ``codes``: exit codes
    by name."""
    tried, found = Counter[str](), Counter[str]()
    for name in names:
        room = name.split(".")[1]
        tried[room] += 1
        found[room] += noticed(codes[name])
    rooms = [Score(room, tried[room], found[room]) for room in sorted(tried)]
    return [*rooms, Score("all", tried.total(), found.total())]
