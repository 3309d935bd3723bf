"""A figure of a page, with its words and the same values as a table."""

from __future__ import annotations

from dataclasses import dataclass

from lucid.pages.picture import Picture, Plain

__all__ = ["Drawing", "hours"]


@dataclass(frozen=True, slots=True)
class Drawing:
    """One figure, what stands over and under it, and its values."""

    picture: Picture
    heading: str
    note: str = ""
    table: Plain | None = None


def hours(seconds: float) -> str:
    """As a page shows a time."""
    return f"{seconds / 3600:.2f} h"
