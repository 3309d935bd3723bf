"""What plans leave for the next (the shadow of a starvation bound, since when a VC is calm), kept over restarts."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any, Final

from lucid.adapters.store.nouns import noun_from_json, noun_to_json
from lucid.adapters.store.port import Store
from lucid.errors import StoreError

__all__ = ["PolicyMemory"]

_LOG = logging.getLogger("lucidd")
_VIEW: Final = "policy_memory"
_LEAST_EVERY_S: Final = 30.0
_COST: Final = 100.0
"""Keeping it takes at most one part in so many of the daemon's time."""


class PolicyMemory:
    """Keeps the memory of a policy in the store: of the one called ``policy``, and of those in ``own``, by partition.
    Of a daemon that is killed the last half minute is lost: a shadow goes on from when it was kept, with what is
    known by then."""

    def __init__(self, store: Store, policy: str, own: Mapping[str, str] | None = None) -> None:
        self._store = store
        self._policy, self._own = policy, dict(own or {})
        self._kept: Mapping[str, object] = {}
        self._due_s = 0.0
        self._start: Mapping[str, object] | None = None
        self._told: set[str] = set()

    def start_with(self, memory: Mapping[str, object]) -> None:
        """What ``load`` is to give instead of the store's, which is new: the memory of the cycles before."""
        self._start = memory

    def load(self) -> Mapping[str, object]:
        """As it was kept last, by partition; nothing of a partition where another policy or version left it."""
        if self._start is not None:
            return self._start
        data = self._store.view(_VIEW)
        if not isinstance(data, dict):
            return {}
        policy, own = data.get("policy"), data.get("own", {})
        try:
            found = noun_from_json(data.get("memory"))
            kept = {
                name: memory
                for name, memory in found.items()
                if own.get(name, policy) == self._own.get(name, self._policy)
            }
        except Exception as error:
            _LOG.warning("policy memory begins anew", extra={"facts": {"why": str(error)}})
            return {}
        self._kept = kept
        return self._kept

    def keep(self, memory: Mapping[str, object], *, now: bool = False) -> None:
        """Keep it if that is due, or ``now``, and it has changed.

        Raises:
            StoreError: it cannot be written.
        """
        began_s = time.monotonic()
        if memory is self._kept or (began_s < self._due_s and not now) or not (memory or self._kept):
            return
        written = [[name, one] for name, left in memory.items() if (one := self._written(name, left)) is not None]
        self._store.put_view(_VIEW, {"policy": self._policy, "own": self._own, "memory": {"map": written}})
        self._kept = memory
        took_s = time.monotonic() - began_s
        self._due_s = began_s + took_s + max(_LEAST_EVERY_S, _COST * took_s)

    def _written(self, name: str, left: object) -> Any:
        """What one partition's plan left, as it is kept; ``None`` where it is of a kind that cannot be."""
        try:
            return noun_to_json(left)
        except StoreError as error:
            if name not in self._told:
                self._told.add(name)
                facts = {"partition": name, "why": str(error)}
                _LOG.warning("what a plan leaves for the next is not kept over a restart", extra={"facts": facts})
            return None
