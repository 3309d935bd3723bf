"""The kinds of waste, what each is called, and what a user can do about it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

__all__ = ["ADVICE", "HELD", "TITLES", "WasteKind"]


class WasteKind(StrEnum):
    """One GPU-hour is of one kind at most. The values are labels in /metrics and keys in JSON."""

    IDLE_START = "idle_from_start"
    IDLE_AFTER = "idle_after_activity"
    NO_PROCESS = "no_process"
    UNUSED_GPUS = "larger_than_needed"
    NOT_SHARED = "could_have_shared"
    LONG_LIMIT = "time_limit_too_long"


HELD: Final = tuple(kind for kind in WasteKind if kind is not WasteKind.LONG_LIMIT)
"""Kinds whose hours were really held. Hours of a time limit that are left over went to others; a limit that is too
long costs the job itself a later start, because it fits into fewer gaps."""

TITLES: Final[Mapping[WasteKind, str]] = {
    WasteKind.IDLE_START: "idle from the start",
    WasteKind.IDLE_AFTER: "idle after activity",
    WasteKind.NO_PROCESS: "allocated without a process on the GPU",
    WasteKind.UNUSED_GPUS: "more GPUs than used",
    WasteKind.NOT_SHARED: "could have shared its GPUs",
    WasteKind.LONG_LIMIT: "time limit far too long",
}

ADVICE: Final[Mapping[WasteKind, str]] = {
    WasteKind.IDLE_START: (
        "Look at the first lines of the job's output. Does the program find the GPU, or does it wait for data? "
        "Prepare data in a job without GPUs."
    ),
    WasteKind.IDLE_AFTER: (
        "Let the job end when its work ends. Run evaluations and other CPU work in a job of its own; end notebooks "
        "that are not in use."
    ),
    WasteKind.NO_PROCESS: (
        "No program of the job used the GPU. Start the program in the job's script, or ask for no GPU; end "
        "interactive allocations that are not in use."
    ),
    WasteKind.UNUSED_GPUS: (
        "Ask for as many GPUs as the program uses, or start it on all of them (torchrun, accelerate, --gpus)."
    ),
    WasteKind.NOT_SHARED: (
        "The job does not share its GPUs and needs little of them. Leave out the wish not to share: it starts "
        "earlier, and its partner is chosen so that both keep their speed."
    ),
    WasteKind.LONG_LIMIT: "Ask for a time limit near the run time: a job with a short limit starts earlier.",
}
