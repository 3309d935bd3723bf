"""The memory of pairs in a file, so that it outlives a restart."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from lucid.adapters.bounded import clean
from lucid.adapters.left_out import LeftOut
from lucid.atomic import write_atomic
from lucid.core.job import Running
from lucid.errors import StoreError
from lucid.models.packing.pair_memory import PairMemory

__all__ = ["PairMemoryFile"]


class PairMemoryFile(PairMemory):
    """A memory of pairs in a JSON file, which is replaced whole. What of it cannot be read is left out and learned
    anew; a file that is no such memory at all is kept beside, as ``pairs.json.damaged``."""

    def __init__(self, path: Path, left_out: LeftOut | None = None, *, read_only: bool = False) -> None:
        """``read_only``: a damaged file, or one that this user may not read, stays where it is."""
        super().__init__()
        self._path = path
        with (left_out or LeftOut()).look("pairs.json") as look:
            try:
                rows = json.loads(path.read_bytes())
                if not isinstance(rows, list):
                    raise TypeError("it is not a list")
            except FileNotFoundError:
                return
            except Exception as error:
                look.add(str(path), error)
                if not read_only:
                    with suppress(OSError):
                        path.replace(path.with_name(f"{path.name}.damaged"))
                return
            self._seen.update(look.each(rows, _pair, lambda row: f"the pair {row[0]}, {row[1]}"))

    def take(self, running: Iterable[Running]) -> bool:
        """Note what is seen of the pairs that run now, in the file too. Is anything new?

        Raises:
            StoreError: the file cannot be written.
        """
        changed = super().take(running)
        if changed:
            data = [[a, b, jobs] for (a, b), jobs in self._seen.items()]
            try:
                write_atomic(self._path, json.dumps(data).encode(), mode=0o600)
            except OSError as error:
                raise StoreError(f"{self._path}: cannot be written ({error.strerror})") from None
        return changed


def _pair(row: Any) -> tuple[tuple[str, str], dict[str, tuple[float, float]]]:
    one, other, jobs = row
    speeds = {clean(str(job)): (float(a), float(b)) for job, (a, b) in jobs.items()}
    if not all(math.isfinite(speed) and speed >= 0.0 for pair in speeds.values() for speed in pair):
        raise ValueError("a speed is not a number of at least 0")
    return (clean(str(one)), clean(str(other))), speeds
