"""Sia's program: bundles, what they are worth, the choice against every choice there is, and a place for each."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from lucid.systems.sia import Bundle, Choice, Kind, bundles_of, choose, kinds_of, place, utilities


def names(bundles: list[Bundle], kinds: list[Kind]) -> list[tuple[int, int, str]]:
    return [(b.nodes, b.gpus, kinds[b.kind].gpu_type) for b in bundles]


def test_bundles_are_powers_of_two_within_a_node_and_whole_nodes_beyond() -> None:
    kinds = kinds_of(["t4", "t4", "a100", ""], [4, 4, 8, 0], [4, 4, 8, 0])
    assert [(k.gpu_type, k.width, k.nodes) for k in kinds] == [("t4", 4, (0, 1)), ("a100", 8, (2,))]
    t4 = [(1, 1, "t4"), (1, 2, "t4"), (1, 4, "t4"), (2, 8, "t4")]
    assert names(bundles_of(kinds), kinds) == [*t4, *((1, g, "a100") for g in (1, 2, 4, 8))]
    six = kinds_of(["x"] * 2, [6, 6], [6, 5])
    assert names(bundles_of(six), six) == [(1, 1, "x"), (1, 2, "x"), (1, 4, "x"), (1, 6, "x")], "one node is whole"


def test_rooms_are_cut_into_powers_of_two() -> None:
    kind = Kind("x", 8, (0, 1), (7, 3))
    assert [kind.room(level) for level in kind.levels] == [10, 8, 4, 0]
    assert kind.whole == 0


def test_the_papers_example() -> None:
    """Table 1: a node of two A, a node of four B; J1 gets the four B, J2 the two A."""
    kinds = kinds_of(["A", "B"], [2, 4], [2, 4])
    bundles = bundles_of(kinds)
    assert names(bundles, kinds) == [(1, 1, "A"), (1, 2, "A"), (1, 1, "B"), (1, 2, "B"), (1, 4, "B")]
    matrix = np.array([[1, 1.5, 1.5, 2.5, 3.5], [1.2, 2.1, 1, 1.9, 3.6]])
    found = choose(utilities(matrix, [1, 1], [-1, -1], [1, 1], 1.0), bundles, kinds, maximise=True, idle=1.1)
    assert found == Choice((4, 1), pytest.approx(5.6), True)


def test_rows_are_relative_to_their_least_and_a_move_costs_the_restart_factor() -> None:
    made = utilities([[10.0, 30.0, 0.0], [4.0, np.nan, 2.0]], [1, 2], [0, -1], [0.5, 0.5], 1.0)
    assert made[0].tolist()[:2] == [1.0, 1.5]
    assert np.isnan(made[0, 2])
    assert made[1, [0, 2]].tolist() == [4.0, 2.0], "the least counts the job's fewest GPUs"
    assert utilities([[1.0, 4.0]], [1], [-1], [1.0], -0.5).tolist() == [[1.0, 0.5]]
    assert np.isfinite(utilities([[1.0, 4.0]], [1], [0], [0.0], -0.5)).all(), "a move may be worth nothing"
    with pytest.raises(ValueError, match="must not be 0"):
        utilities([[1.0]], [1], [-1], [1.0], 0.0)


def every_choice(utility: np.ndarray, bundles: list[Bundle], kinds: list[Kind], idle: float) -> float:
    """The smallest sum over all choices that can be placed, each tried out."""
    best = np.inf
    nodes = sum(len(kind.nodes) for kind in kinds)
    for way in product(range(-1, len(bundles)), repeat=len(utility)):
        if any(b >= 0 and np.isnan(utility[j, b]) for j, b in enumerate(way)):
            continue
        cost = sum(idle if b < 0 else float(utility[j, b]) for j, b in enumerate(way))
        if cost < best and fits({j: bundles[b] for j, b in enumerate(way) if b >= 0}, kinds, nodes):
            best = cost
    return best


def fits(chosen: dict[int, Bundle], kinds: list[Kind], nodes: int) -> bool:
    """Is there any way to put these on nodes? Tries every node for every job."""

    def put(todo: list[Bundle], free: dict[int, int]) -> bool:
        if not todo:
            return True
        bundle, kind = todo[0], kinds[todo[0].kind]
        if bundle.whole:
            empty = [n for n in kind.nodes if free[n] == kind.width][: bundle.nodes]
            return len(empty) == bundle.nodes and put(todo[1:], free | dict.fromkeys(empty, 0))
        return any(put(todo[1:], free | {n: free[n] - bundle.gpus}) for n in kind.nodes if free[n] >= bundle.gpus)

    order = sorted(chosen.values(), key=lambda b: -b.gpus)
    return put(order, {n: f for kind in kinds for n, f in zip(kind.nodes, kind.free, strict=True)})


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 10**6))
def test_the_choice_is_the_best_of_all_that_can_be_placed(seed: int) -> None:
    rng = np.random.default_rng(seed)
    widths = rng.choice([2, 3, 4], int(rng.integers(1, 4))).tolist()
    kinds = kinds_of(
        rng.choice(["a", "b"], len(widths)).tolist(), widths, [int(rng.integers(0, width + 1)) for width in widths]
    )
    bundles = bundles_of(kinds)
    goodput = rng.uniform(0.5, 4.0, (3, len(bundles))) * (rng.random((3, len(bundles))) < 0.8)
    utility = utilities(goodput, [1, 1, 1], [-1, -1, -1], [1, 1, 1], -0.5)
    found = choose(utility, bundles, kinds, maximise=False, idle=1.1, gap=0.0)
    assert found.proved
    assert found.value == pytest.approx(every_choice(utility, bundles, kinds, 1.1))


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(0, 10**6))
def test_every_choice_finds_its_nodes_and_those_that_stay_stay_if_they_can(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 7))
    widths = rng.choice([1, 2, 4, 6, 8], count).tolist()
    types = rng.choice(["a", "b"], count).tolist()
    free = [int(rng.integers(0, width + 1)) if rng.random() < 0.4 else width for width in widths]
    kinds = kinds_of(types, widths, free)
    bundles = bundles_of(kinds)
    held: dict[int, np.ndarray] = {}
    for jobs in (int(rng.integers(1, 12)) for _ in range(3)):
        goodput = rng.uniform(0.5, 4.0, (jobs, len(bundles)))
        found = choose(
            utilities(goodput, [1] * jobs, [-1] * jobs, [1] * jobs, -0.5), bundles, kinds, maximise=False, idle=1.1
        )
        chosen = {j: bundles[b] for j, b in enumerate(found.bundle) if b >= 0}
        same = {
            j: row
            for j, row in held.items()
            if j in chosen
            and row.sum() == chosen[j].gpus
            and (row > 0).sum() == chosen[j].nodes
            and all(n in kinds[chosen[j].kind].nodes for n in np.flatnonzero(row).tolist())
        }
        placed = place(chosen, same, kinds, count)
        assert placed.rows.keys() == chosen.keys(), "every job has a place"
        assert (sum(placed.rows.values(), np.zeros(count, dtype=int)) <= free).all()
        for j, row in placed.rows.items():
            on = np.flatnonzero(row).tolist()
            assert int(row.sum()) == chosen[j].gpus
            assert len(on) == chosen[j].nodes
            assert all(n in kinds[chosen[j].kind].nodes for n in on), "one type of GPU"
            assert len(on) == 1 or all(row[n] == widths[n] for n in on), "whole nodes beyond one"
        stayed = {j for j in same if np.array_equal(placed.rows[j], same[j])}
        assert same.keys() - stayed == set(placed.evicted)
        held = dict(placed.rows)


def test_a_job_that_would_stay_moves_where_a_whole_node_is_needed() -> None:
    kinds = kinds_of(["x"] * 2, [2, 2], [2, 2])
    small, large = Bundle(0, 1, 1, False), Bundle(0, 1, 2, True)
    staying = {0: np.array([1, 0]), 1: np.array([0, 1])}
    placed = place({0: small, 1: small, 2: large}, staying, kinds, 2)
    assert len(placed.evicted) == 1
    assert placed.rows[0].argmax() == placed.rows[1].argmax() != placed.rows[2].argmax()
    assert place({0: small, 1: small}, staying, kinds, 2).evicted == ()


def test_without_jobs_or_bundles_nobody_gets_anything() -> None:
    kinds = kinds_of(["x"], [2], [0])
    assert bundles_of(kinds) == []
    nobody = choose(np.zeros((2, 0)), [], kinds, maximise=False, idle=1.1)
    assert nobody == Choice((-1, -1), 2.2, True)
