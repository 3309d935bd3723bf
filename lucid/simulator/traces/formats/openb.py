"""Reads Alibaba's ``openb`` pods of 2023: a GPU, several, or thousandths of one; times in seconds.

Slurm gives whole GPUs: a pod that asked for a part of one is a job of one GPU. Pods that never ran are left out. The
log ends before many pods do: one that still ran counts as ended with it."""

from __future__ import annotations

from lucid.accounting.log_rows import Drop, ReadOptions, Row, Source
from lucid.simulator.traces.record import Draft, Trace, collect_csv, no_date

ABOUT = "Alibaba's list of openb pods"
NEEDED = (
    *("name", "cpu_milli", "memory_mib", "num_gpu"),
    *("pod_phase", "creation_time", "deletion_time", "scheduled_time"),
)
_NEVER_RAN = "never ran"
_STATES = {"Succeeded": "COMPLETED", "Failed": "FAILED", "Running": "CANCELLED"}


def read(source: Source, header: list[str], header_line: int, options: ReadOptions) -> Trace:
    """Read a list of pods.

    Raises:
        TraceError: a missing column, or a bad row that is not to be skipped."""
    return collect_csv(source, header, header_line, NEEDED, ABOUT, _parse, options, no_date)


def _parse(row: Row) -> Draft:
    if not row.text("scheduled_time") or not row.text("deletion_time"):
        raise Drop(_NEVER_RAN)
    created_s, began_s = row.real("creation_time"), row.real("scheduled_time")
    return Draft(
        id=row.name("name"),
        vc="cluster",
        gpus=row.whole("num_gpu"),
        submit_s=created_s,
        duration_s=max(row.real("deletion_time") - began_s, 0.0),
        name=row.text("qos"),
        cpus=-(-row.whole("cpu_milli") // 1000),
        mem_mib=row.whole("memory_mib"),
        state=_STATES.get(row.text("pod_phase"), ""),
        waited_s=max(began_s - created_s, 0.0),
        id_column="name",
    )
