"""Says of each job whether it was lost, doubled, stuck or killed; what Slurm itself does is counted apart.

slurmctld saves its state every few seconds. Killed (-9) it forgets what came after the last time: a job submitted
then is unknown, one that started or ended then may be started again (docs/recovery.md). Such a finding is
Slurm's only with evidence: the very thing that was forgotten lies between the save and the kill.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf

from campaign.facts import Broken, Run, Task
from campaign.slurmctld_log import Told
from lucid.core.placement import hosts_in

KINDS = ("lost", "doubled", "stuck", "killed")
_SAVING_S = 1.0
"""A state file bears the time when it was complete; what it holds is as old as that at the most."""
_REQUEUE_S = 3.0
"""So long after a job's last line slurmctld may not have heard of its end, and a requeue still finds it running."""
_LAUNCH_S = 30.0
"""So long it may take from slurmctld's start of a job to its first line, on a busy machine."""
_COMES_S = 10.0
"""So long after a victim runs again elsewhere the first line of the job that got its GPUs may come."""
_NODE_S = 45.0
"""So long after its node was lost Slurm may take to give the node up and cut the run off."""
_AWAY = ("slurmctld-kill", "slurmctld-restart", "slurmctld-stop", "host-lost", "munged-kill")
"""Faults without slurmctld for a while."""
_UNANSWERED = ("Unable to contact slurm controller", "Unable to confirm allocation for job")


@dataclass(frozen=True)
class Finding:
    """One thing that went wrong. ``excuse``: why it is plain Slurm's, or a documented window's; empty: Lucid's."""

    kind: str
    key: str
    job: str
    why: str
    excuse: str = ""


def judge(
    task: Task,
    broken: Sequence[Broken],
    told: Told | None = None,
    *,
    owners: Sequence[Run] = (),
    finished: bool = True,
) -> list[Finding]:
    """All that is wrong with one job.

    Args:
        task: The job.
        broken: What was broken, and when.
        told: What slurmctld's log says of it.
        owners: Runs of jobs to which others give way.
        finished: The campaign has waited until all is quiet. Before, only what can never be right again is told.
    """
    told = told or Told()
    found = _doubled(task, broken, told) + _cut(task, broken, told, owners)
    ended = [run for run in task.runs if run.ended_s is not None]
    record = task.record
    if record is None or not record.over:
        if finished and not task.known:
            if not ended and task.cancelled_s is None:
                words = "unknown to Slurm, and it never ran to its end"
                found.append(_finding("lost", task, words, _forgot(task, broken, told)))
        elif finished:
            state = record.state if record else "unknown"
            words = f"not ended at the end: {state} {record.reason if record else ''}"
            held = record is not None and record.reason == "JobHeldUser" and task.order.release_after_s
            forgot = _forgot(task, broken, told, held, "let go by its user") if held else ""
            excuse = _never(task) or _ended_unheard(task, broken, told) or _number_gone(broken, told) or forgot
            found.append(_finding("stuck", task, words, excuse))
        return found
    at_kill = _at_kill(task.runs[-1:], broken, told)
    gone = record.state == "PREEMPTED" or (record.state == "CANCELLED" and not task.runs)  # before it was launched
    if gone and task.order.gives_way and told.preempted:
        return found  # one that may not be requeued
    if record.state == "CANCELLED" and task.cancelled_s is None and "CANCELLED" not in task.order.ends:
        if task.runs:
            found.append(_finding("killed", task, "cancelled, and not by its user", at_kill))
        else:
            found.append(_finding("lost", task, "cancelled before it ran, and not by its user"))
    elif record.state != "CANCELLED" and record.state not in task.order.ends:
        excuse = at_kill or _node_was_lost(task, broken) or _boot_failed(task, broken, told) or _no_step(task, broken)
        runs = told.registered and not task.runs and _windows(broken)
        excuse = excuse or ("its node still ran a job of that number, which slurmctld forgot" if runs else "")
        found.append(_finding("killed", task, f"ended as {record.state} {record.reason}", excuse))
    elif record.state == "COMPLETED" and not ended:
        found.append(_finding("lost", task, "COMPLETED by Slurm, and its work was never done"))
    return found


def _ended_unheard(task: Task, broken: Sequence[Broken], told: Told) -> str:
    last = task.runs[-1:]
    running = task.record is not None and task.record.state == "RUNNING"
    return _at_kill(last, broken, told) if running and last and last[0].ended_s is not None else ""


def _number_gone(broken: Sequence[Broken], told: Told) -> str:
    if told.forgotten:
        return "slurmctld's own log says that it has no record of the job any more"
    again = [at_s for at_s in told.requeued for began_s in told.started if 0 <= at_s - began_s <= _REQUEUE_S]
    said = "Slurm holds it: its node still knew the number of a job that slurmctld forgot"
    return said if again and _windows(broken) else ""


def _never(task: Task) -> str:
    said = "Slurm says that it can never run; plain Slurm refuses it, which it does not do with a job that is held"
    may_be = task.order.may_be_refused and task.record is not None and task.record.reason == "BadConstraints"
    return said if may_be else ""


def _doubled(task: Task, broken: Sequence[Broken], told: Told) -> list[Finding]:
    found = []
    for before, after in pairwise(task.runs):
        slurms = _at_kill([before], broken, told)
        if before.ended_s is not None and after.began_s >= before.ended_s:
            why = f"run again {after.began_s - before.ended_s:.1f} s after a completed run"
            excuse = slurms or _at_requeue(task, before, broken, told)
        elif after.beside or before.ended_s is not None:
            why, excuse = "two runs at the same time", slurms or _split(before, broken)
        elif (before.job, before.restart) == (after.job, after.restart):
            why, excuse = f"run {after.restart} began twice", slurms or _requeue_forgotten(broken, told)
        else:
            continue
        found.append(_finding("doubled", task, why, excuse))
    return found


def _cut(task: Task, broken: Sequence[Broken], told: Told, owners: Sequence[Run]) -> list[Finding]:
    """Runs that were ended to be started over, though their user never allowed that, or not for this."""
    if task.order.restarts or task.cancelled_s is not None:
        return []
    found = []
    for run, after in pairwise(task.runs):
        if run.ended_s is None and not after.beside and (run.job, run.restart) != (after.job, after.restart):
            if task.order.gives_way and _preempted(run, after, told, owners):
                continue
            excuse = _at_kill([run], broken, told) or _lost_node(run, broken)
            found.append(_finding("killed", task, "a run was cut off and started over, which nobody allowed", excuse))
    return found


def _preempted(run: Run, after: Run, told: Told, owners: Sequence[Run]) -> bool:
    """By Slurm's own word, or by an owner's job that came to its node: Lucid requeues victims in slots itself, and
    lets the owner's job to their GPUs once they have gone. They may run elsewhere by then."""
    until_s = after.began_s
    return any(run.began_s <= at_s <= until_s for at_s in told.preempted) or any(
        run.began_s <= owner.began_s <= until_s + _COMES_S and owner.nodes and run.on(hosts_in(owner.nodes))
        for owner in owners
    )


def _windows(broken: Sequence[Broken]) -> list[tuple[float, float]]:
    kills = [b.facts for b in broken if {"saved_at", "killed_at"} <= b.facts.keys()]
    return [(float(kill["saved_at"]) - _SAVING_S, float(kill["killed_at"])) for kill in kills]


def _at_kill(runs: Sequence[Run], broken: Sequence[Broken], told: Told) -> str:
    """By the run's own lines, or slurmctld's: a little earlier at the start, later at the end, by all it was away."""
    for since, until in _windows(broken):
        for run in runs:
            began_s, ended_s = run.began_s, inf if run.ended_s is None else run.ended_s
            starts = [at_s for at_s in told.started if began_s - _LAUNCH_S <= at_s <= began_s]
            later = [at_s for at_s in (*told.completed, *told.started, *told.requeued) if at_s >= ended_s]
            ends = [at_s for at_s in told.completed if later and at_s == min(later)]
            for what, times in (("began", [began_s, *starts[-1:]]), ("ended", [ended_s, *ends])):
                for at_s in times:
                    if since <= at_s <= until:
                        return f"a run {what} {until - at_s:.1f} s before slurmctld's kill, and after its last save"
    return ""


def _forgot(task: Task, broken: Sequence[Broken], told: Told, after_s: float = 0.0, what: str = "accepted") -> str:
    at_s = after_s + (told.submitted[-1] if told.submitted else task.accepted_s)  # sbatch's answer may take a while
    kills = [until for since, until in _windows(broken) if since <= at_s <= until]
    return f"{what} {kills[0] - at_s:.1f} s before slurmctld was killed, and after its last save" if kills else ""


def _requeue_forgotten(broken: Sequence[Broken], told: Told) -> str:
    within = any(since <= at_s <= until for since, until in _windows(broken) for at_s in told.requeued)
    return "its requeue was logged after slurmctld's last save, and before it was killed" if within else ""


def _at_requeue(task: Task, before: Run, broken: Sequence[Broken], told: Told) -> str:
    ended_s = before.ended_s
    if ended_s is None or not (task.order.restarts or task.order.gives_way):
        return ""
    away = [b.ended_s or inf for b in broken if b.name in _AWAY and b.over(ended_s, _REQUEUE_S)]
    near = [at_s for at_s in told.requeued if ended_s - 1.0 <= at_s <= max(ended_s, *away, 0.0) + _REQUEUE_S]
    knew = any(ended_s <= at_s <= near[0] for at_s in told.completed if near)  # who requeued it should have seen that
    return f"requeued {near[0] - ended_s:.1f} s after its end, before slurmctld knew" if near and not knew else ""


def _lost_node(run: Run, broken: Sequence[Broken]) -> str:
    for b in broken:
        during = run.began_s <= b.began_s + _NODE_S or b.over(run.began_s, _NODE_S)
        if run.on(b.facts.get("lost", ())) and run.began_s <= (b.ended_s or run.began_s) and during:
            return f"a node of {run.nodes} was lost ({b.name})"
    return ""


def _split(before: Run, broken: Sequence[Broken]) -> str:
    """Slurm gave a node up whose jobs ran on: only told where the fault itself says that it left them running."""
    for b in broken:
        if before.on(b.facts.get("cut_off", ())) and b.over(before.began_s, 600.0):
            return f"a node of {before.nodes} was cut off from slurmctld ({b.name})"
    return ""


def _node_was_lost(task: Task, broken: Sequence[Broken]) -> str:
    return next((words for run in task.runs[-1:] if (words := _lost_node(run, broken))), "")


def _boot_failed(task: Task, broken: Sequence[Broken], told: Told) -> str:
    """Slurm requeues, or ends, a job whose node did not come up, or whose slurmd was killed as it launched."""
    record = task.record
    if task.runs or record is None or record.state not in ("NODE_FAIL", "BOOT_FAIL"):
        return ""
    was_to = Run(0.0, record.job, 0, record.node, False)
    names = [b.name for b in broken if record.node and was_to.on(b.facts.get("boots_failed", ()))]
    kills = [b for b in broken if b.name == "slurmd-kill" and record.node and was_to.on([b.facts.get("node", "")])]
    names += [b.name for b in kills if any(b.began_s - _LAUNCH_S <= at_s <= b.began_s for at_s in told.started)]
    return f"its node {record.node} did not boot, or not launch it ({names[0]})" if names else ""


def _no_step(task: Task, broken: Sequence[Broken]) -> str:
    """``srun`` inside a job asks slurmctld for its step, and gives up where it does not answer: so on plain Slurm."""
    away = next((b for b in broken if b.name in _AWAY and any(b.over(run.began_s, 90.0) for run in task.runs)), None)
    hung = any(words in task.said for words in _UNANSWERED)
    return f"its srun says that it could not contact slurmctld ({away.name})" if away and hung else ""


def _finding(kind: str, task: Task, why: str, excuse: str = "") -> Finding:
    return Finding(kind, task.key, task.record.job if task.record else task.job, why.strip(), excuse)
