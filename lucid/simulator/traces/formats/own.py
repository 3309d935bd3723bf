"""Our own trace format, "lucid", read and written: CSV with every field of a trace.

The first line is ``# lucid-trace 1 {...}`` with the trace's name, epoch and skipped counts as JSON. Numbers are
written so that reading gives back the very same ones."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from lucid.accounting.log_rows import BadCell, ReadOptions, Row, Source, csv_rows, fit_header
from lucid.core.job import JobProfile
from lucid.core.prediction import StageTimes
from lucid.errors import TraceError
from lucid.orchestrator.policies.muri.interleave import check_stages
from lucid.simulator.traces.record import Draft, Trace, TraceJob, collect

ABOUT = "Lucid's own trace CSV"
MAGIC = "# lucid-trace "
_VERSION = "1"
_JOB = (
    *("id", "vc", "gpus", "submit_s", "rank", "user", "account", "name", "cpus", "mem_mib", "time_limit_s", "amp"),
    *("requeueable", "long_cold_start", "shareable"),
)
_PROFILE = ("gpu_util", "mem_util", "gpu_mem_mib", "amp", "unstable", "workload")
_STAGES = ("stage_times_s", "iteration_s", "cold_start_s")
_WAITED = ("waited_s",)
COLUMNS = (
    *("job_id", *_JOB[1:], "duration_s", "state"),
    *("gpu_util", "mem_util", "gpu_mem_mib", "profile_amp", "unstable", "workload", "share_label"),
)
"""Columns of the format, in the order in which they are written. Columns of stage times follow in a trace that has
any (``stage_times_s``: seconds on each resource, with spaces between), and ``waited_s``, the real wait before the
start, in one that has it."""
_SPECIAL = re.compile('[",\r\n]')


def write_trace(trace: Trace, path: str | Path) -> None:
    """Write a trace in our own format; all of it can be read back.

    Raises:
        TraceError: the file cannot be written, a text in the trace has no UTF-8 form, or a job is elastic: how it
            trains has no place in a row."""
    path = Path(path)
    stretchy = next((item.job.id for item in trace.jobs if item.learning is not None), None)
    if stretchy is not None:
        raise TraceError(
            f"{path}: not written: job {stretchy} is elastic, and this format has no columns for how it trains; "
            "use the workload as it is"
        )
    about = {"name": trace.name, "epoch_s": trace.epoch_s, "skipped": [list(item) for item in trace.skipped]}
    staged = any(item.stages is not None for item in trace.jobs)
    waited = any(item.waited_s is not None for item in trace.jobs)
    columns = (*COLUMNS, *(_STAGES if staged else ()), *(_WAITED if waited else ()))
    lines = [f"{MAGIC}{_VERSION} {json.dumps(about, sort_keys=True)}", ",".join(columns)]
    for item in trace.jobs:
        values = [*_values(item), *(_stage_values(item) if staged else ()), *([item.waited_s] if waited else ())]
        lines.append(",".join(map(_text, values)))
    try:
        data = ("\n".join(lines) + "\n").encode()
    except UnicodeEncodeError as error:
        bad = error.object[error.start : error.end]
        raise TraceError(f"{path}: cannot be written: the trace holds {bad!r}, which UTF-8 does not have") from None
    try:
        path.write_bytes(data)
    except OSError as error:
        raise TraceError(f"{path}: cannot be written ({error.strerror}); give --out another place") from None


def _values(item: TraceJob) -> list[object]:
    profile = item.profile
    used = [None if profile is None else getattr(profile, name) for name in _PROFILE]
    return [*(getattr(item.job, name) for name in _JOB), item.duration_s, item.state, *used, item.share_label]


def _stage_values(item: TraceJob) -> list[object]:
    stages = item.stages
    if stages is None:
        return [None] * len(_STAGES)
    return [" ".join(map(repr, stages.times_s)), stages.iteration_s, stages.start_s]


def _text(value: object) -> str:
    """A value as a cell: a flag as 0 or 1, nothing as an empty cell."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(int(value))
    if not isinstance(value, str):
        return repr(value)
    # not csv.writer: with "\n" line ends it leaves a lone "\r" unquoted, which no reader gets back
    return '"' + value.replace('"', '""') + '"' if _SPECIAL.search(value) else value


def read(source: Source, header: list[str], header_line: int, options: ReadOptions) -> Trace:
    """Read our own format; ``header`` and ``header_line`` are those of the line before the columns.

    Raises:
        TraceError: a missing column, or a bad row that is not to be skipped."""
    del header
    lines = source.text.split("\n", header_line + 1)
    about = _about(source, lines[header_line - 1], header_line)
    columns = lines[header_line].rstrip("\r").split(",") if len(lines) > header_line else []
    fit_header(source, header_line + 1, columns, COLUMNS, ABOUT)
    row = Row(columns)
    rows = csv_rows(source, row, len(columns), columns, header_line + 1)
    # unlike foreign formats this one fixes rank and second 0 itself
    options = replace(options, keep_cpu_jobs=True)
    trace = collect(source, rows, row, _parse, options, lambda _: None, rebase=False)
    skipped = tuple(sorted((*about["skipped"], *trace.skipped)))
    return Trace(about["name"], trace.jobs, about["epoch_s"], skipped)


def _about(source: Source, line: str, number: int) -> dict[str, Any]:
    where = f"{source.path}, line {number}"
    version, _, text = line.rstrip("\r").removeprefix(MAGIC).partition(" ")
    if not line.startswith(MAGIC) or version != _VERSION:
        raise TraceError(
            f"{where}: {line[:60]!r} is not '{MAGIC}{_VERSION} {{...}}'; write the trace anew with this version"
        )
    try:
        about = json.loads(text)
        name, epoch_s = about["name"], about["epoch_s"]
        skipped = tuple((str(reason), int(count)) for reason, count in about["skipped"])
        if not isinstance(name, str) or not (epoch_s is None or math.isfinite(epoch_s)):
            raise TypeError
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise TraceError(
            f"{where}: {text[:60]!r} is not the expected JSON; "
            'write {"name": "...", "epoch_s": null, "skipped": []}'
        ) from None
    return {"name": name, "epoch_s": epoch_s, "skipped": skipped}


def _parse(row: Row) -> Draft:
    return Draft(
        id=row.text("job_id") or row.name("job_id"),
        vc=row.text("vc"),
        gpus=row.whole("gpus"),
        submit_s=row.real("submit_s"),
        duration_s=row.real("duration_s"),
        rank=row.whole("rank"),
        user=row.text("user"),
        account=row.text("account"),
        name=row.text("name"),
        cpus=row.whole("cpus"),
        mem_mib=row.whole("mem_mib"),
        time_limit_s=row.real_or_none("time_limit_s"),
        amp=row.flag_or_none("amp"),
        requeueable=_sure(row, "requeueable"),
        long_cold_start=_sure(row, "long_cold_start"),
        shareable=_sure(row, "shareable"),
        state=row.text("state"),
        profile=_profile(row),
        share_label=row.whole_or_none("share_label"),
        stages=_stages(row),
        waited_s=row.real_or_none("waited_s"),
    )


def _stages(row: Row) -> StageTimes | None:
    text = row.text("stage_times_s")
    if not text:
        return None
    try:
        times = tuple(float(part) for part in text.split())
        check_stages(times)
    except ValueError:
        raise BadCell("stage_times_s", text, "is not a list of times >= 0, one of them above 0") from None
    return StageTimes(times, row.real("iteration_s"), row.real("cold_start_s"))


def _profile(row: Row) -> JobProfile | None:
    if not row.text("gpu_util"):
        return None
    return JobProfile(
        row.real("gpu_util", most=100.0),
        row.real("mem_util", most=100.0),
        row.real("gpu_mem_mib"),
        row.flag_or_none("profile_amp"),
        _sure(row, "unstable"),
        row.text("workload"),
    )


def _sure(row: Row, column: str) -> bool:
    value = row.flag_or_none(column)
    if value is None:
        raise BadCell(column, "", "is neither 0/1 nor true/false", "write 0 or 1", f"{column}: is not a flag")
    return value
