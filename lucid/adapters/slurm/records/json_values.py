"""When an answer of Slurm can be used: it holds the list, and no error but that accounting does not answer.

Slurm 24.11 asks slurmdbd for the names of TRES while it prints partitions. With slurmdbd down the answer is whole all
the same, and names an error. The list is slurmctld's own, and right.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lucid.adapters.bounded import clean, finite
from lucid.errors import ClusterError
from lucid.slurmlog.value_formats import NO_LIMIT_S

__all__ = ["accounting_trouble", "checked_list", "number_of", "states_of", "time_limit_s", "words_of"]

_LISTS = ("jobs", "nodes", "partitions")


def number_of(value: Any, otherwise: float = 0.0) -> float:
    """A number in either of its wrappers; ``otherwise`` where it is not set, infinite, or beyond all bounds."""
    if isinstance(value, Mapping):
        if not value.get("set", True) or value.get("infinite"):
            return otherwise
        value = value.get("number")
    return finite(value, otherwise)


def time_limit_s(value: Any) -> float | None:
    """A time limit of Slurm, which counts minutes, in seconds; ``None`` without one."""
    limit_s = number_of(value, -1.0) * 60
    return limit_s if 0 <= limit_s < NO_LIMIT_S else None


def words_of(value: Any) -> list[str]:
    """States come as a list, or over pyslurm as one word."""
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
"""pyslurm names a flag in place of the state that has it."""


def states_of(value: Any) -> list[str]:
    """A job's state, and after it what else is true of the job."""
    words = words_of(value)
    return [_FLAG_ALONE[words[0]], *words] if words and words[0] in _FLAG_ALONE else words


def checked_list(document: Any, key: str, what: str, *, of_slurmctld: bool = True) -> list[Any]:
    """The list that an answer has under *key*, with whatever it holds. ``of_slurmctld``: the list is its own; one
    of slurmdbd's may be cut short by the very error that it names.

    Raises:
        ClusterError: the answer is none, or says that it failed.
    """
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
    """Slurm's words where an answer of slurmctld's has its list, and every error in it is that slurmdbd does not
    answer; empty otherwise. An empty list beside an error proves nothing, and is no such answer."""
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
