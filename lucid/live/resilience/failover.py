"""Several lucidd on one store, of which one acts: when a lease has run out, which ones stand by, which hands over.

A standby uses only its own monotonic clock: hosts may differ in time. The one that acts is dead to it once the
lease has not changed for as long as a lease lasts (``LeaseWatch``).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any, Protocol

from lucid.adapters.store.port import Lease, Store, holder_is_dead
from lucid.core.frozen import dataclass

__all__ = ["Failover", "LeaseWatch", "Standby", "Views", "standby_of"]

_TELL_EVERY_S = 3.0
_GONE_S = 20.0
"""A standby that has not said so for this long is none (it does so every few seconds)."""
_STANDBY, _UNREACHED = "standby", "unreached"


class Views(Protocol):
    """What can be asked for what lucidd last wrote: its store, or what it publishes of it."""

    def view(self, name: str) -> Any:
        """The view of this name; ``None`` where there is none."""


class LeaseWatch:
    """How long something in the store has stayed the same, by the clock of this process."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._seen: object = None
        self._since_s = monotonic_s()

    def unchanged_s(self, seen: object) -> float:
        """Seconds since *seen* was first told here; 0 the first time."""
        now_s = self._monotonic_s()
        if seen != self._seen:
            self._seen, self._since_s = seen, now_s
        return now_s - self._since_s


@dataclass(frozen=True, slots=True)
class Standby:
    """A lucidd that waits for the lease; times by its own clock (Unix)."""

    host: str
    pid: int
    since_s: float
    at_s: float
    holder: str = ""

    def stands_by(self, lease: Lease | None, now_s: float) -> bool:
        """Does it still, as far as another process can tell? Clocks may be half a minute apart."""
        return (lease is None or lease.holder != self.holder) and abs(now_s - self.at_s) < _GONE_S + 30.0


def standby_of(store: Views) -> Standby | None:
    """Who said last that it stands by; it may be gone since.

    Raises:
        StoreError: it cannot be read.
    """
    seen = store.view(_STANDBY)
    try:
        times = float(seen["since_s"]), float(seen["at_s"])
        return Standby(str(seen["host"]), int(seen["pid"]), *times, str(seen["holder"]))
    except (TypeError, KeyError, ValueError, OverflowError):
        return None


class Failover:
    """One daemon's part in it: it waits for the lease, or acts and knows which daemons wait."""

    def __init__(self, holder: str, monotonic_s: Callable[[], float]) -> None:
        self._holder = holder
        self._monotonic_s = monotonic_s
        self._lease = LeaseWatch(monotonic_s)
        self._other = LeaseWatch(monotonic_s)
        self._waits_since_s: float | None = None
        self._told_s = float("-inf")

    # -- that waits ------------------------------------------------------------------------------------------

    def may_take(self, store: Store, held: Lease | None, lasts_s: float, reaches: Callable[[], bool]) -> bool:
        """Is the lease this daemon's, nobody's, of a process that is dead, not renewed for ``lasts_s``, or offered by
        one that does not reach Slurm while this one does (``reaches``)?

        Raises:
            StoreError: the store cannot be read.
        """
        if held is None or held.holder == self._holder or holder_is_dead(held.holder):
            return True
        if self._lease.unchanged_s(held) >= lasts_s:
            return True
        offer: Any = store.view(_UNREACHED)
        return isinstance(offer, dict) and offer.get("token") == held.token and reaches()

    def wait(self, store: Store, now_s: float) -> bool:
        """Tell in the store that this one stands by; is that new?

        Raises:
            StoreError: it cannot be written.
        """
        new = self._waits_since_s is None
        if self._waits_since_s is None:
            self._waits_since_s = now_s
        if self._monotonic_s() - self._told_s >= _TELL_EVERY_S:
            self._told_s = self._monotonic_s()
            me = {"host": socket.gethostname(), "pid": os.getpid(), "holder": self._holder}
            store.put_view(_STANDBY, {**me, "since_s": self._waits_since_s, "at_s": now_s})
        return new

    # -- that acts -------------------------------------------------------------------------------------------

    def acts(self) -> None:
        """This one has the lease."""
        self._waits_since_s = None

    def standby(self, store: Store) -> Standby | None:
        """Who stands by now, as far as this one's clock tells.

        Raises:
            StoreError: it cannot be read.
        """
        seen: Any = store.view(_STANDBY)
        if not isinstance(seen, dict) or seen.get("holder") == self._holder:
            return None
        found = standby_of(store)
        return found if self._other.unchanged_s(seen) < _GONE_S and found is not None else None

    def offer(self, store: Store, token: int) -> None:
        """This one does not reach Slurm: whoever stands by and does may have the lease at once. What the store says
        decides whether it has to be told: the offer of a lease that this one had before is none of this one.

        Raises:
            StoreError: it cannot be read or written.
        """
        offer = {"token": token}
        if store.view(_UNREACHED) != offer:
            store.put_view(_UNREACHED, offer)

    def withdraw(self, store: Store) -> None:
        """It reaches Slurm.

        Raises:
            StoreError: it cannot be read or written.
        """
        if store.view(_UNREACHED) is not None:
            store.put_view(_UNREACHED, None)
