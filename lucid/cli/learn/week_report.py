"""``lucidctl report``: what other orders would have made of the past week, beside what really happened."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from lucid.cli.console import Table, say, stdout_console
from lucid.cli.learn.past_jobs import scenario_of_log, scenario_of_store
from lucid.cli.learn.past_week import WARM_UP_S, PastWeek, past_week
from lucid.cli.progress import many_bars
from lucid.cli.replay.replay_options import cluster_options
from lucid.cli.replay.simulate import run_summary
from lucid.errors import ConfigError, LucidError
from lucid.explain.quantities import duration
from lucid.orchestrator.policy import find_policy
from lucid.simulator.gains import gains_to_dict, loss_text
from lucid.simulator.report import write_report

__all__ = ["report"]

_WEEK_DAYS = 7.0
_MOST_USERS = 10


@click.command()
@click.option("--week", is_flag=True, help="The past week: the same as --days 7, which is what you get anyway.")
@click.option("--days", type=click.FloatRange(min=0, min_open=True), help="So many days instead.")
@click.option("--jobs", "log", type=click.Path(path_type=Path), help="Log of the past: sacct lines, or any trace.")
@click.option("--history", is_flag=True, help="The jobs that ended under lucidd, from its store, on its nodes.")
@click.option("--policy", "policies", multiple=True, metavar="NAME", help="Another policy beside them; repeat.")
@click.option("--workers", type=click.IntRange(min=1), help="Processes at a time. Default: one for each core.")
@click.option("--html", type=click.Path(path_type=Path), help="Also write a self-contained page.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@cluster_options
def report(
    week: bool,
    days: float | None,
    log: Path | None,
    history: bool,
    policies: tuple[str, ...],
    workers: int | None,
    html: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Show what plain Slurm order, fifo and Lucid would have made of the past week.

    The report says what the site would have gained under Lucid, and which users would have lost. The log is --jobs
    FILE, or with --history the store of lucidd (--config, else LUCID_CONFIG). The two weeks before the log's last
    days are replayed too. Estimates use only jobs that had ended by then.
    """
    if week and days not in (None, _WEEK_DAYS):
        raise ConfigError("--week and --days both say how long; give one of them")
    if (log is None) is not history:
        raise ConfigError("give --jobs FILE (sacct lines or any trace), or --history for the store of lucidd")
    for name in policies:
        find_policy(name)
    span = days or _WEEK_DAYS
    if log is not None:
        scenario, notes = scenario_of_log(log, options)
    else:
        scenario, notes = scenario_of_store(span + WARM_UP_S / 86400.0, options)
    with many_bars() as bars:
        found = past_week(scenario, span, policies, workers, bars)
    notes = [*found.notes, *notes]
    if html is not None:
        title = f"{scenario.trace.name}, {found.period}"
        try:
            write_report(html, title, found.runs, found.metrics, notes, [found.gains], answer=found.answer)
        except OSError as error:
            raise LucidError(f"{html}: cannot be written ({error.strerror}); give --html another place") from None
    if as_json:
        told = {"summary": found.answer, "period": found.period, "realism": found.realism}
        run = run_summary(found.scenario, found.metrics, notes)
        say(json.dumps({**told, **run, "gains": {"lucid": gains_to_dict(found.gains)}}, indent=1))
        return
    _print(found, notes)
    if html is not None:
        say(f"written: {html}")


def _print(found: PastWeek, notes: list[str]) -> None:
    console = stdout_console()
    console.print(f"{found.scenario.trace.name}: jobs submitted {found.period}", highlight=False)
    console.print(found.answer + "\n", highlight=False)
    table = _table("All jobs", "", "avg JCT", "median JCT", "p99.9 JCT", "avg wait", "median wait", "GPU use")
    for name, m in found.metrics.items():
        times = (m[f"{key}_s"] for key in ("avg_jct", "median_jct", "p999_jct", "avg_queue", "median_queue"))
        table.add_row(name, *map(duration, times), f"{m['gpu_use']:.1%}")
    console.print(table)
    table = _table("By VC: avg JCT (wait)", "", "jobs", *found.metrics)
    for vc, first in next(iter(found.metrics.values()))["by_vc"].items():
        of = (m["by_vc"][vc] for m in found.metrics.values())
        cells = (f"{duration(m['avg_jct_s'])} ({duration(m['avg_queue_s'])})" for m in of)
        table.add_row(vc, f"{first['jobs']:,}", *cells)
    console.print(table)
    losers = found.losers
    if losers:
        columns = ("jobs", "avg JCT in plain order", "under Lucid", "jobs over 1 min later")
        table = _table("Users who lose under Lucid, the most hours first", "", *columns)
        for user in losers[:_MOST_USERS]:
            means = (duration(user.baseline_s), duration(user.jct_s))
            table.add_row(user.name or "(unnamed)", f"{user.jobs:,}", *means, f"{user.later:,}")
        console.print(table)
        if len(losers) > _MOST_USERS:
            console.print(f"and {len(losers) - _MOST_USERS} more; --json has all", highlight=False)
    for job in found.gains.losing:
        who = f"job {job.job} of {job.user or '(unnamed)'}"
        console.print(f"{who}: {duration(job.lost_s)} later; {loss_text(job, duration)}", highlight=False)
    for note in notes:
        console.print(f"note: {note}", highlight=False)


def _table(title: str, first: str, *columns: str) -> Table:
    table = Table(title=title)
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="right")
    return table
