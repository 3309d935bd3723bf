"""Columns about the workload that packs and the full Helios logs have in common."""

from __future__ import annotations

from lucid.core.job import JobProfile
from lucid.slurmlog.rows import Row

__all__ = ["LABEL_COLUMNS", "profile_of", "workload_label"]

LABEL_COLUMNS = ("model", "dataset", "batchsize", "amp")


def workload_label(row: Row) -> str:
    """``model|dataset|batchsize|amp``: under this name a table of measured pairs knows the workload."""
    return "|".join(row.text(column) for column in LABEL_COLUMNS) if row.text("model") else ""


def profile_of(row: Row) -> JobProfile | None:
    """What the row says of GPU use (%, %, MiB), or ``None`` where it says nothing."""
    if not (row.text("gpu_util") or row.text("gmem_util") or row.text("gmem")):
        return None
    return JobProfile(
        gpu_util=row.real("gpu_util", most=100.0),
        mem_util=row.real("gmem_util", most=100.0),
        gpu_mem_mib=row.real("gmem"),
        amp=row.flag_or_none("amp"),
        workload=workload_label(row),
    )
