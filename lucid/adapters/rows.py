"""Rows of the store as nouns, checked by the types that their classes name: another version, a hand or a bad disk may
have written them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from lucid.adapters.bounded import MOST
from lucid.adapters.store import DecisionRow, JobNote, PredictionRow, ProfileRow
from lucid.core.job import Ended, Job, JobProfile
from lucid.core.prediction import prediction_from_dict
from lucid.core.reason import reason_from_dict

__all__ = [
    "checked",
    "decision_row",
    "ended_of",
    "note_of",
    "of_job",
    "prediction_row",
    "profile_of",
    "profile_row",
    "texts_of",
]

_T = TypeVar("_T")


_Check = Callable[[Any], bool]


@lru_cache(maxsize=64)
def _checks(kind: Any) -> tuple[tuple[str, _Check], ...]:
    """For each field of a class, whether a value fits it: made once, for there may be 100,000 rows."""
    hints = get_type_hints(kind)
    return tuple((f.name, _check(hints[f.name])) for f in fields(kind))


def _checks_of(noun: object) -> tuple[tuple[str, _Check], ...]:
    kind: Any = type(noun)
    found: tuple[tuple[str, _Check], ...] = _checks(kind)
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


def _wrong(noun: object) -> list[str]:
    """Names of the fields that are not of their type, or beyond all bounds."""
    return [name for name, fits in _checks_of(noun) if not fits(getattr(noun, name))]


def checked(noun: _T) -> _T:
    """The same noun.

    Raises:
        TypeError: one of its fields is not of its type, or is a number beyond all bounds.
    """
    wrong = _wrong(noun)
    if wrong:
        raise TypeError(f"{type(noun).__name__}: {', '.join(wrong)} cannot be read")
    return noun


def note_of(job_id: str, text: str, told: Callable[[Exception], None]) -> JobNote:
    """A job's note, field by field: what of it cannot be read is as in a note that is new, and told. A note is never
    left out as a whole, for its job would be taken for one that Lucid never touched, and be forgotten too late."""
    try:
        data = json.loads(text)
        if not isinstance(data, dict):
            raise TypeError("the note is no object")
    except Exception as error:
        told(error)
        return JobNote(job_id)
    good = {name: data[name] for name, fits in _checks(JobNote) if name in data and fits(data[name])}
    lost = sorted(data.keys() - good.keys())
    if lost:
        told(TypeError(f"{', '.join(lost)} cannot be read"))
    return JobNote(**{**good, "job_id": job_id})


def profile_of(data: Any) -> JobProfile:
    """A profile.

    Raises:
        TypeError: it is none.
    """
    return checked(JobProfile(**data))


def ended_of(job: str, end_s: float, ran_s: float, state: str, profile: str | None) -> Ended:
    """A job that ended.

    Raises:
        TypeError, ValueError: it is none.
    """
    made = Ended(Job(**json.loads(job)), end_s, ran_s, state, profile_of(json.loads(profile)) if profile else None)
    return checked(made)


def texts_of(rows: list[tuple[Any, ...]]) -> dict[str, str]:
    """Pairs of texts; a pair of something else is left out."""
    return {key: value for key, value in rows if isinstance(key, str) and isinstance(value, str)}


def of_job(row: Sequence[Any]) -> str:
    """Its name, for what is left out."""
    return f"job {row[0]}"


def profile_row(row: Sequence[Any]) -> ProfileRow:
    """A row of profiles; raises where it is none."""
    return checked(ProfileRow(row[0], row[1], row[2], row[3], profile_of(json.loads(row[4])), row[5]))


def decision_row(row: Sequence[Any]) -> DecisionRow:
    """A row of decisions; raises where it is none."""
    reasons = tuple(checked(reason_from_dict(item)) for item in json.loads(row[4]))
    at_s, job_id, partition, verb, _, *rest = row
    return checked(DecisionRow(at_s, job_id, partition, verb, reasons, *rest))


def prediction_row(row: Sequence[Any]) -> PredictionRow:
    """A row of predictions; raises where it is none."""
    job_id, at_s, user, data = row
    return checked(PredictionRow(job_id, at_s, user, prediction_from_dict(json.loads(data))))
