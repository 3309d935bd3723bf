"""Safety rule of pools: beyond its quota a VC starts only jobs that may borrow and jobs whose turn has come.

Short jobs may borrow, and of a VC's large jobs one in each plan."""

from __future__ import annotations

from collections.abc import Mapping

from lucid.config import LendingSettings
from lucid.core.decision import PartitionPlan, Regroup, Release, Requeue, Resize, Start
from lucid.core.placement import placement_gpus
from lucid.core.prediction import Prediction
from lucid.core.reason import LargeBorrows, PlainOrder
from lucid.core.rounding import past
from lucid.core.snapshot import Partition
from lucid.errors import UnsafeAction
from lucid.orchestrator.quotas import holders

__all__ = ["check_quotas"]


def check_quotas(
    partition: Partition,
    plan: PartitionPlan,
    lending: LendingSettings | None,
    predictions: Mapping[str, Prediction],
) -> None:
    """Check what a plan starts alone in a pool, in the order of its actions. Who joins a running job takes no GPU.

    Args:
        partition: its state before the plan; one without quotas has nothing to break.
        plan: what is to be done.
        lending: what the policy may lend; ``None``: nothing.
        predictions: estimates, by job id.

    Raises:
        UnsafeAction: naming the job, the VC and its quota.
    """
    if not partition.quotas or not plan.actions:
        return
    leaving = {a.job_id for a in plan.actions if isinstance(a.decision, Requeue | Release | Resize | Regroup)}
    held: dict[str, int] = {}
    for placement, entry in holders(e for e in partition.running if e.job.id not in leaving).items():
        held[entry.job.vc] = held.get(entry.job.vc, 0) + placement_gpus(placement)
    borrow = lending is not None and lending.mode == "borrow"
    longest_s = lending.longest_s if lending is not None and borrow else -1.0
    large = set(partition.quotas) if lending is not None and borrow and lending.large else set()
    jobs = {entry.job.id: entry.job for entry in partition.running}
    jobs |= {entry.job.id: entry.job for entry in partition.pending}
    for action in plan.actions:
        decision = action.decision
        if not isinstance(decision, Start | Resize | Regroup) or action.job_id not in jobs:
            continue
        if isinstance(decision, Start) and decision.beside is not None:
            continue
        job = jobs[action.job_id]
        held[job.vc] = held.get(job.vc, 0) + placement_gpus(decision.placement)
        quota = partition.quotas.get(job.vc, 0)
        if held[job.vc] <= quota or any(isinstance(r, PlainOrder) and r for r in decision.reasons):
            continue
        if job.vc in large and any(isinstance(r, LargeBorrows) and r for r in decision.reasons):
            large.discard(job.vc)
            continue
        found = predictions.get(job.id)
        if found is None or past(found.duration_s, longest_s):
            raise UnsafeAction(
                f"job {job.id}: VC {job.vc} would hold {held[job.vc]} GPUs of pool {partition.name!r}, its quota is "
                f"{quota}, and the job may not borrow",
                job.id,
            )
