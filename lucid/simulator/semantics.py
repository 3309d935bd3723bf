"""Whose simulator a replay is like."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Semantics"]


class Semantics(StrEnum):
    """How a replay treats what the published simulator leaves out."""

    HONEST = "honest"
    """Profiling takes time and nodes, readings come when a sampler would have them, survivors speed up."""
    PUBLISHED = "published"
    """As Lucid's published simulator: profiling beside, and free of charge to, the main queue; a survivor of a
    pair stays slow; one second more for each job of srtf, tiresias and lucid. For parity only."""
    PUBLISHED_MENDED = "published-mended"
    """The same with survivors speeding up."""
    MURI = "muri"
    """As Muri's published simulator, for parity with its traces and figures (``simulator.published_muri``)."""
