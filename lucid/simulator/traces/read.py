"""One door for reading traces: find the format out, or take the one that is named."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lucid.errors import ConfigError, TraceError
from lucid.simulator.traces import helios, muri, openb, own, pack, parallel, philly, pollux, sacct, swf
from lucid.simulator.traces.record import Trace
from lucid.slurmlog.rows import ReadOptions, Source, first_line, load
from lucid.slurmlog.sacct import is_sacct

__all__ = ["FORMATS", "Format", "convert", "read_trace", "sniff"]

Reader = Callable[[Source, list[str], int, ReadOptions], Trace]


@dataclass(frozen=True, slots=True)
class Format:
    """A trace format: a line about it, and its reader (which is given the header, split, and its line)."""

    about: str
    read: Reader


FORMATS: dict[str, Format] = {
    "lucid": Format(own.ABOUT, own.read),
    "pack": Format(pack.ABOUT, pack.read),
    "philly": Format(philly.ABOUT, philly.read),
    "helios": Format(helios.ABOUT, helios.read),
    "openb": Format(openb.ABOUT, openb.read),
    "parallel": Format(parallel.ABOUT, parallel.read),
    "pollux": Format(pollux.ABOUT, pollux.read),
    "sacct": Format(sacct.ABOUT, sacct.read),
    "muri": Format(muri.ABOUT, muri.read),
    "swf": Format(swf.ABOUT, swf.read),
}
"""Known formats by name."""


def read_trace(
    path: str | Path,
    format: str | None = None,
    *,
    skip_bad: bool = False,
    swf_procs_per_gpu: int = 1,
    keep_cpu_jobs: bool = False,
    progress: Callable[[int, int], None] | None = None,
    applications: Path | None = None,
) -> Trace:
    """Read a trace file of any known format.

    Args:
        path: the file.
        format: name of the format; ``None`` finds it out from the first lines.
        skip_bad: leave bad rows out and count them in ``Trace.skipped``, instead of stopping at the first.
        swf_procs_per_gpu: SWF only: so many processors are taken as one GPU.
        keep_cpu_jobs: keep jobs that asked for no GPU (they are dropped and counted otherwise).
        progress: called now and then with (lines done, lines in all).
        applications: Pollux's workloads only: the folder that has a folder of profiles for each application;
            ``None`` takes the folder of the trace.

    Raises:
        ConfigError: no such format; the message lists the known ones. Or ``applications`` with another format.
        TraceError: the file cannot be read, its format is not recognised, a column is missing, or a row is
            bad; the message names file, line, column, value and remedy.
    """
    if format is not None and format not in FORMATS:
        raise ConfigError(f"unknown trace format {format!r} (known: {', '.join(sorted(FORMATS))})")
    if swf_procs_per_gpu < 1:
        raise ConfigError(f"swf_procs_per_gpu = {swf_procs_per_gpu}: must be at least 1")
    source = load(Path(path))
    line, first = first_line(source)
    name = format or _sniff(source, first, line)
    if applications is not None and name != "pollux":
        raise ConfigError(
            f"--applications {applications}: is for workloads of Pollux, and {path} is in the format {name}; leave "
            "it out"
        )
    options = ReadOptions(skip_bad, swf_procs_per_gpu, keep_cpu_jobs, progress, applications)
    return FORMATS[name].read(source, _split(first), line, options)


def convert(path: str | Path, out: str | Path, format: str | None = None, *, skip_bad: bool = False) -> Trace:
    """Read a trace of any format and write it in our own; returns it.

    Raises:
        ConfigError: no such format.
        TraceError: reading or writing fails.
    """
    trace = read_trace(path, format, skip_bad=skip_bad)
    own.write_trace(trace, out)
    return trace


def sniff(path: str | Path) -> str:
    """Name of the format of a file.

    Raises:
        TraceError: it cannot be read, or is of no known format.
    """
    source = load(Path(path))
    line, first = first_line(source)
    return _sniff(source, first, line)


def _split(first: str) -> list[str]:
    if "|" in first and "," not in first.split("|", 1)[0]:
        return first.split("|")
    cells = next(csv.reader([first]), [])
    return [cell.strip() for cell in cells]


def _sniff(source: Source, first: str, line: int) -> str:
    if first.startswith(own.MAGIC):
        return "lucid"
    if swf.looks_like(first):
        return "swf"
    cells = _split(first)
    names = set(cells)
    if is_sacct(first):
        return "sacct"
    if {"timestamp", "num_gpus"} <= names:
        return "philly"
    if {"num_gpu", "iteration_time", "resource_time_0"} <= names:
        return "muri"
    if {"application", "num_replicas"} <= names:
        return "pollux"
    if {"u_id", "interval", "run_time"} <= names:
        return "parallel"
    if {"gpu_milli", "pod_phase"} <= names:
        return "openb"
    if {"job_id", "gpu_num"} <= names:
        helios_only = {"jobname", "cpu_num", "node_num", "start_time", "end_time", "queue"}
        return "helios" if names & helios_only else "pack"
    raise TraceError(
        f"{source.path}, line {line}: not a header of any known trace format: {first[:100]!r}; "
        f"name the format with --format (known: {', '.join(sorted(FORMATS))})"
    )
