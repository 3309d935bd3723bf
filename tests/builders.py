"""The builders of tests/scenes by their old address."""

from scenes.jobs import HEAVY, LIGHT, VC, a_job, at, by, elastic, nodes, runs, waits
from scenes.plans import FixedPredictor, decide, decided, guess, kinds, part, policy, reason, settings, snap
from scenes.replays import Tape, a_cluster, a_trace, replay

__all__ = [
    "HEAVY", "LIGHT", "VC", "FixedPredictor", "Tape", "a_cluster", "a_job", "a_trace", "at", "by", "decide",
    "decided", "elastic", "guess", "kinds", "nodes", "part", "policy", "reason", "replay", "runs", "settings",
    "snap", "waits",
]  # fmt: skip
