"""Decisions, their reasons and predictions stay as they were made: they are keys of dictionaries."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any, get_args

import pytest

from builders import at, guess
from lucid.core.decision import Decision, Start
from lucid.core.reason import REASONS
from lucid.core.reasons.queue import FreeGpus


@pytest.mark.parametrize(
    ("made", "field"),
    [(Start(at("n1:0"), ()), "beside"), (FreeGpus(1, 1, 1, True), "needed"), (guess(9.0), "duration_s")],
    ids=lambda item: type(item).__name__,
)
def test_no_test_assigns_to_a_field_of_what_was_decided(made: Any, field: str) -> None:
    with pytest.raises(FrozenInstanceError):
        setattr(made, field, None)


def test_all_that_is_decided_is_watched_over_in_tests() -> None:
    kinds: list[Any] = [*get_args(Decision), *REASONS.values()]
    assert [kind.__name__ for kind in kinds if not kind.__dataclass_params__.frozen] == []
