"""What a few pairs say of all others."""

from __future__ import annotations

import pytest

from lucid.models.packing.pair_belief import PairBelief, family


@pytest.mark.parametrize(("label", "found"), [("ResNet18|CIFAR|32|1", "ResNet18"), ("ada/Train-12", "ada/train-#")])
def test_a_family_is_the_model_or_the_program(label: str, found: str) -> None:
    assert family(label) == found


def test_without_a_pair_seen_the_guess_stands() -> None:
    assert PairBelief().corrected("a", "b", (0.9, 0.8)) == (0.9, 0.8)


def test_slow_pairs_of_some_workloads_lower_what_is_expected_of_others() -> None:
    belief = PairBelief()
    for i in range(12):
        belief.note(f"m{'abcdef'[i % 6]}|x", f"m{'abcdef'[i // 2]}|y", -0.4)
    own, other = belief.corrected("unknown|1", "unheard|2", (0.9, 0.9))
    assert own == other
    assert 0.48 < own < 0.6


def test_a_family_that_is_slow_beside_all_says_little_of_another() -> None:
    belief = PairBelief()
    for i, partner in enumerate("abcdefgh"):
        belief.note(f"slow|{i}", f"{partner}|1", -0.5)
        belief.note(f"fast|{i}", f"{partner}|1", 0.0)
    slow, _ = belief.corrected("slow|99", "z|1", (0.9, 0.9))
    fast, _ = belief.corrected("fast|99", "z|1", (0.9, 0.9))
    assert slow < 0.55
    assert fast > 0.75
