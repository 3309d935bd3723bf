"""Order mode: a job's place in the queue as a number that Slurm adds to its priority.

The number follows from the job's place alone, and places count by powers of two: 1, 2, 3 to 4, 5 to 8, and so on. An
arrival at the head of a queue of 1,000 jobs therefore changes 10 numbers, each of which is a command to Slurm. The
number is bounded, so that QOS, age and fair-share keep their say.
"""

from __future__ import annotations

from lucid.core.decision import PartitionPlan

__all__ = ["BOUND", "factor_of", "site_factors"]

BOUND = 1000
"""Most that order mode adds to a job's priority."""
_STEPS = 20


def factor_of(position: int) -> int:
    """``BOUND`` for the first place, a ``_STEPS``-th of it less for each power of two, down to 0."""
    return BOUND * max(_STEPS - (position - 1).bit_length(), 0) // _STEPS


def site_factors(plan: PartitionPlan) -> dict[str, int]:
    """The site factor of each waiting job, from its place in the plan."""
    return {job_id: factor_of(position) for job_id, position in plan.positions.items()}
