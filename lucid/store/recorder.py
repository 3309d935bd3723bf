"""``StoreRecorder``: writes each cycle into the store: changed decisions, ended jobs, snapshots."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import is_not
from typing import Any

from lucid.core.decision import Decision, DecisionRow, PartitionPlan, Plan, row_of
from lucid.core.ports import Applied, Recorder
from lucid.core.reason import Reason
from lucid.core.reasons.sharing import SameUser
from lucid.core.snapshot import Snapshot
from lucid.errors import StoreError
from lucid.places import Mode
from lucid.store.port import PredictionRow
from lucid.store.sqlite import SqliteStore
from lucid.store.view import view_to_dict

QUIET_S = 60.0
"""How old at most a stored snapshot is where nothing changes."""
_VIEW_EVERY_S = 2.0
_VIEW_SHARE = 0.05
"""The most of lucidd's time that stored snapshots may take, as a share: one of 14,000 jobs takes a second."""


class StoreRecorder:
    """Records cycles. A decision is stored when its verb, the kinds of its reasons or (in pack mode) its place differ
    from the last one of that job; a refusal by Slurm or by the cap is stored with the action."""

    def __init__(
        self,
        store: SqliteStore,
        token: int,
        modes: Callable[[], Mapping[str, Mode]],
        publish: Callable[[Mapping[str, Any]], None] = lambda _: None,
        policy: Mapping[str, Any] | None = None,
    ) -> None:
        """``publish`` is called with every snapshot that is stored; ``policy``: what made the plans, which is stored
        with each."""
        self.view_every_s = _VIEW_EVERY_S
        """The least seconds between two stored snapshots."""
        self._policy = policy
        self._publish = publish
        self._store = store
        self._token = token
        self._modes = modes
        self._last: dict[str, tuple[object, ...]] = {}
        self._seen: dict[str, PartitionPlan] = {}
        self._drawn: list[object] = []
        self._drawn_at_s = float("-inf")
        self._drawing_s = 0.0
        for row in store.decisions(limit=20_000):
            self._last[row.job_id] = _signature(row.partition, row.verb, row.reasons, row.placement)

    def record(self, snapshot: Snapshot, plan: Plan, applied: Sequence[Applied]) -> None:
        """Take in one cycle."""
        modes = self._modes()
        refused = {item.action.job_id for item in applied if item.refused}
        rows: list[DecisionRow] = []
        for name, part in plan.partitions.items():
            if self._seen.get(name) is part:
                continue
            self._seen[name] = part
            mode = modes.get(name, Mode.PACK)
            for job_id, decision in part.decisions.items():
                if mode is Mode.PACK and job_id in refused:
                    continue  # decided anew in the next cycle; the action's row has Slurm's words
                row = self._row(plan.now_s, job_id, name, decision, mode)
                if row is not None:
                    rows.append(row)
        try:
            if rows:
                self._store.put_decisions(rows, self._token)
                self._store.put_predictions(_predictions(snapshot, {row.job_id for row in rows}), self._token)
            if snapshot.ended:
                self._store.put_ended(snapshot.ended, self._token)
        except StoreError:  # the next cycle stores them
            self._seen = {}
            for row in rows:
                self._last.pop(row.job_id, None)
            raise
        self._forget(snapshot, plan)
        self._draw(snapshot, plan)

    def _forget(self, snapshot: Snapshot, plan: Plan) -> None:
        """Forget the last decisions on jobs that have left: no snapshot lists jobs that never ran as ended."""
        parts, decided = snapshot.partitions.values(), [part.decisions for part in plan.partitions.values()]
        jobs = sum(len(part.pending) + len(part.running) for part in parts)
        if len(self._last) > 2 * max(jobs, sum(map(len, decided))):
            there = {entry.job.id for part in parts for entry in part.listed()}.union(*decided)
            self._last = {job_id: last for job_id, last in self._last.items() if job_id in there}

    def _row(self, now_s: float, job_id: str, name: str, decision: Decision, mode: Mode) -> DecisionRow | None:
        row = row_of(now_s, job_id, name, decision, str(mode))
        verb = row.verb
        # where nothing is done, a start that would be made stands for as long as the job waits
        signature = _signature(name, verb, decision.reasons, row.placement)
        known = self._last.get(job_id)
        if known == signature or (
            mode is not Mode.PACK and known is not None and known[:2] == (name, verb) and verb == "start"
        ):
            return None
        self._last[job_id] = signature
        return row

    def _draw(self, snapshot: Snapshot, plan: Plan) -> None:
        seen: list[object] = [*snapshot.partitions.values(), *plan.partitions.values()]
        changed = len(seen) != len(self._drawn) or any(map(is_not, seen, self._drawn))
        # waits and run times grow where nothing else changes: the view would be of hours ago
        every_s = self.view_every_s if changed else max(self.view_every_s, QUIET_S)
        since_s = snapshot.now_s - self._drawn_at_s  # below 0 where the clock was set back
        if 0 <= since_s < max(every_s, self._drawing_s / _VIEW_SHARE):
            return
        began_s = time.perf_counter()
        self._drawn, self._drawn_at_s = seen, snapshot.now_s
        view = view_to_dict(snapshot, plan, self._policy)
        self._store.put_view("snapshot", view)
        self._publish(view)
        self._drawing_s = time.perf_counter() - began_s


def _predictions(snapshot: Snapshot, wanted: Collection[str]) -> list[PredictionRow]:
    """The predictions by which these jobs were decided."""
    jobs = (entry.job for part in snapshot.partitions.values() for entry in part.listed())
    return [
        PredictionRow(job.id, snapshot.now_s, job.user, snapshot.predictions[job.id])
        for job in jobs
        if job.id in wanted and job.id in snapshot.predictions
    ]


class Recorders:
    """Several recorders as one, in order."""

    def __init__(self, *recorders: Recorder) -> None:
        self._recorders = recorders

    def record(self, snapshot: Snapshot, plan: Plan, applied: Sequence[Applied]) -> None:
        """Let each record the cycle."""
        for recorder in self._recorders:
            recorder.record(snapshot, plan, applied)


def _signature(partition: str, verb: str, reasons: Sequence[Reason], place: str) -> tuple[object, ...]:
    """The key by which decisions differ. How many jobs of other users could have been joined is not part of it, for
    these come and go all the time."""
    return (partition, verb, *(r.kind for r in reasons if not isinstance(r, SameUser)), place)
