"""How many random examples a property is tried with."""

from __future__ import annotations

import os

__all__ = ["examples"]

_SHARE = float(os.environ.get("LUCID_EXAMPLES_SHARE", "1"))


def examples(count: int) -> int:
    """``count``, or that share of it that the environment's LUCID_EXAMPLES_SHARE says: a tenth in ``make test``,
    more than all in ``make nightly``."""
    return max(round(count * _SHARE), 1)
