"""Which texts of a record everybody may read: the type of a field says so, and ``without_names`` hides the rest.

A field that is plainly a ``str`` is hidden from others, so a text that nobody thought of is shown to nobody."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from lucid.core.codec import field_names, has_fields

Shown = Annotated[str, "shown"]
"""A text that names no person: ids of jobs, nodes, VCs, models, rules, and Slurm's own words."""
UserName = Annotated[str, "user"]
"""The name of a user: others see an alias."""

_Alias = Callable[[str], str]
_Hide = Callable[[Any, _Alias], Any]


def without_names(kind: Any, data: Any, alias: _Alias) -> Any:
    """A record of class ``kind`` as ``to_json`` gives it, without what others may not read. ``alias``: gives the name
    that stands for a user. Members that are no fields of the class stay as they are."""
    hide = _hider(kind)
    return data if hide is None else hide(data, alias)


@cache
def _hider(hint: Any) -> _Hide | None:
    """The function that hides names in a value of this type; ``None`` where there is nothing to hide."""
    origin, of = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return None if "shown" in of else _user if "user" in of else _hider(of[0])
    if (
        origin is Literal
        or hint in (int, float, bool, NoneType)
        or (isinstance(hint, type) and issubclass(hint, Enum))
    ):
        return None
    if hint is str:
        return _nothing
    if origin in (Union, UnionType):
        hiders = [_hider(item) for item in of if item is not NoneType]
        return _optional(hiders[0]) if len(hiders) == 1 else None if not any(hiders) else _left_out
    if isinstance(hint, type) and (has_fields(hint) or hasattr(hint, "_fields")):
        return _of_members(hint)
    if origin is tuple and of[1:] == (...,):
        return _each(_hider(of[0]))
    if origin is tuple:
        return None if not any(map(_hider, of)) else _left_out
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return None if _hider(of[0]) is None and _hider(of[1]) is None else _left_out
    return _left_out


def _of_members(kind: Any) -> _Hide | None:
    hints = get_type_hints(kind, include_extras=True)
    if hasattr(kind, "_fields"):
        return None if not any(_hider(hints[name]) for name in kind._fields) else _left_out
    hiders = {name: hide for name in field_names(kind) if (hide := _hider(hints[name])) is not None}
    if not hiders:
        return None

    def hide_members(data: Any, alias: _Alias) -> Any:
        return {**data, **{name: hide(data[name], alias) for name, hide in hiders.items() if name in data}}

    return hide_members


def _user(name: Any, alias: _Alias) -> Any:
    return alias(name)


def _nothing(text: Any, alias: _Alias) -> str:  # noqa: ARG001
    return ""


def _left_out(data: Any, alias: _Alias) -> None:  # noqa: ARG001
    return None


def _optional(hide: _Hide | None) -> _Hide | None:
    return None if hide is None else lambda data, alias: None if data is None else hide(data, alias)


def _each(hide: _Hide | None) -> _Hide | None:
    return None if hide is None else lambda data, alias: [hide(item, alias) for item in data]
