"""Named presets of synthetic months, and the settings that such a month is made from.

docs/traces.md says where the numbers come from."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from lucid.errors import ConfigError

MONDAY_S = 1704067200.0
"""Unix time of Monday, 1 January 2024, 00:00 UTC: second 0 of every synthetic trace."""


@dataclass(frozen=True, slots=True)
class Vc:
    """A virtual cluster: its nodes, how many people use it, and the share of its GPU-hours they ask for."""

    name: str
    nodes: int
    users: int
    utilisation: float


@dataclass(frozen=True, slots=True)
class Storm:
    """Hours in which submissions come ``factor`` times as fast: the evening before a deadline."""

    start_h: float
    hours: float
    factor: float


@dataclass(frozen=True, slots=True)
class SynthSettings:
    """Parameters of ``synthesise``. Shares are of jobs and between 0 and 1; times say their unit.

    Raises:
        ConfigError: no such number of jobs, or of days."""

    name: str
    jobs: int
    days: float
    vcs: tuple[Vc, ...]
    gpus_per_node: int = 8
    weekend: float = 0.55
    """Submissions on a Saturday or Sunday, as a share of a weekday's."""
    day_noise: float = 0.2
    """Standard deviation of the logarithm of a day's submissions."""
    user_zipf: float = 1.0
    """Activity of the k-th busiest user of a VC goes as k to the minus this."""
    templates: tuple[int, int] = (2, 6)
    """Fewest and most projects of one user."""
    gpu_shares: tuple[tuple[int, float], ...] = (
        (1, 0.50),
        (2, 0.19),
        (4, 0.15),
        (8, 0.12),
        (16, 0.025),
        (32, 0.015),
    )
    """How often a project other than a user's main one asks for so many GPUs."""
    sweep: float = 0.22
    """Share of submissions that are a sweep of several like jobs, instead of one."""
    sweep_jobs: float = 4.0
    """Mean size of a sweep on single GPUs; sweeps of jobs on g GPUs are smaller by the root of g."""
    debug: float = 0.40
    """Share of submissions in working hours that begin with short debugging runs."""
    debug_at_night: float = 0.08
    debug_median_s: float = 38.0
    failed: float = 0.13
    """Share of full runs that crash, mostly early."""
    cancelled: float = 0.16
    """Share of full runs that their user stops part of the way."""
    most_s: float = 7 * 86400.0
    """No job runs longer than this: the longest time limit of the cluster."""
    storm: Storm | None = None
    largest: float = 0.5
    """Share of their VC's GPUs that the largest projects ask for."""
    large_longer: float = 0.35
    """Runs on g GPUs are longer by g to this power."""
    debug_large: float = 0.3
    """Share of debugging runs that ask for as many GPUs as the full run; the others ask for one."""
    user_spread: float = 0.0
    """Standard deviation of the logarithm of a factor that the run times of all projects of a user share. Where it is
    not 0, users also differ in how often they begin with debugging runs: from a tenth to twice the usual."""
    series: float = 0.0
    """Share of submissions that are a long series of alike jobs: dozens to hundreds of one user within an hour or
    two."""
    series_jobs: float = 30.0
    """Median size of such a series on single GPUs (log-normal, sigma 1); on g GPUs it is smaller by the root of g."""
    service: float = 0.0
    """Share of submissions that are a service: a few GPUs for weeks, until its user stops it."""
    service_days: float = 9.0
    """Median life of a service (log-normal, sigma 0.8). ``most_s`` bounds it too."""

    def __post_init__(self) -> None:
        for name, value, least, most in (("jobs", self.jobs, 1, 10_000_000), ("days", self.days, 1 / 24, 3660)):
            if not (math.isfinite(value) and least <= value <= most):
                raise ConfigError(f"synth {self.name}: {name} = {value}: must be from {least:g} to {most:g}")

    @property
    def nodes(self) -> int:
        """Nodes of all VCs."""
        return sum(vc.nodes for vc in self.vcs)

    def resized(self, jobs: int | None, days: float | None) -> SynthSettings:
        """The settings with another number of jobs or days. If only one is given the other follows, so that the rate
        of submission and the length of jobs stay as they are."""
        if jobs is None and days is None:
            return self
        if jobs is None:
            jobs = max(1, round(self.jobs * (days or self.days) / self.days))
        elif days is None:
            days = max(1 / 24, self.days * jobs / self.jobs)
        return replace(self, jobs=jobs, days=self.days if days is None else days)


PRESETS: dict[str, SynthSettings] = {
    settings.name: settings
    for settings in (
        SynthSettings(
            name="month-small",
            jobs=4000,
            days=28,
            vcs=(
                Vc("vision", 9, 18, 0.77),
                Vc("language", 7, 12, 0.80),
                Vc("speech", 5, 9, 0.72),
                Vc("robotics", 3, 8, 0.62),
                Vc("shared", 2, 7, 0.66),
            ),
        ),
        SynthSettings(
            name="month-10k",
            jobs=10000,
            days=28,
            vcs=(
                Vc("vision", 16, 34, 0.78),
                Vc("language", 14, 24, 0.84),
                Vc("ads", 10, 20, 0.74),
                Vc("speech", 8, 16, 0.72),
                Vc("robotics", 6, 14, 0.66),
                Vc("biology", 4, 10, 0.62),
                Vc("interns", 4, 22, 0.80),
                Vc("shared", 2, 12, 0.66),
            ),
        ),
        SynthSettings(
            name="month-logs",
            jobs=6000,
            days=28,
            vcs=(
                Vc("vision", 16, 24, 0.78),
                Vc("language", 12, 18, 0.80),
                Vc("speech", 8, 12, 0.74),
                Vc("shared", 4, 12, 0.66),
            ),
            gpu_shares=((1, 0.40), (2, 0.13), (4, 0.10), (8, 0.12), (16, 0.10), (32, 0.10), (64, 0.05)),
            user_zipf=1.2,
            day_noise=0.5,
            sweep=0.15,
            debug=0.60,
            debug_at_night=0.30,
            debug_large=0.8,
            failed=0.30,
            cancelled=0.22,
            most_s=45 * 86400.0,
            large_longer=-0.1,
            user_spread=1.2,
            series=0.025,
            service=0.014,
        ),
        SynthSettings(
            name="burst",
            jobs=1500,
            days=4,
            vcs=(Vc("vision", 6, 14, 0.90), Vc("language", 4, 10, 0.95), Vc("shared", 2, 8, 0.80)),
            storm=Storm(start_h=33.0, hours=8.0, factor=6.0),
            most_s=2 * 86400.0,
        ),
    )
}
"""Named histories."""


def preset(name: str) -> SynthSettings:
    """The settings of a named history.

    Raises:
        ConfigError: no such name; lists the known ones."""
    if name not in PRESETS:
        raise ConfigError(f"unknown synthetic trace {name!r} (known: {', '.join(sorted(PRESETS))})")
    return PRESETS[name]


def vc_layout(name: str) -> dict[str, int]:
    """Nodes by VC of a named history.

    Raises:
        ConfigError: no such name; lists the known ones."""
    return {vc.name: vc.nodes for vc in preset(name).vcs}
