"""The lease, without which a lucidd writes nothing: taken, renewed, lost and given back."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path

from lucid.adapters.store.port import Lease, same_host
from lucid.daemon.build import Parts
from lucid.errors import ClusterError, StoreError
from lucid.live.resilience.failover import Failover, Standby
from lucid.live.resilience.failure_barrier import FailureBarrier
from lucid.live.resilience.store_recovery import somebody_may_act

__all__ = ["Leader"]

_LOG = logging.getLogger("lucidd")
_TURN_S = 60.0
"""A turn that takes longer hangs."""
_KNOWS_ALL_S = 45.0
"""A node that cannot reach slurmctld tells it of a job's end every 15 s, and waits up to 10 s for its answer."""


class Leader:
    """One daemon's hold on the lease of its store."""

    def __init__(self, parts: Parts, holder: str, barrier: FailureBarrier) -> None:
        """``holder``: the name of this daemon among those of the store."""
        self.lease: Lease | None = None
        """While this daemon has it."""
        self.holder = holder
        self._parts = parts
        self._barrier = barrier
        self._failover = Failover(holder, parts.monotonic_s)
        self._silent_s = float("-inf")
        self._had = False

    @property
    def lasts_s(self) -> float:
        """Seconds that a lease lasts from its last renewal."""
        return max(self._parts.settings.daemon.lease_s, 2 * self._parts.settings.slurm.poll_idle_s)

    def hold(self) -> Lease | None:
        """Take or renew the lease; ``None`` where another daemon has it, or may still act.

        Raises:
            StoreError: the store cannot be read or written.
        """
        parts, now_s = self._parts, self._parts.clock.now_s()
        heartbeat = Path(parts.settings.daemon.heartbeat)
        if not self._had and somebody_may_act(parts.store, heartbeat, now_s, self.lasts_s):
            self._barrier.standing_by(
                "the store is newer than a fresh heartbeat, so another lucidd may still act; waiting until that "
                "heartbeat is stale"
            )
            return None
        held, lease = parts.store.lease(), None
        if self._failover.may_take(parts.store, held, self.lasts_s, self._reaches_slurm):
            lease = parts.store.take_lease(self.holder, now_s, self.lasts_s, held)
        if lease is None:
            if self.lease is not None:
                self.step_down("its lease ran out and another daemon has it")
            if self._failover.wait(parts.store, now_s):
                _LOG.info("standing by", extra={"facts": {"acts": held.holder if held else ""}})
            self._barrier.feed()
            return None
        self._failover.acts()
        if self.lease is None or lease.token != self.lease.token:
            _LOG.info("lease taken", extra={"facts": {"token": lease.token, "holder": lease.holder}})
            if held is not None and not same_host(held.holder):
                self.slurm_was_silent()  # slurmctld may have moved, too
        self.lease, self._had = lease, True
        return lease

    def step_down(self, why: str) -> None:
        """Another daemon has the lease."""
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
        """slurmctld did not answer just now. Whoever stands by and reaches it may have the lease at once."""
        self._silent_s = self._parts.monotonic_s()

    def offer(self) -> None:
        """Whoever stands by and reaches Slurm may have the lease at once.

        Raises:
            StoreError: that cannot be written.
        """
        if self.lease is not None:
            self._failover.offer(self._parts.store, self.lease.token)

    def slurm_knows_all(self) -> bool:
        """Has slurmctld, in force on whichever host, answered for so long that it knows what ended meanwhile? A job
        that is started over must not have ended already."""
        return self._parts.monotonic_s() - self._silent_s >= _KNOWS_ALL_S

    def standby(self) -> Standby | None:
        """Who stands by, asked by the one that acts and reaches Slurm.

        Raises:
            StoreError: the store cannot be read or written.
        """
        self._failover.withdraw(self._parts.store)
        return self._failover.standby(self._parts.store)

    def _reaches_slurm(self) -> bool:
        try:
            self._parts.client.jobs()
        except ClusterError:
            return False
        return True
