"""Muri against the authors' matching code: efficiency and matching weight to 1e-9."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from vector_files import KINDS, SYSTEMS, TRACE_FIGURES, VECTORS, files, load

from lucid.orchestrator.policies.muri.grouping import GroupingOptions, group_jobs
from lucid.orchestrator.policies.muri.interleave import NO_OVERHEAD, PUBLISHED, MuriJob, efficiencies, periods

pytestmark = pytest.mark.vectors


def efficiency(jobs: Sequence[MuriJob], options: GroupingOptions) -> float:
    """Gamma of one group as it will run (M4, M5, M8)."""
    rest = {"ordering": options.ordering, "overhead": options.overhead, "solo_s": [jobs[0].solo_s]}
    return float(efficiencies([[job.stages for job in jobs]], options.k, **rest)[0])  # type: ignore[arg-type]


EXACT = {"rel": 1e-9, "abs": 1e-9}


def test_every_file_of_these_systems_is_read() -> None:
    if not VECTORS.is_dir():
        pytest.skip(f"{VECTORS} is not there (set LUCID_VECTORS)")
    ours = [path.name for path in VECTORS.glob("*.json") if path.name.startswith(SYSTEMS)]
    assert [name for name in ours if not name.startswith(KINDS + TRACE_FIGURES)] == []


@files("muri_gamma")
def test_period_and_gamma(vectors: Path) -> None:
    for number, case in enumerate(load(vectors)["cases"]):
        stages, k = [case["resource_time"]], case["k"]
        for ordering, name in (("best", "best"), ("worst", "worst"), ("given", "by_job_index")):
            if f"T_{name}" not in case:
                continue
            period = periods(stages, k, ordering)[0]  # type: ignore[arg-type]
            gamma = efficiencies(stages, k, ordering=ordering)[0]  # type: ignore[arg-type]
            assert period == pytest.approx(case[f"T_{name}"], **EXACT), (number, name)
            assert gamma == pytest.approx(case[f"gamma_{name}"], **EXACT), (number, name)
        with_overhead = efficiencies(stages, k, overhead=PUBLISHED)[0]
        assert with_overhead == pytest.approx(case["gamma_best_with_overhead"], **EXACT), number


def _jobs(case: dict[str, Any]) -> list[MuriJob]:
    if "jobs" in case:
        return [MuriJob(j["job"], j["num_gpu"], tuple(j["resource_time"])) for j in case["jobs"]]
    solo = case.get("iteration_time", [None] * case["num_jobs"])
    return [
        MuriJob(index, case["num_gpu"], tuple(stages), time)
        for index, (stages, time) in enumerate(zip(case["resource_time"], solo, strict=True))
    ]


@files("muri_grouping")
def test_pairs_have_the_optimal_weight(vectors: Path) -> None:
    for number, case in enumerate(load(vectors)["cases"]):
        if "pairs" not in case:
            continue
        overhead = PUBLISHED if case["with_overhead"] else NO_OVERHEAD
        options = GroupingOptions(k=case["k"], group_size=2, overhead=overhead)
        groups = group_jobs(_jobs(case), 0, options)
        weight = sum(efficiency(group.jobs, options) for group in groups if len(group.jobs) == 2)
        assert weight == pytest.approx(case["pair_optimum_weight_networkx"], **EXACT), number
        assert weight >= case["pair_total_weight"] - 1e-9, number


@files("muri_grouping")
def test_groups_reach_the_published_efficiency(vectors: Path) -> None:
    for number, case in enumerate(load(vectors)["cases"]):
        if "groups" not in case:
            continue
        overhead = PUBLISHED if case["with_overhead"] else NO_OVERHEAD
        options = GroupingOptions(k=case["k"], overhead=overhead)
        jobs = _jobs(case)
        by_id = {job.job_id: job for job in jobs}
        for group in case["groups"]:  # gamma of their groups, in our model
            gamma = efficiency([by_id[j] for j in group["jobs"]], options)
            assert gamma == pytest.approx(group["gamma"], **EXACT), number
        ours = group_jobs(jobs, case.get("cluster_gpu", 0), options)
        total = sum(efficiency(group.jobs, options) for group in ours)
        assert sorted(j.job_id for g in ours for j in g.jobs) == sorted(by_id), number
        ties = any(a.stages == b.stages for a, b in combinations(jobs, 2))
        if ties:  # equal weights match in several ways; each round's sum is the same
            assert total >= case["groups_total_gamma"] * 0.97, number
        else:
            assert total == pytest.approx(case["groups_total_gamma"], **EXACT), number
        if "required_gpu_after" in case:
            assert sum(g.gpus for g in ours) == case["required_gpu_after"], number
