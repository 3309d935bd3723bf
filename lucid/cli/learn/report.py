"""``lucidctl report``: what other policies would have made of the past week, beside what really happened."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from lucid.cli.console import Table, answer, many_bars, table
from lucid.cli.learn.tune import scenario_of_store
from lucid.cli.options import PATH
from lucid.cli.replay.replay_options import cluster_options, read_scenario
from lucid.cli.replay.simulate import run_summary
from lucid.errors import ConfigError, LucidError, TraceError
from lucid.explain.formatting import duration
from lucid.orchestrator.registry import find_policy
from lucid.simulator.cluster.state import JobOutcome
from lucid.simulator.compare import Report, compare_policies
from lucid.simulator.engine import Run, Series
from lucid.simulator.metrics import (
    BASELINE,
    LOSES_FROM,
    LOSES_LEAST_S,
    Gains,
    Party,
    gains,
    gains_to_dict,
    held_by,
    held_text,
    loses,
    loss_text,
    run_metrics,
)
from lucid.simulator.report.page import write_report
from lucid.simulator.scenario import ReplayOptions, Scenario
from lucid.simulator.traces.record import TraceJob

Floats = NDArray[np.float64]

REALLY = "really"
"""The name of the run that the log records."""
WARM_UP_S = 14 * 86400.0
"""How long before the reported days the replay begins: a cluster is not empty on a Monday morning, and estimates come
from jobs that have ended."""
LOSES = f"more than {LOSES_FROM - 1:.0%} of the mean JCT and at least {LOSES_LEAST_S / 3600:g} h a job"
"""Who loses, in words."""


@dataclass(frozen=True, slots=True)
class PastWeek:
    """The result. ``scenario``: its trace holds the jobs of those days alone. ``runs``: of them, second 0 being when
    the days begin; what really happened is the last, where the log has it. ``gains``: lucid against plain Slurm.
    ``period``: in words. ``realism``: average JCT of plain Slurm's replay over the real one, less 1: a smaller
    difference between policies says nothing of this cluster."""

    scenario: Scenario
    runs: list[Run]
    metrics: dict[str, dict[str, Any]]
    gains: Gains
    period: str
    realism: float | None
    notes: list[str]

    @property
    def losers(self) -> list[Party]:
        """The users who lose, the most hours first."""
        found = [user for user in self.gains.users if loses(user.jct_s, user.baseline_s)]
        return sorted(found, key=lambda user: (-_lost_s(user), user.name))

    @property
    def answer(self) -> str:
        """Sentences on what the site would have gained, then on who would have lost."""
        everybody, lucid, plain = self.gains.everybody, self.metrics["lucid"], self.metrics[BASELINE]
        said = [
            f"{everybody.jobs:,} jobs: Lucid's order would have {'cost' if _lost_s(everybody) > 0 else 'saved'} the "
            f"site {abs(_lost_s(everybody)) / 3600:,.0f} h of job completion time. The average JCT would have been "
            f"{duration(everybody.jct_s)} instead of {duration(everybody.baseline_s)} in plain order "
            f"({everybody.ratio - 1:+.1%}), the average wait {duration(lucid['avg_queue_s'])} instead of "
            f"{duration(plain['avg_queue_s'])}.",
            self._who_loses(),
            held_text(self.gains.held, "Lucid", "plain order"),
        ]
        if self.realism is not None:
            said.append(
                f"Plain order replayed is {self.realism:+.1%} off the average JCT that really was: differences "
                "smaller than that say nothing of this cluster."
            )
        return " ".join(filter(None, said))

    def _who_loses(self) -> str:
        losers, users = self.losers, len(self.gains.users)
        if not losers:
            return f"None of {users} users loses {LOSES}."
        worst = losers[0]
        return (
            f"{len(losers)} of {users} users {'loses' if len(losers) == 1 else 'lose'} {LOSES}; most of all "
            f"{worst.name or '(unnamed)'}, {duration(worst.jct_s - worst.baseline_s)} a job ({worst.ratio - 1:+.0%})."
        )


def _lost_s(party: Party) -> float:
    return party.jobs * (party.jct_s - party.baseline_s)


def past_week(
    scenario: Scenario,
    days: float,
    others: Sequence[str] = (),
    workers: int | None = None,
    report: Report | None = None,
) -> PastWeek:
    """Replay the last days of the scenario's trace in plain Slurm's order, first come first served, and under Lucid.

    Estimates are learned on the way, each from jobs that had ended by then. ``others``: more policies.

    Raises:
        ConfigError: estimates by an oracle, an unknown policy, or one that cannot run here.
        TraceError: no job was submitted in that time."""
    if scenario.predictor == "oracle":
        raise ConfigError("an oracle says what nobody could have known; report with --predictor history or learned")
    log = scenario.trace
    until_s = log.jobs[-1].job.submit_s
    from_s = max(until_s - days * 86400.0, 0.0)
    recent = tuple(item for item in log.jobs if item.job.submit_s >= from_s - WARM_UP_S)
    scenario = replace(scenario, trace=replace(log, jobs=recent))
    found = compare_policies(scenario, (BASELINE, "fifo", "lucid", *others), workers, report)
    if found.not_applicable:
        raise ConfigError("; ".join(f"{name} {why}" for name, why in found.not_applicable.items()))
    wanted = [item for item in recent if item.job.submit_s >= from_s]
    ended = set.intersection(*({o.job.id for o in run.outcomes if o.end_s >= 0} for run in found.runs.values()))
    jobs = [item for item in wanted if item.job.id in ended]
    if not jobs:
        raise TraceError(f"{log.name}: no job was submitted in the last {days:g} days of it that could be replayed")
    notes = [
        "each job is replayed with the run time that it really had, as if it had run alone",
        "users are taken to submit the same jobs at the same times, whatever the order",
    ]
    if len(jobs) < len(wanted):
        notes.append(f"{len(wanted) - len(jobs)} jobs fit on no node here and are left out")
    ids = {item.job.id for item in jobs}
    runs = [_part(run, from_s, ids) for run in found.runs.values()]
    if all(item.waited_s is not None for item in jobs):
        runs.append(_part(_as_it_was(recent, runs[0]), from_s, ids))
        notes.append("the log does not tell of preemption, sharing and profiling: under 'really' there is none")
    else:
        notes.append("the log does not say when each job started: what really happened is not shown")
    metrics = {run.policy: run_metrics(run) for run in runs}
    by_name = {run.policy: run for run in runs}
    against = gains(by_name["lucid"], by_name[BASELINE])
    assert against is not None  # there are jobs
    against = replace(against, held=held_by(found.runs["lucid"], found.runs[BASELINE]))
    return PastWeek(
        replace(scenario, trace=replace(log, jobs=tuple(jobs))),
        runs,
        metrics,
        against,
        _period(log.epoch_s, from_s, until_s),
        metrics[BASELINE]["avg_jct_s"] / metrics[REALLY]["avg_jct_s"] - 1.0 if REALLY in metrics else None,
        notes,
    )


def _period(epoch_s: float | None, from_s: float, until_s: float) -> str:
    if epoch_s is None:
        return f"days {from_s / 86400:.1f} to {until_s / 86400:.1f} of the log"
    first, last = (time.strftime("%F %R", time.gmtime(epoch_s + at_s)) for at_s in (from_s, until_s))
    return f"{first} to {last}"


def _part(run: Run, from_s: float, ids: set[str]) -> Run:
    """The reported jobs of a run, and the cluster from ``from_s``, which is its second 0, to their last end."""
    outcomes = [
        replace(
            o,
            job=replace(o.job, submit_s=o.job.submit_s - from_s),
            start_s=o.start_s - from_s,
            end_s=o.end_s - from_s,
        )
        for o in run.outcomes
        if o.job.id in ids
    ]
    whole = run.series
    upto_s = from_s + max(o.end_s for o in outcomes)
    part = slice(int(from_s // whole.step_s), int(-(-upto_s // whole.step_s)))
    busy, shared = whole.busy_gpus[part], whole.shared_gpus[part]
    waiting = {name: counts[part] for name, counts in whole.pending_jobs.items()}
    used_s, shared_s = (sum(gpus) * whole.step_s for gpus in (busy, shared))
    series = Series(whole.step_s, busy, shared, whole.pending_gpus[part], waiting, used_s, shared_s)
    return Run(run.policy, run.predictor, outcomes, series, run.total_gpus, run.cycles, run.wall_s, run.cpu_s)


def _as_it_was(log: Sequence[TraceJob], like: Run) -> Run:
    """The log's own times, as if they were a run on that cluster."""
    submit_s, wait_s, run_s, gpus = np.array(
        [(item.job.submit_s, item.waited_s or 0.0, item.duration_s, item.job.gpus) for item in log]
    ).T
    start_s = submit_s + wait_s
    end_s = start_s + run_s
    at_s = np.arange(0.0, end_s.max(), like.series.step_s)

    def level(begin_s: Floats, until_s: Floats, count: Floats) -> array[int]:
        change = np.zeros(len(at_s) + 1)
        np.add.at(change, np.searchsorted(at_s, begin_s), count)
        np.add.at(change, np.searchsorted(at_s, until_s), -count)
        return array("l", change.cumsum()[:-1].astype(int).tolist())

    busy, waiting = level(start_s, end_s, gpus), {"": level(submit_s, start_s, np.ones(len(log)))}
    series = Series(like.series.step_s, busy, array("l", [0]) * len(busy), level(submit_s, start_s, gpus), waiting)
    outcomes = [
        JobOutcome(item.job, item.duration_s, float(starts), float(ends), item.waited_s or 0.0)
        for item, starts, ends in zip(log, start_s, end_s, strict=True)
    ]
    return Run(REALLY, "", outcomes, series, like.total_gpus, 0, 0.0, 0.0)


_WEEK_DAYS = 7.0
_MOST_USERS = 10


@click.command()
@click.option("--week", is_flag=True, help="The past week: the same as --days 7, which is what you get anyway.")
@click.option("--days", "last_days", type=click.FloatRange(min=0, min_open=True), help="So many days instead.")
@click.option("--jobs", "log", type=PATH, help="Log of the past: sacct lines, or any trace.")
@click.option("--history", is_flag=True, help="The jobs that ended under lucidd, from its store, on its nodes.")
@click.option("--policy", "policies", multiple=True, metavar="NAME", help="Another policy beside them; repeat.")
@click.option("--workers", type=click.IntRange(min=1), help="Processes at a time. Default: one for each core.")
@click.option("--html", type=PATH, help="Also write a self-contained page.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@cluster_options
def report(
    week: bool,
    last_days: float | None,
    log: Path | None,
    history: bool,
    policies: tuple[str, ...],
    workers: int | None,
    html: Path | None,
    as_json: bool,
    asked: ReplayOptions,
) -> None:
    """Show what plain Slurm and Lucid would make of the past week.

    The report says what the site would have gained under Lucid, and which users would have lost. The log is --jobs
    FILE, or with --history the store of lucidd (--config, else LUCID_CONFIG). The two weeks before the log's last
    days are replayed too. Estimates use only jobs that had ended by then."""
    if week and last_days not in (None, _WEEK_DAYS):
        raise ConfigError("--week and --days both say how long; give one of them")
    if (log is None) is not history:
        raise ConfigError("give --jobs FILE (sacct lines or any trace), or --history for the store of lucidd")
    for name in policies:
        find_policy(name)
    span = last_days or _WEEK_DAYS
    if log is not None:
        scenario, notes = read_scenario(log, asked, muris_own=False)
    else:
        scenario, notes = scenario_of_store(span + WARM_UP_S / 86400.0, asked)
    with many_bars() as bars:
        found = past_week(scenario, span, policies, workers, bars)
    notes = [*found.notes, *notes]
    if html is not None:
        title = f"{scenario.trace.name}, {found.period}"
        try:
            write_report(html, title, found.runs, found.metrics, notes, [found.gains], answer=found.answer)
        except OSError as error:
            raise LucidError(f"{html}: cannot be written ({error.strerror}); give --html another place") from None

    def data() -> dict[str, Any]:
        told = {"summary": found.answer, "period": found.period, "realism": found.realism}
        run = run_summary(found.scenario, found.metrics, notes)
        return {**told, **run, "gains": {"lucid": gains_to_dict(found.gains)}}

    answer(
        data,
        as_json,
        _words(found, [*(f"note: {note}" for note in notes), *([] if html is None else [f"written: {html}"])]),
        wraps=True,
    )


_ALL = ("", ">avg JCT", ">median JCT", ">p99.9 JCT", ">avg wait", ">median wait", ">GPU use")
_LOSERS = ("", ">jobs", ">avg JCT in plain order", ">under Lucid", ">jobs over 1 min later")


def _words(found: PastWeek, ends: list[str]) -> Iterator[str | Table]:
    yield f"{found.scenario.trace.name}: jobs submitted {found.period}"
    yield f"{found.answer}\n"
    times = ("avg_jct_s", "median_jct_s", "p999_jct_s", "avg_queue_s", "median_queue_s")
    rows = ((name, *(duration(m[k]) for k in times), f"{m['gpu_use']:.1%}") for name, m in found.metrics.items())
    yield table(_ALL, rows, title="All jobs")
    by_vc = [m["by_vc"] for m in found.metrics.values()]
    cells = (
        (
            vc,
            f"{one['jobs']:,}",
            *(f"{duration(m[vc]['avg_jct_s'])} ({duration(m[vc]['avg_queue_s'])})" for m in by_vc),
        )
        for vc, one in by_vc[0].items()
    )
    yield table(("", ">jobs", *(f">{name}" for name in found.metrics)), cells, title="By VC: avg JCT (wait)")
    losers = found.losers
    if losers:
        users = (
            (u.name or "(unnamed)", f"{u.jobs:,}", duration(u.baseline_s), duration(u.jct_s), f"{u.later:,}")
            for u in losers[:_MOST_USERS]
        )
        yield table(_LOSERS, users, title="Users who lose under Lucid, the most hours first")
        if len(losers) > _MOST_USERS:
            yield f"and {len(losers) - _MOST_USERS} more; --json has all"
    for job in found.gains.losing:
        who = f"job {job.job} of {job.user or '(unnamed)'}"
        yield f"{who}: {duration(job.lost_s)} later; {loss_text(job, duration)}"
    yield from ends
