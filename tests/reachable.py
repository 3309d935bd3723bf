"""All that an object keeps alive, found by the garbage collector's own book: nobody has to keep a list of it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterator
from types import BuiltinMethodType, CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

_OF_THE_CODE = (type, ModuleType, CodeType, FrameType)
_PLAIN = (str, bytes, int, float, complex, type(None))


def walk(root: object, *apart: object) -> Iterator[tuple[str, Any]]:
    """Each object that *root* keeps, once, with the way to it in words; not what is reached through ``apart`` alone,
    nor through the code: of functions only what their closures and defaults hold."""
    seen = {id(one) for one in apart}
    stack: list[tuple[str, Any]] = [(type(root).__name__, root)]
    while stack:
        way, one = stack.pop()
        if id(one) in seen or isinstance(one, _OF_THE_CODE):
            continue
        seen.add(id(one))
        yield way, one
        if not isinstance(one, _PLAIN):
            names = dict(_named(one))
            stack.extend((way + names.get(id(kept), "[]"), kept) for kept in _kept(one))


def _kept(one: Any) -> list[Any]:
    if isinstance(one, FunctionType):
        return [*gc.get_referents(*(one.__closure__ or ())), one.__defaults__, one.__kwdefaults__]
    if isinstance(one, MethodType | BuiltinMethodType):
        return [one.__self__]
    kept = []
    for found in gc.get_referents(one):
        own = found is getattr(one, "__dict__", None)  # its attributes are its own
        kept += gc.get_referents(found) if own else [found]
    return kept


def _named(one: Any) -> Iterator[tuple[int, str]]:
    """The names of its attributes, by the ``id`` of what they are."""
    for cls in type(one).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name != "__weakref__" and hasattr(one, name):  # Python before 3.11.4 refuses to read it
                yield id(getattr(one, name)), f".{name}"
    for name, value in getattr(one, "__dict__", {}).items():
        yield id(value), f".{name}"


def ids_in(one: Any, is_id: Callable[[str], bool]) -> set[str]:
    """The ids among the keys or entries of a container, alone or as part of a tuple."""
    if not isinstance(one, Collection) or isinstance(one, _PLAIN) or not hasattr(one, "__iter__"):
        return set()
    parts = (part for key in tuple(one) for part in (key if isinstance(key, tuple) else (key,)))
    return {str(part) for part in parts if isinstance(part, str | int) and is_id(str(part))}
