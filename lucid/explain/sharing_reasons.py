"""Reasons about sharing GPUs and about profiling, in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lucid.core import reasons as why
from lucid.explain.formatting import duration, gpus, jobs


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


def _forecast(r: Any) -> str:
    return f"{r.gpus_per_hour:.0f} GPUs an hour" + (f" by {r.by}" if r.by else "")


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


SHARING_WORDS: Mapping[str, Callable[[Any], str]] = {
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
        f"{r.candidates} running job{'s' if r.candidates != 1 else ''} with {gpus(r.gpus)} could be joined"
        if r
        else f"no running job with {gpus(r.gpus)} that may be joined"
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
        f"{gpus(r.gpus)} on several nodes of {r.gpus_per_node}: distributed jobs do not share their GPUs"
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
    "SkipsProfiling": lambda r: f"{gpus(r.gpus)}, profiling takes jobs of at most {r.n_prof}",
    "ProfileTime": lambda r: f"profiled for {duration(r.ran_s)} (limit {duration(r.t_prof_s)})",
    "NobodyWaits": lambda r: (
        "no job waits for profiling nodes" if r else f"{jobs(r.waiting, 'wait')} for profiling nodes"
    ),
    "CarryNode": lambda r: (
        f"node {r.node} is " + ("one on which jobs may carry on" if r else "for profiling runs only")
    ),
    "HomeWaits": lambda r: (
        f"{jobs(r.waiting, 'already wait')} in VC {r.vc}" if r else f"no job waits in its own VC {r.vc}"
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
    "ProfilingFits": lambda r: f"no profiling node could hold {gpus(r.gpus)}" if not r else "a profiling node fits",
    "ProfilingTaken": lambda r: (
        f"jobs that Lucid does not schedule hold {gpus(r.gpus)} of the profiling nodes: "
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
"""Functions that put a comparison into words, by its kind."""
