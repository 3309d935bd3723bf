"""Results on disk: those of plain Slurm serve later runs, too."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from slurm_suite.difference import Result

__all__ = ["Kept"]


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
