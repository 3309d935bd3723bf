"""``lucidctl models evaluate``: how well each model does on data it was not trained on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from lucid.cli.console import answer, progress, say, table
from lucid.cli.options import PATH
from lucid.errors import ModelError

# The models' evaluation loads sklearn and interpret, which take seconds: each kind imports its own.


def _row_or_time(text: str) -> int | datetime:
    """The beginning of the part that judges: the number of a row, or a time (without a zone it is the data's own)."""
    if text.isascii() and text.isdigit():
        if int(text) > 0:
            return int(text)
        raise click.BadParameter("0 leaves nothing to train on; give a row from 1 on")
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is neither a row number nor a time such as 2020-09-01 or 2020-09-01T12:00"
        ) from None


@click.command()
@click.argument("kind", type=click.Choice(("duration", "throughput", "packing")))
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=PATH)
@click.option(
    "--test-from",
    type=_row_or_time,
    metavar="ROW|TIME",
    help="What begins the part that judges; all before it trains. A number counts jobs in order of submission, or "
    "bins, from 0. Not for packing.",
)
@click.option("--refits", type=click.IntRange(min=1), help="Duration: refits over the test part.  [default: 12]")
@click.option(
    "--newest-bin",
    type=click.IntRange(min=1),
    help="Throughput: age in bins of the newest known bin: 1 is the one just closed.  [default: 1]",
)
@click.option("--json", "as_json", is_flag=True, help="The same as one JSON object.")
def evaluate(
    kind: str,
    files: tuple[Path, ...],
    test_from: int | datetime | None,
    refits: int | None,
    newest_bin: int | None,
    as_json: bool,
) -> None:
    """Evaluate a kind of model on data that it was not trained on.

    duration JOBS: each job is estimated from jobs that ended before its submission. JOBS are output of sacct, a CSV
    of finished jobs with submit_time and duration, or with submit_time, start_time, end_time and run_time or
    duration_s, or any trace that `lucidctl trace describe` reads. A log without users is judged by account, or by VC.

    throughput CSV: forecasts of the GPU jobs and GPUs submitted to the cluster in a coming bin. CSV has a time column
    and counts per bin: submit_gpu_job, submit_gpu_num and, if known, start_gpu_job, end_gpu_job, submit_job_all.

    packing PROFILES PAIRS: share scores and the pair model, on workloads (lomo) and configurations (loco) left out of
    training. The files are CSV of configurations measured alone, and of pairs measured together.

    Exit status: 1 if estimates of durations are worse than the running median by more than 1 %."""
    judge, count, takes = _KINDS[kind]
    if len(files) != count:
        raise click.UsageError(f"{kind} takes {count} file{'s' if count > 1 else ''}, and {len(files)} are given")
    given = {"test_from": test_from, "refits": refits, "newest_bin": newest_bin}
    given = {key: value for key, value in given.items() if value is not None}
    for key in given.keys() - takes:
        raise click.UsageError(f"--{key.replace('_', '-')} is not for {kind}")
    if "test_from" in takes - given.keys():
        raise click.UsageError(f"{kind} needs --test-from: the row or time from which on the data judge")
    figures = judge(*files, **given)
    answer({"kind": kind, **figures}, as_json, [table(("figure", ">value"), _rows(figures), title=kind)])
    if figures.get("worse"):
        for words in figures["worse"]:
            say(f"worse than the running median by more than 1 %: {words}", err=True)
        click.get_current_context().exit(1)


def _durations(jobs: Path, test_from: int | datetime, refits: int = 12) -> Mapping[str, Any]:
    from lucid.models.duration.evaluate import evaluate_duration
    from lucid.simulator.traces.window import read_finished

    with progress("training, week by week") as report:
        return evaluate_duration(jobs, test_from, refits=refits, progress=report, read=read_finished)


def _throughput(path: Path, test_from: int | datetime, newest_bin: int = 1) -> Mapping[str, Any]:
    from lucid.models.throughput.bins import read_bins
    from lucid.models.throughput.forecaster import evaluate as judge

    bins = read_bins(path)
    if isinstance(test_from, int):
        if test_from >= len(bins.start):
            raise ModelError(f"{path}: has {len(bins.start)} bins, so none from bin {test_from} on; give fewer")
        test_from = bins.start[test_from]
    if (bins.start[0].tzinfo is None) != (test_from.tzinfo is None):
        test_from = test_from.replace(tzinfo=bins.start[0].tzinfo)  # the date is meant as the file's own clock
    with progress("training and forecasting") as report:
        report(0, 1)
        return judge(bins, test_from, newest_bin)


def _packing(profiles: Path, pairs: Path) -> Mapping[str, Any]:
    from lucid.models.packing.evaluate import evaluate as judge

    with progress("training without each workload") as report:
        return judge(profiles, pairs, progress=report)


_KINDS: Mapping[str, tuple[Callable[..., Mapping[str, Any]], int, frozenset[str]]] = {
    "duration": (_durations, 1, frozenset({"test_from", "refits"})),
    "throughput": (_throughput, 1, frozenset({"test_from", "newest_bin"})),
    "packing": (_packing, 2, frozenset()),
}
"""By kind: its evaluation, the number of its files, and its options."""


def _rows(figures: Mapping[str, Any], of: str = "") -> Iterator[tuple[str, str]]:
    """Each figure with its name as in the JSON, and its value in words."""
    for name, value in figures.items():
        if isinstance(value, Mapping):
            yield from _rows(value, f"{of}{name}.")
        elif isinstance(value, list):
            if value:
                counts = {item: value.count(item) for item in value}
                yield f"{of}{name}", ", ".join(f"{item} ({count} times)" for item, count in counts.items())
        else:
            words = f"{value:,.{1 if value >= 1000 else 3}f}" if isinstance(value, float) else str(value)
            yield f"{of}{name}", "-" if value is None else words
