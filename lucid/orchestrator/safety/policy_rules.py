"""Safety rule of kinds: a plan does to a job what its policy states that it does, and the settings let it do."""

from __future__ import annotations

from lucid.core.decision import Action, EndProfiling, Regroup, Requeue, Resize, Start
from lucid.core.job import Job, Pending, Running
from lucid.core.restart import Restarts, may_restart
from lucid.core.snapshot import Partition
from lucid.errors import UnsafePlan
from lucid.orchestrator.must_leave import bad_gpu_of
from lucid.orchestrator.rules import PolicyRules

__all__ = ["check_rules"]


def check_rules(
    action: Action,
    entry: Pending | Running,
    partition: Partition,
    rules: PolicyRules,
    restarts: Restarts,
) -> None:
    """Check one action on a job that is in the state for it. Nothing is believed but ``rules``, and these only where
    they forbid.

    Args:
        action: what is to be done.
        entry: its job, as the snapshot shows it.
        partition: where it is to be done.
        rules: what the policy of that partition states.
        restarts: whom the settings let it start over.

    Raises:
        UnsafePlan: naming the job, and the rule that is not stated or not kept.
    """
    decision, job = action.decision, entry.job
    if isinstance(decision, Start):
        _start(decision, entry, rules)
    elif isinstance(decision, Requeue) and decision.part:
        _stated(rules.pairs, "pairs", job, "parts it from another")
        if isinstance(entry, Running) and entry.partner is None:
            raise UnsafePlan(f"job {job.id}: the plan parts it from another, and it is alone on its GPUs")
        _restarted(job, restarts)
    elif isinstance(decision, Requeue) and isinstance(entry, Running) and bad_gpu_of(entry, partition) is not None:
        _restarted(job, "asked")
    elif isinstance(decision, Requeue):
        whom = ("anybody",) if job.elastic is None else ("anybody", "elastic")
        _stated(rules.preempts in whom, "preempts", job, "requeues it")
        if job.elastic is None and partition.live:
            _restarted(job, restarts)
    elif isinstance(decision, Resize):
        _stated(rules.resizes, "resizes", job, "resizes it")
    elif isinstance(decision, Regroup):
        _stated(rules.interleaves, "interleaves", job, "moves or regroups it")
        if partition.live and isinstance(entry, Running) and {*entry.placement} != {*decision.placement}:
            raise UnsafePlan(f"job {job.id}: the plan moves it to other GPUs, and on Slurm it would start over")
    else:
        _stated(rules.profiles, "profiles", job, "ends its profiling run")
        if isinstance(decision, EndProfiling) and isinstance(entry, Running):
            _restarted(job, restarts)


def _start(decision: Start, entry: Pending | Running, rules: PolicyRules) -> None:
    job = entry.job
    if isinstance(entry, Pending) and entry.barred:
        raise UnsafePlan(f"job {job.id}: the plan starts it, and Slurm would not: {entry.barred}")
    if decision.beside is not None:
        _stated(rules.pairs, "pairs", job, "starts it beside another")
    if decision.preempts:
        _stated(rules.claims, "claims", job, "starts it on GPUs of jobs that Slurm then preempts")
    if decision.slots:
        _stated(rules.pairs or rules.interleaves, "pairs", job, "starts it in slots")


def _stated(stated: bool, rule: str, job: Job, what: str) -> None:
    if not stated:
        raise UnsafePlan(f"job {job.id}: the plan {what}, and its policy does not state that it may (rules.{rule})")


def _restarted(job: Job, restarts: Restarts) -> None:
    if not may_restart(job, restarts):
        raise UnsafePlan(
            f"job {job.id}: the plan starts it over, which policy.profiling.restarts = {restarts!r} forbids"
        )
