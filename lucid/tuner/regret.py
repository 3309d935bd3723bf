"""What other orders would have made of the past week, beside what really happened, losers included."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from lucid.errors import ConfigError, TraceError
from lucid.simulator.compare import Report, compare_policies
from lucid.simulator.engine import Run
from lucid.simulator.gains import Held, held_by, loses
from lucid.simulator.scenario import Scenario, Semantics
from lucid.simulator.traces.record import Trace, TraceJob
from lucid.tuner.space import with_values

__all__ = [
    "PLAIN",
    "REALLY",
    "RULES",
    "WARM_UP_S",
    "Figures",
    "Group",
    "Loss",
    "Regret",
    "regret",
    "week_of",
]

REALLY = "really"
"""The column of what the log itself says."""
PLAIN = "backfill"
"""What plain Slurm would have done."""
WARM_UP_S = 14 * 86400.0
"""What goes before the days looked at, and is replayed with them: a cluster is not empty on a Monday morning, and
estimates come from jobs that have ended."""

RULES = ("never", "asked", "allowed")
"""Values of ``policy.profiling.restarts``, from the one that starts nobody over."""

_LONGER_S = 60.0
"""A job that waits less than this longer has lost nothing that anybody would see."""
_LISTED = 10

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Figures:
    """Of some jobs under one order, in seconds."""

    avg_jct_s: float
    median_jct_s: float
    p99_jct_s: float
    avg_wait_s: float


@dataclass(frozen=True, slots=True)
class Group:
    """All jobs, those of a VC, or those of a user. ``by``: figures by order. ``lost_s``: what their JCTs come to more
    under Lucid than under plain order, all together; negative is won. ``longer``: how many wait over a minute longer.
    ``losing``: the part of ``lost_s`` that stems from the jobs which lose."""

    name: str
    jobs: int
    by: Mapping[str, Figures]
    lost_s: float
    longer: int
    losing_s: float

    @property
    def loses(self) -> bool:
        """Is the mean JCT under Lucid above plain order's by more than 5 %, and by 0.1 h at least?"""
        return loses(self.by["lucid"].avg_jct_s, self.by[PLAIN].avg_jct_s)

    @property
    def change(self) -> float:
        """Mean JCT under Lucid over that in plain order, less 1; negative is a gain."""
        plain_s = self.by[PLAIN].avg_jct_s
        return self.by["lucid"].avg_jct_s / plain_s - 1.0 if plain_s else 0.0


@dataclass(frozen=True, slots=True)
class Loss:
    """One job that would have come out later under Lucid than in plain order."""

    job: str
    user: str
    vc: str
    gpus: int
    jct_s: Mapping[str, float]
    wait_s: Mapping[str, float]

    @property
    def lost_s(self) -> float:
        """By how much later."""
        return self.jct_s["lucid"] - self.jct_s[PLAIN]


@dataclass(frozen=True, slots=True)
class Regret:
    """``orders``: names of the columns, in order. Times of the trace, ``epoch_s`` the Unix time of its second 0.
    ``realism``: average JCT of plain order in the replay over the real one, less 1, where the log tells of it:
    a difference between orders that is smaller than this says nothing of this cluster."""

    trace: str
    from_s: float
    until_s: float
    epoch_s: float | None
    orders: tuple[str, ...]
    everybody: Group
    vcs: tuple[Group, ...]
    users: tuple[Group, ...]
    worst: tuple[Loss, ...]
    realism: float | None
    notes: tuple[str, ...]
    restarts: Mapping[str, Figures] = field(default_factory=dict)
    """Figures of everybody under Lucid as lucidd works, by ``policy.profiling.restarts``."""
    held: Held | None = None
    """What all jobs hold under Lucid and in plain order, those of the weeks before that are replayed too."""

    @property
    def losers(self) -> list[Group]:
        """The users who lose (``Group.loses``), the most hours first."""
        return [user for user in self.users if user.loses]


def week_of(trace: Trace, days: float) -> tuple[float, float]:
    """The last ``days`` of submissions in a trace, in its own seconds."""
    until_s = trace.jobs[-1].job.submit_s
    return max(until_s - days * 86400.0, 0.0), until_s


def regret(
    scenario: Scenario,
    days: float,
    others: Sequence[str] = (),
    workers: int | None = None,
    report: Report | None = None,
) -> Regret:
    """Replay the last days of the scenario's trace in plain order, first come first served, and under Lucid.

    Estimates are learned on the way, each from jobs that had ended by then; all are charged alike. ``others``:
    more policies to put beside them.

    Raises:
        ConfigError: estimates by an oracle, an unknown policy, or one that cannot run here.
        TraceError: no job was submitted in that time.
    """
    if scenario.predictor == "oracle":
        raise ConfigError("an oracle says what nobody could have known; report with --predictor history or learned")
    from_s, until_s = week_of(scenario.trace, days)
    notes: list[str] = []
    trace = _recent(scenario.trace, from_s - WARM_UP_S)
    scenario = replace(scenario, trace=trace)
    if scenario.not_profiled:
        notes.append(scenario.not_profiled)
    runs = _runs(scenario, tuple(dict.fromkeys((PLAIN, "fifo", "lucid", *others))), workers, report)
    items = {item.job.id: item for item in trace.jobs if item.job.submit_s >= from_s}
    wanted = [o.job.id for o in runs["lucid"].outcomes if o.job.id in items]
    jct = {name: {o.job.id: o.jct_s for o in run.outcomes if o.end_s >= 0} for name, run in runs.items()}
    wait = {name: {o.job.id: o.queue_s for o in run.outcomes if o.end_s >= 0} for name, run in runs.items()}
    ids = [job_id for job_id in wanted if all(job_id in found for found in jct.values())]
    if not ids:
        raise TraceError(f"{trace.name}: no job was submitted in the last {days:g} days of it that could be replayed")
    if len(ids) < len(wanted):
        notes.append(f"{len(wanted) - len(ids)} jobs fit on no node here and are left out")
    jobs = [items[job_id] for job_id in ids]
    if all(item.waited_s is not None for item in jobs):
        jct = {REALLY: {i.job.id: (i.waited_s or 0.0) + i.duration_s for i in jobs}, **jct}
        wait = {REALLY: {i.job.id: i.waited_s or 0.0 for i in jobs}, **wait}
    else:
        notes.append("the log does not say when each job started: what really happened is not shown")
    rules = _by_rule(scenario, ids, report)
    if rules and not any(item.job.restart_asked for item in jobs):
        notes.append("the log does not say who asked to be started over: asked is replayed as never")
    reduced = _reduced(
        scenario.trace,
        (from_s, until_s),
        jobs,
        {name: np.array([found[i] for i in ids]) for name, found in jct.items()},
        {name: np.array([found[i] for i in ids]) for name, found in wait.items()},
        notes,
    )
    return replace(reduced, restarts=rules, held=held_by(runs["lucid"], runs[PLAIN]))


def _by_rule(scenario: Scenario, ids: Sequence[str], report: Report | None) -> Mapping[str, Figures]:
    """The same jobs as lucidd would run them, by whom it may start over; nothing where no node can be lent to
    profiling, or jobs are not profiled."""
    if (
        not scenario.settings.policy.profiling.enabled
        or scenario.not_profiled
        or scenario.semantics is not Semantics.HONEST
    ):
        return {}
    found: dict[str, Figures] = {}
    asks = any(item.job.restart_asked for item in scenario.trace.jobs)
    for rule in RULES:
        if rule == "asked" and not asks:
            found[rule] = found["never"]
            continue
        settings = with_values(scenario.settings, {"policy.profiling.restarts": rule})
        made = compare_policies(replace(scenario, as_live=True, settings=settings), ["lucid"], 1, report)
        outcomes = {outcome.job.id: outcome for outcome in made.runs["lucid"].outcomes if outcome.end_s >= 0}
        if any(job_id not in outcomes for job_id in ids):
            return {}
        jct, wait = ([getattr(outcomes[i], name) for i in ids] for name in ("jct_s", "queue_s"))
        found[rule] = _figures(np.array(jct), np.array(wait))
    return found


def _recent(trace: Trace, from_s: float) -> Trace:
    return replace(trace, jobs=tuple(item for item in trace.jobs if item.job.submit_s >= from_s))


def _runs(
    scenario: Scenario,
    policies: Sequence[str],
    workers: int | None,
    report: Report | None,
) -> Mapping[str, Run]:
    found = compare_policies(scenario, policies, workers, report)
    if found.not_applicable:
        raise ConfigError("; ".join(f"{name} {why}" for name, why in found.not_applicable.items()))
    return {name: found.runs[name] for name in policies}


def _reduced(
    trace: Trace,
    period: tuple[float, float],
    jobs: Sequence[TraceJob],
    jct: Mapping[str, Floats],
    wait: Mapping[str, Floats],
    notes: Sequence[str],
) -> Regret:
    def group(name: str, at: Sequence[int]) -> Group:
        lost = jct["lucid"][at] - jct[PLAIN][at]
        longer = wait["lucid"][at] - wait[PLAIN][at] > _LONGER_S
        by = {order: _figures(jct[order][at], wait[order][at]) for order in jct}
        return Group(name, len(at), by, float(lost.sum()), int(longer.sum()), float(lost[lost > 0].sum()))

    def groups(of: Callable[[TraceJob], str]) -> list[Group]:
        at: dict[str, list[int]] = {}
        for i, item in enumerate(jobs):
            at.setdefault(of(item), []).append(i)
        return [group(name, members) for name, members in at.items()]

    everybody = group("everybody", range(len(jobs)))
    lost = jct["lucid"] - jct[PLAIN]
    worst = [
        Loss(
            jobs[i].job.id,
            jobs[i].job.user,
            jobs[i].job.vc,
            jobs[i].job.gpus,
            {order: float(values[i]) for order, values in jct.items()},
            {order: float(values[i]) for order, values in wait.items()},
        )
        for i in np.argsort(-lost, kind="stable")[:_LISTED].tolist()
        if lost[i] > _LONGER_S
    ]
    realism = None
    if REALLY in jct:
        realism = everybody.by[PLAIN].avg_jct_s / everybody.by[REALLY].avg_jct_s - 1.0
    return Regret(
        trace.name,
        *period,
        trace.epoch_s,
        tuple(jct),
        everybody,
        tuple(sorted(groups(lambda item: item.job.vc), key=lambda g: g.name)),
        tuple(sorted(groups(lambda item: item.job.user), key=lambda g: (-g.lost_s, g.name))),
        tuple(worst),
        realism,
        (*_assumed(trace, jobs), *notes),
    )


def _figures(jct: Floats, wait: Floats) -> Figures:
    return Figures(float(jct.mean()), float(np.median(jct)), float(np.percentile(jct, 99)), float(wait.mean()))


def _assumed(trace: Trace, jobs: Sequence[TraceJob]) -> list[str]:
    """What these figures take for granted, in words."""
    said = [
        "each job is replayed with the run time that it really had, as if it had run alone",
        "users are taken to submit the same jobs at the same times, whatever the order",
    ]
    measured = sum(item.profile is not None for item in jobs)
    if measured < len(jobs):
        said.append(f"{len(jobs) - measured} of {len(jobs)} jobs have no GPU readings and are never packed")
    unlimited = sum(item.job.time_limit_s is None for item in jobs)
    if unlimited:
        said.append(
            f"{unlimited} of {len(jobs)} jobs have no time limit: plain order is given one made from estimates"
        )
    missing = Counter(dict(trace.skipped))
    said += [f"left out: {count} {reason}" for reason, count in missing.items()]
    return said
