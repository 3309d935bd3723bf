"""The memory of pairs in a file, so that it outlives a restart."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from lucid.adapters.bounded import clean
from lucid.adapters.gpu.profile_files import profile_from_dict, profile_to_dict
from lucid.adapters.left_out import LeftOut, Look
from lucid.atomic import write_atomic
from lucid.core.job import JobProfile, Running
from lucid.errors import StoreError
from lucid.models.packing.pair_memory import PairMemory

__all__ = ["PairMemoryFile"]


class PairMemoryFile(PairMemory):
    """A memory of pairs in a JSON file, which is replaced whole, and the profiles of the newest pairs in another
    beside it. What of them cannot be read is left out and learned anew; a file that is no such memory at all is kept
    beside, as ``pairs.json.damaged``."""

    def __init__(self, path: Path, left_out: LeftOut | None = None, *, read_only: bool = False) -> None:
        """``read_only``: a damaged file, or one that this user may not read, stays where it is."""
        super().__init__()
        self._path, self._newest_path = path, path.with_name(f"{path.stem}-newest.json")
        found = left_out or LeftOut()
        with found.look("pairs.json") as look:
            rows = _rows(path, look, read_only)
            self._seen.update(look.each(rows, _pair, lambda row: f"the pair {row[0]}, {row[1]}"))
        with found.look(self._newest_path.name) as look:
            rows = _rows(self._newest_path, look, read_only)
            self.newest.update(look.each(rows, _profiles, lambda row: f"the jobs {row[0]}"))
        self.noted = len(self.newest)

    def take(self, running: Iterable[Running]) -> bool:
        """Note what is seen of the pairs that run now, in the file too. Is anything new?

        Raises:
            StoreError: the file cannot be written.
        """
        changed = super().take(running)
        if changed:
            seen = [[a, b, jobs] for (a, b), jobs in self._seen.items()]
            newest = [[jobs, *map(profile_to_dict, pair)] for jobs, pair in self.newest.items()]
            for path, data in ((self._path, seen), (self._newest_path, newest)):
                try:
                    write_atomic(path, json.dumps(data).encode(), mode=0o600)
                except OSError as error:
                    raise StoreError(f"{path}: cannot be written ({error.strerror})") from None
        return changed


def _rows(path: Path, look: Look, read_only: bool) -> list[Any]:
    """The rows of a file; none where it is not there, or damaged."""
    try:
        rows = json.loads(path.read_bytes())
        if not isinstance(rows, list):
            raise TypeError("it is not a list")
    except FileNotFoundError:
        return []
    except Exception as error:
        look.add(str(path), error)
        if not read_only:
            with suppress(OSError):
                path.replace(path.with_name(f"{path.name}.damaged"))
        return []
    return rows


def _profiles(row: Any) -> tuple[str, tuple[JobProfile, JobProfile]]:
    jobs, one, other = row
    return clean(str(jobs)), (profile_from_dict(one), profile_from_dict(other))


def _pair(row: Any) -> tuple[tuple[str, str], dict[str, tuple[float, float]]]:
    one, other, jobs = row
    speeds = {clean(str(job)): (float(a), float(b)) for job, (a, b) in jobs.items()}
    if not all(math.isfinite(speed) and speed >= 0.0 for pair in speeds.values() for speed in pair):
        raise ValueError("a speed is not a number of at least 0")
    return (clean(str(one)), clean(str(other))), speeds
