"""``Check``: what doctor looks for, as data: level, test, sentence, remedy; and how a table of them is run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from lucid.errors import Finding

_S = TypeVar("_S")


@dataclass(frozen=True)
class Check(Generic[_S]):
    """``test`` of a subject is false where all is well, else what fills the braces of ``what`` and ``remedy``: each
    of a tuple, or the value itself. ``{s.name}`` there is of the subject."""

    level: str
    test: Callable[[_S], Any]
    what: str
    remedy: str = ""
    setup_mends: bool = False

    def __call__(self, subject: _S) -> Iterator[Finding]:
        """The finding, or none."""
        if said := self.test(subject):
            values = said if isinstance(said, tuple) else (said,)
            what, remedy = (text.format(*values, s=subject) for text in (self.what, self.remedy))
            yield Finding(self.level, what, remedy, self.setup_mends)


Table = Sequence[Callable[[_S], Iterator[Finding]]]
"""Checks of one kind of subject, in the order in which their findings are told. A function stands where several
findings come of the same work."""


def run(table: Table[_S], subject: _S) -> Iterator[Finding]:
    """The findings of all checks of a table, in its order."""
    return (found for check in table for found in check(subject))
