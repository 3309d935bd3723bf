"""``Semantics``: which simulator a replay follows. ``published_semantics`` has what only the published ones need."""

from __future__ import annotations

from enum import StrEnum


class Semantics(StrEnum):
    """How a replay treats what the published simulators leave out."""

    HONEST = "honest"
    """Profiling takes time and nodes, readings come when a sampler would have them, survivors speed up."""
    PUBLISHED = "published"
    """As Lucid's published simulator: profiling beside, and free of charge to, the main queue; a survivor of a
    pair stays slow; one second more for each job of srtf, tiresias and lucid. For parity only."""
    PUBLISHED_MENDED = "published-mended"
    """As ``published``, but survivors of pairs speed up."""
    MURI = "muri"
    """As Muri's published simulator, for parity with its traces and figures."""
    AS_LIVE = "as-live"
    """As lucidd acts on Slurm: jobs like one measured before bring its profile (``LikeProfiles``, as with
    ``daemon.reuse_profiles_days``), skip the profiling nodes, or go from there to their VC at once. A job that then
    runs alone for long enough is measured itself. A start takes a moment (``overheads.start_s``)."""

    @property
    def published(self) -> bool:
        """Whether it is the one that the published simulator of Lucid has."""
        return self in (Semantics.PUBLISHED, Semantics.PUBLISHED_MENDED)
