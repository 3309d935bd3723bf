"""``one_thread``: keeps small linear algebra to one thread.

A fit solves thousands of systems of three to seven unknowns. Handing each to a pool of threads costs far more than it
saves: 18 times the time on two busy cores."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]


@cache
def _libraries() -> ThreadpoolController:
    from threadpoolctl import ThreadpoolController

    # Looking them up takes milliseconds, so once; by then numpy and scipy have loaded theirs.
    return ThreadpoolController()


def one_thread() -> AbstractContextManager[object]:
    """A context in which numeric libraries use one thread."""
    context: AbstractContextManager[object] = _libraries().limit(limits=1)
    return context
