"""``Section``, the base of all sections of the configuration, and what the type of a field says of its values."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import NoneType
from typing import Annotated, Any, Final, Literal, Self, get_args, get_origin

from msgspec import Meta, Struct, structs


class Section(Struct, frozen=True, kw_only=True):
    """Base of the sections. The text below a field describes it.

    A key that a section lacks is refused where a file is read, and passed over where stored settings are, which an
    older version wrote."""

    def changed(self, values: Mapping[str, Any]) -> Self:
        """A copy with other values by dotted key."""
        own: dict[str, Any] = {}
        below: dict[str, dict[str, Any]] = {}
        for key, value in values.items():
            head, _, rest = key.partition(".")
            (below.setdefault(head, {}) if rest else own)[rest or head] = value
        own |= {head: getattr(self, head).changed(deeper) for head, deeper in below.items()}
        return structs.replace(self, **own)


STUDY: Final = Meta(extra={"study": True})
"""Marks a field that no file sets: a study or lucidd gives it in Python, and a record of a plan holds its value."""
NotNegative = Annotated[float, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
Share = Annotated[float, Meta(ge=0, le=1)]


def keys_of(section: type[Section]) -> dict[str, Any]:
    """The type of each key that a file may set."""
    kinds = {field.name: field.type for field in structs.fields(section)}
    return {name: kind for name, kind in kinds.items() if STUDY not in getattr(kind, "__metadata__", ())}


def is_table(kind: Any) -> bool:
    """Whether this is the type of a section, not of a value."""
    return isinstance(kind, type) and issubclass(kind, Section)


def allowed(kind: Any) -> str:
    """The values that a key of this type may have, in words."""
    if get_origin(kind) is Annotated:
        kind, *metas = get_args(kind)
        bounds = [
            f"{words} {bound:g}"
            for meta in metas
            for words, bound in (("at least", meta.ge), ("more than", meta.gt), ("at most", meta.le))
            if bound is not None
        ]
        return " ".join([allowed(kind), " and ".join(bounds)]).strip()
    if NoneType in get_args(kind):
        return allowed(get_args(kind)[0])
    if get_origin(kind) is Literal:
        return " or ".join(f'`"{value}"`' for value in get_args(kind))
    if get_origin(kind) is tuple:
        return "list of texts"
    if get_origin(kind) is dict:
        inner = allowed(get_args(kind)[1])
        return "table of " + {"text": "texts"}.get(inner, "numbers" if "number" in inner else inner)
    if issubclass(kind, StrEnum):
        return " or ".join(f'`"{value}"`' for value in kind)
    return {bool: "`true` or `false`", int: "whole number", float: "number", str: "text"}.get(kind, "table")
