"""A search shared out to several machines: each takes its share of the trials, all keep them in one folder.

What an element needs is in ``search.pickle``, so that nodes need neither the log nor the store; what it found is in
``trials-<number>.jsonl``, which it alone writes and goes on from. Elements look at each other's trials before they
ask for the next ones.
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lucid.atomic import write_atomic
from lucid.errors import ConfigError
from lucid.simulator.scenario import Scenario
from lucid.tuner.search import Journal, Trial, search
from lucid.tuner.space import Dimension
from lucid.tuner.tune import about_search, earlier_part

__all__ = ["Spread", "gather", "load_spread", "run_element", "save_spread", "short_elements"]

_SEARCH = "search.pickle"
_APART = 1009
"""Between the seeds of two elements: far more than the trials of any."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A search and how it is shared out. ``asked``: the options of the command, to tell it from another search."""

    scenario: Scenario
    dimensions: tuple[Dimension, ...]
    trials: int
    elements: int
    seed: int
    asked: Mapping[str, Any]

    def share(self, number: int) -> int:
        """Trials of one element."""
        return self.trials // self.elements + (number < self.trials % self.elements)

    def about(self, number: int) -> dict[str, Any]:
        """The first line of an element's journal."""
        return {**about_search(self.scenario, self.dimensions, self.seed), "element": number}


def save_spread(folder: Path, spread: Spread) -> None:
    """Put a search into its folder.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / _SEARCH, pickle.dumps(spread))
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written ({error.strerror}); give --out another folder") from None


def load_spread(folder: Path) -> Spread | None:
    """The search of a folder, ``None`` where there is none yet.

    Reading a pickle runs what is in it, so that one which belongs to somebody else is not read.

    Raises:
        ConfigError: it is somebody else's, or of another version.
    """
    path = folder / _SEARCH
    if not path.exists():
        return None
    if path.stat().st_uid != os.getuid():
        raise ConfigError(
            f"{path} belongs to another user, and reading it would run what is in it; give another --out"
        )
    try:
        found = pickle.loads(path.read_bytes())
    except Exception as error:
        raise ConfigError(f"{path}: of another version of Lucid ({error!r}); give --out a new folder") from None
    if not isinstance(found, Spread):
        raise ConfigError(f"{path}: is no search; give --out a new folder")
    return found


def run_element(folder: Path, number: int, workers: int) -> int:
    """Do what is left of one element's share; how many trials it has in the end.

    Raises:
        ConfigError: the folder holds no search, or the search has no such element.
    """
    spread = load_spread(folder)
    if spread is None or not 0 <= number < spread.elements:
        raise ConfigError(f"{folder}: no search with an element {number} in it; lucidctl tune --slurm makes one")
    journal = Journal(_journal(folder, number), spread.about(number))
    search(
        earlier_part(spread.scenario),
        spread.dimensions,
        journal,
        spread.share(number),
        spread.seed + _APART * number,
        workers,
        others=lambda: [t for k in range(spread.elements) if k != number for t in Journal.read(_journal(folder, k))],
        begins=number == 0,
        simplify=False,
    )
    return len(journal.trials)


def short_elements(folder: Path, spread: Spread) -> dict[int, int]:
    """Elements with trials to do, and how many."""
    left = {k: spread.share(k) - len(Journal.read(_journal(folder, k))) for k in range(spread.elements)}
    return {number: count for number, count in left.items() if count > 0}


def gather(folder: Path, spread: Spread) -> None:
    """Put everybody's trials into ``trials.jsonl``, the present settings first, for the judgement to start from."""
    rows = [trial for k in range(spread.elements) for trial in Journal.read(_journal(folder, k))]
    about = about_search(spread.scenario, spread.dimensions, spread.seed)
    write_atomic(
        folder / "trials.jsonl", "".join(f"{json.dumps(row)}\n" for row in [about, *map(_row, rows)]).encode()
    )


def _row(trial: Trial) -> dict[str, Any]:
    return {"values": dict(trial.values), "score_s": trial.score_s}


def _journal(folder: Path, number: int) -> Path:
    return folder / f"trials-{number}.jsonl"
