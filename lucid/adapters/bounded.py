"""Numbers and texts of others, bounded where they enter: what is no number of this world is none here either."""

from __future__ import annotations

import math
from typing import Any, Final

__all__ = ["MOST", "MOST_GPUS", "MOST_S", "clean", "digits", "finite", "moment", "text_of"]

MOST: Final = 2**53
"""No count is as large; whole numbers below it are exact as floats, and fit SQLite's and numpy's 64 bits."""
MOST_S: Final = 253_402_300_800.0
"""No time is as late: the year 10000, beyond which calendars fail."""
MOST_GPUS: Final = 100_000
"""GPUs of one request. No cluster has as many, and a node far fewer."""
_DIGITS: Final = 15


def digits(text: str) -> int | None:
    """The whole number that a text is: ASCII digits, at most 15 of them. ``None`` for anything else; ``str.isdigit``
    takes '²', and ``int`` takes '٣' and refuses 5,000 digits."""
    return int(text) if len(text) <= _DIGITS and text.isascii() and text.isdecimal() else None


def finite(value: Any, otherwise: float = 0.0) -> float:
    """A number below 2⁵³, either way from 0; ``otherwise`` for what is none: infinite, too large, of another type."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return otherwise
    if not -MOST < value < MOST or not math.isfinite(value):  # in this order: a huge int is no float
        return otherwise
    return float(value)


def moment(value: float) -> float:
    """A time in Unix seconds; 0, which means none, for one that no calendar has."""
    return value if 0.0 <= value < MOST_S else 0.0


def clean(text: str) -> str:
    """A text that can be written anywhere. JSON can spell half a surrogate pair, UTF-8 cannot: it becomes ``?``."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def text_of(value: Any) -> str:
    """A text field; empty for what is absent.

    Raises:
        TypeError: it is something else.
    """
    if isinstance(value, str):
        return clean(value)
    if value is None or value == []:
        return ""
    raise TypeError(f"a {type(value).__name__} where a text belongs")
