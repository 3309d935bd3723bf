"""What a policy states that it does: it is a type, it fits what the policy needs, and what is missing is named."""

from __future__ import annotations

import re
from typing import Any

import pytest

from lucid.config.policy import PolicySettings
from lucid.core.ports import Capability
from lucid.errors import ConfigError
from lucid.models.history import HistoryPredictor
from lucid.orchestrator import registry as policies
from lucid.orchestrator.planner import make_policies
from lucid.orchestrator.policy import PolicyRules, rules_of
from lucid.orchestrator.registry import BUILT_IN, make_policy


def foreign(*needs: Capability, **members: Any) -> Any:
    """A policy of another package."""
    return type("Foreign", (), {"name": "theirs", "needs": frozenset(needs), **members})()


def test_who_states_nothing_may_only_start_jobs() -> None:
    assert rules_of(foreign()) == PolicyRules()


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (foreign(Capability.PREEMPT), "needs preempt, and does not state what for: its rules lack preempts"),
        (foreign(Capability.SHARE), "its rules lack pairs"),
        (foreign(Capability.PROFILE), "its rules lack profiles"),
        (foreign(Capability.RESIZE, Capability.PREEMPT, rules=PolicyRules(preempts="elastic")), "lack resizes"),
        (foreign(Capability.INTERLEAVE), "its rules lack interleaves"),
        (foreign(rules=PolicyRules(resizes=True)), "states resizes, and its needs lack resize"),
        (foreign(rules=PolicyRules(preempts="anybody")), "states preempts, and its needs lack preempt"),
        (foreign(group_limit=3), "states its rules as 'group_limit', which is read no more: it needs a member rules"),
        (foreign(restarts="asked"), "'restarts', which is read no more"),
        (foreign(lending=None), "PolicyRules(...) with borrows"),
        (foreign(rules={"pairs": True}), "its member rules has to be a PolicyRules, and is {'pairs': True}"),
        (foreign(rules=PolicyRules(own={"main": "anything"})), "has to be a PolicyRules"),  # type: ignore[dict-item]
    ],
)
def test_what_is_missing_is_named(policy: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "known_policies", lambda: {"theirs": lambda settings, predictor: policy})
    for make in (make_policy, lambda name, *rest: make_policies("fifo", {"main": name}, *rest)):
        with pytest.raises(ConfigError, match=rf"policy 'theirs'.*{re.escape(words)}.*docs/write-a-policy\.md"):
            make("theirs", PolicySettings(), HistoryPredictor())


@pytest.mark.parametrize(
    "wrong",
    [
        {"pairs": 1},
        {"borrows": "yes"},
        {"preempts": "all"},
        {"group_limit": 4},
        {"group_limit": 0, "interleaves": True},
    ],
)
def test_a_value_that_a_rule_does_not_take_is_an_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"PolicyRules: .* cannot be"):
        PolicyRules(**wrong)


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_policy_of_ours_states_what_it_needs(name: str) -> None:
    made = make_policy(name, PolicySettings(), HistoryPredictor())
    assert rules_of(made) is made.rules
