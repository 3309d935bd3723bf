"""A fault: what is broken, for how long, and how it is mended; and the list of all, to which each module adds."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from campaign.people import People
    from campaign.site import Site
    from campaign.unit import Unit


@dataclass
class Host:
    """What faults break: the testbed, and what systemd does on it."""

    site: Site
    units: list[Unit]
    """One lucidd on each host: one acts, the other stands by."""
    people: People
    """Who may be asked to submit jobs that a fault wants to meet."""

    @property
    def unit(self) -> Unit:
        """The one that acts, as far as the heartbeat tells."""
        acting = self.site.acting()
        return next(unit for unit in self.units if unit.host == acting)


class Fault:
    """One kind of fault; an object of it is one time that it befalls the site. ``end`` must do no harm where
    ``begin`` failed half-way, and must not be needed twice."""

    name: ClassVar[str]
    what: ClassVar[str]
    """In words, for the table and docs."""
    touches: ClassVar[frozenset[str]] = frozenset()
    """Two faults that touch the same thing are never in force together."""
    lasts_s: ClassVar[tuple[float, float]] = (0.0, 0.0)
    """At least and at most; (0, 0): it is over at once."""

    def begin(self, host: Host, dice: random.Random) -> dict[str, Any] | None:
        """Break it; returns facts for the timeline."""
        raise NotImplementedError

    def end(self, host: Host) -> dict[str, Any] | None:
        """Mend it; returns facts for the timeline."""


FAULTS: dict[str, type[Fault]] = {}
"""By name."""


def listed(kind: type[Fault]) -> type[Fault]:
    """Put a fault on the list (a decorator)."""
    assert kind.name not in FAULTS, kind.name
    FAULTS[kind.name] = kind
    return kind
