"""The decorator of dataclasses of which hundreds are made in a plan: reasons, decisions, predictions.

For mypy, which every change goes through, it is ``dataclasses.dataclass``, so nobody assigns to their fields. At run
time Python does not watch over them: with that it took four times as long to make one, and a tenth of a replay.
What a policy is given to look at (snapshots, jobs) is watched over at run time, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(*, frozen: Literal[True], slots: Literal[True], eq: bool = True) -> Callable[[type], type]:  # noqa: ARG001
        """Equal and hashed as frozen ones are."""
        return dataclasses.dataclass(slots=slots, eq=eq, unsafe_hash=eq)
