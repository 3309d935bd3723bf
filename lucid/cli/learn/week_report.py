"""``lucidctl report``: what other orders would have made of the past week, beside what really happened."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from lucid.cli.console import Table, say, stdout_console
from lucid.cli.learn.past_jobs import scenario_of_log, scenario_of_store
from lucid.cli.progress import many_bars
from lucid.cli.replay.replay_options import cluster_options
from lucid.errors import ConfigError, LucidError
from lucid.explain.quantities import duration
from lucid.orchestrator.policy import find_policy
from lucid.tuner.regret import PLAIN, WARM_UP_S, Group, Regret, regret
from lucid.tuner.regret_page import regret_sentence, threshold, write_regret_page

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

    The report has figures for each VC and user. It says who would have waited longer under Lucid, and by how
    much. The log is --jobs FILE, or with --history the store of lucidd (--config, else LUCID_CONFIG). The two
    weeks before the log's last days are replayed too. Estimates use only jobs that had ended by then.
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
        found = regret(scenario, span, policies, workers, bars)
    told = ("left out of the trace", "no job is profiled first")
    notes = [*found.notes, *(note for note in notes if not note.startswith(told))]
    if html is not None:
        try:
            write_regret_page(html, found, notes)
        except OSError as error:
            raise LucidError(f"{html}: cannot be written ({error.strerror}); give --html another place") from None
    if as_json:
        say(json.dumps({"summary": regret_sentence(found), **asdict(found), "notes": notes}, indent=1))
        return
    _print(found, notes)
    if html is not None:
        say(f"written: {html}")


def _print(found: Regret, notes: list[str]) -> None:
    console = stdout_console()
    if found.epoch_s is not None:
        first, last = (time.strftime("%F %R", time.gmtime(found.epoch_s + s)) for s in (found.from_s, found.until_s))
        console.print(f"{found.trace}: jobs submitted from {first} to {last}", highlight=False)
    console.print(regret_sentence(found) + "\n", highlight=False)
    console.print(_table("By VC", found, [found.everybody, *found.vcs]))
    losing = found.losers
    gaining = sorted((g for g in found.users if g.lost_s < 0), key=lambda g: g.lost_s)
    if losing:
        console.print(_table("Users who lose under Lucid, the most hours first", found, losing[:_MOST_USERS]))
        if len(losing) > _MOST_USERS:
            console.print(f"and {len(losing) - _MOST_USERS} more; --json has all", highlight=False)
    else:
        console.print(f"No user loses {threshold()} under Lucid.", highlight=False)
    if gaining:
        console.print(_table("Users who gain, most first", found, gaining[:_MOST_USERS]))
    if found.worst:
        table = Table(title="Jobs that would have come out later under Lucid, most first")
        for column in ("job", "user", "VC", "GPUs", "waits in plain order", "under Lucid", "JCT later by"):
            table.add_column(column, justify="left" if column in ("job", "user", "VC") else "right")
        for loss in found.worst:
            table.add_row(
                loss.job, loss.user, loss.vc, str(loss.gpus), duration(loss.wait_s[PLAIN]),
                duration(loss.wait_s["lucid"]), duration(loss.lost_s),
            )  # fmt: skip
        console.print(table)
    if found.restarts:
        console.print(_restarts(found))
    for note in notes:
        console.print(f"note: {note}", highlight=False)


def _restarts(found: Regret) -> Table:
    """What it costs to start no job over, on this history."""
    table = Table(title="Under Lucid as lucidd works, by who may be started over (policy.profiling.restarts)")
    for column in ("restarts", "avg JCT", "median JCT", "p99 JCT", "avg wait"):
        table.add_column(column, justify="left" if column == "restarts" else "right")
    for rule, figures in found.restarts.items():
        times = (figures.avg_jct_s, figures.median_jct_s, figures.p99_jct_s, figures.avg_wait_s)
        table.add_row(rule, *map(duration, times))
    return table


def _table(title: str, found: Regret, groups: list[Group]) -> Table:
    table = Table(title=title)
    table.add_column("")
    table.add_column("jobs", justify="right")
    for order in found.orders:
        table.add_column(f"{order}: JCT (waits)", justify="right")
    table.add_column("against plain order, a job", justify="right")
    table.add_column("wait over 1 min longer", justify="right")
    for g in groups:
        cells = [f"{duration(g.by[o].avg_jct_s)} ({duration(g.by[o].avg_wait_s)})" for o in found.orders]
        mean_s = g.lost_s / g.jobs
        change = f"{'+' if mean_s > 0 else '-'}{duration(abs(mean_s))}"
        table.add_row(g.name or "(unnamed)", str(g.jobs), *cells, change, str(g.longer))
    return table
