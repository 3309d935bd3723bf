"""A VC from which the nodes have been moved away: jobs wait there, and nothing fails."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from builders import LIGHT, a_job, part, policy, settings, snap, waits
from lucid.config.policy import LIVE_DEFAULTS, with_defaults
from lucid.core.decision import Hold
from lucid.core.job import Pending
from lucid.core.reasons.queue import Unranked
from lucid.orchestrator.registry import BUILT_IN, make_policy
from scenes.plans import FixedPredictor

ONE, TWO, WIDE = waits("1", profile=LIGHT), waits("2", user="v"), waits("3", gpus=8)
WHAT: dict[str, dict[str, Any]] = {
    "defaults": {},
    "never ranked": {"fairness": {"estimates": "never"}},
    "bounded": {"fairness": {"beyond_plain_s": 3600.0}, "profiling": {"enabled": False}},
}


@pytest.mark.parametrize("how", WHAT)
@pytest.mark.parametrize("name", BUILT_IN)
def test_all_wait_by_every_policy(name: str, how: str) -> None:
    scene = snap(100.0, part((), [ONE, TWO, WIDE]))
    made = policy(name, **WHAT[how]).plan(scene).partitions["vc"]
    assert {job: type(decision) for job, decision in made.decisions.items()} == dict.fromkeys("123", Hold)


@pytest.mark.parametrize("gain", [0.3, 0.9])
def test_all_wait_where_estimates_rank_under_live_defaults(gain: float) -> None:
    rules = with_defaults(settings(), LIVE_DEFAULTS)
    scene = replace(snap(100.0, part((), [ONE, TWO, WIDE])), trust={"": Unranked("", 50, gain, 0.3)})
    made = make_policy("lucid", rules, FixedPredictor()).plan(scene).partitions["vc"]
    assert {job: type(decision) for job, decision in made.decisions.items()} == dict.fromkeys("123", Hold)


@pytest.mark.parametrize("mode", ["off", "quota", "borrow"])
def test_all_wait_in_a_pool(mode: str) -> None:
    waiting = [Pending(a_job(f"{vc}{i}", 2, vc=vc), 0.0, LIGHT) for vc in "ab" for i in range(2)]
    scene = snap(100.0, replace(part((), waiting, name="pool"), quotas={"a": 4, "b": 4}))
    rules: dict[str, Any] = {"lending": {"mode": mode}, "profiling": {"enabled": False}}
    made = policy("lucid", fairness={"beyond_plain_s": 3600.0}, **rules).plan(scene).partitions["pool"]
    assert {type(decision) for decision in made.decisions.values()} == {Hold}
