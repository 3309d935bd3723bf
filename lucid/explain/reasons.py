"""Reasons and decisions in words, with quotas, borrowing, sleeping nodes and windows.

This is the only prose about decisions; it adds nothing that a reason does not hold."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lucid.core import reasons as why
from lucid.core.decision import DecisionRow
from lucid.core.node import Node, Window
from lucid.core.reason import Reason
from lucid.core.reasons.queue import Closes, FreeGpus, HostFits, OtherNodes, Reserved, Switches
from lucid.core.snapshot import Seen, Snapshot, windows_of
from lucid.explain.formatting import duration, gpus, when
from lucid.explain.sharing_reasons import SHARING_WORDS
from lucid.places import Mode
from lucid.text import shown

_MOST_LENDERS = 3
"""Most lenders named in one line."""


def quota(r: why.Quota) -> str:
    """Whether the VC has GPUs of its quota left for the job."""
    holds = f"VC {r.vc} holds {r.held} of its quota of {r.quota} GPUs"
    if r:
        return f"{holds}: there is room for the {r.gpus} of this job"
    kept = f" and reserves {r.kept} for job {r.keeper}" if r.kept else ""
    return f"{holds}{kept}: no room for the {r.gpus} of this job"


def borrows(r: why.Borrows) -> str:
    """Whether the job may have GPUs of other VCs, and whose."""
    words = "may borrow, and no VC has idle GPUs of its quota"
    if r.lenders:
        named = ", ".join(r.lenders[:_MOST_LENDERS]) + (" and others" if len(r.lenders) > _MOST_LENDERS else "")
        words = f"borrows {gpus(r.gpus) if r.gpus else 'idle GPUs'} of VC {named} until it ends"
    return words if r.estimate_s is None else f"{words}: estimate {duration(r.estimate_s)}"


def own_turn(r: why.OwnTurn) -> str:
    """Whether the job goes before all others because its VC's own GPUs are lent."""
    waited = f"VC {r.vc} stays within its quota with this job, which has waited {duration(r.waited_s)}"
    if r:
        return f"{waited} (policy.lending.turn_s: {duration(r.after_s)}): it goes before all others"
    return f"{waited}: it goes before all others from {duration(r.after_s)} on (policy.lending.turn_s)"


def vc_words(vc: str, found: Mapping[str, int]) -> str:
    """What a VC of a pool holds and has borrowed, with how many of its jobs wait; ``found`` in GPUs and jobs."""
    words = f"VC {vc} holds {found['held']} GPUs of its quota of {found['quota']}"
    if found["borrowed"]:
        words = f"VC {vc} holds its quota of {found['quota']} GPUs and borrows {found['borrowed']}"
    return f"{words}; {found['pending']} of its jobs wait" if found["pending"] else words


_SLACK_S = 60.0
"""How long a proposed shorter limit leaves for asking for it."""
_NAMED = 8


def windows_ahead(snapshot: Snapshot) -> list[Seen]:
    """The windows of all partitions, each once, the earliest first."""
    found: dict[Window, Seen] = {}
    for partition in snapshot.partitions.values():
        for one in windows_of(partition):
            had = found.get(one.window)
            nodes, jobs = ((), ()) if had is None else (had.nodes, had.reaching)
            reaching = tuple(dict.fromkeys((*jobs, *one.reaching)))
            found[one.window] = Seen(one.window, (*nodes, *one.nodes), reaching)
    return sorted(found.values(), key=lambda one: (one.window.from_s, one.window.end_s, one.window.why))


def window_words(one: Seen, now_s: float) -> str:
    """``maintenance of n[1-4] (w) from … to …; jobs 17 and 18 may still run then``."""
    window = one.window
    begun = window.from_s <= now_s
    until = "" if window.until_s is None else f" {'until' if begun else 'to'} {when(window.until_s)}"
    words = f"{window.why or 'closed'}{' now,' if begun else f' from {when(window.from_s)}'}{until}".rstrip(",")
    if not one.reaching:
        return words
    jobs = f"job{'s' if len(one.reaching) > 1 else ''} {', '.join(one.reaching[:_NAMED])}"
    more = len(one.reaching) - _NAMED
    return f"{words}; {jobs}{f' and {more} more' if more > 0 else ''} may {'run on' if begun else 'still run then'}"


def window_dict(one: Seen) -> dict[str, Any]:
    """A window as JSON."""
    return {
        "from_s": one.window.from_s,
        "until_s": one.window.until_s,
        "why": one.window.why,
        "nodes": list(one.nodes),
        "reaching": list(one.reaching),
    }


def reaches_words(snapshot: Snapshot, job_id: str) -> list[str]:
    """The windows into which a running job may last, in words."""
    return [
        f"may last into: {window_words(Seen(one.window, one.nodes, ()), snapshot.now_s)}"
        for one in windows_ahead(snapshot)
        if job_id in one.reaching
    ]


def ends_in_time_s(reasons: Sequence[Reason], at_s: float) -> float | None:
    """The longest time limit, in whole minutes, with which a job that a window keeps waiting would end before it.
    ``at_s``: when the reasons were found, which may be a while ago if nothing has changed."""
    room_s = max((r.room_s for r in reasons if isinstance(r, Closes) and not r), default=0.0)
    minutes = (room_s - max(time.time() - at_s, 0.0) - _SLACK_S) // 60
    return minutes * 60 if minutes >= 1 else None


def limit_words(limit_s: float) -> str:
    """The limit as ``--time`` takes it: ``0:45:00``."""
    hours, rest = divmod(round(limit_s), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}"


# Nodes that sleep or boot, in words.


def boots(r: why.Boots) -> str:
    """``n3 sleeps; a boot takes about 4 min``."""
    more = f"; {r.others} more of its nodes {'is' if r.others == 1 else 'are'} not awake" if r.others else ""
    return f"{r.node} {_words(r.asleep, r.delay_s)}{more}"


def power_words(node: Node, now_s: float) -> str:
    """``sleeps; a boot takes about 4 min``, or ``boots, about 2 min``; empty for a node that is awake."""
    return _words(node.boots_since_s is None, node.delay_s(now_s)) if node.boot_s else ""


def _words(asleep: bool, delay_s: float) -> str:
    left = f"about {duration(delay_s)}" if delay_s >= 1.0 else "any moment now"
    return f"sleeps; a boot takes {left}" if asleep else f"boots, {left}"


def _free(r: why.FreeGpus) -> str:
    if r.found:
        return f"{r.needed} of {r.free} free GPUs" + (", together" if r.needed > 1 else "")
    if r.free < r.needed:
        return f"needs {gpus(r.needed)}, {r.free} free"
    if r.largest < r.needed:
        return f"needs {gpus(r.needed)} together; {r.free} free, but scattered: at most {r.largest} on one node"
    return f"needs {gpus(r.needed)}; {r.free} free, but on no node that could take it"


def _priority(r: why.Priority) -> str:
    if r.rule == "attained GPU-seconds":
        return f"has had {r.value:,.0f} GPU-seconds of service"
    made = f"estimate {duration(r.estimate_s)} by {r.source}, {gpus(r.gpus)}"
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
        f"jobs as large as this one hold {r.held_gpus} of {gpus(r.total_gpus)}; with its {r.gpus} they would hold "
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


def _nodes_out(r: why.NodesOut) -> str:
    until = "" if r.until_s is None else f", until {when(r.until_s)}"
    return f"{gpus(r.gpus)} on nodes where nothing may start" + (f" ({r.words}{until})" if r.words else "")


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
    return f"{gpus(r.gpus)} on nodes that close: {window}; {ends}"


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
    return f"job {victim.job} of {victim.vc} ({gpus(victim.gpus)}), which {loses}"


def _gpu_hours(gpu_s: float) -> str:
    return f"{gpu_s / 3600.0:.2f} GPU-hours"


def _held_by(r: why.HeldBy) -> str:
    jobs = "1 job" if r.jobs == 1 else f"{r.jobs} jobs"
    held = f"{gpus(r.gpus)} {'is' if r.gpus == 1 else 'are'} held by {jobs} of partition {r.vc}"
    if not r.yielding:
        return f"{held}, which may not be preempted"
    first = f", the first from {when(r.from_s)} on" if r.from_s else ""
    who = "all" if r.yielding == r.jobs else str(r.yielding)
    return f"{held}: {who} of them may be preempted{first}, which does not suffice now"


_WORDS: dict[str, Callable[[Any], str]] = {
    **SHARING_WORDS,
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
    "OtherNodes": lambda r: f"{gpus(r.gpus)} are free on nodes that its user did not ask for (asked: {r.asked})",
    "Closes": _closes,
    "Spread": _spread,
    "Switches": lambda r: (
        f"its user asked for nodes below at most {r.most} switch{'' if r.most == 1 else 'es'}"
        + ("" if r.until_s is None else f", until {when(r.until_s)}")
        + ("" if r else ": there is no room below so few")
    ),
    "Claims": _claims,
    "HeldBy": _held_by,
    "Boots": boots,
    "Unplanned": lambda r: f"no plan of its partition can be made at present{f' ({r.words})' if r.words else ''}",
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
    "AsksForGpus": lambda r: f"asks for {gpus(r.gpus)}" if r else "asks for no GPU: Slurm starts it, not Lucid",
    "TooLarge": lambda r: (
        f"asks for {gpus(r.gpus)}, the partition has {r.partition_gpus}: it can never run here; ask for fewer "
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
        else f"{gpus(r.gpus)} within the {r.quota} that jobs before it leave"
    ),
    "Allotted": lambda r: (
        f"the round gives it {gpus(r.gpus)} of at most {r.most} ({r.rule} {r.value:.3g})"
        + (f", with a batch of {r.batch:,} samples from its next start on" if r.batch else "")
        if r
        else "the round gives all GPUs to other jobs"
    ),
    "Rescaled": lambda r: (
        f"from {r.before} to {gpus(r.after)}: "
        + ("some are idle, and no request waits for them" if r else f"requests that wait: {r.waiting}")
    ),
    "Reserved": _reserved,
    "Unranked": _unranked,
    "WaitOrder": lambda r: (
        f"most jobs that wait need more than {gpus(r.above)}: place by (waited / estimate)³ x GPUs, after "
        f"{duration(r.oldest_after_s)} the oldest first; estimate {duration(r.estimate_s)} by {r.source}, "
        f"{gpus(r.gpus)}"
    ),
    "LargeShare": _large_share,
    "Quota": quota,
    "Borrows": borrows,
    "OwnTurn": own_turn,
}


def reason_text(reason: Reason) -> str:
    """One comparison in words; a kind without words is shown by its values."""
    words = _WORDS.get(reason.kind)
    return shown(words(reason) if words else repr(reason))


def reason_texts(reasons: Sequence[Reason], kept: str = "reserved nodes") -> list[str]:
    """Each comparison of a decision in words. ``kept``: what the nodes are called that are kept for other jobs, where
    only these have free GPUs for this one."""
    fenced = any(isinstance(r, Reserved) for r in reasons)
    fenced &= all(r for r in reasons if isinstance(r, OtherNodes | Closes | Switches | HostFits))

    def words(r: Reason) -> str:
        if not fenced or not isinstance(r, FreeGpus) or r.found or r.needed > min(r.largest, r.free):
            return reason_text(r)
        return shown(
            f"needs {gpus(r.needed)}; {r.free} free, {'all' if r.needed == 1 else 'together only'} on {kept}"
        )

    return [words(r) for r in reasons]


def against(reasons: Sequence[Reason], kept: str = "reserved nodes") -> list[str]:
    """The comparisons that keep a job from starting, in words; all of them where none does by itself. ``kept`` as in
    ``reason_texts``."""
    found = [words for words, reason in zip(reason_texts(reasons, kept), reasons, strict=True) if not reason]
    return found or reason_texts(reasons, kept)


def short_words(decision: DecisionRow | None, kept: str = "reserved nodes") -> str:
    """The decision on a waiting job in one phrase: where it starts, or the comparison that keeps it from starting."""
    if decision is None:
        return "not decided yet"
    if decision.verb != "hold":
        return decision_text(decision)
    return (against(decision.reasons, kept) or ["waits"])[-1]


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
    return f"{decision_text(row)}: {'; '.join(reason_texts(row.reasons))}"
