"""The memory of pairs in a file, so that it outlives a restart."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from lucid.adapters.atomic import write_atomic
from lucid.core.job import Running
from lucid.errors import StoreError
from lucid.models.pair_memory import PairMemory

__all__ = ["PairMemoryFile"]


class PairMemoryFile(PairMemory):
    """A memory of pairs in a JSON file, which is replaced whole.

    Raises:
        StoreError: the file is there and is no such memory.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        if not path.exists():
            return
        try:
            for one, other, jobs in json.loads(path.read_bytes()):
                self._seen[str(one), str(other)] = {str(k): (float(a), float(b)) for k, (a, b) in jobs.items()}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise StoreError(f"{path}: no memory of pairs ({error}); move it away, it is learned anew") from None

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
