"""``Leader``: the lease, by which of several lucidd on one store one acts and the others stand by.

A standby uses only its own monotonic clock, since hosts may differ in time: the acting lucidd counts as dead once the
lease has not changed for as long as a lease lasts (``LeaseWatch``). Without the lease a lucidd writes nothing. Where
the store was deleted, replaced or damaged, ``Carried`` is what the new one takes over from it."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from lucid.core.codec import from_others, to_json
from lucid.daemon.barrier import FailureBarrier
from lucid.errors import ClusterError, StoreError
from lucid.slurm.heartbeat import read_heartbeat
from lucid.store.port import JobNote, Lease, ProfileRow, holder_is_dead, same_host
from lucid.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from lucid.daemon.build import Parts
    from lucid.daemon.reporting.public_view import Published


@dataclass(frozen=True, slots=True)
class Carried:
    """What the new store takes over: notes and profiles of jobs, and the switches. History is left out: sacct gives
    it again as far as ``daemon.catch_up_days`` goes."""

    notes: Mapping[str, JobNote] = field(default_factory=dict)
    profiles: Mapping[str, ProfileRow] = field(default_factory=dict)
    switches: Mapping[str, str] = field(default_factory=dict)
    newer: bool = True
    """Whether this is newer than what the new store holds. False where another daemon has the lease there: its notes
    stay."""

    def put(self, store: SqliteStore, token: int) -> None:
        """Write it into *store*; what was set there meanwhile (``lucidctl pause``) stays.

        Raises: StoreError: it cannot be written."""
        there = store.settings()
        for key, value in self.switches.items():
            if key not in there:
                store.set_setting(key, value)
        noted = {} if self.newer else store.notes()
        for note in self.notes.values():
            if note.job_id not in noted:
                store.put_notes([note], token)
        for row in self.profiles.values():
            store.put_profile(row, f"carried over: job {row.job_id}", token)


def carried_from(store: SqliteStore, switches: Mapping[str, str]) -> Carried:
    """What to take over from a store that is gone but still open. If it cannot be read, only the *switches* are left,
    as they were last read: Slurm's own state is enough to go on from."""
    with suppress(StoreError):
        return Carried(store.notes(), store.profiles(), store.settings())
    return Carried(switches=dict(switches))


def somebody_may_act(store: SqliteStore, heartbeat: Path, now_s: float, lasts_s: float) -> bool:
    """Whether another daemon could be acting by a deleted or replaced store, while this one has what was put there.
    It could where a heartbeat is fresh and *store* knows of no lease that lasted until then: it is new, or an older
    copy. The other daemon notices before its next heartbeat."""
    beat = read_heartbeat(heartbeat)
    if beat is None or abs(now_s - beat.at_s) >= lasts_s:
        return False
    until_s = store.leased_until_s()
    return until_s is None or until_s < beat.at_s


_TELL_EVERY_S = 3.0
_GONE_S = 20.0
"""A standby that has not reported for this long is gone (it reports every few seconds)."""
_STANDBY, _UNREACHED = "standby", "unreached"


class LeaseWatch:
    """Measures how long something in the store has stayed the same, by the clock of this process."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._seen: object = None
        self._since_s = monotonic_s()

    def unchanged_s(self, seen: object) -> float:
        """Seconds since *seen* was first passed; 0 the first time."""
        now_s = self._monotonic_s()
        if seen != self._seen:
            self._seen, self._since_s = seen, now_s
        return now_s - self._since_s


class Standby(Struct, frozen=True):
    """A lucidd that waits for the lease; times by its own clock (Unix)."""

    host: str
    pid: int
    since_s: float
    at_s: float
    holder: str = ""

    def stands_by(self, lease: Lease | None, now_s: float) -> bool:
        """Whether it still stands by, as far as another process can tell. Clocks may be half a minute apart."""
        return (lease is None or lease.holder != self.holder) and abs(now_s - self.at_s) < _GONE_S + 30.0


def standby_of(store: SqliteStore | Published) -> Standby | None:
    """The lucidd that last reported that it stands by; it may have gone since.

    Raises: StoreError: it cannot be read."""
    try:
        return from_others(Standby, store.view(_STANDBY))
    except ValueError:
        return None


_LOG = logging.getLogger("lucidd")
_TURN_S = 60.0
"""A turn that takes longer than this hangs."""
_KNOWS_ALL_S = 45.0
"""How long slurmctld must have answered to know all ended jobs: a node that cannot reach it reports a job's end every
15 s, and waits up to 10 s for its answer."""


class Leader:
    """One daemon's hold on the lease of its store."""

    def __init__(self, parts: Parts, holder: str, barrier: FailureBarrier) -> None:
        """``holder``: the name of this daemon among those of the store."""
        self.lease: Lease | None = None
        """The lease while this daemon has it."""
        self.holder = holder
        self._parts = parts
        self._barrier = barrier
        self._seen, self._other = LeaseWatch(parts.monotonic_s), LeaseWatch(parts.monotonic_s)
        self._waits_since_s: float | None = None
        self._reported_s = self._silent_s = float("-inf")
        self._had = False

    @property
    def lasts_s(self) -> float:
        """Seconds that a lease lasts from its last renewal."""
        return max(self._parts.settings.daemon.lease_s, 2 * self._parts.settings.slurm.poll_idle_s)

    def hold(self) -> Lease | None:
        """Take or renew the lease; returns ``None`` where another daemon has it, or may still act.

        Raises: StoreError: the store cannot be read or written."""
        parts, now_s = self._parts, self._parts.clock.now_s()
        heartbeat = Path(parts.settings.daemon.heartbeat)
        if not self._had and somebody_may_act(parts.store, heartbeat, now_s, self.lasts_s):
            self._barrier.standing_by(
                "the store is newer than a fresh heartbeat, so another lucidd may still act; waiting until that "
                "heartbeat is stale"
            )
            return None
        held, lease = parts.store.lease(), None
        if self._may_take(held):
            lease = parts.store.take_lease(self.holder, now_s, self.lasts_s, held)
        if lease is None:
            if self.lease is not None:
                self.step_down("its lease ran out and another daemon has it")
            self._stand_by(held, now_s)
            return None
        self._waits_since_s = None
        if self.lease is None or lease.token != self.lease.token:
            _LOG.info("lease taken", extra={"facts": {"token": lease.token, "holder": lease.holder}})
            if held is not None and not same_host(held.holder):
                self.slurm_was_silent()  # slurmctld may have moved, too
        self.lease, self._had = lease, True
        return lease

    def _may_take(self, held: Lease | None) -> bool:
        """Whether this daemon may take the lease: it is its own, nobody's, of a dead process, not renewed for as long
        as it lasts, or offered by a lucidd that does not reach Slurm while this one does."""
        if held is None or held.holder == self.holder or holder_is_dead(held.holder):
            return True
        if self._seen.unchanged_s(held) >= self.lasts_s:
            return True
        offer: Any = self._parts.store.view(_UNREACHED)
        if not isinstance(offer, dict) or offer.get("token") != held.token:
            return False
        try:
            self._parts.client.jobs()
        except ClusterError:
            return False
        return True

    def _stand_by(self, held: Lease | None, now_s: float) -> None:
        if self._waits_since_s is None:
            self._waits_since_s = now_s
            _LOG.info("standing by", extra={"facts": {"acts": held.holder if held else ""}})
        if self._parts.monotonic_s() - self._reported_s >= _TELL_EVERY_S:
            self._reported_s = self._parts.monotonic_s()
            me = Standby(socket.gethostname(), os.getpid(), self._waits_since_s, now_s, self.holder)
            self._parts.store.put_view(_STANDBY, to_json(me))
        self._barrier.feed()

    def step_down(self, why: str) -> None:
        """Give up acting: another daemon has the lease."""
        _LOG.warning("another lucidd acts: this one stands by", extra={"facts": {"why": why}})
        self.lease = None

    def renew(self, turn_s: float) -> None:
        """Renew the lease while a turn takes long (a slow slurmctld, many changes), ``turn_s`` seconds so far; a turn
        that hangs loses it. Called from a thread of its own."""
        lease, parts = self.lease, self._parts
        if lease is None or turn_s > _TURN_S:
            return
        with suppress(StoreError):
            held = parts.store.lease()
            if held is not None and held.holder == self.holder and held.token == lease.token:
                parts.store.take_lease(self.holder, parts.clock.now_s(), self.lasts_s)

    def slurm_was_silent(self) -> None:
        """Note that slurmctld did not answer just now."""
        self._silent_s = self._parts.monotonic_s()

    def offer(self) -> None:
        """Offer the lease, since this one does not reach Slurm: a standby that does may take it at once. The offer is
        written unless the store has it: an offer of an earlier lease of this one does not count.

        Raises: StoreError: the offer cannot be written."""
        store = self._parts.store
        if self.lease is not None and store.view(_UNREACHED) != (offer := {"token": self.lease.token}):
            store.put_view(_UNREACHED, offer)

    def slurm_knows_all(self) -> bool:
        """Whether slurmctld, on whichever host it acts, has answered for so long that it knows which jobs ended
        meanwhile. A job that is started over must not have ended already."""
        return self._parts.monotonic_s() - self._silent_s >= _KNOWS_ALL_S

    def standby(self) -> Standby | None:
        """The lucidd that stands by now, as far as this one's clock tells; asked by the one that acts and reaches
        Slurm, which withdraws its offer.

        Raises: StoreError: the store cannot be read or written."""
        store = self._parts.store
        if store.view(_UNREACHED) is not None:
            store.put_view(_UNREACHED, None)
        seen, found = store.view(_STANDBY), standby_of(store)
        if found is None or found.holder == self.holder:
            return None
        return found if self._other.unchanged_s(seen) < _GONE_S else None
