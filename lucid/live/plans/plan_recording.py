"""Plans under watch, and where their records go."""

from __future__ import annotations

from pathlib import Path

from lucid.adapters.store.plan_records import PlanRecorder
from lucid.adapters.store.recorder import Recorders
from lucid.config import Settings
from lucid.core.ports import Predictor, Recorder
from lucid.live.policies import LivePolicy
from lucid.orchestrator.policy import Policy
from lucid.orchestrator.recorded_policy import RecordedPolicy

__all__ = ["records_folder", "with_records"]


def records_folder(settings: Settings) -> Path:
    """Where lucidd keeps records of its plans."""
    return Path(settings.daemon.state_dir) / "plans"


def with_records(
    settings: Settings, live: LivePolicy, predictor: Predictor, recorder: Recorder
) -> tuple[Policy, Recorder]:
    """The policy under watch, and a recorder that also keeps what its plans are made from, where
    ``daemon.record_mib`` allows any.

    Raises:
        ConfigError: no such policy.
    """
    daemon = settings.daemon
    policy = RecordedPolicy(live.make, predictor)
    if not daemon.record_mib:
        return policy, recorder
    kept = PlanRecorder(records_folder(settings), policy, live.settings, daemon.record_every_s, daemon.record_mib)
    return policy, Recorders(recorder, kept)
