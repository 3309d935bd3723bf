"""What each choice of Lucid's settings is worth on P1: average JCT against the JCT of large jobs and the longest
waits. The settings are the policy's own; only two lines give it knowledge that no cluster has. Then, on synthetic
months, where large jobs come in numbers, what it is worth that they give way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.figure import Figure
from benchmarks.packs import pack
from benchmarks.timeaware import synthetic
from lucid.config.load import settings_from
from lucid.core.job import JobProfile
from lucid.core.ports import PairSpeeds, Predictor
from lucid.models.history import HistoryPredictor
from lucid.simulator.cluster.truth import Interference
from lucid.simulator.engine import Run
from lucid.simulator.metrics import run_metrics
from lucid.simulator.predictors import GivenPredictor
from lucid.simulator.scenario import Scenario, simulate

__all__ = ["figures"]


@dataclass(frozen=True, slots=True)
class _Variant:
    name: str
    policy: Mapping[str, Mapping[str, Any]]
    """As the tables of ``lucid.toml`` under ``policy``."""
    told_pairs: bool = False


_VARIANTS = (
    _Variant("as shipped", {}),
    _Variant("no reservation", {"reservation": {"enabled": False}}),
    _Variant("large jobs never give way", {"reservation": {"most_share": 1.0}}),
    _Variant("no carry-on in place", {"profiling": {"carry_on_share": 0}}),
    _Variant("no carry-on, no reservation", {"profiling": {"carry_on_share": 0}, "reservation": {"enabled": False}}),
    _Variant("carry-on on every profiling node", {"profiling": {"carry_on_share": 1}}),
    _Variant("8-GPU jobs not measured first (N_prof 4)", {"profiling": {"n_prof": 4}}),
    _Variant("first partner, not the best", {"packing": {"partner": "first"}}),
    _Variant("no floor on pair speed", {"packing": {"least_pair_speed": 0}}),
    _Variant("never packed (GSS 0)", {"packing": {"gss": 0}}),
    _Variant("told the true pair speeds", {}, told_pairs=True),
    _Variant("told the true pair speeds, no floor", {"packing": {"least_pair_speed": 0}}, told_pairs=True),
)


class _PairOracle(GivenPredictor):
    """Estimates as given; of pairs the truth."""

    def __init__(self, scenario: Scenario, truth: Interference) -> None:
        super().__init__("given estimates", scenario.durations_s["lucid"], scenario.trace, HistoryPredictor())
        self._truth = truth

    def pair_speed(self, a: JobProfile, b: JobProfile) -> PairSpeeds:
        return self._truth(a, b)


@dataclass(frozen=True, slots=True)
class _Told(Scenario):
    def predictor_for(self, policy: str) -> Predictor:  # noqa: ARG002 - only lucid is replayed here
        return _PairOracle(self, self.interference)


def figures(runs: int) -> Iterator[Figure]:  # noqa: ARG001 - deterministic
    """By variant on P1; then, on synthetic months, with and without the share that large jobs are kept to."""
    yield from _on_p1()
    for seed in (1, 2, 3):
        yield from _on_month(seed)


def _on_month(seed: int) -> Iterator[Figure]:
    scenario = synthetic("month-small", seed)
    fifo_large_h = float(run_metrics(simulate(scenario, "fifo"))["avg_jct_large_s"]) / 3600
    without: float | None = None
    for name, share in (("large jobs never give way", 1.0), ("large jobs give way (as shipped)", 0.5)):
        settings = settings_from({"policy": {"reservation": {"most_share": share}}}, name)
        jct_h, large_h, wait_h = _hours(simulate(replace(scenario, settings=settings), "lucid"))
        without = jct_h if without is None else without
        yield Figure(
            f"synthetic month, seed {seed}, {name}: avg JCT",
            jct_h,
            "h",
            1,
            without,
            "never giving way",
            note=f"jobs > 8 GPUs {large_h:.1f} h (fifo {fifo_large_h:.1f} h), p99.9 queueing {wait_h:.0f} h",
        )


def _hours(run: Run) -> tuple[float, float, float]:
    metrics = run_metrics(run)
    jct_s, large_s, wait_s = (float(metrics[key]) for key in ("avg_jct_s", "avg_jct_large_s", "p999_queue_s"))
    return jct_s / 3600, large_s / 3600, wait_s / 3600


def _on_p1() -> Iterator[Figure]:
    """Average JCT by variant against the shipped settings; what large jobs and the unluckiest got beside it."""
    scenario = pack("P1", (("lucid", "P1_est_ebm.csv"),))
    shipped: float | None = None
    for variant in _VARIANTS:
        chosen = replace(scenario, settings=settings_from({"policy": dict(variant.policy)}, variant.name))
        if variant.told_pairs:
            chosen = _Told(**{name: getattr(chosen, name) for name in Scenario.__dataclass_fields__})
        jct_h, large_h, wait_h = _hours(simulate(chosen, "lucid"))
        shipped = jct_h if shipped is None else shipped
        yield Figure(
            f"P1, {variant.name}: avg JCT",
            jct_h,
            "h",
            1,
            shipped,
            "as shipped",
            note=f"jobs > 8 GPUs {large_h:.2f} h, p99.9 queueing {wait_h:.2f} h",
            detail={"avg_jct_h": jct_h, "avg_jct_large_h": large_h, "p999_queue_h": wait_h},
        )
