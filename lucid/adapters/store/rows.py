"""Rows of the store as nouns, checked by the types that their classes name: another version, a hand or a bad disk may
have written them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from lucid.adapters.checked import checked, fitting
from lucid.adapters.store.port import DecisionRow, JobNote, PredictionRow, ProfileRow
from lucid.core.as_json import from_json
from lucid.core.job import Ended, Job, JobProfile
from lucid.core.prediction import prediction_from_dict
from lucid.core.reason import reason_from_dict

__all__ = [
    "decision_row",
    "ended_of",
    "note_of",
    "of_job",
    "prediction_row",
    "profile_of",
    "profile_row",
    "texts_of",
]


def note_of(job_id: str, text: str | bytes, told: Callable[[Exception], None]) -> JobNote:
    """A job's note, field by field: what of it cannot be read is as in a note that is new, and told. A note is never
    left out as a whole, for its job would be taken for one that Lucid never touched, and be forgotten too late."""
    try:
        data = json.loads(text)
        if not isinstance(data, dict):
            raise TypeError("the note is no object")
    except Exception as error:
        told(error)
        return JobNote(job_id)
    good = fitting(JobNote, data)
    lost = sorted(data.keys() - good.keys())
    if lost:
        told(TypeError(f"{', '.join(lost)} cannot be read"))
    return JobNote(**{**good, "job_id": job_id})


def profile_of(data: Any) -> JobProfile:
    """A profile.

    Raises:
        TypeError: it is none.
    """
    return checked(from_json(JobProfile, data))


def ended_of(job: str, end_s: float, ran_s: float, state: str, profile: str | None) -> Ended:
    """A job that ended.

    Raises:
        TypeError, ValueError: it is none.
    """
    made = Ended(
        from_json(Job, json.loads(job)), end_s, ran_s, state, profile_of(json.loads(profile)) if profile else None
    )
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
