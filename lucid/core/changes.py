"""By which jobs a partition differs from an earlier one: few come and go between two looks, and thousands stay."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import ref

from lucid.core.frozen import dataclass

__all__ = ["Changed", "Changes", "Versioned", "changed_names", "key_of"]

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


# Mappings by name of which most entries are the same objects as in the mapping before.


_T = TypeVar("_T")


class Versioned(dict[str, _T]):
    """A mapping that says in which names it may differ from an earlier one with the same names. Who went through that
    one need not go through all of this one. It does not change once it was handed out. A copy of it is a plain
    mapping, and says nothing."""

    __slots__ = ("changed", "key", "since")

    def __init__(
        self, entries: Mapping[str, _T], since: object | None = None, changed: Mapping[str, _T] | None = None
    ) -> None:
        """``since``: the key of the earlier mapping, which are the ``entries``; ``changed``: what there is now under
        some of its names, in its order."""
        super().__init__(entries)
        if changed:
            self.update(changed)
        self.key = object()
        self.since = since
        self.changed: Collection[str] = tuple(entries if changed is None else changed)


def changed_names(seen: object | None, mapping: Mapping[str, Any]) -> Collection[str]:
    """The names under which it may have other objects than the mapping with the key ``seen``, in its order; all of
    them where that is not known."""
    if seen is not None and isinstance(mapping, Versioned):
        if mapping.key is seen:
            return ()
        if mapping.since is seen:
            return mapping.changed
    return mapping.keys()


def key_of(mapping: Mapping[str, Any]) -> object | None:
    """By which it is known that this is the mapping that was gone through; ``None`` where it has none."""
    return mapping.key if isinstance(mapping, Versioned) else None
