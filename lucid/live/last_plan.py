"""What lucidd saw and decided last, and how to plan again from it: every answer of ``lucidctl`` begins here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from lucid.adapters.left_out import LeftOut
from lucid.adapters.store.pair_memory import PairMemoryFile
from lucid.adapters.store.snapshot_json import plan_from_dict, snapshot_from_dict
from lucid.adapters.store.sqlite import SqliteStore
from lucid.config import Mode, Settings
from lucid.core.decision import DecisionRow, Plan, row_of
from lucid.core.job import Pending
from lucid.core.ports import Predictor
from lucid.core.snapshot import Partition, Snapshot
from lucid.errors import StoreError
from lucid.live.expected import expected_start
from lucid.live.policies import LivePolicy, live_models, live_predictor
from lucid.live.policy_memory import PolicyMemory
from lucid.live.published import Published
from lucid.live.start_log import START_TIMES, run_times_of, start_times_of
from lucid.models.packing.pair_memory import PairMemory
from lucid.orchestrator.forecast import Forecast, forecast
from lucid.orchestrator.policy import Policy, import_policy
from lucid.orchestrator.run_times import RunTimes
from lucid.orchestrator.start_times import StartTimes

__all__ = ["LastPlan", "last_plan", "row_in"]


@dataclass(frozen=True, slots=True)
class LastPlan:
    """``plan`` was made from ``snapshot`` by ``policy``. ``modes``: of each partition, as lucidd's status has it."""

    snapshot: Snapshot
    plan: Plan
    policy: LivePolicy
    modes: Mapping[str, str]
    times: StartTimes = field(default_factory=StartTimes)
    """What came true of lucidd's forecasts of starts."""
    run_times: RunTimes = field(default_factory=RunTimes)
    """What came true of estimates of run times."""

    def row(self, job_id: str) -> DecisionRow | None:
        """The decision on one job; ``None`` where there is none."""
        return row_in(self.plan, job_id, self.modes)

    def policy_again(self, settings: Settings, config: Path) -> Policy:
        """The policy as lucidd made it, with lucidd's models and its memory of pairs as far as this user may read
        them. ``config``: lucidd's configuration file."""
        return self.policy.make(self.predictor(settings, config))

    def ahead(self, settings: Settings, config: Path) -> Forecast:
        """When the jobs that wait are expected to start; ``config`` as above."""
        predictor = self.predictor(settings, config)
        policy = self.policy.make(predictor)
        return forecast(self.snapshot, self.plan, policy, pair_speed=predictor.pair_speed, run_times=self.run_times)

    def expected(self, partition: Partition, entry: Pending, ahead: Forecast) -> tuple[int, int, int] | None:
        """Whole seconds until a waiting job's next start, as ``expected_start``."""
        return expected_start(partition, entry, ahead, self.times, self.snapshot.now_s)

    def predictor(self, settings: Settings, config: Path) -> Predictor:
        """lucidd's predictor, as far as this user may read its models and its memory of pairs."""
        path = Path(settings.daemon.state_dir) / "pairs.json"
        memory = PairMemoryFile(path, read_only=True) if os.access(path, os.R_OK) else PairMemory()
        return live_predictor(settings, live_models(settings, config, memory), LeftOut())


def row_in(plan: Plan, job_id: str, modes: Mapping[str, str]) -> DecisionRow | None:
    """The decision of ``plan`` on one job; ``None`` where there is none."""
    for name, part in plan.partitions.items():
        decision = part.decisions.get(job_id)
        if decision is not None:
            return row_of(plan.now_s, job_id, name, decision, modes.get(name, Mode.PACK))
    return None


def last_plan(store: SqliteStore | Published) -> LastPlan:
    """As lucidd wrote it last.

    Raises:
        ConfigError: its policy is not known here, or another version of Lucid wrote it.
        StoreError: lucidd has not finished a cycle yet, or another version of Lucid wrote it.
    """
    data = store.view("snapshot")
    if data is None:
        raise StoreError(f"{store.path}: lucidd has not finished a cycle yet; look at: lucidctl doctor")
    if not isinstance(data, dict) or not data.get("policy"):
        raise StoreError(f"{store.path}: another version of lucidd wrote the last plan; restart lucidd")
    policy = LivePolicy.from_dict(data["policy"])
    import_policy(policy.name)  # a third party's policy may have reasons of its own
    memory = {} if isinstance(store, Published) else PolicyMemory(store, policy.name).load()
    snapshot = replace(snapshot_from_dict(data), memory=memory)
    plan = plan_from_dict(data["plan"], snapshot.now_s, data["wake_s"])
    modes = (store.view("status") or {}).get("modes", {})
    kept = store.view(START_TIMES)
    return LastPlan(snapshot, plan, policy, modes, start_times_of(kept), run_times_of(kept))
