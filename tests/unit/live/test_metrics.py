"""Figures of a run, worked out by hand."""

from __future__ import annotations

import pytest

from builders import LIGHT, FixedPredictor, a_job, a_trace, by, nodes, settings
from lucid.config.policy import OverheadSettings
from lucid.orchestrator.registry import make_policy
from lucid.simulator.cluster.cluster import SimulatedCluster
from lucid.simulator.cluster.state import JobOutcome
from lucid.simulator.cluster.truth import PairsTable
from lucid.simulator.engine import Run, Series, run
from lucid.simulator.metrics import LARGE_GPUS, SIZES, group_metrics, run_metrics
from lucid.simulator.scenario import Scenario, simulate


def outcome(name: str, gpus: int, submit_s: float, queue_s: float, ran_s: float, **rest: object) -> JobOutcome:
    start_s = submit_s + queue_s
    made = JobOutcome(
        a_job(name, gpus, submit_s, vc=str(rest.pop("vc", "v"))), ran_s, start_s, start_s + ran_s, queue_s
    )
    for key, value in rest.items():
        setattr(made, key, value)
    return made


def a_run(*outcomes: JobOutcome, total_gpus: int = 16) -> Run:
    return Run("fifo", "history", list(outcomes), Series(), total_gpus, 3, 0.5, 0.25)


OUTCOMES = (
    outcome("a", 1, 0.0, 0.0, 100.0, packed=True),
    outcome("b", 4, 10.0, 30.0, 60.0, preemptions=2, vc="w"),
    outcome("c", 9, 20.0, 100.0, 200.0, packed=True, ended_in_profiling=True),
    outcome("d", 16, 20.0, 10.0, 90.0, preemptions=1),
)


def test_jct_and_queueing_by_hand() -> None:
    figures = run_metrics(a_run(*OUTCOMES))
    assert figures["jobs"] == 4
    assert figures["avg_jct_s"] == pytest.approx((100 + 90 + 300 + 100) / 4)
    assert figures["avg_queue_s"] == pytest.approx((0 + 30 + 100 + 10) / 4)
    assert figures["median_jct_s"] == pytest.approx(100.0)
    assert figures["median_queue_s"] == pytest.approx(20.0)
    # linear between ranks: the 90th of 0, 10, 30, 100 is seven tenths of the way from 30 to 100
    assert figures["p90_queue_s"] == pytest.approx(79.0)
    assert figures["p999_queue_s"] == pytest.approx(100.0, abs=0.3)


def test_jobs_above_eight_gpus_are_large() -> None:
    figures = run_metrics(a_run(*OUTCOMES, outcome("e", 8, 0.0, 0.0, 9999.0)))
    assert LARGE_GPUS == 8
    assert figures["large_jobs"] == 2
    assert figures["avg_jct_large_s"] == pytest.approx((300 + 100) / 2)


def test_counts_and_makespan() -> None:
    figures = run_metrics(a_run(*OUTCOMES))
    assert figures["makespan_s"] == 320.0
    assert (figures["preemptions"], figures["packed_jobs"], figures["packed_share"]) == (3, 2, 0.5)
    assert figures["ended_in_profiling"] == 1
    assert (figures["wall_s"], figures["cpu_s"], figures["predictor"]) == (0.5, 0.25, "history")


def test_a_job_that_never_ran_is_counted_and_left_out_of_the_means() -> None:
    never = JobOutcome(a_job("never", 99), 50.0)
    figures = run_metrics(a_run(*OUTCOMES, never))
    assert (figures["jobs"], figures["impossible_jobs"]) == (4, 1)
    assert figures["avg_jct_s"] == run_metrics(a_run(*OUTCOMES))["avg_jct_s"]


def test_groups_are_parts_of_the_whole() -> None:
    figures = run_metrics(a_run(*OUTCOMES))
    assert {vc: group["jobs"] for vc, group in figures["by_vc"].items()} == {"v": 3, "w": 1}
    assert figures["by_vc"]["w"]["avg_jct_s"] == 90.0
    assert {size: group["jobs"] for size, group in figures["by_size"].items()} == {
        "1": 1,
        "2-4": 1,
        "5-8": 0,
        ">8": 2,
    }


@pytest.mark.parametrize("gpus", range(1, 40))
def test_every_size_is_in_one_class(gpus: int) -> None:
    assert sum(inside(gpus) for _, inside in SIZES) == 1


def test_a_run_without_jobs_has_no_means() -> None:
    assert group_metrics([]) == {"jobs": 0}
    figures = run_metrics(a_run())
    assert (figures["jobs"], figures["avg_jct_large_s"], figures["gpu_use"]) == (0, None, 0.0)


def test_gpu_use_is_what_was_held_of_what_was_there() -> None:
    figures = run_metrics(simulate(Scenario(a_trace(by("a", 2, 100.0), by("b", 1, 50.0)), {"vc": 1}), "fifo"))
    assert figures["total_gpus"] == 8
    assert figures["gpu_use"] == pytest.approx((2 * 100 + 1 * 50) / (8 * 100))
    assert figures["shared_gpu_use"] == 0.0


def test_shared_gpus_are_held_once() -> None:
    trace = a_trace(by("a", 1, 400.0, profile=LIGHT), by("b", 1, 400.0, profile=LIGHT))
    rules = settings(profiling={"enabled": False}, packing={"least_partner_remaining_s": 0.0})
    predictor = FixedPredictor(otherwise_s=400.0)
    made = make_policy("lucid", rules, predictor)
    cluster = SimulatedCluster(
        trace, {"vc": nodes(1, 1)}, PairsTable({}, (0.8, 0.8)), OverheadSettings(), rules.profiling, made.profiled,
        measured_before=True,
    )  # fmt: skip
    figures = run_metrics(run(cluster, made, predictor, settings=rules))
    assert figures["packed_jobs"] == 2
    assert figures["avg_jct_s"] == pytest.approx(400.0 / 0.8)
    assert (figures["gpu_use"], figures["shared_gpu_use"]) == (pytest.approx(1.0), pytest.approx(1.0))
