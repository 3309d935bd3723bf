"""The builders of tests/scenes by their old address."""

from scenes.jobs import HEAVY, LIGHT, VC, a_job, at, by, elastic, nodes, runs, waits
from scenes.plans import (
    ANYTHING,
    FixedPredictor,
    check_plan,
    decide,
    decided,
    guess,
    kinds,
    part,
    policy,
    reason,
    settings,
    snap,
)
from scenes.replays import Tape, a_cluster, a_trace, replay

__all__ = [
    "ANYTHING", "HEAVY", "LIGHT", "VC", "FixedPredictor", "Tape", "a_cluster", "a_job", "a_trace", "at", "by",
    "check_plan", "decide", "decided", "elastic", "guess", "kinds", "nodes", "part", "policy", "reason", "replay",
    "runs", "settings", "snap", "waits",
]  # fmt: skip
