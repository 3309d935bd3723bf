"""One thing that ``lucidctl doctor`` looked at."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Finding", "bad", "warn"]


@dataclass(frozen=True, slots=True)
class Finding:
    """``level``: ``bad`` (does not work), ``warn`` (works less well) or ``ok``. ``remedy`` says what to do."""

    level: str
    what: str
    remedy: str = ""


def bad(what: str, remedy: str) -> Finding:
    """It does not work."""
    return Finding("bad", what, remedy)


def warn(what: str, remedy: str) -> Finding:
    """It works less well."""
    return Finding("warn", what, remedy)
