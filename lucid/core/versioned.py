"""Mappings by name of which most entries are the same objects as in the mapping before."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeVar

__all__ = ["Versioned", "changed_names", "key_of"]

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
