"""The store in memory: for tests, and for trying Lucid out where nothing may be written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lucid.adapters.gpu.spool import Batch, JobSamples, not_taken
from lucid.adapters.store.port import ActionRow, DecisionRow, JobNote, Lease, LeaseLost, PredictionRow, ProfileRow
from lucid.core.job import Ended
from lucid.profiler.samples import record_size

__all__ = ["MemoryStore"]


class MemoryStore:
    """See ``Store``; gone with the process."""

    def __init__(self) -> None:
        self._lease: Lease | None = None
        self._until_s = 0.0
        self._token = 0
        self._notes: dict[str, JobNote] = {}
        self._profiles: dict[str, ProfileRow] = {}
        self._readings: dict[str, float] = {}
        self._samples: list[tuple[float, JobSamples]] = []
        self._cursors: dict[str, int] = {}
        self._missing = 0
        self._decisions: list[DecisionRow] = []
        self._predictions: dict[str, PredictionRow] = {}
        self._actions: dict[int, ActionRow] = {}
        self._last_action = 0
        self._ended: dict[str, Ended] = {}
        self._models: list[tuple[str, str, float, str]] = []
        self._settings: dict[str, str] = {}
        self._views: dict[str, str] = {}

    def _fence(self, token: int) -> None:
        if token != self._token or not token:
            raise LeaseLost("the lease is held by another daemon now; this one must stop")

    def renew(self, now_s: float) -> bool:  # noqa: ARG002 - the port's
        """There is no file that could go."""
        return True

    def leased_until_s(self) -> float | None:
        """``None`` before the first token."""
        return self._until_s if self._token else None

    def take_lease(self, holder: str, now_s: float, lasts_s: float, takeover: Lease | None = None) -> Lease | None:
        """New or renewed."""
        lease = self._lease
        if lease is not None and lease.holder == holder:
            token = lease.token
        elif lease is None or lease.until_s <= now_s or lease == takeover:
            token = self._token + 1
        else:
            return None
        self._token = token
        self._until_s = now_s + lasts_s
        self._lease = Lease(holder, token, self._until_s)
        return self._lease

    def lease(self) -> Lease | None:
        """The present one."""
        return self._lease

    def drop_lease(self, token: int) -> None:
        """Free, with the token kept."""
        if token == self._token:
            self._lease = None

    def note(self, job_id: str) -> JobNote | None:
        """One note."""
        return self._notes.get(job_id)

    def notes(self) -> dict[str, JobNote]:
        """All notes."""
        return dict(self._notes)

    def put_note(self, note: JobNote, token: int) -> None:
        """Insert or replace."""
        self._fence(token)
        self._notes[note.job_id] = note

    def forget(self, job_ids: Sequence[str], token: int) -> None:
        """Delete notes."""
        self._fence(token)
        for job_id in job_ids:
            self._notes.pop(job_id, None)

    def put_profile(self, row: ProfileRow, source: str, token: int) -> bool:
        """Take in once."""
        self._fence(token)
        if source in self._readings:
            return False
        self._readings[source] = row.at_s
        self._profiles[row.job_id] = row
        return True

    def profiles(self) -> dict[str, ProfileRow]:
        """By job id."""
        return dict(self._profiles)

    def profile_like(self, user: str, name: str, gpus: int, since_s: float) -> ProfileRow | None:
        """Latest of that kind."""
        like = [
            row
            for row in self._profiles.values()
            if (row.user, row.name, row.gpus) == (user, name, gpus) and row.at_s >= since_s
        ]
        return max(like, key=lambda row: row.at_s, default=None)

    def put_samples(self, batch: Batch, at_s: float, token: int) -> list[JobSamples]:
        """Kept as they are."""
        self._fence(token)
        fresh = not_taken(batch, self._cursors)
        self._samples += [(at_s, job) for job in fresh if job.samples]
        self._missing += sum(job.missing for job in fresh)
        for folder, wanted in batch.cursors.items():
            self._cursors[folder] = max(wanted, self._cursors.get(folder, 0))
        return fresh

    def sample_cursors(self) -> dict[str, int]:
        """All of them."""
        return dict(self._cursors)

    def samples_missing(self) -> int:
        """Their sum."""
        return self._missing

    def samples(self, since_s: float = 0.0, most: int | None = None) -> list[JobSamples]:
        """In order."""
        left = float("inf") if most is None else most
        found = []
        for at_s, job in reversed(self._samples):
            if at_s < since_s or left <= 0:
                break
            found.append(replace(job, missing=0))
            left -= len(job.samples)
        return sorted(found, key=lambda job: (job.folder, job.samples[0].seq))

    def bound_samples(self, before_s: float, most_bytes: int, token: int) -> int:
        """By age, then by what they would take as records."""
        self._fence(token)
        before = self._samples
        kept = [item for item in before if item[0] >= before_s]
        while sum(len(job.samples) * record_size(len(job.gpus)) for _, job in kept) > most_bytes:
            kept = kept[1:]
        self._samples = kept
        return sum(len(job.samples) for _, job in before) - sum(len(job.samples) for _, job in kept)

    def put_decisions(self, rows: Sequence[DecisionRow], token: int) -> None:
        """Append."""
        self._fence(token)
        self._decisions += rows

    def decisions(self, job_id: str | None = None, since_s: float = 0.0, limit: int = 1000) -> list[DecisionRow]:
        """Oldest first."""
        if job_id is None:
            found = [row for row in self._decisions if row.at_s >= since_s]
        else:
            found = [row for row in self._decisions if row.job_id == job_id]
        return found[-limit:]

    def put_predictions(self, rows: Sequence[PredictionRow], token: int) -> None:
        """Insert or replace."""
        self._fence(token)
        self._predictions.update({row.job_id: row for row in rows})

    def prediction(self, job_id: str) -> PredictionRow | None:
        """One row."""
        return self._predictions.get(job_id)

    def begin_action(self, at_s: float, job_id: str, verb: str, detail: str, token: int) -> int:
        """Note with no result."""
        self._fence(token)
        self._last_action += 1
        self._actions[self._last_action] = ActionRow(self._last_action, at_s, job_id, verb, detail, token)
        return self._last_action

    def end_action(self, action_id: int, result: str, token: int) -> None:
        """Set its result."""
        self._fence(token)
        self._actions[action_id] = replace(self._actions[action_id], result=result)

    def actions(self, job_id: str | None = None, limit: int = 1000) -> list[ActionRow]:
        """Oldest first."""
        return [row for row in self._actions.values() if job_id is None or row.job_id == job_id][-limit:]

    def put_ended(self, rows: Sequence[Ended], token: int) -> None:
        """Each once."""
        self._fence(token)
        for row in rows:
            self._ended.setdefault(row.job.id, row)

    def ended(self, since_s: float = 0.0, limit: int = 100_000) -> list[Ended]:
        """Oldest first."""
        return sorted((e for e in self._ended.values() if e.end_s >= since_s), key=lambda e: e.end_s)[-limit:]

    def put_model(self, name: str, version: str, at_s: float, why: str) -> None:
        """Append unless the same version serves already."""
        serving = [row[1] for row in self._models if row[0] == name]
        if not serving or serving[-1] != version:
            self._models.append((name, version, at_s, why))

    def models(self) -> list[tuple[str, str, float, str]]:
        """Oldest first."""
        return list(self._models)

    def setting(self, key: str) -> str | None:
        """One switch."""
        return self._settings.get(key)

    def settings(self) -> dict[str, str]:
        """All switches."""
        return dict(self._settings)

    def set_setting(self, key: str, value: str | None) -> None:
        """Set or take back."""
        if value is None:
            self._settings.pop(key, None)
        else:
            self._settings[key] = value

    def put_view(self, name: str, data: Any) -> None:
        """Replace; kept as JSON, so that it comes back as from a file."""
        self._views[name] = json.dumps(data)

    def view(self, name: str) -> Any:
        """One picture."""
        found = self._views.get(name)
        return None if found is None else json.loads(found)

    def prune(self, before_s: float) -> int:
        """Old rows go."""
        before = self._rows()
        self._decisions = [row for row in self._decisions if row.at_s >= before_s]
        self._predictions = {k: row for k, row in self._predictions.items() if row.at_s >= before_s}
        self._actions = {k: row for k, row in self._actions.items() if row.at_s >= before_s}
        self._ended = {k: row for k, row in self._ended.items() if row.end_s >= before_s}
        self._profiles = {k: row for k, row in self._profiles.items() if row.at_s >= before_s}
        self._readings = {k: at_s for k, at_s in self._readings.items() if at_s >= before_s}
        return before - self._rows()

    def _rows(self) -> int:
        tables = (self._decisions, self._predictions, self._actions, self._ended, self._profiles, self._readings)
        return sum(map(len, tables))

    def close(self) -> None:
        """Nothing is held open."""
