"""Reads Muri's traces: jobs with the milliseconds that an iteration spends on each resource.

A job's work is ``iterations`` x ``iteration_time``; the column ``duration`` is what the iterations were made from,
rounded differently, and is used only where they are missing. The times are those of a model on a number of GPUs,
measured alone; seconds to start come from the authors' table."""

from __future__ import annotations

from lucid.accounting.log_rows import BadCell, ReadOptions, Row, Source
from lucid.core.prediction import StageTimes
from lucid.orchestrator.policies.muri.interleave import RESOURCES, start_overhead_s
from lucid.simulator.traces.record import Draft, Trace, collect_csv, no_date

ABOUT = "a trace of Muri's simulator"
NEEDED = ("job_id", "num_gpu", "submit_time", "duration", "iteration_time", "resource_time_0", "resource_time_1")
VC = "cluster"
"""The one VC of all jobs: the traces know no virtual clusters."""


def read(source: Source, header: list[str], header_line: int, options: ReadOptions) -> Trace:
    """Read a trace of Muri's.

    Raises:
        TraceError: a missing column, or a bad row that is not to be skipped."""
    return collect_csv(source, header, header_line, NEEDED, ABOUT, _parse, options, no_date)


def _parse(row: Row) -> Draft:
    gpus, model = row.whole("num_gpu"), row.text("model_name")
    iteration_s = row.real("iteration_time", least=1e-6) / 1000
    iterations = row.real_or_none("iterations")
    batch = row.text("batch_size")
    return Draft(
        id=row.name("job_id"),
        vc=VC,
        gpus=gpus,
        submit_s=row.real("submit_time") / 1000,
        duration_s=row.real("duration") / 1000 if iterations is None else iterations * iteration_s,
        name=f"{model}-{batch}" if batch else model,
        stages=StageTimes(_times(row), iteration_s, start_overhead_s(model, gpus)),
    )


def _times(row: Row) -> tuple[float, ...]:
    """Seconds on each resource: two to four of them, for the columns that the file has."""
    columns = [f"resource_time_{i}" for i in range(len(RESOURCES))]
    times = tuple(row.real(column) / 1000 for column in columns if row.has(column))
    if not any(times):
        raise BadCell(columns[0], row.text(columns[0]), "is 0, as are the other resource times")
    return times
