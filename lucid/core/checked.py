"""Checks of records that others wrote: each field has the type that its class names, no number is out of bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import lru_cache
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from lucid.core.as_json import from_json, to_json
from lucid.core.job import JobProfile
from lucid.text import MOST

_T = TypeVar("_T")
_Check = Callable[[Any], bool]


@lru_cache(maxsize=64)
def _checks(kind: Any) -> tuple[tuple[str, Any, _Check], ...]:
    """The name and type of each field of a class, with a function that says whether a value fits; cached, for there
    may be 100,000 rows."""
    hints = get_type_hints(kind)
    return tuple((f.name, hints[f.name], _check(hints[f.name])) for f in fields(kind))


def _checks_of(value: object) -> tuple[tuple[str, Any, _Check], ...]:
    kind: Any = type(value)
    found: tuple[tuple[str, Any, _Check], ...] = _checks(kind)
    return found


def _check(hint: Any) -> _Check:
    origin, of = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        any_of = tuple(map(_check, of))
        return lambda value: any(fits(value) for fits in any_of)
    if hint in (int, float):
        kinds: Any = (int,) if hint is int else (int, float)
        return lambda value: type(value) in kinds and -MOST < value < MOST  # false of nan, too
    if origin is tuple and of[1:] == (...,):
        each = _check(of[0])
        return lambda value: isinstance(value, tuple) and all(map(each, value))
    if origin is tuple:
        row = tuple(map(_check, of))
        return lambda value: (
            isinstance(value, tuple)
            and len(value) == len(row)
            and all(fits(item) for fits, item in zip(row, value, strict=True))
        )
    if isinstance(origin, type) and issubclass(origin, Mapping):
        key, item = map(_check, of)
        return lambda value: isinstance(value, Mapping) and all(key(k) and item(v) for k, v in value.items())
    if isinstance(hint, type) and is_dataclass(hint):
        return lambda value: isinstance(value, hint) and not _wrong(value)
    return lambda value: not isinstance(hint, type) or isinstance(value, hint)


def _wrong(value: object) -> list[str]:
    """Names of the fields of a record that are not of their type, or beyond all bounds."""
    return [name for name, _, fits in _checks_of(value) if not fits(getattr(value, name))]


def checked(value: _T) -> _T:
    """The same record, once each of its fields has been checked.

    Raises: TypeError: one of its fields is not of its type, or is a number beyond all bounds."""
    wrong = _wrong(value)
    if wrong:
        raise TypeError(f"{type(value).__name__}: {', '.join(wrong)} cannot be read")
    return value


def fitting(kind: type[Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Those of some named values in JSON form that are fields of class ``kind`` and fit their types, read as the
    class has them."""
    made: Any = kind
    found: dict[str, Any] = {}
    for name, hint, fits in _checks(made):
        if name in data:
            with suppress(TypeError, ValueError):
                value = from_json(hint, data[name])
                if fits(value):
                    found[name] = value
    return found


def profile_to_dict(profile: JobProfile) -> dict[str, Any]:
    """All fields of a profile by name."""
    data: dict[str, Any] = to_json(profile)
    return data


def profile_from_dict(data: Mapping[str, Any]) -> JobProfile:
    """A profile made from its fields by name; fields that this version does not know are left out.

    Raises: ValueError: a value is no share or no size. KeyError, TypeError: a field is missing or of a wrong type."""
    return sound_profile(checked(from_json(JobProfile, data)))


def sound_profile(profile: JobProfile) -> JobProfile:
    """The same profile, once its shares and sizes have been checked.

    Raises: ValueError: a value is no share or no size."""
    for name in ("gpu_util", "mem_util"):
        if not 0 <= getattr(profile, name) <= 100:
            raise ValueError(f"{name} is {getattr(profile, name)}, not a percentage")
    if not 0 <= profile.gpu_mem_mib < 1 << 30:
        raise ValueError(f"gpu_mem_mib is {profile.gpu_mem_mib}, not a size of memory")
    shares = profile.shares
    if shares is not None and not all(0 <= part <= 1 for part in (shares.storage or 0, shares.cpu, shares.gpu)):
        raise ValueError(f"shares are {shares}, not shares of time")
    return profile
