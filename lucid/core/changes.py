"""By which jobs a partition differs from an earlier one: few come and go between two looks, and thousands stay."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import ref

from lucid.core.frozen import dataclass

__all__ = ["Changed", "Changes"]

_Entry = TypeVar("_Entry")


@dataclass(frozen=True, slots=True)
class Changes(Generic[_Entry]):
    """``came``: the entries that the earlier one did not have, in their order; ``went``: those that it had. Both by
    identity: an entry of which anything is new came, and the one before it went."""

    came: tuple[_Entry, ...]
    went: tuple[_Entry, ...]


class Changed(Generic[_Entry]):
    """Base of what has entries, and says how they differ from those of an earlier one. The answer is worked out once
    for all who ask, unless it was told. A copy of it knows nothing."""

    __slots__ = ("__weakref__", "_ids", "_last")

    if TYPE_CHECKING:
        _ids: dict[int, _Entry]
        _last: tuple[ref[Changed[_Entry]], Changes[_Entry]]

    def listed(self) -> Iterable[_Entry]:
        """The entries, in order."""
        raise NotImplementedError

    def since(self, before: Changed[_Entry]) -> Changes[_Entry]:
        """How it differs from ``before``."""
        last = getattr(self, "_last", None)
        if last is None or last[0]() is not before:
            ours, theirs = self._by_id(), before._by_id()
            came = tuple([entry for i, entry in ours.items() if i not in theirs])
            went = tuple([entry for i, entry in theirs.items() if i not in ours])
            self.follows(before, Changes(came, went))
        return self._last[1]

    def follows(self, before: Changed[_Entry], changes: Changes[_Entry]) -> None:
        """Whoever made it from ``before`` knows the difference."""
        object.__setattr__(self, "_last", (ref(before), changes))

    def _by_id(self) -> dict[int, _Entry]:
        """No other object has the ``id`` of an entry while it is kept here."""
        if not hasattr(self, "_ids"):
            object.__setattr__(self, "_ids", {id(entry): entry for entry in self.listed()})
        return self._ids
