"""All jobs of a campaign judged: each by its own records, whoever else has had its number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from campaign.facts import Broken, Order, Record, Task
from campaign.judge import Finding, judge
from campaign.slurmctld_log import told_by
from campaign.watch import keyed

ACCOUNTING = ("sacct", "-a", "-D", "-X", "-n", "-P", "-S", "now-1days", "-o", "JobID,JobIDRaw,State,StdOut")
"""With ``-D`` also of the jobs whose number was given out again."""


def settle(
    tasks: Mapping[str, Task],
    records: dict[str, Record],
    orders: Mapping[str, Order],
    folder: str,
    jobs: Iterable[Mapping[str, Any]],
    accounting: str,
) -> None:
    """What became of the jobs whose end nobody saw: those that Slurm shows now are known, and so are those of whose
    end the accounting tells. Accounting alone that takes a job for waiting or running has not heard that slurmctld
    forgot it.

    Args:
        tasks: All; ``known`` is set.
        records: The last that Slurm said, by key; ends that the accounting tells are put in.
        orders: By token.
        folder: Where the jobs write.
        jobs: What Slurm shows now.
        accounting: What ``ACCOUNTING`` printed.
    """
    now = {key for key, _ in keyed(jobs, orders, folder)}
    ends: dict[str, Record] = {}
    for line in accounting.splitlines():
        number, raw, state, path = line.split("|", 3)
        token = path.removeprefix(f"{folder}/out/")
        order = orders.get(token)
        if order is not None:
            key = f"{token}_{number.rpartition('_')[2]}" if order.tasks else token
            ends[key] = Record(raw, state.split(" ")[0])
    for key, task in tasks.items():
        last = records.get(key)
        if last is not None and last.over:
            continue
        end = ends.get(key)
        if key not in now and end is not None and end.over:
            records[key] = replace(end, reason=last.reason if last else "", seen_s=last.seen_s if last else 0.0)
        task.known = key in now or (end is not None and end.over)


def verdict(
    tasks: Iterable[Task], log: str, broken: Sequence[Broken], stuck: Mapping[str, str], *, finished: bool
) -> list[tuple[float, Finding]]:
    """All that is wrong, each with the time of the run that it is about.

    Args:
        tasks: With their runs and records.
        log: slurmctld's.
        broken: What was broken, and when.
        stuck: Jobs that were seen to be stuck, by key, with the reason.
        finished: As `judge` has it.
    """
    said, tasks = told_by(log), list(tasks)
    left = {task.order.token: task.job for task in tasks if task.record is None or not task.record.over}
    owners = [run for task in tasks if not task.order.gives_way for run in task.runs]
    found = []
    for task in tasks:
        record = task.record
        # when the number was surely this job's
        at_s = max(record.seen_s if record else 0.0, task.accepted_s)
        told = said.of(record.job if record else task.job, at_s)
        mine = judge(task, broken, told, owners=owners, finished=finished)
        if task.key in stuck and not any(finding.kind == "stuck" for finding in mine):
            mine.append(Finding("stuck", task.key, task.job, stuck[task.key]))
        if record is not None and record.reason == "Dependency" and task.order.after in left:
            why = f"its user told it to wait for job {left[task.order.after]}, which has not ended"
            mine = [replace(one, excuse=one.excuse or why) if one.kind == "stuck" else one for one in mine]
        found += [(task.runs[-1].began_s if task.runs else task.accepted_s, finding) for finding in mine]
    return found
