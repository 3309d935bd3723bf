"""Muri as published."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from examples import examples
from lucid.orchestrator.policies.muri.grouping import (
    GammaTable,
    Group,
    GroupingOptions,
    choose_candidates,
    group_jobs,
    unpack,
)
from lucid.orchestrator.policies.muri.interleave import (
    MOST_CONFLICT,
    NO_OVERHEAD,
    PUBLISHED,
    MuriJob,
    conflict,
    efficiencies,
    periods,
    start_overhead_s,
)
from lucid.orchestrator.policies.muri.matching import match_by_kind, max_weight_matching

times = st.floats(0.1, 100.0)


def jobs_of(stages: np.ndarray, gpus: int = 1) -> list[MuriJob]:
    return [MuriJob(i, gpus, tuple(row)) for i, row in enumerate(stages.tolist())]


@settings(max_examples=examples(300))
@given(arrays(float, (4, 4), elements=times))
def test_efficiency_is_a_fraction_and_sharing_never_beats_the_busiest_resource(stages: np.ndarray) -> None:
    gamma = efficiencies(stages[None], 4)[0]
    assert 0 < gamma <= 1 + 1e-12
    assert periods(stages[None], 4)[0] >= stages.sum(axis=0).max() / 4 - 1e-9
    assert periods(stages[None], 4)[0] >= stages.sum(axis=1).max() - 1e-9


def test_three_measured_times_leave_data_two_slots() -> None:  # M7
    # One of data and one of GPU and network fit side by side: 10 against 4 + 6.
    assert periods([[[10.0, 0.0, 0.0], [0.0, 4.0, 6.0]]], 4)[0] == 10.0


def test_overhead_by_group_size() -> None:  # M8
    stages = np.ones((1, 2, 4))
    plain, shared = efficiencies(stages, 4)[0], efficiencies(stages, 4, overhead=PUBLISHED)[0]
    assert plain / shared == pytest.approx(1.33 / 1.015)
    assert start_overhead_s("a2c", 8) == 46
    assert start_overhead_s("unheard of", 8) == 10
    assert start_overhead_s("a2c", 3) == 10


@pytest.mark.parametrize("stages", [(), (0.0, 0.0), (-1.0, 2.0), (float("nan"), 1.0)])
def test_impossible_profiles_are_refused(stages: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="stage times"):
        MuriJob(1, 1, stages)


def test_more_jobs_than_resources_are_refused() -> None:  # M11
    with pytest.raises(ValueError, match="at most 2"):
        periods(np.ones((1, 3, 2)), 2)
    with pytest.raises(ValueError, match="group_size"):
        GroupingOptions(k=3, group_size=4)


def brute_force(weights: np.ndarray, left: tuple[int, ...]) -> float:
    if len(left) < 2:
        return 0.0
    first, rest = left[0], left[1:]
    best = brute_force(weights, rest)
    for other in rest:
        if weights[first, other] > 0:
            others = tuple(v for v in rest if v != other)
            best = max(best, weights[first, other] + brute_force(weights, others))
    return best


def weight_of(weights: np.ndarray, pairs: list[tuple[int, int]]) -> float:
    assert len({v for pair in pairs for v in pair}) == 2 * len(pairs)
    return float(sum(weights[i, j] for i, j in pairs))


@settings(max_examples=examples(200))
@given(st.integers(2, 8), st.integers(0, 2**32 - 1))
def test_matching_is_optimal(n: int, seed: int) -> None:  # M9
    w = np.random.default_rng(seed).random((n, n)) - 0.2
    w = np.triu(w, 1) + np.triu(w, 1).T
    assert weight_of(w, max_weight_matching(w)) == pytest.approx(brute_force(w, tuple(range(n))), abs=1e-9)


@pytest.mark.parametrize(("n", "kinds"), [(71, 71), (150, 150), (151, 6), (200, 30), (101, 1)])
def test_the_three_ways_of_matching_agree(n: int, kinds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from lucid.orchestrator.policies.muri import matching

    rng = np.random.default_rng(n)
    w = rng.random((kinds, kinds))
    w = np.triu(w) + np.triu(w, 1).T
    kind = np.arange(n) if n == kinds else rng.integers(kinds, size=n)
    full = w[np.ix_(kind, kind)].copy()
    fast = weight_of(full, match_by_kind(w, kind))
    monkeypatch.setattr(matching, "_SMALL", 10**6)
    assert fast == pytest.approx(weight_of(full, match_by_kind(w, kind)), abs=1e-9)


def test_forbidden_pairs_are_not_matched() -> None:
    w = np.zeros((80, 80))
    w[0, 1] = w[1, 0] = 0.5
    assert max_weight_matching(w) == [(0, 1)]
    assert max_weight_matching(np.zeros((5, 5))) == []
    with pytest.raises(ValueError, match="symmetric"):
        max_weight_matching([[0, 1], [2, 0]])


def test_only_equal_gpu_counts_share_and_four_become_one_group() -> None:  # M12, M13
    rng = np.random.default_rng(0)
    jobs = [MuriJob(f"a{i}", 5, tuple(rng.random(4) + 0.1)) for i in range(4)]
    jobs.append(MuriJob("b", 1, (1.0, 1.0, 1.0, 1.0)))
    groups = group_jobs(jobs, 0)
    assert sorted(len(g.jobs) for g in groups) == [1, 4]
    assert all(job.gpus == g.gpus for g in groups for job in g.jobs)


@pytest.mark.parametrize("matching", ["blossom", "by_priority"])
def test_merging_stops_when_the_cluster_holds_the_jobs(matching: str) -> None:  # M18
    jobs = jobs_of(np.random.default_rng(1).random((10, 4)) + 0.1, gpus=2)
    options = GroupingOptions(matching=matching)  # type: ignore[arg-type]
    assert len(group_jobs(jobs, 20, options)) == 10
    assert len(group_jobs(jobs, 18, options)) == 9
    assert len(group_jobs(jobs, 12, options)) == 6
    assert len(group_jobs(jobs, 0, options)) == 3


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(1, 14), st.integers(0, 40), st.integers(0, 2**16), st.sampled_from([2, 3, 4]))
def test_every_job_is_in_exactly_one_group(n: int, gpus: int, seed: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    jobs = [MuriJob(i, int(2 ** rng.integers(3)), tuple(rng.random(k) + 0.01)) for i in range(n)]
    for options in (
        GroupingOptions(k=k),
        GroupingOptions(k=k, ordering="worst"),
        GroupingOptions(k=k, matching="by_priority"),
    ):
        groups = group_jobs(jobs, gpus, options)
        assert sorted(j.job_id for g in groups for j in g.jobs) == list(range(n))
        assert all(len(g.jobs) <= k for g in groups)


def test_candidates_are_whole_groups_of_what_fits() -> None:  # M17
    jobs = [MuriJob(i, gpus, (1.0, 1.0)) for i, gpus in enumerate([1, 2, 1, 1, 2, 1, 1])]
    free = [3]

    def fits(job: MuriJob) -> bool:
        if job.gpus > free[0]:
            return False
        free[0] -= job.gpus
        return True

    # Job 0 brings 2 (one GPU), job 1 brings 4 (two GPUs); nothing is left for the others.
    assert [j.job_id for j in choose_candidates(jobs, fits, 2)] == [0, 1, 2, 4]


def test_a_group_slower_than_one_after_the_other_is_split() -> None:  # M19
    clash = Group(1, tuple(MuriJob(i, 1, (0.0, 10.0)) for i in range(2)))
    fits = Group(1, (MuriJob(2, 1, (10.0, 0.1)), MuriJob(3, 1, (0.1, 10.0))))
    options = GroupingOptions(k=2, overhead=PUBLISHED)
    assert [len(g.jobs) for g in unpack([clash, fits], options)] == [1, 1, 2]
    assert [len(g.jobs) for g in unpack([clash], GroupingOptions(k=2, overhead=NO_OVERHEAD))] == [2]


def test_the_table_remembers_profiles_not_jobs() -> None:
    table = GammaTable(2, "best", NO_OVERHEAD)
    a, b = MuriJob("a", 1, (1.0, 2.0)), MuriJob("b", 1, (1.0, 2.0))
    assert table.group_id([a]) == table.group_id([b])
    with pytest.raises(ValueError, match="best"):
        GammaTable(2, "given", NO_OVERHEAD)


def job(*shares: float, iteration: float | None = 1.0) -> MuriJob:
    return MuriJob("a", 1, shares, iteration)


@pytest.mark.parametrize(
    ("a", "b", "chance"),
    [
        (job(1.0, 0.0, 0.0, 0.0), job(0.0, 0.0, 1.0, 0.0), 0.0),
        (job(0.0, 0.0, 1.0, 0.0), job(0.0, 0.0, 1.0, 0.0), 1.0),
        (job(0.0, 0.5, 0.5, 0.0), job(0.0, 0.5, 0.5, 0.0), 0.5),
        (job(0.0, 0.0, 0.2, 0.0), job(0.0, 0.0, 0.2, 0.0), 0.04 + 0.64),  # nobody knows what they wait for
        (job(0.0, 0.0, 0.2, 0.0), job(0.5, 0.0, 0.5, 0.0), 0.1 + 0.4),
        (job(0.0, 0.0, 10.0, 10.0, iteration=None), job(0.0, 0.0, 0.3, 0.7), 0.15 + 0.35),  # seconds are shares, too
        (job(1.0, 1.0, 1.0, 0.0), job(1.0, 1.0, 1.0, 0.0), 3.0),  # all at once
    ],
)
def test_the_chance_that_both_want_the_same(a: MuriJob, b: MuriJob, chance: float) -> None:
    assert conflict(a, b) == pytest.approx(chance)
    assert conflict(b, a) == pytest.approx(chance)


def test_no_job_is_paired_with_one_of_its_own_kind() -> None:
    """As long as its use of the network is not known, which it is not from outside."""
    rng = random.Random(7)
    for _ in range(1000):
        cuts = sorted((rng.random(), rng.random()))
        shares = (cuts[0], cuts[1] - cuts[0], (1.0 - cuts[1]) * rng.choice([1.0, 1.3, 0.5]), 0.0)
        assert conflict(job(*shares), job(*shares)) >= MOST_CONFLICT - 1e-9
