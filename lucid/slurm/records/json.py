"""JSON of others read as far as it can be, and whether an answer of Slurm can be used.

Slurm's answers hold texts of its users as they wrote them: bytes that are no UTF-8, control characters. One of them
must not make a whole answer unreadable. An answer that was cut short stays an error: half a list of jobs is not a
list of fewer jobs. An answer can be used if it holds the list, and no error but that accounting does not answer:
Slurm 24.11 asks slurmdbd for the names of TRES while it prints partitions, and with slurmdbd down the list is whole
and right all the same."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from lucid.accounting.values import NO_LIMIT_S
from lucid.errors import ClusterError
from lucid.text import MOST, clean, finite

_DEEPEST: Final = 64
"""The deepest nesting that is read; Slurm's answers nest about ten deep."""
_TOKEN: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)
_ESCAPE: Final = re.compile(r'\\(u[0-9a-fA-F]{4}|["\\/bfnrt])?')
_RECORD_DEPTH: Final = 3
"""The depth at which records begin: { "jobs": [ { … } ] }."""


def loads(content: str | bytes) -> Any:
    """The document in a text or bytes. Bytes that are no UTF-8 become U+FFFD. Where it does not parse as it is, a
    careful second reading mends wrong escapes, takes ``null`` for what nests too deep and for records that still do
    not parse, and bounds numbers.

    Raises: ValueError: it is no JSON, or was cut short."""
    text = content.decode("utf-8", "replace") if isinstance(content, bytes) else content
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _carefully(text)


def _carefully(text: str) -> Any:
    mended = _ESCAPE.sub(lambda found: found[0] if found[1] else r"\\", text)
    mended = _replaced(mended, _DEEPEST + 1, lambda _: False)
    try:
        return _parsed(mended)
    except (ValueError, RecursionError):
        try:
            return _parsed(_replaced(mended, _RECORD_DEPTH, _parses))
        except RecursionError as error:
            raise ValueError(f"nests too deep ({error})") from None


def _parsed(text: str) -> Any:
    return json.loads(text, strict=False, parse_int=_whole)


def _whole(text: str) -> int | float:
    return int(text) if len(text) < 18 else float(MOST if text[0] != "-" else -MOST)


def _parses(text: str) -> bool:
    try:
        _parsed(text)
    except (ValueError, RecursionError):
        return False
    return True


def _replaced(text: str, depth: int, stays: Callable[[str], bool]) -> str:
    """The text with ``null`` in place of each part in brackets, this deep, that does not stay.

    Raises: ValueError: brackets do not match."""
    kept: list[str] = []
    here = at = begin = 0
    for token in _TOKEN.finditer(text):
        if token[0] in "[{":
            here += 1
            begin = token.start() if here == depth else begin
        elif token[0] in "]}":
            if here == depth and not stays(text[begin : token.end()]):
                kept += [text[at:begin], "null"]
                at = token.end()
            here -= 1
            if here < 0:
                raise ValueError("closes a bracket that it did not open")
    if here:
        raise ValueError("was cut short")
    return "".join([*kept, text[at:]])


_LISTS = ("jobs", "nodes", "partitions")


def number_of(value: Any, otherwise: float = 0.0) -> float:
    """The number in either of its wrappers; ``otherwise`` where it is not set, infinite, or beyond all bounds."""
    if isinstance(value, Mapping):
        if not value.get("set", True) or value.get("infinite"):
            return otherwise
        value = value.get("number")
    return finite(value, otherwise)


def time_limit_s(value: Any) -> float | None:
    """A time limit of Slurm, which counts minutes, in seconds; ``None`` without a limit."""
    limit_s = number_of(value, -1.0) * 60
    return limit_s if 0 <= limit_s < NO_LIMIT_S else None


def words_of(value: Any) -> list[str]:
    """The words of a state, which comes as a list, or from pyslurm as one text."""
    if isinstance(value, str):
        return clean(value).replace("+", " ").split()
    return [clean(str(item)) for item in value] if isinstance(value, list) else []


_FLAG_ALONE = {
    "COMPLETING": "COMPLETED",
    "STAGE_OUT": "COMPLETED",
    "CONFIGURING": "RUNNING",
    "RESIZING": "RUNNING",
    "STOPPED": "RUNNING",
    "SIGNALING": "RUNNING",
    "REQUEUED": "PENDING",
    "REQUEUE_FED": "PENDING",
    "REQUEUE_HOLD": "PENDING",
    "SPECIAL_EXIT": "PENDING",
    "RESV_DEL_HOLD": "PENDING",
}
"""The state that belongs to a flag which pyslurm names in its place."""


def states_of(value: Any) -> list[str]:
    """A job's state, and after it the job's flags."""
    words = words_of(value)
    return [_FLAG_ALONE[words[0]], *words] if words and words[0] in _FLAG_ALONE else words


def checked_list(document: Any, key: str, what: str, *, of_slurmctld: bool = True) -> list[Any]:
    """The list that an answer has under *key*, with whatever it holds. ``of_slurmctld``: the list is slurmctld's own;
    one of slurmdbd's may be cut short by the very error that it names.

    Raises: ClusterError: the document is no answer, or says that it failed."""
    if not isinstance(document, Mapping) or not isinstance(document.get(key), list):
        raise ClusterError(f"{what}: no {key!r} in the answer; is this Slurm 23.11 or later?")
    errors = _errors(document)
    if errors and not (of_slurmctld and document[key] and accounting_trouble(document)):
        raise ClusterError(f"{what}: Slurm answers with an error: {_words(errors[0])}")
    return list(document[key])


def _errors(document: Mapping[str, Any]) -> list[Any]:
    errors = document.get("errors") or []
    return errors if isinstance(errors, list) else [errors]


def accounting_trouble(document: Any) -> str:
    """Slurm's words where an answer of slurmctld has its list and only errors about a silent slurmdbd; else empty. An
    empty list beside an error proves nothing, and does not count as such an answer."""
    if not isinstance(document, Mapping) or not any(document.get(key) for key in _LISTS):
        return ""
    errors = _errors(document)
    if not errors or not all(_of_accounting(error) for error in errors):
        return ""
    return _words(errors[0])


def _of_accounting(error: Any) -> bool:
    if not isinstance(error, Mapping):
        return False
    source, said = str(error.get("source") or ""), str(error.get("description") or "")
    return source.startswith("slurmdb") or said.lower().startswith("slurmdb")


def _words(error: Any) -> str:
    if not isinstance(error, Mapping):
        return str(error)
    said = [str(error[key]) for key in ("description", "error") if error.get(key)]
    return ": ".join(said)
