"""``StoredPlan``: lucidd's last snapshot and plan, read back without any policy's library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lucid.core.decision import DecisionRow, Plan, row_of
from lucid.core.snapshot import Snapshot
from lucid.daemon.reporting.public_view import Published
from lucid.errors import StoreError
from lucid.places import Mode
from lucid.store.sqlite import SqliteStore
from lucid.store.view import View


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


def stored_view(store: SqliteStore | Published) -> View:
    """What lucidd saw and decided last.

    Raises: ConfigError: the package of its policy cannot be imported. StoreError: lucidd has not finished a cycle
    yet, or another version of Lucid wrote it."""
    view = store.last_view()
    if view is None:
        raise StoreError(f"{store.path}: lucidd has not finished a cycle yet; look at: lucidctl doctor")
    if not view.policy:
        raise StoreError(f"{store.path}: another version of lucidd wrote the last plan; restart lucidd")
    return view


def stored_plan(store: SqliteStore | Published, view: View) -> StoredPlan:
    """The snapshot and plan of a view of the store."""
    return StoredPlan(view.snapshot(), view.plan(), (store.view("status") or {}).get("modes", {}))
