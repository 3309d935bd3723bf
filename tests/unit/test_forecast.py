"""When jobs may start, and the site factors of order mode."""

from __future__ import annotations

import pytest

from builders import guess, nodes, part, runs, waits
from lucid.orchestrator.forecast import forecast
from lucid.orchestrator.site_factor import STEPS, factor_of, site_factors


def test_jobs_start_in_order_as_gpus_come_free() -> None:
    room = part(nodes(1, 4), [waits("a", 4), waits("b", 2), waits("huge", 9)], [runs("r", "n1:0-2")])
    known = {"a": guess(1000.0), "b": guess(100.0), "huge": guess(1.0), "r": guess(600.0)}
    found = forecast(room, known, 200.0)
    assert (found["b"].position, found["a"].position) == (2, 3)
    assert (found["b"].early_s, found["b"].likely_s, found["b"].late_s) == (200.0, 400.0, 800.0)
    assert found["a"].likely_s == 500.0
    assert "huge" not in found


def test_partners_free_their_gpus_once() -> None:
    room = part(nodes(1, 4), [waits("a", 4)], [runs("r", "n1:0-3", partner="s"), runs("s", "n1:0-3", partner="r")])
    found = forecast(room, {"a": guess(10.0), "r": guess(100.0), "s": guess(300.0)}, 0.0)
    assert "a" in found


@pytest.mark.parametrize(("gpu_s", "factor"), [(0.0, 1000), (1.0, 1000), (8640000.0, 0), (1e12, 0)])
def test_the_factor_is_bounded(gpu_s: float, factor: int) -> None:
    assert factor_of(gpu_s, 1000) == factor


def test_shorter_jobs_get_more_in_steps() -> None:
    factors = [factor_of(10.0**n, 1000) for n in range(1, 9)]
    assert factors == sorted(factors, reverse=True)
    assert len(set(factors)) > 4
    assert factor_of(1000.0, 1000) == factor_of(1001.0, 1000) == 550
    assert all(f % (1000 // STEPS) == 0 for f in factors)


def test_only_known_jobs_get_one() -> None:
    room = part(nodes(1), [waits("a", 2), waits("b")])
    assert site_factors(room, {"a": guess(0.5)}, 1000) == {"a": 1000}
