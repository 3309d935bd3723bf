"""How well estimates ranked the jobs that ended last, as lucidd keeps it over restarts."""

from __future__ import annotations

from lucid.adapters.store.port import Store
from lucid.orchestrator.order.estimate_ranking import TrustBook

__all__ = ["TrustLog"]

_VIEW = "trust"
_EVERY_S = 300.0
"""Of a daemon that is killed the jobs that ended in the last so many seconds are forgotten."""


class TrustLog:
    """The ``book`` of one daemon, begun with what the store has of an earlier one."""

    def __init__(self, store: Store) -> None:
        self._store = store
        try:
            self.book = TrustBook.from_dict(store.view(_VIEW))
        except (KeyError, TypeError, ValueError, AttributeError):  # there is none, or another version wrote it
            self.book = TrustBook()
        self._kept, self._due_s = self.book.looks, 0.0

    def keep(self, now_s: float) -> None:
        """Keep it if that is due and it has changed.

        Raises:
            StoreError: it cannot be written.
        """
        if self.book.looks == self._kept or now_s < self._due_s <= now_s + _EVERY_S:
            return
        self._store.put_view(_VIEW, self.book.to_dict())
        self._kept, self._due_s = self.book.looks, now_s + _EVERY_S
