"""When jobs would have started with a shorter time limit, by planning lucidd's records again.

This is exact as far as the records reach. A record is of one cycle, and not every cycle is recorded, so a job would
have started at the given time or earlier. What other jobs would have done after that is not followed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from lucid.core.decision import Hold, Start
from lucid.core.job import Pending
from lucid.core.snapshot import Snapshot
from lucid.errors import StoreError
from lucid.orchestrator.policy import Policy
from lucid.profiler.waste import FittingLimit
from lucid.store.plan_records import PlanRecord, lucid_version, plan_bytes, read_record, record_policy


@dataclass(frozen=True, slots=True)
class Earlier:
    """A job that would have started at ``at_s``, Unix s, and the decision on it at that time."""

    asked: FittingLimit
    at_s: float
    held: Hold

    @property
    def earlier_s(self) -> float:
        """The least seconds before its real start."""
        return self.asked.job.begin_s - self.at_s


@dataclass(slots=True)
class Replayed:
    """The result of a replay. ``earlier``: by job. ``waiting``: jobs that some record shows waiting; nothing is known
    of others. ``records``: how many were read. ``unlike``: how many of them this version of Lucid does not plan as
    they were planned, or cannot read; they are left out."""

    earlier: dict[str, Earlier] = field(default_factory=dict)
    waiting: set[str] = field(default_factory=set)
    records: int = 0
    unlike: int = 0


def replay_limits(
    files: Sequence[Path],
    asked: Iterable[FittingLimit],
    progress: Callable[[int, int], None] = lambda _done, _of: None,
) -> Replayed:
    """Plan each of the records in ``files`` (oldest first) again, with each waiting job as if it had asked for the
    other limit, one job at a time, until it would have started."""
    jobs, found = {one.job.job_id: one for one in asked}, Replayed()
    last_s = max((one.job.begin_s for one in jobs.values()), default=0.0)
    done: set[tuple[str, float]] = set()
    for number, path in enumerate(files):
        progress(number, len(files))
        if recorded_s(path) >= last_s:
            break
        found.records += 1
        try:
            record = read_record(path)
        except StoreError:
            found.unlike += 1
            continue
        _forget_runs(record, found)
        if not all(_replay_partition(record, name, jobs, found, done) for name in record.plans):
            found.unlike += 1
    return found


def recorded_s(path: Path) -> float:
    """When the record was made, Unix s."""
    return float(path.name.split(".plan")[0])


def _forget_runs(record: PlanRecord, found: Replayed) -> None:
    """Forget the earlier start of a job that ran and waits again: it would have started earlier in its last wait, or
    not at all."""
    for context in record.contexts:
        for part in context.snapshot.partitions.values():
            for entry in part.running:
                was = found.earlier.get(entry.job.id)
                if was is not None and entry.start_s < was.asked.job.begin_s - 1.0:
                    del found.earlier[entry.job.id]


def _replay_partition(
    record: PlanRecord,
    name: str,
    jobs: Mapping[str, FittingLimit],
    found: Replayed,
    done: set[tuple[str, float]],
) -> bool:
    """Try the jobs of one partition; returns false where the record is not planned again as it was."""
    context = record.contexts[record.context[name]]
    snapshot = context.snapshot
    if (name, snapshot.now_s) in done:
        return True  # this plan was kept from an earlier cycle, and is in more than one record
    done.add((name, snapshot.now_s))
    part = snapshot.partitions.get(name)
    if part is None or not part.acting:
        return True
    waits = (entry for entry in part.pending if entry.job.id in jobs and entry.job.id not in found.earlier)
    asking = [entry for entry in waits if snapshot.now_s < jobs[entry.job.id].job.begin_s]
    if not asking:
        return True
    policy, heard = record_policy(record, context)
    plan = policy.plan(snapshot)
    if record.code != lucid_version() and plan_bytes(plan.partitions[name]) != record.plans[name]:
        return False
    for entry in asking:
        job_id = entry.job.id
        found.waiting.add(job_id)
        was, asked = plan.decision_of(job_id), jobs[job_id]
        heard.unknown = 0
        if isinstance(was, Hold) and _starts(policy, snapshot, name, entry, asked.limit_s) and not heard.unknown:
            found.earlier[job_id] = Earlier(asked, snapshot.now_s, was)
    return True


def _starts(policy: Policy, snapshot: Snapshot, name: str, entry: Pending, limit_s: float) -> bool:
    """Whether the job would start now, had it asked for this limit."""
    part, job_id = snapshot.partitions[name], entry.job.id
    other = replace(entry, job=replace(entry.job, time_limit_s=limit_s))
    pending = tuple(other if one is entry else one for one in part.pending)
    said = snapshot.predictions.get(job_id)
    changed = replace(
        snapshot,
        partitions={**snapshot.partitions, name: replace(part, pending=pending)},
        predictions=snapshot.predictions if said is None else {**snapshot.predictions, job_id: said.within(limit_s)},
    )
    return isinstance(policy.plan(changed).decision_of(job_id), Start)
