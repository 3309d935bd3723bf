"""Pollux as published."""

from __future__ import annotations

import math
import zlib
from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from examples import examples
from lucid.orchestrator.policies.rounds.genetic import Objective, SearchOptions, _squeeze, search
from lucid.orchestrator.policies.rounds.goodput import (
    BatchLimits,
    FitObjective,
    GoodputModel,
    GradParams,
    Observations,
    PerfParams,
    fit_perf_params,
)
from lucid.orchestrator.policies.rounds.population import Layout
from lucid.orchestrator.policies.rounds.speedup import PolluxJob, SpeedupTable, growth_cap, restart_factors

PERF = PerfParams(0.1, 0.005, 0.3, 0.02, 0.05, 0.004, 2.0)
MODEL = GoodputModel(PERF, GradParams(1.0, 10.0), 64)
LIMITS = BatchLimits(64, 2048, 8, 128)


@example(0.0, 2.225073858507e-311, 1026)
@settings(max_examples=examples(500))
@given(st.floats(0, 10), st.floats(0, 1e4), st.integers(64, 10**6))
def test_efficiency_is_the_noise_scale_form(sqr: float, var: float, batch: int) -> None:  # P7, P8
    grad = GradParams(sqr, var)
    value = float(GoodputModel(PERF, grad, 64).efficiency(batch))
    assert 0 < value <= 1 + 1e-12 or sqr == var == 0
    phi = math.inf if grad.sqr <= 0 else 64 * grad.var / grad.sqr
    if sqr > 1e-6 and phi < 1e12:
        assert value == pytest.approx((phi + 64) / (phi + batch))


def test_a_fixed_batch_stays() -> None:  # P29
    choice = MODEL.optimize(np.ones(3), np.array([1, 2, 4]), BatchLimits(64, 64))
    assert (np.array([1, 2, 4]) * choice.atomic * (choice.accum + 1)).tolist() == [64, 64, 64]


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="1 <= N <= K"):
        MODEL.optimize(2, 1, LIMITS)
    with pytest.raises(ValueError, match="init <= most"):
        BatchLimits(64, 32)
    with pytest.raises(ValueError, match="equal"):
        Observations.from_columns([1], [1, 2], [1], [1], [1])
    with pytest.raises(ValueError, match="above 0"):
        Observations.from_columns([1], [1], [1], [0.0], [1])


def observe(perf: PerfParams, places: list[tuple[int, int]], sizes: tuple[int, ...] = (16, 32, 64)) -> Observations:
    rows = [(n, k, m) for n, k in places for m in sizes]
    nodes, replicas, atomic = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    step = replicas * atomic / GoodputModel(perf, GradParams(1, 1), 1).throughput(nodes, replicas, atomic, 0)
    return Observations.from_columns(nodes, replicas, atomic, perf.alpha_c + perf.beta_c * atomic, step)


def test_the_gradient_is_that_of_the_objective() -> None:  # P16
    seen = observe(PERF, [(1, 1), (1, 4), (2, 4), (4, 16)])
    at = np.array([0.12, 0.004, 0.2, 0.03, 0.06, 0.01, 1.7])
    objective = FitObjective(seen)
    value, gradient = objective(at)
    for index in range(7):
        up = at.copy()
        up[index] += 1e-6
        assert gradient[index] == pytest.approx((objective(up)[0] - value) / 1e-6, rel=1e-3, abs=1e-5)


def test_priors_hold_what_was_not_seen() -> None:  # P17-P19
    alone = fit_perf_params(observe(PERF, [(1, 1)])).params
    assert max(alone.alpha_n, alone.beta_n, alone.alpha_r, alone.beta_r) <= 1.2e-8
    two = fit_perf_params(observe(PERF, [(1, 1), (1, 2), (2, 2)])).params
    assert max(two.beta_n, two.beta_r) <= 1.2e-8
    assert two.alpha_r > 1e-3
    one_node = fit_perf_params(observe(PERF, [(1, 1), (1, 2), (1, 4)])).params
    assert one_node.alpha_n == pytest.approx(1.1 * one_node.alpha_r)
    assert one_node.beta_n == pytest.approx(1.1 * one_node.beta_r)
    one_size = fit_perf_params(observe(PERF, [(1, 1), (1, 2)], (32,))).params
    assert one_size.alpha_c == pytest.approx((0.1 + 0.005 * 32) / 2)


def test_growth_and_restarts() -> None:  # P20, P26
    assert [growth_cap(n) for n in (0, 1, 3)] == [1, 2, 6]
    assert growth_cap(200, LIMITS) == LIMITS.max_replicas == 256
    assert restart_factors([600.0, 10.0], [2, 1]).tolist() == [pytest.approx(540 / 630), 0.0]
    assert restart_factors([0.0, 600.0], [0, 2], 0.0).tolist() == [1.0, 1.0], "a restart that costs nothing"


def table(jobs: int, most: int, gpus: int, **kind: str) -> SpeedupTable:
    models = [MODEL._replace(grad=GradParams(1.0, 2.0 * 4.0**i)) for i in range(jobs)]
    return SpeedupTable([PolluxJob(i, m, LIMITS, most) for i, m in enumerate(models)], gpus, **kind)  # type: ignore[arg-type]


def test_speedup_is_one_at_the_fair_share() -> None:  # P25
    t = table(2, 8, 8)
    assert t(np.arange(2), np.zeros(2, dtype=int), np.full(2, 4)).tolist() == [1.0, 1.0]
    assert t(np.arange(2), np.zeros(2, dtype=int), np.zeros(2, dtype=int)).tolist() == [0.0, 0.0]
    new = SpeedupTable([PolluxJob(0, None, None, 8)] * 4, 8)
    assert new(np.array([0]), np.array([0]), np.array([3])).tolist() == [1.5]


def test_power_mean() -> None:  # P24
    x = np.array([[1.0, 4.0]])
    assert Objective(p=1, offset=0).fitness(x)[0] == 2.5
    assert Objective(p=-1, offset=0).fitness(x)[0] == pytest.approx(1.6)
    assert Objective(p=0).fitness(x)[0] == pytest.approx(2.0)
    assert Objective(p=-20, offset=0).fitness(x)[0] == pytest.approx(1.0, rel=0.1)


def test_speedups_are_scaled_before_the_offset_is_added() -> None:  # P24
    x, parts = np.array([[1.0, 4.0, 0.0]]), [0.25 + 1e-3, 1.0 + 1e-3, 1e-3]
    scaled = Objective(p=-1, offset=1e-3, scale=0.25)
    assert scaled.fitness(x)[0] == pytest.approx(3 / sum(1 / part for part in parts))
    assert Objective(p=1, offset=1e-3, scale=0.25).fitness(x)[0] == pytest.approx(sum(parts) / 3)
    assert Objective(p=0, offset=0, scale=0.25).fitness(x[:, :2])[0] == pytest.approx(0.5)


def legal(allocation: np.ndarray, capacity: list[int], most: np.ndarray) -> bool:
    across = (allocation > 0).sum(axis=1) > 1
    return bool(
        (allocation >= 0).all()
        and (allocation.sum(axis=0) <= capacity).all()
        and (allocation.sum(axis=1) <= most).all()
        and (((allocation > 0) & across[:, None]).sum(axis=0) <= 1).all()
    )


def every_allocation(jobs: int, capacity: list[int]) -> list[np.ndarray]:
    columns = [[c for c in product(range(room + 1), repeat=jobs) if sum(c) <= room] for room in capacity]
    return [np.array(way).T for way in product(*columns)]


@settings(max_examples=examples(20), deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([-1.0, 0.0, 1.0]))
def test_search_finds_the_exhaustive_optimum(seed: int, p: float) -> None:  # P24, P27, P28
    rng = np.random.default_rng(seed)
    capacity, most = [2, 3, 2], 4
    t, goal = table(3, most, 7), Objective(p=p)
    ways = every_allocation(3, capacity)
    base = ways[int(rng.integers(len(ways)))]
    restart = rng.uniform(0.5, 1.0, 3)

    def fitness(a: np.ndarray) -> float:
        value = t(np.arange(3), ((a > 0).sum(axis=1) > 1).astype(int), a.sum(axis=1))
        return float(goal.fitness(np.where((a != base).any(axis=1), value * restart, value)[None])[0])

    best = max(fitness(a) for a in ways if legal(a, capacity, t.most))
    found = search(t, capacity, base, restart, rng, objective=goal)
    assert legal(found.allocation, capacity, t.most)
    assert fitness(found.allocation) == pytest.approx(found.fitness)
    assert found.fitness >= 0.95 * best  # a heuristic: of 303 draws 302 found it, the worst seen was 0.988


@settings(max_examples=examples(60), deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 12),
    st.lists(st.integers(0, 8), min_size=1, max_size=5),
    st.booleans(),
)
def test_every_individual_obeys_the_rules(seed: int, jobs: int, capacity: list[int], seeds: bool) -> None:
    rng = np.random.default_rng(seed)
    t = table(min(jobs, 6), 5, max(1, sum(capacity)))
    n = len(t.jobs)
    options = SearchOptions(population=10, generations=4, seeds=seeds)
    found = search(t, capacity, np.zeros((n, len(capacity))), np.ones(n), rng, options=options)
    assert legal(found.allocation, capacity, t.most)
    for individual in found.population:
        allocation = np.array([[(row == j).sum() for row in individual] for j in range(n)])
        assert legal(allocation, capacity, t.most)


def test_no_jobs_and_wrong_shapes() -> None:
    nothing = search(SpeedupTable([], 4), [4], np.zeros((0, 1)), np.zeros(0), np.random.default_rng(0))
    assert nothing.allocation.shape == (0, 1)
    with pytest.raises(ValueError, match="2 jobs on 1 nodes"):
        search(table(2, 2, 4), [4], np.zeros((1, 1)), np.ones(2), np.random.default_rng(0))


def test_the_search_begins_with_the_last_population_and_ends_when_nothing_gets_better() -> None:  # P27
    t, base, rooms = table(6, 8, 16), np.zeros((6, 4)), [4, 4, 4, 4]
    assert (SearchOptions().population, SearchOptions().generations) == (100, 100)
    known = search(t, rooms, base, np.ones(6), np.random.default_rng(1))
    lazy = SearchOptions(population=4, generations=0, seeds=False)
    anew = search(t, rooms, base, np.ones(6), np.random.default_rng(2), options=lazy)
    again = search(t, rooms, base, np.ones(6), np.random.default_rng(2), options=lazy, previous=known.population)
    assert anew.fitness < known.fitness == pytest.approx(again.fitness)
    assert again.generations == 0
    one = search(table(1, 1, 1), [1], [[0]], [1.0], np.random.default_rng(0), options=SearchOptions(patience=3))
    assert one.generations == 3, "the greedy seed is the optimum"
    worse = [
        search(t, rooms, base, np.ones(6), np.random.default_rng(3), options=SearchOptions(8, g, 99, seeds=False))
        for g in (0, 40)
    ]
    assert worse[1].fitness > worse[0].fitness
    assert worse[1].generations == 40


@pytest.mark.parametrize(
    ("count", "capacity", "recorded"),
    [
        (6, [4] * 3, (50, 2515528932, 554530457)),
        (30, [4] * 16, (58, 2393063901, 2743046783)),
        (25, [8, 4, 2, 0, 6], (50, 1317053023, 636105009)),
        (12, [1] * 7, (50, 33655682, 3550276868)),
    ],
)
def test_the_search_goes_the_way_that_it_always_went(
    count: int, capacity: list[int], recorded: tuple[int, int, int]
) -> None:
    """Generations, last population and allocation of three rounds, recorded before the search was made faster. Jobs
    without a model: their speedups are numbers of GPUs, the same on every processor."""
    rng = np.random.default_rng(count)
    jobs = [PolluxJob(i, None, None, int(rng.integers(1, 9))) for i in range(count)]
    base, before = np.zeros((count, len(capacity)), dtype=np.intp), None
    for seed in range(3):
        found = search(
            SpeedupTable(jobs, sum(capacity)),
            capacity,
            base,
            np.full(count, 0.75),
            np.random.default_rng(seed),
            objective=Objective(p=-1),
            options=SearchOptions(seeds=False),
            previous=before,
        )
        base, before = found.allocation, found.population
    assert before is not None
    prints = [zlib.crc32(array.astype(kind).tobytes()) for array, kind in ((before, "<i4"), (base, "<i8"))]
    assert (found.generations, *prints) == recorded


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 5))
def test_counts_and_squeezing_against_plain_python(seed: int, width: int, nodes: int) -> None:
    rng = np.random.default_rng(seed)
    jobs = int(rng.integers(1, 7))
    slots = np.sort(rng.integers(0, jobs + 1, (3, nodes, width)), axis=2).astype(np.int32)
    base = rng.integers(0, 2, (jobs, nodes))
    layout = Layout(np.full(nodes, width), base, np.full(jobs, 99), False, np.zeros(nodes, dtype=bool))
    counts = layout.count(slots)
    for number, individual in enumerate(slots.tolist()):
        rows = [Counter(node) for node in individual]
        for job in range(jobs):
            here = [row[job] for row in rows]
            assert counts.replicas[number, job] == sum(here)
            assert counts.across[number, job] == (sum(gpus > 0 for gpus in here) > 1)
            assert counts.changed[number, job] == (here != base[job].tolist())
    wide = rng.integers(0, jobs + 1, (nodes, 4 * width)).astype(np.int32)
    wanted = [([job for job in row if job != jobs] + [jobs] * width)[:width] for row in wide.tolist()]
    assert _squeeze(wide, jobs, width).tolist() == wanted


def test_what_an_earlier_table_worked_out_is_what_a_new_one_would() -> None:
    limits = BatchLimits(64, 2048, 8, 128)
    models = [
        GoodputModel(PerfParams(0.1, 0.01, 0.3, 0.01, 0.1, 0.01, 1.5), GradParams(1.0, float(noise)), 64)
        for noise in (2, 9)
    ]
    cells = np.array([[0], [1]]), np.array([[0, 1, 1]]), np.array([[1, 5, 8]])

    def jobs(*made: GoodputModel) -> list[PolluxJob]:
        return [PolluxJob(i, model, limits, 8) for i, model in enumerate(made)]

    first = SpeedupTable(jobs(*models), 16)
    first(*cells)
    # the other way round, on another cluster, so of another fair share
    anew, helped = (SpeedupTable(jobs(*models[::-1]), 12, known=known) for known in (None, first.known))
    assert (anew(*cells) == helped(*cells)).all()
    other = models[0]._replace(grad=GradParams(1.0, 3.0))
    fresh, wary = (SpeedupTable(jobs(other, models[1]), 16, known=known) for known in (None, first.known))
    assert (fresh(*cells) == wary(*cells)).all(), "a job whose gradient has changed is worked out anew"
