"""A user's words for Lucid stand in a job's comment among what other tools write there."""

from __future__ import annotations

import pytest

from lucid.slurm.records.fields import says
from tool_comments import COMMENTS, LOOKALIKES


@pytest.mark.parametrize("comment", COMMENTS)
def test_a_word_is_found_among_the_words_of_other_tools(comment: str) -> None:
    assert says(comment.format("lucid:exclusive"), "exclusive")
    assert not says(comment.format("lucid:exclusive"), "off")
    both = comment.format("lucid:cold lucid:exclusive")
    assert says(both, "cold")
    assert says(both, "exclusive")


@pytest.mark.parametrize("comment", LOOKALIKES)
def test_what_only_looks_like_a_word_is_none(comment: str) -> None:
    assert not says(comment, "exclusive")
