"""Where the records of plans go."""

from __future__ import annotations

from pathlib import Path

from lucid.adapters.store.plan_records import PlanRecorder
from lucid.adapters.store.recorder import Recorders
from lucid.config import PolicySettings, Settings
from lucid.core.ports import Recorder
from lucid.orchestrator.policy_host import PolicyHost
from lucid.places import Placed

__all__ = ["records_folder", "with_records"]


def records_folder(settings: Placed) -> Path:
    """Where lucidd keeps records of its plans."""
    return Path(settings.daemon.state_dir) / "plans"


def with_records(settings: Settings, policy: PolicyHost, rules: PolicySettings, recorder: Recorder) -> Recorder:
    """A recorder that also keeps what the plans of ``policy`` are made from, where ``daemon.record_mib`` allows any.
    ``rules``: its settings."""
    daemon = settings.daemon
    if not daemon.record_mib:
        return recorder
    kept = PlanRecorder(records_folder(settings), policy, rules, daemon.record_every_s, daemon.record_mib)
    return Recorders(recorder, kept)
