"""What schedules come out: honest replays of P1, and parity with the published simulator on P0 and P1."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.figure import Figure
from benchmarks.packs import pack
from lucid.config.load import settings_from
from lucid.simulator.cluster.state import Semantics
from lucid.simulator.metrics import run_metrics
from lucid.simulator.scenario import simulate

__all__ = ["ESTIMATES", "best", "honest", "parity"]

ESTIMATES = (("lucid", "P1_est_ebm.csv"), ("qssf", "P1_est_lgb.csv"))
_POLICIES = ("fifo", "sjf", "srtf", "qssf", "tiresias", "lucid")
_BOUNDS_H = {"avg_jct_s": 5.75, "p999_queue_s": 16.0, "avg_jct_large_s": 56.0}
"""What lucid is to reach on P1, hours."""
_BEST_H = 5.65
"""The same with everything that Lucid has, as long as nothing is tuned on P1 itself."""
_WAITING_SPEED = 0.75
"""Found on P0."""
_BOUND_S, _NO_LIMIT_S = 43200.0, 1e8
"""P1 has no time limits; Slurm takes a job without one for a year long, and lets it past nobody."""
_NAMES = {"avg_jct_s": "avg JCT", "p999_queue_s": "p99.9 queueing", "avg_jct_large_s": "JCT of jobs > 8 GPUs"}

_PUBLISHED_H = {
    "P0": {"fifo": 6.988, "sjf": 0.747, "srtf": 0.621, "qssf": 1.306, "tiresias": 0.652, "lucid": 0.742},
    "P1": {"fifo": 10.788, "sjf": 6.735, "srtf": 6.049, "qssf": 8.341, "tiresias": 6.300, "lucid": 5.951},
}
"""Average JCT that the published simulator prints, hours. Its P0 estimates are not at hand, so qssf and lucid are
compared on P1 only."""
_MENDED_H = 5.810
_EXACT_H = 0.001


def honest(runs: int) -> Iterator[Figure]:  # noqa: ARG001 - deterministic, one run is all there is
    """Every built-in policy on P1 with everything charged; each against fifo in the same process."""
    scenario = pack("P1", ESTIMATES)
    fifo: dict[str, float] = {}
    for policy in _POLICIES:
        metrics = run_metrics(simulate(scenario, policy))
        fifo = fifo or metrics
        for key, name in _NAMES.items():
            yield Figure(
                f"{policy} on P1, {name}",
                metrics[key] / 3600,
                "h",
                1,
                fifo[key] / 3600,
                "fifo",
                at_most=_BOUNDS_H[key] if policy == "lucid" else None,
            )


def best(runs: int) -> Iterator[Figure]:  # noqa: ARG001 - deterministic
    """Lucid on P1 with what it has that is off by default, none of it set to suit P1: a starvation bound, time-aware
    profiling, a slower partner for who would wait; pairs remembered, as lucidd does. With the given
    learned estimates, and with Lucid's own models. Large jobs against fifo in the same process."""
    given = pack("P1", ESTIMATES)
    own = replace(pack("P1"), predictor="learned")
    fifo = run_metrics(simulate(given, "fifo"))
    for name, scenario in (("given estimates", given), ("own models", own)):
        tables = {
            "profiling": {"time_aware": True},
            "packing": {"waiting_pair_speed": _WAITING_SPEED},
            "fairness": {"beyond_plain_s": _BOUND_S},
            "backfill": {"least_limit_s": _NO_LIMIT_S},
        }
        chosen = replace(scenario, settings=settings_from({"policy": tables}, "best"))
        metrics = run_metrics(simulate(chosen, "lucid"))
        what = f"lucid on P1 with everything, {name}"
        for key, bound_h in (("avg_jct_s", _BEST_H), ("avg_jct_large_s", fifo["avg_jct_large_s"] / 3600)):
            hours, fifo_h = metrics[key] / 3600, fifo[key] / 3600
            yield Figure(f"{what}, {_NAMES[key]}", hours, "h", 1, fifo_h, "fifo", at_most=bound_h)
        yield Figure(f"{what}, jobs past the bound of 12 h", metrics["jobs_past_bound"], "jobs", 1, at_most=0.0)


def parity(runs: int) -> Iterator[Figure]:  # noqa: ARG001 - deterministic
    """Average JCT in parity mode against what the published simulator printed on the same files."""
    for name in ("P0", "P1"):
        scenario = replace(pack(name, ESTIMATES if name == "P1" else ()), semantics=Semantics.PUBLISHED)
        for policy, published in _PUBLISHED_H[name].items():
            if name == "P0" and policy in ("qssf", "lucid"):
                continue
            yield _beside(f"{policy} on {name}", scenario_jct_h(scenario, policy), published, policy)
    mended = replace(pack("P1", ESTIMATES), semantics=Semantics.PUBLISHED_MENDED)
    yield _beside("lucid on P1, survivors mended", scenario_jct_h(mended, "lucid"), _MENDED_H, "lucid")


def scenario_jct_h(scenario: object, policy: str) -> float:
    return float(run_metrics(simulate(scenario, policy))["avg_jct_s"]) / 3600  # type: ignore[arg-type]


def _beside(what: str, value_h: float, published_h: float, policy: str) -> Figure:
    within = {"fifo": _EXACT_H / published_h, "sjf": _EXACT_H / published_h, "lucid": 0.02}.get(policy, 0.01)
    return Figure(f"{what}, avg JCT", value_h, "h", 1, published_h, "published", ratio_within=within)
