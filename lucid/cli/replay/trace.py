"""``lucidctl trace``: describe traces, convert them, and make synthetic ones."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from lucid.cli.console import Table, answer, progress, say, table
from lucid.cli.options import PATH, Group
from lucid.cli.replay.replay_options import window_options
from lucid.errors import TraceError
from lucid.simulator.traces.describe import describe
from lucid.simulator.traces.formats.own import write_trace
from lucid.simulator.traces.formats.table import NAMES, columns_from
from lucid.simulator.traces.presets import PRESETS, preset
from lucid.simulator.traces.read import FORMATS, read_trace
from lucid.simulator.traces.record import Trace
from lucid.simulator.traces.synth import synthesise
from lucid.simulator.traces.window import days_of

_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def _format_option(about: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    # no click.Choice: the reader itself knows the names, and lists them when one is wrong
    return click.option("--format", "fmt", metavar="NAME", help=f"{about} Known: {', '.join(sorted(FORMATS))}.")


_skip_bad = click.option(
    "--skip-bad", is_flag=True, help="Leave bad rows out and count them; else the first one stops."
)
_per_gpu = click.option(
    "--swf-procs-per-gpu",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="SWF has no GPUs: take N processors as one GPU, rounded up.",
)


_applications = click.option("--applications", type=PATH, help="Folder of the profiles that a Pollux workload needs.")


_columns = click.option(
    "--columns",
    metavar="PAIRS",
    help="For a table of no known format: which column is which, as in id=job,submit=arrived,duration=ran,gpus=n; "
    f"or @FILE with a pair a line. Names: {', '.join(NAMES)}.",
)


def _read(
    path: Path, fmt: str | None, columns: str | None, begin: str | None, days: float | None, **asked: Any
) -> Trace:
    named = columns_from(columns) if columns else None
    with progress(f"reading {path.name}") as report:
        read = read_trace(path, fmt, progress=report, columns=named, **asked)
    return read if begin is None and days is None else days_of(read, begin, days)


@click.group(cls=Group)
def trace() -> None:
    """Describe job traces, convert them, and make synthetic ones."""


@trace.command("describe")
@click.argument("path", metavar="TRACE", type=PATH)
@_format_option("Format of the trace (found out from its first line if not given).")
@_skip_bad
@_per_gpu
@_columns
@_applications
@window_options
@click.option("--json", "as_json", is_flag=True, help="Print all figures as JSON.")
def describe_command(path: Path, as_json: bool, **asked: Any) -> None:
    """Print what TRACE contains: jobs, sizes, durations, times of arrival, load of each VC.

    Exit status: 0, or 2 for a wrong option or a trace that cannot be read."""
    figures = describe(_read(path, **asked))
    answer(figures, as_json, _tables(figures))


@trace.command("convert")
@click.argument("path", metavar="IN", type=PATH)
@click.argument("out", metavar="OUT", type=PATH)
@_format_option("Format of IN (found out from its first line if not given).")
@_skip_bad
@_per_gpu
@_columns
@window_options
def convert_command(path: Path, out: Path, **asked: Any) -> None:
    """Read the trace IN and write it to OUT in Lucid's own CSV format.

    Exit status: 0, or 2 for a wrong option or a trace that cannot be read or written."""
    if out.exists() and path.exists() and out.samefile(path):
        raise TraceError(f"{out}: is the trace that is to be read; give OUT another name")
    read = _read(path, **asked)
    write_trace(read, out)
    left_out = "".join(f"; left out: {count} {reason}" for reason, count in read.skipped)
    say(f"{out}: {len(read.jobs)} jobs{left_out}", err=True)


@trace.command("synth", epilog=f"Presets: {', '.join(sorted(PRESETS))}.")
@click.argument("name", metavar="PRESET")
@click.option("--out", required=True, type=PATH, help="Where to write the trace.")
@click.option("--seed", type=int, default=1, show_default=True, help="Another number makes another history.")
@click.option("--jobs", type=click.IntRange(min=1), help="Jobs; without --days the days follow, at the same rate.")
@click.option("--days", type=click.FloatRange(min=0, min_open=True), help="Days; without --jobs the jobs follow.")
@click.option("--vcs-out", type=PATH, help="Also write the nodes of each VC, as CSV.")
def synth_command(
    name: str, out: Path, seed: int, jobs: int | None, days: float | None, vcs_out: Path | None
) -> None:
    """Make a synthetic cluster history and write it to --out.

    PRESET names a kind of cluster. An unknown name lists the known ones. The same preset, seed, jobs and days
    give the same bytes. docs/traces.md describes the result.

    Exit status: 0, or 2 for a wrong preset or option, or if a file cannot be written."""
    settings = preset(name).resized(jobs, days)
    with progress(f"making {name}") as report:
        made = synthesise(settings, seed, progress=report)
    write_trace(made, out)
    if vcs_out is not None:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(("", "num"))
        writer.writerows((vc.name, vc.nodes) for vc in settings.vcs)
        try:
            vcs_out.write_text(text.getvalue(), encoding="utf-8")
        except OSError as error:
            raise TraceError(
                f"{vcs_out}: cannot be written ({error.strerror}); give --vcs-out another place"
            ) from None
    nodes = f"{settings.nodes} nodes of {settings.gpus_per_node} GPUs in {len(settings.vcs)} VCs"
    say(f"{out}: {len(made.jobs)} jobs for {nodes}, seed {seed}", err=True)


def _hours(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172800 else f"{seconds / 86400:.1f} d"


def _tables(figures: dict[str, Any]) -> Iterator[Table]:
    arrivals, users = figures["arrivals"], figures["users"]
    counts = [f"{count} {name}" for name, count in figures["states"].items()]
    rows = [
        ("jobs", f"{figures['jobs']:,} over {_hours(figures['span_s'])}"),
        ("left out", ", ".join(f"{count} {reason}" for reason, count in figures["skipped"].items()) or "nothing"),
        ("users", f"{users['count']}, the busiest has {users['busiest_share']:.0%} of the jobs"),
        ("like an earlier job", f"{users['same_name_share']:.0%} by user and name"),
        ("states", ", ".join(counts)),
        ("single-GPU", f"{figures['single_gpu_share']:.1%}"),
        ("at most 80 s", f"{figures['short_share']:.1%}"),
        (
            "offered load",
            f"{figures['offered_gpu_h']:,.0f} GPU-hours, {figures['mean_gpus_in_use']:,.1f} GPUs on average",
        ),
        ("arrivals per hour", f"{arrivals['per_hour_mean']:.1f} mean, {arrivals['per_hour_p99']:.0f} p99"),
        ("busiest hour", f"{arrivals['per_hour_peak']} jobs, {_hours(arrivals['peak_at_s'])} after the first"),
    ]
    if arrivals["by_hour_of_day"] is not None:
        by_hour, by_day = arrivals["by_hour_of_day"], arrivals["by_weekday"]
        top, low = by_hour.index(max(by_hour)), by_hour.index(min(by_hour))
        rows.append(
            ("rhythm of the day", f"{max(by_hour):.1f}/h at {top:02}:00, {min(by_hour):.1f}/h at {low:02}:00")
        )
        days = zip(_WEEKDAYS, by_day, strict=True)
        rows.append(("rhythm of the week", ", ".join(f"{day} {rate:.1f}/h" for day, rate in days)))
    yield table(("", ""), rows, title=f"Trace {figures['name']}", show_header=False)
    durations = figures["duration_s"]
    yield table(
        (f">{name}" for name in durations), [[_hours(value) for value in durations.values()]], title="Durations"
    )
    sizes = ((gpus, str(count), f"{count / figures['jobs']:.1%}") for gpus, count in figures["gpus"].items())
    yield table(("GPUs", "jobs", "share"), sizes, title="Sizes")
    vcs = (
        (
            name,
            *(str(vc["jobs"]), str(vc["users"]), str(vc["max_gpus"])),
            *(f"{vc['offered_gpu_h']:,.0f}", f"{vc['load_share']:.1%}", f"{vc['mean_gpus_in_use']:.1f}"),
        )
        for name, vc in figures["vcs"].items()
    )
    yield table(("VC", "jobs", "users", "most GPUs", "GPU-hours", "of the load", "GPUs on average"), vcs, title="VCs")
