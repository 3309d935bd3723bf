"""Puts right what a look at Slurm showed to be out of joint. Each step may be repeated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lucid.adapters.slurm_hands import GIVEN_UP, Hands
from lucid.adapters.slurm_nouns import SlurmJob
from lucid.adapters.slurm_obstacles import Standing, standing, whose_limit
from lucid.adapters.slurm_starts import back_to
from lucid.adapters.slurm_view import Facts
from lucid.adapters.store import JobNote
from lucid.config import Mode
from lucid.errors import ActionRefused

__all__ = ["Mender"]

_FIRST_S, _MOST_S = 1.0, 300.0


class Mender:
    """Starts that did not come about are taken back; jobs that Slurm does not start as asked, that their user wants
    out, or whose partition is no longer packed are let go; changed requests of jobs that somebody else holds, or that
    wait again, are given back."""

    def __init__(self, hands: Hands) -> None:
        self._hands = hands
        self._later: dict[str, tuple[float, float]] = {}
        """Jobs at which Slurm declined: not before when, and how long to wait the next time."""

    def mend(self, facts: Facts) -> list[str]:
        """One round over all jobs, within the cap on writes; returns what was done, in words."""
        done: list[str] = []
        for record in facts.jobs:
            if record.id in self._hands.touched:
                continue
            if self._hands.full(4):
                break
            not_before_s, pause_s = self._later.get(record.id, (0.0, _FIRST_S))
            if facts.now_s < not_before_s:
                continue
            try:
                words = self._mend(record, self._hands.notes.get(record.id), facts)
                self._later.pop(record.id, None)
            except ActionRefused as error:
                self._later[record.id] = (facts.now_s + pause_s, min(pause_s * 2, _MOST_S))
                words = f"job {record.id}: cannot be mended yet ({error})"
            if words:
                done.append(words)
        return done

    def forget(self, gone: Sequence[str]) -> None:
        """Jobs that have left."""
        for job_id in gone:
            self._later.pop(job_id, None)

    def _mend(self, record: SlurmJob, note: JobNote | None, facts: Facts) -> str:
        hands, viewer = self._hands, self._hands.viewer
        if record.state == "RUNNING" and note is not None and note.where and (not note.released or note.tries):
            # killed between telling Slurm and noting that it had taken it; and what was refused before is over
            hands.put(replace(note, released=True, tries=0, refusal=""))
        if not record.pending or not record.gpus or not viewer.ours(record):
            return ""
        packs = facts.modes.get(viewer.home(record, note)) is Mode.PACK
        if note is not None and viewer.under_way(record, note):
            return self._under_way(record, note, facts, packs)
        if not record.held:
            return ""
        if viewer.holds(record, note):
            return self._held(record, note, facts, packs)
        return self._restored(record, note)  # its user or an administrator holds it

    def _held(self, record: SlurmJob, note: JobNote | None, facts: Facts, packs: bool) -> str:
        """A job that Lucid holds."""
        hands = self._hands
        why = "" if packs else f"partition {hands.viewer.home(record, note)!r} is not packed"
        why = why or hands.viewer.leaves(record, facts.now_s)
        if not why and note is not None and note.given_up and not note.released:
            why = f"{GIVEN_UP} {note.tries} times as Lucid asked ({note.given_up})"
        if why:
            hands.let_go(record, why)
            return f"job {record.id}: let go as its user wrote it, {why}"
        return self._restored(record, note)

    def _restored(self, record: SlurmJob, note: JobNote | None) -> str:
        """Give a held job the request that its user wrote."""
        hands = self._hands
        if record.unread:
            return ""  # what it asks for now is not known
        if note is not None and note.where:
            hands.put(replace(note, where="", shards=False))
        back = back_to(record, note)
        if back is None:
            return ""
        hands.do(record.id, "restore", "", lambda: hands.client.update(record.id, back))
        return f"job {record.id}: given back the request that its user wrote"

    def _under_way(self, record: SlurmJob, note: JobNote, facts: Facts, packs: bool) -> str:
        """A job that was told to start and has not."""
        hands = self._hands
        if not packs:
            changes = back_to(record, note)
            if changes is not None:
                hands.do(record.id, "restore", "", lambda: hands.client.update(record.id, changes))
            hands.put(replace(note, where="", shards=False, released=True))
            return f"job {record.id}: given back the request that its user wrote, its partition is not packed"
        if record.restarts != note.restarts:
            self._take_back(record, note)
            return f"job {record.id}: was requeued, not by Lucid; waits again"
        found = standing(record.reason)
        late = facts.now_s - note.asked_s > hands.settings.start_grace_s
        if found is Standing.WAITS and not late:
            return ""
        self._take_back(record, note)
        if found is Standing.BARRED and (whose_limit(record.reason) or not hands.at_profiling(record)):
            hands.obstacles.met(record, record.reason, facts.now_s)
            return f"job {record.id}: Slurm does not start it now ({record.reason}); waits"
        return hands.not_started(record, record.reason or "no reason given")

    def _take_back(self, record: SlurmJob, note: JobNote) -> None:
        hands = self._hands
        hands.do(
            record.id, "take back", f"{note.where} (Slurm: {record.reason})", lambda: hands.client.hold(record.id)
        )
        note = replace(note, where="", released=False, shards=False, restarts=record.restarts)
        hands.put(note)
        changes = back_to(record, note)
        if changes is not None:
            hands.do(record.id, "restore", "", lambda: hands.client.update(record.id, changes))
