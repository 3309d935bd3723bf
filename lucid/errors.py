"""The errors that Lucid raises, each naming what is wrong, where, and what to do; and doctor's ``Finding``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``; did you mean 'queue'?``, for a message about an unknown word; empty where no known word is like it."""
    from difflib import get_close_matches  # imported here: most commands start without a mistake

    near = get_close_matches(word, [*known], n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


class LucidError(Exception):
    """Base of all errors that Lucid raises on purpose; anything else is a bug."""

    exit_code = 1


class ConfigError(LucidError):
    """A setting, option or name is wrong; nothing was changed."""

    exit_code = 2


class TraceError(LucidError):
    """A trace, or a file read with one, cannot be read; the message names file, line, column, value and remedy."""

    exit_code = 2


class ClusterError(LucidError):
    """The cluster (Slurm or the simulated one) could not do what was asked."""

    exit_code = 4


class ClusterUnavailable(ClusterError):
    """The cluster does not answer at present; the same call may succeed later."""


class ClusterUnreadable(ClusterError):
    """The cluster answers in a form that this version of Lucid does not know; only another version helps."""


class Refusal(StrEnum):
    """Why a decided action was not carried out, as it is counted."""

    WRITES_PER_CYCLE = "writes_per_cycle"
    MODE = "mode"
    JOB_MOVED_ON = "job_moved_on"
    """The job is no longer as the plan had it."""
    NODES_NOT_FREE_YET = "nodes_not_free_yet"
    PARTNER_GONE = "partner_gone"
    SLURM_WAS_SILENT = "slurm_was_silent"
    SLURM = "slurm"
    """Slurm declined."""
    SAFETY_CHECK = "safety_check"


class ActionRefused(ClusterError):
    """The cluster answered and declined one action; record it and go on."""

    def __init__(self, words: str, cause: Refusal = Refusal.SLURM) -> None:
        super().__init__(words)
        self.cause = cause


class MetricsError(LucidError):
    """GPU readings could not be taken."""

    exit_code = 5


class StoreError(LucidError):
    """Lucid's own state could not be read or written."""

    exit_code = 6


class ModelError(LucidError):
    """A model cannot be trained, loaded or applied."""

    exit_code = 7


class UnsafePlan(LucidError):
    """A policy proposed something that breaks a safety rule: a bug. Nothing of the plan is applied."""

    exit_code = 70


class UnsafeAction(UnsafePlan):
    """One action of a plan breaks a safety rule; ``job_id`` is its job. A live cluster leaves that action out."""

    def __init__(self, words: str, job_id: str) -> None:
        super().__init__(words)
        self.job_id = job_id


def words_of(error: BaseException) -> str:
    """An error in words; an error that Lucid did not raise on purpose has the name of its class before it."""
    said = str(error)[:500]
    return said if isinstance(error, LucidError) and said else f"{type(error).__name__}: {said}".rstrip(": ")


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of ``lucidctl doctor``. ``level``: ``bad`` (does not work), ``warn`` (works less well) or ``ok``.
    ``remedy`` says what to do. ``setup_mends``: ``lucidctl setup`` writes what is missing."""

    level: str
    what: str
    remedy: str = ""
    setup_mends: bool = False

    def to_dict(self) -> dict[str, str]:
        """The finding as JSON."""
        return {"level": self.level, "what": self.what, "remedy": self.remedy}


def bad(what: str, remedy: str, setup_mends: bool = False) -> Finding:
    """The finding that something does not work."""
    return Finding("bad", what, remedy, setup_mends)


def warn(what: str, remedy: str) -> Finding:
    """The finding that something works less well."""
    return Finding("warn", what, remedy)
