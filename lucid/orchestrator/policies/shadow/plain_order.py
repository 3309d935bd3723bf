"""What plain Slurm order would have done by now: a shadow of one VC, from which the starvation bound counts.

The shadow has the nodes of the VC and gets every job when that job is submitted. It starts jobs as the policy
``backfill`` does, on whole GPUs. It only goes forward, up to now, with what is known by now. In it a job takes
the time that it really ran, and stays until that is known: estimates of single jobs are too short more often than
too long by hours, and a shadow that believes them runs ahead of plain order by days where a VC is jammed
(docs/decisions/0022). What the shadow has started stays started.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from lucid.core.frozen import dataclass
from lucid.core.job import Pending, Running
from lucid.core.prediction import Prediction
from lucid.core.rounding import past
from lucid.orchestrator.capacity.node_reservations import KeptNodes

__all__ = ["Kept", "Shadow"]


@dataclass(frozen=True, slots=True)
class Kept:
    """How the starvation bound was kept so far: no job is to start more than ``bound_s`` after plain order would have
    started it. ``jobs``: how many have started. ``past``: how many of them after their bound. ``worst_s``: the most
    seconds after it."""

    bound_s: float
    jobs: int = 0
    past: int = 0
    worst_s: float = 0.0

    def counting(self, excess_s: float) -> Kept:
        """With one more job, that started so long after its bound (before it, if negative)."""
        late = past(excess_s, 0.0)
        return Kept(self.bound_s, self.jobs + 1, self.past + late, max(self.worst_s, excess_s if late else 0.0))


@dataclass(frozen=True, slots=True)
class Shadow:
    """Plain order at ``at_s``. It is frozen, and handed from plan to plan.

    ``waiting``, ``running``: in the shadow, by job id, in order. ``starts_s``: when the shadow started those jobs
    that really still wait. ``guesses``: the estimate with which each job of the shadow was submitted, of which its
    time limit is made where it has none. ``ran_s``: how long jobs really ran, of those that have ended. ``started``:
    jobs that really run, as of ``at_s``. ``fences``: the nodes that the last plan kept, by the job whose turn had
    come; ``told_s``: when it started which jobs. Both are the plan's own, so the next step of the shadow begins
    without.
    """

    at_s: float
    nodes: tuple[str, ...]
    kept: Kept
    waiting: Mapping[str, Pending] = field(default_factory=dict)
    running: Mapping[str, Running] = field(default_factory=dict)
    starts_s: Mapping[str, float] = field(default_factory=dict)
    guesses: Mapping[str, Prediction] = field(default_factory=dict)
    ran_s: Mapping[str, float] = field(default_factory=dict)
    fences: Mapping[str, KeptNodes] = field(default_factory=dict)
    started: frozenset[str] = frozenset()
    told_s: Mapping[str, float] = field(default_factory=dict)
    next_end_s: float | None = None
    """When a job of the shadow next ends, as far as is known, where others wait in it."""
