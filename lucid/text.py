"""Escapes and bounds texts and numbers of others: terminals, browsers and spreadsheets show, not obey, them.

Users choose names of jobs, and sites those of partitions: whatever is in them, a person who reads them sees it. This
is used where text leaves Lucid: ``lucid.cli.console`` for terminals, ``for_html`` in every template, ``csv_cell`` in
tables that people open. JSON, logs too, is written in ASCII, which escapes the same. Numbers and texts are bounded
where they enter: a number that cannot be real counts as none."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

# Control characters (a terminal takes orders from them), format characters (they turn text round, or hide), line and
# paragraph separators, halves of characters (nothing can write them).
_ACTIVE = (
    "\x00-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e007f"
)
_ALL = re.compile(f"[{_ACTIVE}]")
_BUT_LINES = re.compile(f"(?![\n\t])[{_ACTIVE}]")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_LABEL = 60
_FORMULA = re.compile(r"'*[=+\-@\t\r]")


def shown(text: str, *, lines: bool = False) -> str:
    r"""*text* with everything that is not a visible character written out (``\x1b``, ``\u202e``). ``lines``: it is
    text that Lucid made, whose line ends and tabs stay."""
    return (_BUT_LINES if lines else _ALL).sub(_written_out, text)


def _written_out(found: re.Match[str]) -> str:
    char = found[0]
    code = ord(char)
    return _SHORT.get(char) or (
        f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    )


def for_html(value: Any) -> Any:
    """For jinja2's ``finalize``: the text shown; Lucid's own markup, and all else, as it is."""
    return shown(value, lines=True) if type(value) is str else value


def chart_label(name: str) -> str:
    """The text for a label in a drawing, which has limited room."""
    text = shown(name)
    return text if len(text) <= _LABEL else f"{text[: _LABEL - 1]}…"


def csv_cell(text: str) -> str:
    """A cell that no spreadsheet takes for a formula: with an apostrophe before it, where it begins like one."""
    return f"'{text}" if _FORMULA.match(text) else text


def csv_text(cell: str) -> str:
    """The text of a cell that ``csv_cell`` made."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


MOST: Final = 2**53
"""Bound of counts; whole numbers below it are exact as floats, and fit SQLite's and numpy's 64 bits."""
MOST_S: Final = 253_402_300_800.0
"""Bound of times: the year 10000, beyond which calendars fail."""
MOST_GPUS: Final = 100_000
"""Most GPUs of one request. No cluster has as many, and a node far fewer."""
_DIGITS: Final = 15


def digits(text: str) -> int | None:
    """The whole number that a text is: ASCII digits, at most 15 of them. ``None`` for anything else; ``str.isdigit``
    takes '²', and ``int`` takes '٣' and refuses 5,000 digits."""
    return int(text) if len(text) <= _DIGITS and text.isascii() and text.isdecimal() else None


def finite(value: Any, otherwise: float = 0.0) -> float:
    """A number below 2⁵³, either way from 0; ``otherwise`` for anything else: infinite, too large, of another
    type."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return otherwise
    if not -MOST < value < MOST or not math.isfinite(value):  # in this order: a huge int is no float
        return otherwise
    return float(value)


def moment(value: float) -> float:
    """A time in Unix seconds; 0, which means none, for a time that no calendar has."""
    return value if 0.0 <= value < MOST_S else 0.0


def clean(text: str) -> str:
    """A text that can be written anywhere. JSON can spell half a surrogate pair, UTF-8 cannot: it becomes ``?``."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def text_of(value: Any) -> str:
    """A text field; empty for what is absent.

    Raises:
        TypeError: it is something else."""
    if isinstance(value, str):
        return clean(value)
    if value is None or value == []:
        return ""
    raise TypeError(f"a {type(value).__name__} where a text belongs")


def mapping_of(value: Any) -> Mapping[str, Any]:
    """The value if it is an object of JSON; else one without members."""
    return value if isinstance(value, Mapping) else {}
