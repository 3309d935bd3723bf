"""Reads a trace file of any known format: finds the format out by the first lines, or takes the named one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from lucid.accounting.log_rows import DELIMITERS, ReadOptions, Source, first_line, load, split_line
from lucid.accounting.sacct import as_lines, is_sacct
from lucid.errors import ConfigError, TraceError
from lucid.simulator.traces.formats import own, pbs, pollux, sacct, swf, table
from lucid.simulator.traces.formats.columns import COLUMN_LOGS
from lucid.simulator.traces.record import Trace

Reader = Callable[[Source, list[str], int, ReadOptions], Trace]
"""Reads a trace; it is given the split header and its line."""


_OTHERS = {"lucid": own, "pollux": pollux, "sacct": sacct, "swf": swf, "pbs": pbs, "table": table}
FORMATS: dict[str, Reader] = {
    **{name: log.read for name, log in COLUMN_LOGS.items()},
    **{name: module.read for name, module in _OTHERS.items()},
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
    columns: Mapping[str, str] | None = None,
) -> Trace:
    """Read a trace file of any known format.

    Args:
        format: name of the format; ``None`` finds it out from the first lines.
        skip_bad: leave bad rows out and count them in ``Trace.skipped``, instead of stopping at the first.
        swf_procs_per_gpu: SWF only: how many processors count as one GPU.
        keep_cpu_jobs: keep jobs that asked for no GPU (they are dropped and counted otherwise).
        progress: called now and then with (lines done, lines in all).
        applications: Pollux's workloads only: the folder that has a folder of profiles for each application; ``None``
            takes the folder of the trace.
        columns: which column of a table is which (``table.columns_from``); the file is then read as one.

    Raises:
        ConfigError: no such format; the message lists the known ones. Or ``applications`` or ``columns`` with another
            format.
        TraceError: the file cannot be read, its format is not recognised, a column is missing, or a row is bad; the
            message names file, line, column, value and remedy."""
    if format is not None and format not in FORMATS:
        raise ConfigError(f"unknown trace format {format!r} (known: {', '.join(sorted(FORMATS))})")
    if swf_procs_per_gpu < 1:
        raise ConfigError(f"swf_procs_per_gpu = {swf_procs_per_gpu}: must be at least 1")
    if columns and format not in (None, "table"):
        raise ConfigError(f"--columns: is for tables of no known format, not for --format {format}; leave one out")
    source = as_lines(load(Path(path)))
    line, first = first_line(source)
    name = format or ("table" if columns else _sniff(source, first, line))
    if applications is not None and name != "pollux":
        raise ConfigError(
            f"--applications {applications}: is for workloads of Pollux, and {path} is in the format {name}; leave "
            "it out"
        )
    options = ReadOptions(skip_bad, swf_procs_per_gpu, keep_cpu_jobs, progress, applications, columns or {})
    return FORMATS[name](source, _split(first), line, options)


def sniff(path: str | Path) -> str:
    """Name of the format of a file.

    Raises:
        TraceError: it cannot be read, or is of no known format."""
    source = as_lines(load(Path(path)))
    line, first = first_line(source)
    return _sniff(source, first, line)


def _split(first: str) -> list[str]:
    if "|" in first and "," not in first.split("|", 1)[0]:
        return first.split("|")
    return split_line(first)


_MARKS = {
    "philly": {"timestamp", "num_gpus"},
    "muri": {"num_gpu", "iteration_time", "resource_time_0"},
    "pollux": {"application", "num_replicas"},
    "parallel": {"u_id", "interval", "run_time"},
    "openb": {"gpu_milli", "pod_phase"},
}
"""Columns that no other format has."""


def _sniff(source: Source, first: str, line: int) -> str:
    if first.startswith(own.MAGIC):
        return "lucid"
    if swf.recognizes(first):
        return "swf"
    if pbs.recognizes(first):
        return "pbs"
    cells = _split(first)
    names = set(cells)
    if is_sacct(first):
        return "sacct"
    for name, marks in _MARKS.items():
        if marks <= names:
            return name
    if {"job_id", "gpu_num"} <= names:
        helios_only = {"jobname", "cpu_num", "node_num", "start_time", "end_time", "queue"}
        return "helios" if names & helios_only else "pack"
    raise TraceError(
        f"{source.path}, line {line}: not a header of any known trace format: {first[:100]!r}; {_nearest(first)}say "
        f"which column is which with --columns (lucidctl trace convert --help), or name the format with --format "
        f"(known: {', '.join(sorted(FORMATS))})"
    )


_NEEDED = {
    **{name: log.needed for name, log in COLUMN_LOGS.items() if name != "muri"},
    "sacct": ("JobID", "Submit", "State", "Elapsed", "AllocTRES"),
}


_PAI = (
    "it is as a table of Alibaba's PAI (cluster-trace-gpu-v2020), which has no header line, GPUs in per cent of one "
    "for each instance, and users in another table; make one table with a header line and a line for each job, with "
    "GPUs over the whole job (inst_num * plan_gpu / 100, rounded up), and "
)


def _nearest(first: str) -> str:
    """The format that shares most columns with the header, and what the header lacks; empty where it shares next to
    none."""
    cells = {cell.strip().strip('"').lower() for cell in re.split(f"[{DELIMITERS}]", first)}
    if cells & {"terminated", "plan_gpu"}:
        return _PAI
    if re.match(r"\s*jobid\s", first, re.IGNORECASE):
        return "sacct prints what can be read with --parsable2; "
    lacking = {name: [one for one in needed if one.lower() not in cells] for name, needed in _NEEDED.items()}
    name = min(lacking, key=lambda one: len(lacking[one]) / len(_NEEDED[one]))
    if 2 * len(lacking[name]) > len(_NEEDED[name]):
        return ""
    if not lacking[name]:
        return f"nearest is {name}, whose columns are spelt {', '.join(_NEEDED[name])}; "
    return f"nearest is {name}, which also needs {', '.join(lacking[name])}; "
