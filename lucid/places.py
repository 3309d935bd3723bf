"""Where lucidd keeps its files, and what it may do in a partition."""

from __future__ import annotations

from enum import StrEnum

STATE_DIR = "/var/lib/lucid"
HEARTBEAT = "/run/lucid/heartbeat"
HELD_AT_MOST_S = 300.0
"""How long a job stays held for a lucidd without a sign of life (``LUCID_BOUND_S`` of lucid-release, as installed),
or for a plan of its partition that cannot be made."""


class Mode(StrEnum):
    """What the daemon may do in a partition."""

    OBSERVE = "observe"
    """Touch nothing; record what would be done."""
    ORDER = "order"
    """Order the queue by SiteFactor, within a bound."""
    PACK = "pack"
    """Profile, order, place and pack."""
