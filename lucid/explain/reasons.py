"""Reasons and decisions in words. The only prose about decisions; it adds nothing that a reason does not hold."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from lucid.core import reason as why
from lucid.core.decision import DecisionRow
from lucid.core.reason import Reason
from lucid.escaping import shown
from lucid.explain.borrowing import borrows, large_borrows, own_turn, quota
from lucid.explain.sleeping_nodes import boots
from lucid.places import Mode

__all__ = ["decision_line", "decision_text", "duration", "reason_text", "when"]


def duration(seconds: float) -> str:
    """Seconds as people say them: ``80 s``, ``2.5 min``, ``12 min``, ``3.4 h``, ``5.2 d``. A unit begins where two
    digits tell enough: 80 s are not "1 min"."""
    for unit, size, least in (("d", 86400.0, 2 * 86400.0), ("h", 3600.0, 3600.0), ("min", 60.0, 120.0)):
        if abs(seconds) >= least:
            value = seconds / size
            whole = unit == "min" and abs(value) >= 10
            return f"{value:.0f} {unit}" if whole else f"{value:.1f} {unit}".replace(".0 min", " min")
    return f"{seconds:.0f} s"


_UNIX_TIME_S = 1e9
"""No trace is as long as that: from 2001 on it is a moment of Unix time."""


def when(at_s: float) -> str:
    """A moment of trace time: day, hours, minutes and seconds since its start; of Unix time, which only a live daemon
    has: the date and the local time of day."""
    if at_s >= _UNIX_TIME_S:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))
    days, rest = divmod(round(at_s), 86400)
    hours, rest = divmod(rest, 3600)
    minutes, seconds = divmod(rest, 60)
    return f"day {days} {hours:02}:{minutes:02}:{seconds:02}"


def _best(r: why.BestPartner) -> str:
    if r.rule == "first":
        return f"job {r.partner} is the first partner found that qualifies"
    if r.candidates == 1:
        return f"job {r.partner} is the only partner that qualifies"
    return f"job {r.partner} is the best of {r.candidates} partners that qualify"


def _pair_speed(r: why.PairSpeed) -> str:
    if r.failed:
        return f"how fast it would run with job {r.partner} on its GPUs is not known: {r.source} failed"
    if r.own is None or r.other is None:
        return f"its speed with job {r.partner} is not measured, and {r.source} has no estimate: taken as full speed"
    below = "" if r else f"; at least {r.floor:.0%} is needed"
    return f"sharing with job {r.partner}: expected at {r.own:.0%} of full speed, the other at {r.other:.0%}{below}"


def _gpus(count: int) -> str:
    return f"{count} GPU" if count == 1 else f"{count} GPUs"


def _forecast(r: Any) -> str:
    return f"{r.gpus_per_hour:.0f} GPUs an hour" + (f" by {r.by}" if r.by else "")


def _jobs(count: int, verb: str) -> str:
    return f"1 job {verb}s" if count == 1 else f"{count} jobs {verb}"


def _free(r: why.FreeGpus) -> str:
    if r.found:
        return f"{r.needed} of {r.free} free GPUs" + (", together" if r.needed > 1 else "")
    if r.free < r.needed:
        return f"needs {_gpus(r.needed)}, {r.free} free"
    if r.largest < r.needed:
        return f"needs {_gpus(r.needed)} together; {r.free} free, but scattered: at most {r.largest} on one node"
    return f"needs {_gpus(r.needed)}; {r.free} free, but on no node that could take it"


def _priority(r: why.Priority) -> str:
    if r.rule == "attained GPU-seconds":
        return f"has had {r.value:,.0f} GPU-seconds of service"
    made = f"estimate {duration(r.estimate_s)} by {r.source}, {_gpus(r.gpus)}"
    said = f"; its QOS has priority {r.tier}: before all jobs of a lower one" if r.tier else ""
    said += f"; its user said --nice={r.nice}: by that among their own jobs" if r.nice else ""
    return f"priority value {r.value:,.0f} ({r.rule}): {made}{said}"


def _reserved(r: why.Reserved) -> str:
    nodes = f"{r.nodes} node{'s' if r.nodes != 1 else ''} reserved for job {r.holder}"
    if not r:
        return f"{nodes}, which should have drained: no other job may start on these nodes"
    meanwhile = f"only jobs expected to take at most {duration(r.room_s)} may start on these nodes"
    if r.times > 1:
        meanwhile += (
            f"; job {r.holder} has waited so long that they must have time for {r.times:.1f} x their estimate"
        )
    return f"{nodes}, expected to be free by {when(r.until_s)}: {meanwhile}"


def _large_share(r: why.LargeShare) -> str:
    if r:
        return "nodes may be reserved for this job, because it is large"
    return (
        f"jobs as large as this one hold {r.held_gpus} of {_gpus(r.total_gpus)}; with its {r.gpus} they would hold "
        f"more than {r.most_share:.0%}, and job {r.other} has waited for "
        f"{duration(r.other_waited_s)}: no nodes are reserved for this job"
    )


def _unranked(r: why.Unranked) -> str:
    if not r.jobs:
        return "policy.fairness.estimates is never: plain order"
    where = f"the last {r.jobs} jobs{f' of {r.vc}' if r.vc else ''}"
    who = "estimates by what the same user's last jobs took (those given rank worse)" if r.by else "estimates"
    if not r:
        return f"{who} ranked {where} (gain {r.gain:.2f} of 1, needed {r.needed:.2f}): order by estimate"
    how = "worse than chance" if r.gain < -r.needed else "no better than chance"
    return f"{who} ranked {where} {how} (gain {r.gain:.2f} of 1, needed {r.needed:.2f}): plain order"


def _backfill(r: why.Backfill) -> str:
    if r:
        return f"ends by its time limit of {duration(r.limit_s)} before GPUs are needed for {_ahead(r.ahead)}"
    return (
        f"no GPUs are free for its time limit of {duration(r.limit_s)} without delaying {_ahead(r.ahead)}; a shorter "
        "limit could let it start earlier"
    )


def _slurm_priority(r: why.SlurmPriority) -> str:
    fair = "" if r.fair_share is None else f", fair-share factor {r.fair_share:.2f}"
    return f"priority {r.value:,.0f} (age factor {r.age:.2f}, size factor {r.size:.2f}{fair})"


def _plain_order(r: why.PlainOrder) -> str:
    beyond = f"waits {duration(r.now_s - r.plain_s)} beyond plain Slurm order ({when(r.plain_s)})"
    return f"{beyond}: this job goes before all others, to start by {when(r.bound_s)}" if r else beyond


def _requeueable(r: why.Requeueable) -> str:
    if not r.requeueable:
        return "may not be requeued"
    if r.rule == "allowed":
        return "may be requeued"
    if r.rule == "never":
        return "may not be started over: policy.profiling.restarts is never"
    return "its user asked to have it started over" if r.asked else "its user did not ask to have it started over"


def _pair_work(r: why.PairWork) -> str:
    said = f"beside job {r.partner} both do {r.together:.2f} times the work of one, "
    if r.together >= r.least:
        return f"{said}at least {r.least:.2f}"
    said += f"less than {r.least:.2f}: "
    if r.needs_s is None:
        return f"{said}only a job that would end before its partner"
    return f"{said}after {duration(r.needs_s)} of wait, so far {duration(r.waited_s)}"


def _in_slots(r: why.InSlots) -> str:
    if r:
        return "in slots, so that a job may join it" + ("" if r.measured else " once it is measured")
    if r.most < 0:
        return "on whole GPUs: sharing is off"
    if r.nodes != 1:
        return f"on whole GPUs: {r.nodes} nodes"
    if not r.shareable or r.parted_before:
        who = "it was separated from a partner before" if r.parted_before else "its request rules sharing out"
        return f"on whole GPUs: {who}"
    if r.unstable:
        return "on whole GPUs: its utilisation pattern is unstable"
    return f"on whole GPUs: share score {r.score}, at most {r.most} starts in slots"


def _nodes_out(r: why.NodesOut) -> str:
    until = "" if r.until_s is None else f", until {when(r.until_s)}"
    return f"{_gpus(r.gpus)} on nodes where nothing may start" + (f" ({r.words}{until})" if r.words else "")


def _gpus_out(r: why.GpusOut) -> str:
    by = f" (by {r.by})" if r.by else ""
    others = f"; {r.gpus - 1} more" if r.gpus > 1 else ""
    return f"GPU {r.index} of {r.node} is out since {when(r.since_s)}: {r.words}{by}{others}"


def _spread(r: why.Spread) -> str:
    if r:
        return f"{r.nodes} nodes below one switch"
    one = "" if r.one_s is None else f"; below one by about {when(r.one_s)}"
    return f"{r.nodes} nodes below {r.switches} switches{one}"


def _closes(r: why.Closes) -> str:
    until = "" if r.until_s is None else f" to {when(r.until_s)}"
    window = f"{r.words or 'closed'} from {when(r.from_s)}{until}"
    if r.limit_s is None:
        ends = "this job has no time limit, so it cannot start before"
    else:
        ends = f"its time limit of {duration(r.limit_s)} ends after that begins"
    return f"{_gpus(r.gpus)} on nodes that close: {window}; {ends}"


def _rests(r: why.Rests) -> str:
    if not r:
        return f"has waited {duration(r.waited_s)} for GPUs on nodes that are awake: a node is woken for it"
    return (
        f"no GPUs on nodes that are awake; a node is woken for it after {duration(r.patience_s)} "
        f"({r.share:.0%} of its estimate of {duration(r.estimate_s)})"
    )


def _starts_until(r: why.StartsUntil) -> str:
    kept = "from its last checkpoint" if r.keeps else "from the beginning"
    if not r:
        return (
            f"its nodes close: {duration(r.room_s)} left are too few to start it until then ({duration(r.needed_s)})"
        )
    return f"its nodes close: it runs until {when(r.until_s)} at the latest, and would then start over {kept}"


def _ahead(count: int) -> str:
    return "the job ahead of it" if count == 1 else f"the {count} jobs ahead of it"


def _claims(r: why.Claims) -> str:
    told = "; ".join(_victim(victim) for victim in r.victims)
    other = ""
    if r.next_gpu_s is not None:
        other = f" (the best choice on another node would lose {_gpu_hours(r.next_gpu_s)})"
    which = "of all that would do, it loses" if len(r.victims) == 1 else "of all that would do, they lose"
    return f"preempts {told}: {which} least{other}"


def _victim(victim: why.Victim) -> str:
    if victim.saves:
        loses = "goes on from a checkpoint"
    else:
        loses = f"{'is cancelled and ' if victim.ends else ''}loses {_gpu_hours(victim.lost_gpu_s)}"
    return f"job {victim.job} of {victim.vc} ({_gpus(victim.gpus)}), which {loses}"


def _gpu_hours(gpu_s: float) -> str:
    return f"{gpu_s / 3600.0:.2f} GPU-hours"


def _held_by(r: why.HeldBy) -> str:
    held = f"{_gpus(r.gpus)} {'is' if r.gpus == 1 else 'are'} held by {_count(r.jobs)} of partition {r.vc}"
    if not r.yielding:
        return f"{held}, which may not be preempted"
    first = f", the first from {when(r.from_s)} on" if r.from_s else ""
    who = "all" if r.yielding == r.jobs else str(r.yielding)
    return f"{held}: {who} of them may be preempted{first}, which does not suffice now"


def _count(jobs: int) -> str:
    return "1 job" if jobs == 1 else f"{jobs} jobs"


_WORDS: dict[str, Callable[[Any], str]] = {
    "Priority": _priority,
    "SlurmPriority": _slurm_priority,
    "FairShare": lambda r: (
        f"fair-share factor {r.factor:.2f} of {r.account}: its priority value counts {r.times:.2f} times "
        f"(bound {r.bound:g})"
    ),
    "Backfill": _backfill,
    "PlainOrder": _plain_order,
    "NodesOut": _nodes_out,
    "GpusOut": _gpus_out,
    "OtherNodes": lambda r: f"{_gpus(r.gpus)} are free on nodes that its user did not ask for (asked: {r.asked})",
    "Closes": _closes,
    "Spread": _spread,
    "Switches": lambda r: (
        f"its user asked for nodes below at most {r.most} switch{'' if r.most == 1 else 'es'}"
        + ("" if r.until_s is None else f", until {when(r.until_s)}")
        + ("" if r else ": there is no room below so few")
    ),
    "Claims": _claims,
    "HeldBy": _held_by,
    "StartsUntil": _starts_until,
    "MustLeave": lambda r: f"its nodes close: it was started to leave at {when(r.until_s)}",
    "Rests": _rests,
    "Boots": lambda r: boots(r, duration),
    "Unsafe": lambda r: f"the safety check stopped what was planned: {r.words}",
    "SlurmBars": lambda r: (
        f"Slurm would not start it now: {r.words}"
        + (f"; Lucid tries again by {when(r.retry_s)}" if r.retry_s else "")
    ),
    "FairOrder": lambda r: f"in order of submission ({when(r.submit_s)})",
    "FreeGpus": _free,
    "HostFits": lambda r: (
        f"{r.cpus} CPUs and {r.mem_mib} MiB of host memory " + ("fit" if r.found else "do not fit on such a node")
    ),
    "AsksForGpus": lambda r: f"asks for {_gpus(r.gpus)}" if r else "asks for no GPU: Slurm starts it, not Lucid",
    "TooLarge": lambda r: (
        f"asks for {_gpus(r.gpus)}, the partition has {r.partition_gpus}: it can never run here; ask for fewer "
        "GPUs or another partition"
    ),
    "EverFits": lambda r: (
        "a node could hold it"
        if r
        else "no node that is up could ever hold it: ask for fewer GPUs, CPUs or less memory"
    ),
    "BehindHead": lambda r: f"behind job {r.head}, which does not fit; this policy does not backfill",
    "NextRound": lambda r: f"decided at the next round, {when(r.at_s)}",
    "Preempted": lambda r: (
        f"jobs that come before it leave {r.quota} of the VC's GPUs, it needs {r.gpus}"
        if r
        else f"{_gpus(r.gpus)} within the {r.quota} that jobs before it leave"
    ),
    "Allotted": lambda r: (
        f"the round gives it {_gpus(r.gpus)} of at most {r.most} ({r.rule} {r.value:.3g})"
        + (f", with a batch of {r.batch:,} samples from its next start on" if r.batch else "")
        if r
        else "the round gives all GPUs to other jobs"
    ),
    "Shareable": lambda r: (
        f"sharing is off (GSS {r.gss})"
        if r.gss == 0
        else f"share score {r.score} " + ("within" if r else "above") + f" GSS {r.gss}"
    ),
    "UserAllows": lambda r: (
        "was separated from a partner before: runs alone"
        if r.parted_before
        else f"shares with no other job: {r.why}"
        if r.why
        else "its user asked not to share"
    ),
    "NotMeasured": lambda r: "not measured yet, so it shares with no other job" if not r else "measured",
    "SameGpus": lambda r: (
        f"{r.candidates} running job{'s' if r.candidates != 1 else ''} with {_gpus(r.gpus)} could be joined"
        if r
        else f"no running job with {_gpus(r.gpus)} that may be joined"
    ),
    "SameUser": lambda r: (
        f"only jobs of one user share GPUs here; {r.others} of other users' could be joined"
        if not r
        else "only jobs of one user share GPUs here"
    ),
    "ShareScores": lambda r: f"share scores {r.own} + {r.other} " + ("within" if r else "exceed") + f" GSS {r.gss}",
    "GpuMemory": lambda r: (
        f"GPU memory {r.own_mib:,.0f} + {r.other_mib:,.0f} MiB "
        + ("fits" if r else "does not fit")
        + f" in {r.capacity_mib:,.0f} MiB"
        + ("" if r else f" together with job {r.partner}")
    ),
    "HostIdle": lambda r: (
        f"job {r.host}, beside which it was, is at work again, or is not measured any more"
        if r.idle_s is None
        else f"beside job {r.host}, which has used no GPU for {duration(r.idle_s)}"
    ),
    "SweepFits": lambda r: (
        f"joins {len(r.siblings)} other task{'s' if len(r.siblings) > 1 else ''} of its array: "
        f"{len(r.siblings) + 1} of {r.most} at most, {r.fenced_mib:,.0f} of {r.gpu_mem_mib:,.0f} MiB fenced, each "
        f"at {r.speed:.2f} of its speed (at least {r.least_speed:.2f}), {r.more_work:.2f} of a job's work more"
    ),
    "SlowsSweep": lambda r: (
        f"{r.tasks} tasks of an array share these GPUs: {r.mem_mib:,.0f} of {r.gpu_mem_mib:,.0f} MiB used"
        + ("" if r.seen is None else f", the slowest at {r.seen:.2f} of its speed (at least {r.least:.2f})")
    ),
    "Stable": lambda r: f"job {r.job} has " + ("an unstable" if r.unstable else "a steady") + " utilisation pattern",
    "SharedBy": lambda r: (
        f"shares with job {r.partner} by "
        + (
            "MPS, where the node has it"
            if r
            else "time-slicing: "
            + ("there is no MPS here" if not r.mps else "MPS serves one user, and that job is another's")
        )
    ),
    "SeenSpeed": lambda r: (
        f"job {r.job} was measured at {r.seen:.0%} of full speed, sharing with job {r.partner}"
        + ("" if r else f", below {r.bound:.0%}: sharing does not pay")
    ),
    "DistributedAlone": lambda r: (
        f"{_gpus(r.gpus)} on several nodes of {r.gpus_per_node}: distributed jobs do not share their GPUs"
    ),
    "PartnerOutlasts": lambda r: (
        f"job {r.partner} is expected to run {duration(r.remaining_s)} more"
        + ("" if r else f", less than {duration(r.least_s)}: not worth joining")
    ),
    "PartnerLeaves": lambda r: (
        f"priority value {r.own:,.0f} "
        + ("at most" if r else "above")
        + f" {r.ratio:g} x {r.other:,.0f} of job {r.partner}"
    ),
    "PairSpeed": _pair_speed,
    "BestPartner": _best,
    "Rescaled": lambda r: (
        f"from {r.before} to {_gpus(r.after)}: "
        + ("some are idle, and no request waits for them" if r else f"requests that wait: {r.waiting}")
    ),
    "Interleaved": lambda r: (
        f"{'takes' if r else 'would take'} turns in a group of {r.jobs} ({r.group}): "
        f"a round takes {r.period_s:.3g} s, one after the other {r.alone_s:.3g} s"
        + ("" if r or r.period_s > r.alone_s else f"; it has to do {r.least:.3g} times the work of one job")
    ),
    "Overlaps": lambda r: (
        f"{'shares' if r else 'would share'} its GPUs ({r.group}): both want the same resource {r.conflict:.0%} "
        + (
            f"of the time, so expected at {r.speed:.0%} of full speed"
            if r
            else f"of the time, more than {r.most:.0%}"
        )
    ),
    "SlowBefore": lambda r: (
        f"does not share its GPUs ({r.group}): such a group was measured at {r.seen:.0%} of full speed, "
        f"where {r.promised:.0%} was expected"
    ),
    "Reserved": _reserved,
    "Unranked": _unranked,
    "WaitOrder": lambda r: (
        f"most jobs that wait need more than {_gpus(r.above)}: place by (waited / estimate)³ x GPUs, after "
        f"{duration(r.oldest_after_s)} the oldest first; estimate {duration(r.estimate_s)} by {r.source}, "
        f"{_gpus(r.gpus)}"
    ),
    "LargeShare": _large_share,
    "Quota": quota,
    "Borrows": lambda r: borrows(r, duration),
    "LargeBorrows": lambda r: large_borrows(r, duration),
    "OwnTurn": lambda r: own_turn(r, duration),
    "SkipsProfiling": lambda r: f"{_gpus(r.gpus)}, profiling takes jobs of at most {r.n_prof}",
    "ProfileTime": lambda r: f"profiled for {duration(r.ran_s)} (limit {duration(r.t_prof_s)})",
    "NobodyWaits": lambda r: (
        "no job waits for profiling nodes" if r else f"{_jobs(r.waiting, 'wait')} for profiling nodes"
    ),
    "CarryNode": lambda r: (
        f"node {r.node} is " + ("one on which jobs may carry on" if r else "for profiling runs only")
    ),
    "HomeWaits": lambda r: (
        f"{_jobs(r.waiting, 'already wait')} in VC {r.vc}" if r else f"no job waits in its own VC {r.vc}"
    ),
    "ProfilerPressure": lambda r: (
        f"the profiling queue is {duration(r.queue_s)} long, "
        + (f"with what is to come (forecast {_forecast(r)}), " if r.by else "")
        + (f"a burst (above {duration(r.bound_s)})" if r else f"no burst (up to {duration(r.bound_s)})")
    ),
    "HomeHasRoom": lambda r: (
        f"its own VC {r.vc} has {r.free_gpus} idle GPUs and no waiting job: measured where it runs"
        if r
        else f"no room at once in its own VC {r.vc}"
    ),
    "Calm": lambda r: (
        f"next to no job has waited in VC {r.vc} for {duration(r.calm_s)} ({duration(r.needed_s)} "
        f"are asked for): this job shares {'only if it would wait' if r else 'where it can'}"
    ),
    "ProfilingFits": lambda r: f"no profiling node could hold {_gpus(r.gpus)}" if not r else "a profiling node fits",
    "ProfilingTaken": lambda r: (
        f"jobs that Lucid does not schedule hold {_gpus(r.gpus)} of the profiling nodes: "
        "this job is measured in its own VC"
        if r
        else "no such jobs hold profiling nodes"
    ),
    "WaitedForProfiling": lambda r: (
        f"has waited {duration(r.waited_s)} for a profiling node, at most {duration(r.most_s)} is allowed"
    ),
    "Requeueable": _requeueable,
    "Overflow": lambda r: (
        f"its own VC {r.vc} has a place for it" if r.placed else f"its own VC {r.vc} has no place for it: starts here"
    ),
    "InSlots": _in_slots,
    "PairHarm": lambda r: (
        f"the pair cannot be separated later: at worst it runs at {r.worst:.0%} of full speed, "
        + ("at least" if r else "less than")
        + f" {1.0 - r.most:.0%}"
    ),
    "PairWork": _pair_work,
}


def reason_text(reason: Reason) -> str:
    """One comparison in words; a kind that has none is shown as its values."""
    words = _WORDS.get(reason.kind)
    return shown(words(reason) if words else repr(reason))


_VERBS = {
    "start": "starts",
    "hold": "waits",
    "requeue": "is preempted",
    "resize": "is resized, and goes on from a checkpoint",
    "regroup": "goes on in another group",
    "part": "is separated from its partner, and waits again",
    "release": "moves on to its VC",
    "keep": "carries on in place",
}


def decision_text(row: DecisionRow, profiling: bool = False) -> str:
    """The headline of one decision. ``profiling``: it was made in the profiling partition."""
    verb = _VERBS.get(row.verb, row.verb)
    if row.verb == "start" and profiling:
        verb = "starts its profiling run"
    where = f" on {row.placement}" if row.placement else f" ({row.partition})"
    beside = f", sharing GPUs with job {row.beside}" if row.beside else ""
    would = f" [would, in {row.mode} mode]" if row.mode not in ("", Mode.PACK) else ""
    return shown(f"{verb}{where}{beside}{would}")


def decision_line(row: DecisionRow) -> str:
    """One decision with its reasons in one line."""
    return f"{decision_text(row)}: {'; '.join(reason_text(reason) for reason in row.reasons)}"
