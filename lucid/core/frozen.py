"""The decorator of frozen dataclasses: reasons, decisions and predictions, of which hundreds are made in a plan, and
all others that commands load and nobody has to guard.

For mypy, which every change goes through, it is ``dataclasses.dataclass``, so nobody assigns to their fields. At run
time Python watches over them only where the environment has ``LUCID_FROZEN=1``, as in all tests: with that it takes
four times as long to make one, and a tenth of a replay. Who writes a policy may set it, too. What a policy is given
to look at (snapshots, jobs) is always watched over.

There are two hundred such classes, and each command of ``lucidctl`` makes many of them when it starts. So only
``__init__`` is compiled for each, which takes a third of the time; how they are compared and shown is the same code
for all.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal

__all__ = ["frozen_dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass as frozen_dataclass
else:
    _WATCHED = os.environ.get("LUCID_FROZEN") == "1"

    def frozen_dataclass(*, frozen: Literal[True], slots: Literal[True], eq: bool = True) -> Callable[[type], type]:  # noqa: ARG001
        """Equal and hashed as frozen ones are."""

        def decorated(cls: type) -> type:
            made = dataclasses.dataclass(frozen=_WATCHED, slots=slots, eq=False, repr=False)(cls)
            names = [field.name for field in dataclasses.fields(made) if field.compare]
            if eq:
                made.__eq__, made.__hash__ = _compared(_values(names))
            made.__repr__ = _shown
            return made

        return decorated


def _values(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda self: tuple(getattr(self, name) for name in names)


def _compared(values: Callable[[Any], tuple[Any, ...]]) -> tuple[Callable[..., Any], Callable[..., int]]:
    def equal(self: Any, other: object) -> Any:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    def hashed(self: Any) -> int:
        return hash(values(self))

    return equal, hashed


def _shown(self: Any) -> str:
    shown = (f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr)
    return f"{self.__class__.__qualname__}({', '.join(shown)})"
