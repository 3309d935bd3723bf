"""Goes on after the store was deleted, replaced or damaged: what a new store takes over from the old.

Also whether another daemon may still act by the old store."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from lucid.errors import StoreError
from lucid.slurm.heartbeat import read_heartbeat
from lucid.store.port import JobNote, ProfileRow
from lucid.store.sqlite import SqliteStore


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
