"""``lucidctl experiment``: the experiments of published systems, run again in this simulator."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import click

from lucid.cli.console import Table, say, stdout_console
from lucid.cli.options import Group
from lucid.cli.progress import progress
from lucid.simulator.elastic.sets import CASES, Comparison, compare_case

__all__ = ["experiment"]

_FIGURES = (("jct_s", "fcfs"), ("jct_s", "ef"), ("makespan_s", "fcfs"), ("makespan_s", "ef"))
_PUBLISHED = {
    ("jct_s", "fcfs"): -0.40,
    ("jct_s", "ef"): -0.58,
    ("makespan_s", "fcfs"): -0.30,
    ("makespan_s", "ef"): -0.35,
}
"""What the elastic platform's document states, over all its workloads."""
_INVENTED = (
    "epoch times, scaling and mixes are invented: the document's tables are missing, so its figures can be compared "
    "in sign and order only"
)


@click.group(cls=Group)
def experiment() -> None:
    """Repeat the experiments of published systems."""


@experiment.command()
@click.option("--sets", type=click.IntRange(min=1), default=10, show_default=True, help="Random sets for each point.")
@click.option("--jobs", type=click.IntRange(min=1), default=20, show_default=True, help="Requests in a set.")
@click.option(
    "--mix", "mixes", multiple=True, metavar="NAME", help="Only this mix; repeat for more. Default: all four."
)
@click.option("--mean", "means", multiple=True, type=float, help="Mean interval, minutes; repeat for more.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the first set; the next takes the next.")
@click.option("--json", "as_json", is_flag=True, help="Figures as JSON on stdout instead of a table.")
def elastic(sets: int, jobs: int, mixes: tuple[str, ...], means: tuple[float, ...], seed: int, as_json: bool) -> None:
    """Compare the elastic platform with FCFS and EF on random sets of requests (3 servers of 4 GPUs).

    Without --mix and --mean, the points are those of the published document: four mixes at a mean interval of 15
    minutes, and workload2 and workload4 also at 10 and 20 minutes. docs/systems/elastic-replay.md says what the
    document leaves open.
    """
    cases: Sequence[tuple[str, float]] = CASES
    if mixes or means:
        names = mixes or tuple(dict.fromkeys(mix for mix, _ in CASES))
        cases = [(mix, mean) for mean in means or (15.0,) for mix in names]
    found: list[Comparison] = []
    finished = 0
    with progress("elastic platform") as report:

        def one_more() -> None:
            nonlocal finished
            finished += 1
            report(finished, len(cases) * sets)

        for mix, mean in cases:
            found.append(compare_case(mix, mean, sets, jobs, seed, one_more))
    if as_json:
        say(json.dumps(_data(found, jobs, seed), indent=1))
        return
    stdout_console().print(_table(found))


def _average(found: Sequence[Comparison], figure: str, baseline: str) -> float:
    """Mean over the mixes, at the mean interval of 15 minutes where there is any."""
    usual = [item for item in found if item.mean_min == 15.0] or list(found)
    return sum(item.change(baseline, figure) for item in usual) / len(usual)


def _named(values: Callable[[str, str], float]) -> dict[str, float]:
    return {f"{figure.removesuffix('_s')}_to_{baseline}": values(figure, baseline) for figure, baseline in _FIGURES}


def _data(found: Sequence[Comparison], jobs: int, seed: int) -> dict[str, Any]:
    return {
        "jobs": jobs,
        "seed": seed,
        "invented": _INVENTED,
        "points": [
            {
                "mix": item.mix,
                "mean_min": item.mean_min,
                "sets": item.sets,
                "jct_s": dict(item.jct_s),
                "makespan_s": dict(item.makespan_s),
                "resizes": item.resizes,
                **_named(lambda figure, baseline, item=item: item.change(baseline, figure)),  # type: ignore[misc]
            }
            for item in found
        ],
        "average": _named(lambda figure, baseline: _average(found, figure, baseline)),
        "published": _named(lambda figure, baseline: _PUBLISHED[figure, baseline]),
    }


def _table(found: Sequence[Comparison]) -> Table:
    table = Table(title="Elastic platform: change against its baselines", caption=_INVENTED)
    for column in (
        "mix",
        "mean interval",
        "JCT to FCFS",
        "JCT to EF",
        "makespan to FCFS",
        "makespan to EF",
        "resizes",
    ):
        table.add_column(column, justify="left" if column == "mix" else "right")
    for item in found:
        changes = [f"{item.change(baseline, figure):+.0%}" for figure, baseline in _FIGURES]
        table.add_row(item.mix, f"{item.mean_min:g} min", *changes, f"{item.resizes:.1f}")
    table.add_section()
    table.add_row("mean", "", *[f"{_average(found, *key):+.0%}" for key in _FIGURES], "")
    table.add_row("published", "", *[f"{_PUBLISHED[key]:+.0%}" for key in _FIGURES], "")
    return table
