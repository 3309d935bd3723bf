"""``LastPlan``: lucidd's last snapshot and plan, and the means for ``lucidctl`` to plan again from it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from lucid.config.load import Settings
from lucid.core.ports import Predictor
from lucid.daemon.policies import LivePolicy, PolicyMemory, live_models, live_predictor
from lucid.daemon.reporting.last_plan import StoredPlan, stored_plan, stored_view
from lucid.daemon.reporting.public_view import Published
from lucid.daemon.reporting.starts import START_TIMES, StartsAhead, run_times_of, start_times_of, starts_ahead
from lucid.orchestrator.forecast.plan_ahead import Forecast, forecast
from lucid.orchestrator.forecast.ranges import StartTimes
from lucid.orchestrator.forecast.run_times import RunTimes
from lucid.orchestrator.policy import Policy
from lucid.store.sqlite import SqliteStore
from lucid.store.view import View


@dataclass(frozen=True, slots=True, kw_only=True)
class LastPlan(StoredPlan):
    """The last snapshot and plan, and the ``policy`` that made the plan."""

    policy: LivePolicy
    times: StartTimes = field(default_factory=StartTimes)
    """lucidd's forecasts of starts, and what came true."""
    run_times: RunTimes = field(default_factory=RunTimes)
    """Errors of lucidd's estimates of run times."""

    def policy_again(self, settings: Settings, config: Path) -> Policy:
        """The policy as lucidd made it, with lucidd's models and its memory of pairs as far as this user may read
        them. ``config``: lucidd's configuration file."""
        return self.policy.make(self.predictor(settings, config))

    def starts(self, settings: Settings, config: Path) -> StartsAhead:
        """When the waiting jobs are expected to start, planned ahead here; ``config`` as in ``policy_again``."""
        return starts_ahead(self.snapshot, self.ahead(settings, config), self.times)

    def ahead(self, settings: Settings, config: Path) -> Forecast:
        """The forecast by planning ahead; ``config`` as in ``policy_again``."""
        predictor = self.predictor(settings, config)
        policy = self.policy.make(predictor)
        return forecast(self.snapshot, self.plan, policy, pair_speed=predictor.pair_speed, run_times=self.run_times)

    def predictor(self, settings: Settings, config: Path) -> Predictor:
        """lucidd's predictor, as far as this user may read its models and its memory of pairs."""
        from lucid.left_out import LeftOut
        from lucid.models.packing.pair_memory import PairMemory, PairMemoryFile

        path = Path(settings.daemon.state_dir) / "pairs.json"
        memory = PairMemoryFile(path, read_only=True) if os.access(path, os.R_OK) else PairMemory()
        models = live_models(settings, config, memory, self.policy.settings.profiling.t_prof_s)
        return live_predictor(settings, models, LeftOut())


def last_plan(store: SqliteStore | Published, view: View | None = None) -> LastPlan:
    """The plan that lucidd wrote last. ``view``: what lucidd saw and decided, where it was read already.

    Raises: ConfigError: its policy is not known here, or another version of Lucid wrote it. StoreError: lucidd has
    not finished a cycle yet, or another version of Lucid wrote it."""
    view = stored_view(store) if view is None else view
    policy, seen = LivePolicy.from_dict(view.policy or {}), stored_plan(store, view)
    memory = {} if isinstance(store, Published) else PolicyMemory(store, policy.name, policy.own).load()
    snapshot = replace(seen.snapshot, memory=memory)
    known = store.view(START_TIMES)
    times, run_times = start_times_of(known), run_times_of(known)
    return LastPlan(snapshot, seen.plan, seen.modes, policy=policy, times=times, run_times=run_times)
