"""Two jobs that nobody makes wait for their turn: how often they want the same resource at once."""

from __future__ import annotations

import csv
import random
from pathlib import Path

import pytest

import benchmarks.calibrate
from lucid.orchestrator.policies.muri.interleave import MOST_CONFLICT, MuriJob, conflict

MEASURED = Path(benchmarks.calibrate.__file__).parent / "measured/h100-mps"


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


def test_pairs_measured_on_a_gpu_ran_as_fast_as_this_says_or_faster() -> None:
    """Jobs of GPU work alone, whose GPU time is all that is known: the bound of what the GPU's part says."""
    with (MEASURED / "profiles.csv").open() as file:
        gpu = {row["model"]: float(row["gpu_util"]) / 100 for row in csv.DictReader(file)}
    with (MEASURED / "pairs.csv").open() as file:
        pairs = [
            (row["model1"], row["model2"], float(row["speed1"]), float(row["speed2"])) for row in csv.DictReader(file)
        ]
    assert len(pairs) == 15
    for one, other, *speeds in pairs:
        expected = 1.0 / (1.0 + gpu[one] * gpu[other])
        mean = sum(speeds) / 2
        assert expected - 0.02 < mean < expected + 0.21, (one, other)


def iterations(a: tuple[float, ...], b: tuple[float, ...], rng: random.Random, until_s: float) -> list[float]:
    """Iterations in a second of two jobs whose stages take their mean time, exponentially. Two on one resource each
    go on at half speed: a GPU switches between processes every few milliseconds, a disk between requests."""
    stages, done, at, now_s = (a, b), [0, 0], [3, 3], 0.0
    left = [0.0, 0.0]
    while now_s < until_s:
        for who in (0, 1):
            while left[who] <= 0.0:
                at[who] = (at[who] + 1) % 4
                done[who] += at[who] == 0
                left[who] = rng.expovariate(1.0 / stages[who][at[who]]) if stages[who][at[who]] else 0.0
        speed = 0.5 if at[0] == at[1] else 1.0
        step = min(left)
        left = [0.0 if rest == step else rest - step for rest in left]
        now_s += step / speed
    return [count / now_s for count in done]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((0.7, 0.1, 0.2, 0.0), (0.05, 0.05, 0.9, 0.0)),
        ((0.0, 0.8, 0.2, 0.0), (0.1, 0.1, 0.8, 0.0)),
        ((0.3, 0.3, 0.4, 0.0), (0.3, 0.3, 0.4, 0.0)),
        ((0.1, 0.2, 0.7, 0.0), (0.1, 0.2, 0.7, 0.0)),
    ],
)
def test_random_stages_take_as_long_as_the_mean_value_says(a: tuple[float, ...], b: tuple[float, ...]) -> None:
    found = iterations(a, b, random.Random(3), 40_000.0)
    expected = 1.0 / (1.0 + conflict(job(*a), job(*b)))
    assert found == pytest.approx([expected, expected], rel=0.03)
