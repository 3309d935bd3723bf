"""How each policy appears throughout the page: its colour, and what may be said of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lucid.orchestrator.policies import ESTIMATES, Estimates
from lucid.pages.units import show_count, show_many
from lucid.simulator.engine import Run
from lucid.simulator.ground_truth import OraclePredictor

__all__ = ["about", "estimates", "habits", "knows_truth", "styles"]

_STYLES = 8
"""Classes p0 to p7 of the style sheet: a colour and a dash each."""
_OWN_STYLE = {"lucid": 0, "fifo": 1, "sjf": 2, "tiresias": 3, "qssf": 4, "srtf": 5, "backfill": 6}

_ABOUT = {
    "fifo": "in order of submission",
    "backfill": "plain Slurm: in its order, backfilled by time limits",
    "sjf": "shortest run time first",
    "srtf": "shortest remaining time first",
    "qssf": "least run time × GPUs first",
    "tiresias": "least GPU time received first, in two queues",
    "srsf": "least remaining time × GPUs first",
    "muri-s": "least remaining work × GPUs first, in groups that take turns",
    "muri-l": "least GPU time received first, in groups that take turns",
    "elastic": "in order of submission, on as many GPUs as are idle",
    "elastic-fcfs": "in order of submission, on the fewest GPUs",
    "elastic-ef": "in order of submission, on the most GPUs",
    "optimus-drf": "as many GPUs for every elastic job",
    "lucid": "profiles, orders by estimate × GPUs, packs pairs",
}
_ORACLE = OraclePredictor.name
_WITHOUT_ESTIMATES = frozenset(name for name, kind in ESTIMATES.items() if kind is Estimates.NONE)


def styles(policies: Sequence[str]) -> list[int]:
    """A style for each policy: its own where it has one, so that it looks the same in every report; others
    take what these leave, then start over."""
    taken = {_OWN_STYLE[name] for name in policies if name in _OWN_STYLE}
    others = [name for name in policies if name not in _OWN_STYLE]
    free = [i for i in (6, 7, *range(6)) if i not in taken] or list(range(_STYLES))
    given = {name: free[i % len(free)] for i, name in enumerate(others)}
    return [_OWN_STYLE[name] if name in _OWN_STYLE else given[name] for name in policies]


def about(policy: str) -> str:
    """How the policy orders jobs, where that is known."""
    return _ABOUT.get(policy, "")


def estimates(policy: str, predictor: str) -> str:
    """Where its estimates of run times come from."""
    if policy in _WITHOUT_ESTIMATES:
        return "none used"
    if predictor == _ORACLE:
        return "oracle: the true run times, which no real scheduler knows"
    return predictor


def knows_truth(run: Run) -> bool:
    """Did the policy decide by run times that only a replay has?"""
    return run.predictor == _ORACLE and run.policy not in _WITHOUT_ESTIMATES


def habits(run: Run, metrics: dict[str, Any]) -> list[str]:
    """What the run shows of preemption, sharing and profiling: three cells."""
    preempted = sum(o.preemptions > 0 for o in run.outcomes)
    packed = metrics.get("packed_jobs") or 0
    profiled = sum(o.profiled_s > 0 for o in run.outcomes)
    return [
        f"yes: {show_count(metrics['preemptions'])} times, {show_many(preempted, 'job')}" if preempted else "no",
        f"yes: {show_many(packed, 'job')}" if packed else "no",
        f"yes: {show_many(profiled, 'job')}" if profiled else "no",
    ]
