"""One trace in memory, whatever format it came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lucid.core.job import Job, JobProfile
from lucid.core.prediction import StageTimes
from lucid.simulator.elastic.training import Learning

__all__ = ["Trace", "TraceJob"]


@dataclass(frozen=True, slots=True)
class TraceJob:
    """A job with the truth about it that only a replay knows.

    ``duration_s``: run time alone on its GPUs. ``profile``: what sampling it would show, where the trace says.
    ``share_label``: a published share score for it. ``state``: as accounting reports it (COMPLETED, FAILED,
    CANCELLED, TIMEOUT, ...), empty where unknown. ``learning``: of an elastic job, how it trains; its
    ``duration_s`` is then what it takes on the GPUs and with the batch it was submitted with. ``stages``: what a
    dry run of one iteration would show. ``waited_s``: what really passed between submission and start, where the
    log tells. ``idle``: when it does nothing on its GPUs, seconds since its start: how long a session's user is away
    does not depend on GPUs.
    """

    job: Job
    duration_s: float
    state: str = ""
    profile: JobProfile | None = None
    share_label: int | None = None
    learning: Learning | None = None
    stages: StageTimes | None = None
    waited_s: float | None = None
    idle: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Trace:
    """Jobs sorted by (submit_s, rank), submit times in seconds from the first job.

    ``epoch_s``: Unix time of second 0 where the trace has calendar dates (so that rhythms can be read).
    ``evaluated_with``: settings of policies, by section and key, in the evaluation that the trace was published
    with; they hold unless set otherwise.
    ``skipped``: rows left out by ``--skip-bad`` or because they asked for no GPU, by reason.
    """

    name: str
    jobs: tuple[TraceJob, ...]
    epoch_s: float | None = None
    skipped: tuple[tuple[str, int], ...] = ()
    evaluated_with: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def vcs(self) -> tuple[str, ...]:
        """Names of the virtual clusters, sorted."""
        return tuple(sorted({item.job.vc for item in self.jobs}))
