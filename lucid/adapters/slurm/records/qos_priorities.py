"""The priorities of Slurm's QOS: which jobs go before all others, whatever a policy thinks of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lucid.adapters.bounded import digits
from lucid.errors import ClusterError, ClusterUnavailable

__all__ = ["QOS_FIELDS", "QosTiers", "tiers_from"]

QOS_FIELDS = "name,priority"
_EVERY_S = 600.0
"""Seconds between looks: an administrator changes them by hand."""


def tiers_from(rows: str, config: Mapping[str, str]) -> dict[str, int]:
    """Priorities other than 0 by QOS, of ``sacctmgr -nP show qos`` with these fields; none where Slurm itself gives
    no weight to them (PriorityWeightQOS)."""
    if not digits(config.get("PriorityWeightQOS", "")):
        return {}
    found = {}
    for row in rows.splitlines():
        name, _, priority = row.rpartition("|")
        if name and (number := digits(priority)):
            found[name] = number
    return found


class QosTiers:
    """Asks now and then. Where it cannot be told, what was told before counts."""

    def __init__(self, ask: Callable[[], Mapping[str, int]]) -> None:
        self._ask = ask
        self._known: Mapping[str, int] = {}
        self._at_s = float("-inf")

    def __call__(self, now_s: float) -> Mapping[str, int]:
        """By QOS.

        Raises:
            ClusterUnavailable: Slurm does not answer at present.
        """
        if not 0 <= now_s - self._at_s < _EVERY_S:
            self._at_s = now_s
            try:
                self._known = self._ask()
            except ClusterUnavailable:
                raise
            except ClusterError:
                return self._known
        return self._known
