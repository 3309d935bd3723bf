"""The one codec: values as plain JSON data and back, by the types that their classes name.

A field is a member, a tuple a list. A field that an older version did not write has its default; a member that a
later version added is passed over. An array is a list of lists. A class that is neither a record nor a container is
written and read by its own ``to_json`` and ``from_json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

from lucid.text import MOST

_T = TypeVar("_T")


def to_json(value: Any) -> Any:
    """The value as ``json.dumps`` takes it: an Enum as its value, a mapping as an object."""
    return msgspec.to_builtins(value, enc_hook=_written)


def from_json(kind: type[_T], data: Any) -> _T:
    """A value of type ``kind`` made from its JSON form, which its fields' types say how to read and must fit.

    Raises: ValueError: the data does not fit, and the message names the member."""
    return msgspec.convert(data, kind, dec_hook=_read)


def from_text(kind: type[_T], text: str) -> _T:
    """As ``from_json``, of a text of JSON: only the values are made, which take a part of the memory of JSON data.

    Raises: ValueError: the text is not JSON, or does not fit."""
    try:
        return msgspec.json.decode(text, type=kind, dec_hook=_read)
    except msgspec.DecodeError:  # also where json.dumps wrote what is no JSON: infinity, halves of characters
        return from_json(kind, json.loads(text))


def from_others(kind: type[_T], data: Any) -> _T:
    """As ``from_json``, of data that another program, a hand or a bad disk may have written: no number is beyond all
    bounds either."""
    _must_be_bounded(data)
    return from_json(kind, data)


def fitting(kind: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    """Those of some named values in JSON form that are fields of class ``kind`` and fit their types, read as the
    class has them."""
    found: dict[str, Any] = {}
    for name, hint in _hints(kind):
        if name in data:
            with suppress(TypeError, ValueError):
                found[name] = from_others(hint, data[name])
    return found


def has_fields(kind: type) -> bool:
    """Whether it is a class of records."""
    return issubclass(kind, msgspec.Struct) or is_dataclass(kind)


def field_names(kind: Any) -> tuple[str, ...]:
    """The names of the fields of a class of records, in order."""
    return tuple(kind.__struct_fields__ if issubclass(kind, msgspec.Struct) else [f.name for f in fields(kind)])


@lru_cache(maxsize=64)
def _hints(kind: Any) -> tuple[tuple[str, Any], ...]:
    hints = get_type_hints(kind)
    return tuple((name, hints[name]) for name in field_names(kind))


def _written(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return value.tolist() if hasattr(value, "tolist") else value.to_json()


def _read(kind: Any, data: Any) -> Any:
    if hasattr(kind, "from_json"):
        return kind.from_json(data)
    import numpy as np  # a table of numbers; most readers have none, and do not wait for numpy

    table = np.array(data, dtype=get_args(get_args(kind)[1])[0])
    table.setflags(write=False)
    return table


def _must_be_bounded(data: Any) -> None:
    kind = type(data)
    if kind is float or kind is int:
        if not -MOST < data < MOST:  # of nan, too
            raise ValueError(f"the number {data} is beyond all bounds")
    elif kind is dict:
        for item in data.values():
            _must_be_bounded(item)
    elif kind is list or kind is tuple:
        for item in data:
            _must_be_bounded(item)
