"""All kinds of model that Lucid learns."""

from __future__ import annotations

from typing import Any, Final

from lucid.errors import ModelError
from lucid.models.duration.kind import DURATION
from lucid.models.packing.kind import PAIRS, SHARE
from lucid.models.throughput.kind import THROUGHPUT
from lucid.models.upkeep.kind import Kind

__all__ = ["KINDS", "find_kind"]

KINDS: Final[tuple[Kind[Any, Any], ...]] = (DURATION, SHARE, PAIRS, THROUGHPUT)


def find_kind(name: str) -> Kind[Any, Any]:
    """The kind of that name.

    Raises:
        ModelError: no kind has it.
    """
    for kind in KINDS:
        if kind.name == name:
            return kind
    raise ModelError(f"no kind of model is called {name!r}; known are {', '.join(kind.name for kind in KINDS)}")
