"""Settings of nodes that sleep, and of nodes that close at times."""

from __future__ import annotations

from pydantic import Field

from lucid.config.base import Section

__all__ = ["SleepSettings"]


class SleepSettings(Section):
    """Nodes that sleep while nobody uses them."""

    wake_share: float = Field(0.0, ge=0)
    """A job waits for GPUs on nodes that are awake for up to this share of its estimate before a node is woken for
    it. 0: a node is woken at once. More saves energy and makes jobs wait."""
    ready_share: float = Field(0.9, ge=0, lt=1)
    """So many GPUs are kept ready on nodes that are awake that, as forecast, what is submitted while a node would
    boot finds them in this share of all such times. 0: none are kept."""
