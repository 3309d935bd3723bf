"""Dataclasses as JSON and back, where the reader knows the class: a field is a member, a tuple a list.

Used by the store, by the files of lucidd and of samplers, and by ``--json``. A field that an older version did not
write has its default; a member that a later version added is passed over. Types are checked by
``lucid.core.checked``, not here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

_T = TypeVar("_T")
_Read = Callable[[Any], Any]


def to_json(value: Any) -> Any:
    """The value as ``json.dumps`` takes it: an Enum as its value, a mapping as an object."""
    kind = type(value)
    if kind in (str, int, float, bool, NoneType):
        return value
    if is_dataclass(kind):
        return {name: to_json(getattr(value, name)) for name in _names(kind)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    return value


def from_json(kind: type[_T], data: Any) -> _T:
    """An object of class ``kind`` made from its JSON form; the types of its fields say how each member is read.

    Raises: TypeError, ValueError: a member without a default is missing, or the data has another shape than the
    class."""
    of: Any = kind
    made: _T = _reader(of)(data)
    return made


@lru_cache(maxsize=256)
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind))


@lru_cache(maxsize=256)
def _reader(hint: Any) -> _Read:
    origin, of = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        made = [_reader(item) for item in of if item is not NoneType]
        read = made[0] if len(made) == 1 else _as_it_is
        return lambda data: None if data is None else read(data)
    if isinstance(hint, type) and is_dataclass(hint):
        return _class_reader(hint)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint
    if isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields"):
        return lambda data: hint(*data)
    if origin is tuple and of[1:] == (...,):
        each = _reader(of[0])
        return lambda data: tuple(each(item) for item in _list(data))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        named = _reader(of[1])
        return lambda data: {key: named(item) for key, item in _object(data).items()}
    if origin is tuple:
        row = [_reader(item) for item in of]
        return lambda data: tuple(read(item) for read, item in zip(row, _list(data), strict=True))
    return _as_it_is


def _class_reader(kind: Any) -> _Read:
    hints = get_type_hints(kind)
    readers = [(name, _reader(hints[name])) for name in _names(kind)]

    def read(data: Any) -> Any:
        if isinstance(data, kind):
            return data  # read before, by who decoded the text piece by piece
        if not isinstance(data, Mapping):
            raise TypeError(f"{data!r} is no {kind.__name__}")
        return kind(**{name: reader(data[name]) for name, reader in readers if name in data})

    return read


def _list(data: Any) -> list[Any]:
    if not isinstance(data, list | tuple):
        raise TypeError(f"{data!r} is no list")
    return list(data)


def _object(data: Any) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise TypeError(f"{data!r} is no object")
    return data


def _as_it_is(data: Any) -> Any:
    return data
