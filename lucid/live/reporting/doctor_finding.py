"""One thing that ``lucidctl doctor`` looked at."""

from __future__ import annotations

from lucid.core.frozen import dataclass

__all__ = ["Finding", "bad", "warn"]


@dataclass(frozen=True, slots=True)
class Finding:
    """``level``: ``bad`` (does not work), ``warn`` (works less well) or ``ok``. ``remedy`` says what to do.
    ``setup_mends``: ``lucidctl setup`` writes what is missing."""

    level: str
    what: str
    remedy: str = ""
    setup_mends: bool = False

    def to_dict(self) -> dict[str, str]:
        """JSON form."""
        return {"level": self.level, "what": self.what, "remedy": self.remedy}


def bad(what: str, remedy: str, setup_mends: bool = False) -> Finding:
    """It does not work."""
    return Finding("bad", what, remedy, setup_mends)


def warn(what: str, remedy: str) -> Finding:
    """It works less well."""
    return Finding("warn", what, remedy)
