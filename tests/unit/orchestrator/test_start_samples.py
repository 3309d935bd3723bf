"""Ranges from columns are those of the plain rule, sample by sample."""

from __future__ import annotations

import random
import subprocess
import sys
from math import exp, inf, log

import pytest

from lucid.orchestrator.forecast.samples import Like, Samples

FLOOR_S = 10.0
_Sample = tuple[float, float, bool]


def plain_range(
    over: list[tuple[Like, float]], on: list[tuple[Like, float]], like: Like, now_s: float
) -> tuple[float, float, float]:
    """The rule as docs/decisions/0025 states it, one sample after the other. ``over``: oldest first."""
    samples: list[_Sample] = []
    for age, (one, ratio) in enumerate(reversed(over)):
        samples.append((ratio, _likeness(one, like) * 0.5 ** (age / 500), True))
    for one, since_s in on:
        samples.append((log(max(now_s - since_s, 0.0) + FLOOR_S) - one.planned, _likeness(one, like) * 0.3, False))
    samples = [sample for sample in samples if sample[1]]
    blur = _blur(samples)
    spread = [(value + by * blur, weight / 5, seen) for value, weight, seen in samples for by in range(-2, 3)]
    prior = [-0.9 + 0.15 * step if like.foreseen else 0.2 * step for step in range(13)]
    spread += [(value, 2.0 / 13, True) for value in prior]
    spread.sort(key=lambda one: (one[0], not one[2]))
    above, at_risk, shares = 1.0, sum(weight for _, weight, _ in spread), list[tuple[float, float]]()
    for value, weight, seen in spread:
        if seen:
            above *= max(1.0 - weight / at_risk, 0.0) if at_risk > 0.0 else 0.0
            shares.append((value, 1.0 - above))
        at_risk -= weight
    last, before, best, early, late = shares[-1][1], 0.0, inf, 0.0, 0.0
    for begin, (value, share) in enumerate(shares):
        if begin and before + 0.8 > last + 1e-9:
            break
        end = next(value for value, share in shares if share >= min(before + 0.8, last) - 1e-9)
        if exp(end) - exp(value) < best:
            best, early, late = exp(end) - exp(value), value, end
        before = share
    middle = next((value for value, share in shares if share >= 0.5), shares[-1][0])
    return early, min(max(middle, early), late), late


def _likeness(one: Like, other: Like) -> float:
    apart = abs(one.planned - other.planned) / 3 + abs(one.size - other.size) + abs(one.spread - other.spread) / 3
    if one.kind != other.kind or apart >= 7.0:
        return 0.0
    return exp(-apart) * (1.0 if one.partition == other.partition else 0.5)


def _blur(samples: list[_Sample]) -> float:
    total, so_far, quarters = sum(weight for _, weight, _ in samples), 0.0, list[float]()
    if len(samples) <= 3:
        return 0.25
    for value, weight, _ in sorted(samples):
        so_far += weight
        while len(quarters) < 2 and so_far >= total * (0.25, 0.75)[len(quarters)] - 1e-12:
            quarters.append(value)
    count: float = total**2 / sum(weight * weight for _, weight, _ in samples)
    return min(max(0.8 * (quarters[-1] - quarters[0]) / count**0.2, 0.02), 0.25)


def a_like(rng: random.Random) -> Like:
    foreseen, profiling = rng.random() < 0.8, rng.random() < 0.2
    planned, spread = log(FLOOR_S + rng.lognormvariate(6.0, 2.0)), log(0.1 + rng.expovariate(1.0))
    return Like(foreseen, profiling, rng.choice("abc"), log(rng.choice((1, 2, 8, 64))), planned, spread)


@pytest.mark.parametrize("seed", range(6))
def test_columns_give_the_range_of_the_plain_rule(seed: int) -> None:
    """After any coming and going, to a millionth of the logarithm: sums are taken in another order."""
    rng = random.Random(seed)
    samples, over, on, now_s = Samples(40, 15), list[tuple[Like, float]](), dict[str, tuple[Like, float]](), 0.0
    for number in range(150):
        now_s += rng.expovariate(0.01)
        like = a_like(rng)
        if len(on) < 15:
            on[str(number)] = (like, now_s)
            samples.began(str(number), like, now_s)
        if on and rng.random() < 0.8:
            gone = rng.choice(sorted(on))
            began, since_s = on.pop(gone)
            samples.gone(gone)
            if rng.random() < 0.7:
                over.append((began, log(now_s - since_s + FLOOR_S) - began.planned))
                samples.over(*over[-1])
        if number % 15 == 0:
            asked = a_like(rng)
            expected = plain_range(over[-40:], list(on.values()), asked, now_s)
            assert samples.range_of(asked, now_s, FLOOR_S) == pytest.approx(expected, abs=1e-6)


def test_the_same_waits_many_times_are_no_trouble() -> None:
    like, samples = Like(True, False, "a", 0.0, log(110.0), 0.0), Samples(10, 2)
    for _ in range(12):
        samples.over(like, 0.5)
    for job_id in "abc":  # one more than there is room for
        samples.began(job_id, like, 0.0)
    found = samples.range_of(like, 50.0, FLOOR_S)
    assert found == pytest.approx(plain_range([(like, 0.5)] * 10, [(like, 0.0)] * 2, like, 50.0), abs=1e-6)


def test_forecasts_are_read_and_kept_without_numpy() -> None:
    """A command that prints no range does not wait until numpy is loaded."""
    code = (
        "import sys; from lucid.orchestrator.forecast.ranges import StartTimes, Wait; times = StartTimes();"
        "times.started('a', 1.0); StartTimes.from_dict(times.to_dict()); sys.exit('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
