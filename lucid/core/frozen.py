"""The decorator ``frozen_dataclass``: frozen for mypy, and at run time only where ``LUCID_FROZEN=1`` is set.

Reasons, decisions and predictions are made by the hundred in each plan: guarding them at run time makes their
construction four times as slow, and costs a tenth of a replay. All tests set ``LUCID_FROZEN=1``; an author of a
policy may too. Snapshots and jobs, which policies read, are always frozen.

There are two hundred such classes, and each start of ``lucidctl`` makes many. So only ``__init__`` is compiled for
each class, a third of the time; comparing and showing use one code for all."""

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
        """A decorator for dataclasses that are compared and hashed as frozen ones are."""

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
