"""``lucidctl models evaluate``: how well each model does on data it was not trained on."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from lucid.cli.console import Table, say, stdout_console
from lucid.cli.progress import progress
from lucid.core.prediction import MEDIUM_FROM, TINY_ABOVE
from lucid.errors import ModelError

__all__ = ["evaluate"]

# The models' evaluation loads sklearn and interpret, which take seconds: each command imports its own.

_Command = TypeVar("_Command", bound=Callable[..., Any])
_json = click.option("--json", "as_json", is_flag=True, help="All figures as one JSON object.")


class _From(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """Where the part that judges begins: the number of a row, or a time (without a zone it is the data's own)."""

    name = "row or time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | datetime:
        if isinstance(value, int | datetime):
            return value
        if value.isascii() and value.isdigit():
            if int(value) > 0:
                return int(value)
            self.fail("0 leaves nothing to train on; give a row from 1 on", param, ctx)
        try:
            return datetime.fromisoformat(value)
        except ValueError:
            self.fail(
                f"{value!r} is neither a row number nor a time such as 2020-09-01 or 2020-09-01T12:00", param, ctx
            )


def _test_from(rows: str, *earlier: str) -> Callable[[_Command], _Command]:
    """``rows``: what a number counts. ``earlier``: names of the option in earlier versions, which go on working."""
    return click.option(
        "--test-from",
        *earlier,
        "test_from",
        type=_From(),
        required=True,
        metavar="ROW|TIME",
        help=f"What begins the part that judges; all before it trains. A number counts {rows} from 0.",
    )


@click.group()
def evaluate() -> None:
    """Evaluate a kind of model on data that it was not trained on."""


@evaluate.command()
@click.argument("csv_file", metavar="CSV", type=click.Path(path_type=Path))
@_test_from("bins", "--train-until")
@click.option(
    "--newest-bin",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Age in bins of the newest known bin: 1 is the one just closed.",
)
@_json
def throughput(csv_file: Path, test_from: int | datetime, newest_bin: int, as_json: bool) -> None:
    """Evaluate forecasts of the GPU jobs and GPUs submitted to the cluster in a coming bin.

    CSV has a time column and counts per bin: submit_gpu_job, submit_gpu_num and, if known, start_gpu_job,
    end_gpu_job, submit_job_all.
    """
    from lucid.models.throughput.bins import read_bins
    from lucid.models.throughput.evaluate import evaluate as judge

    bins = read_bins(csv_file)
    if isinstance(test_from, int):
        if test_from >= len(bins.start):
            raise ModelError(f"{csv_file}: has {len(bins.start)} bins, so none from bin {test_from} on; give fewer")
        test_from = bins.start[test_from]
    if (bins.start[0].tzinfo is None) != (test_from.tzinfo is None):
        test_from = test_from.replace(tzinfo=bins.start[0].tzinfo)  # the date is meant as the file's own clock
    with progress("training and forecasting") as report:
        report(0, 1)
        figures = judge(bins, test_from, newest_bin)
        report(1, 1)
    if as_json:
        say(json.dumps(figures))
        return
    _table(
        f"throughput, newest known bin {newest_bin} bins old",
        ("mean absolute error", ""),
        [
            ("GPU jobs per bin", f"{figures['mae_jobs']:.3f}"),
            ("GPUs per bin", f"{figures['mae_gpus']:.2f}"),
            ("bins trained on / judged", f"{figures['trained_bins']:,} / {figures['tested_bins']:,}"),
            ("training took", f"{figures['train_s']:.1f} s"),
        ],
    )


@evaluate.command()
@click.argument("jobs_file", metavar="JOBS", type=click.Path(path_type=Path))
@_test_from("jobs, in order of submission,")
@click.option(
    "--refits", type=click.IntRange(min=1), default=12, show_default=True, help="Refits over the test part."
)
@_json
def duration(jobs_file: Path, test_from: int | datetime, refits: int, as_json: bool) -> None:
    """Evaluate estimates of durations. Each job is estimated from jobs that ended before its submission.

    JOBS are output of sacct, a CSV of finished jobs with submit_time and duration, or with submit_time, start_time,
    end_time and run_time or duration_s, or any trace that `lucidctl trace describe` reads. The first line decides
    which. A log without users is judged by account, or by VC.

    Exit status: 1 if the estimates are worse than the running median by more than 1 %.
    """
    from lucid.models.duration.evaluate import evaluate_duration
    from lucid.simulator.traces.finished import read_finished

    with progress("training, week by week") as report:
        figures = evaluate_duration(jobs_file, test_from, refits=refits, progress=report, read=read_finished)
    if as_json:
        say(json.dumps(figures))
    else:
        _print_durations(figures)
    if figures["worse"]:
        for words in figures["worse"]:
            say(f"worse than the running median by more than 1 %: {words}", err=True)
        click.get_current_context().exit(1)


@evaluate.command()
@click.option("--profiles", type=click.Path(path_type=Path), required=True, help="CSV of configurations alone.")
@click.option("--pairs", type=click.Path(path_type=Path), required=True, help="CSV of pairs measured together.")
@click.option("--recall", type=click.FloatRange(0, 1, min_open=True), default=0.87, show_default=True)
@click.option(
    "--tiny", type=float, default=TINY_ABOVE, show_default=True, help="Average speed above which a job is Tiny."
)
@click.option(
    "--medium", type=float, default=MEDIUM_FROM, show_default=True, help="Average speed above which it is Medium."
)
@_json
def packing(profiles: Path, pairs: Path, recall: float, tiny: float, medium: float, as_json: bool) -> None:
    """Evaluate share scores and the pair model on workloads and configurations left out of training."""
    from lucid.models.packing.evaluate import evaluate as judge
    from lucid.models.packing.share_score import Thresholds

    with progress("training without each workload") as report:
        figures = judge(profiles, pairs, thresholds=Thresholds(tiny, medium), recall=recall, progress=report)
    if as_json:
        say(json.dumps(figures))
        return
    rows = [
        (words, _share(figures[f"pair_precision_{key}"]), _share(figures[f"pair_recall_{key}"]))
        for key, words in (
            ("lomo", "both workloads new"),
            ("loco_both", "both configurations new"),
            ("loco", "one configuration new"),
        )
    ]
    _table(
        f"pair model, {figures['pairs']:,} pairs",
        ("", "packed pairs that are free", "free pairs that are found"),
        rows,
    )
    _table(
        f"share score, {figures['configurations']} configurations, workload left out",
        ("", "accuracy"),
        [
            ("against the labels given", _share(figures["accuracy_lomo"])),
            ("against labels computed from the pairs", _share(figures["accuracy_lomo_computed"])),
            ("both labellings agree", _share(figures["labels_agree"])),
        ],
    )


def _print_durations(figures: Mapping[str, Any]) -> None:
    median = figures["running_median"]
    users, days = figures["users_tested"], figures["days_tested"]
    _table(
        f"durations of {figures['jobs']:,} jobs of {users:,} {figures['jobs_of']}s, submitted on {days:,} days",
        ("", "model", "median of the user's jobs so far"),
        [
            ("mean absolute error", f"{figures['mae_s']:,.1f} s", f"{median['mae_s']:,.1f} s"),
            ("within a factor of 2", f"{figures['within_2x']:.1%}", f"{median['within_2x']:.1%}"),
            ("Spearman's rank correlation", f"{figures['spearman']:.3f}", f"{median['spearman']:.3f}"),
            (
                "mean over users: absolute error",
                f"{figures['per_user']['mae_s']:,.1f} s",
                f"{median['per_user']['mae_s']:,.1f} s",
            ),
            (
                "mean over users: within a factor of 2",
                f"{figures['per_user']['within_2x']:.1%}",
                f"{median['per_user']['within_2x']:.1%}",
            ),
            ("inside the 80 % interval", f"{figures['coverage_80']:.1%}", ""),
        ],
    )
    say("tables trained at the refits: " + ", ".join(_counted(figures["choices"])))
    say("estimates by: " + ", ".join(f"{name} {count:,}" for name, count in figures["sources"].items()))


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _counted(names: Sequence[str]) -> list[str]:
    counts: Mapping[str, int] = {name: names.count(name) for name in dict.fromkeys(names)}
    return [f"{name} ({count} times)" for name, count in counts.items()]


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(title=title)
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    stdout_console().print(table)
