"""Plans under watch, and where their records go."""

from __future__ import annotations

from pathlib import Path

from lucid.adapters.store.plan_records import PlanRecorder
from lucid.adapters.store.recorder import Recorders
from lucid.config import PolicySettings, Settings
from lucid.core.ports import Predictor, Recorder
from lucid.orchestrator.policy import Policy, make_policy
from lucid.orchestrator.watched import WatchedPolicy

__all__ = ["records_folder", "with_records"]


def records_folder(settings: Settings) -> Path:
    """Where lucidd keeps records of its plans."""
    return Path(settings.daemon.state_dir) / "plans"


def with_records(
    settings: Settings, rules: PolicySettings, predictor: Predictor, recorder: Recorder
) -> tuple[Policy, Recorder]:
    """The daemon's policy under ``rules``, and a recorder that also keeps what its plans are made from, unless the
    settings say not to.

    Raises:
        ConfigError: no such policy.
    """
    daemon = settings.daemon
    policy = WatchedPolicy(lambda heard: make_policy(daemon.policy, rules, heard), predictor)
    if not daemon.record_mib:
        return policy, recorder
    kept = PlanRecorder(records_folder(settings), policy, rules, daemon.record_every_s, daemon.record_mib)
    return policy, Recorders(recorder, kept)
