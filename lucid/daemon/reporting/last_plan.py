"""``StoredPlan``: lucidd's last snapshot and plan, read back without any policy's library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lucid.core.decision import DecisionRow, Plan, row_of
from lucid.core.snapshot import Snapshot
from lucid.daemon.reporting.public_view import Published
from lucid.errors import StoreError
from lucid.orchestrator.registry import BUILT_IN, import_policy
from lucid.places import Mode
from lucid.store.sqlite import SqliteStore
from lucid.store.view import plan_from_dict, snapshot_from_dict


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """A ``plan`` and the ``snapshot`` that it was made from. ``modes``: of each partition, as in lucidd's status."""

    snapshot: Snapshot
    plan: Plan
    modes: Mapping[str, str]

    def row(self, job_id: str) -> DecisionRow | None:
        """The decision on one job; ``None`` where there is none."""
        return row_in(self.plan, job_id, self.modes)


def row_in(plan: Plan, job_id: str, modes: Mapping[str, str]) -> DecisionRow | None:
    """The decision of ``plan`` on one job; ``None`` where there is none."""
    for name, part in plan.partitions.items():
        decision = part.decisions.get(job_id)
        if decision is not None:
            return row_of(plan.now_s, job_id, name, decision, modes.get(name, Mode.PACK))
    return None


def stored_snapshot_data(store: SqliteStore | Published) -> dict[str, Any]:
    """The snapshot that lucidd last wrote, as JSON, as ``view_from_text`` reads it.

    Raises: StoreError: lucidd has not finished a cycle yet, or another version of Lucid wrote it."""
    data = store.view("snapshot") if isinstance(store, Published) else store.snapshot_view()
    if data is None:
        raise StoreError(f"{store.path}: lucidd has not finished a cycle yet; look at: lucidctl doctor")
    if not isinstance(data, dict) or not data.get("policy"):
        raise StoreError(f"{store.path}: another version of lucidd wrote the last plan; restart lucidd")
    return data


def stored_plan(store: SqliteStore | Published, data: Mapping[str, Any]) -> StoredPlan:
    """The plan beside a stored snapshot; ``data`` as from ``stored_snapshot_data``.

    Raises: ConfigError: its policy's package cannot be imported. StoreError: another version of Lucid wrote it."""
    for name in (data["policy"]["name"], *data["policy"].get("own", {}).values()):
        if name not in BUILT_IN:  # a third party's policy may have reasons of its own
            import_policy(name)
    snapshot = snapshot_from_dict(data)
    plan = plan_from_dict(data["plan"], snapshot.now_s, data["wake_s"])
    modes = (store.view("status") or {}).get("modes", {})
    return StoredPlan(snapshot, plan, modes)
