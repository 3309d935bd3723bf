"""The account of GPU-hours as metrics, by VC: users are named in ``lucidctl efficiency`` only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import Metric

from lucid.efficiency.judge import JobAccount
from lucid.efficiency.kinds import WasteKind
from lucid.efficiency.totals import totals
from lucid.metrics.building import few, gauge

__all__ = ["waste_families"]

_S = 3600.0


def waste_families(accounts: Sequence[JobAccount], days: float) -> Iterator[Metric]:
    """From the accounts of the jobs of the last ``days``."""
    yield gauge(
        "lucid_efficiency_window_seconds",
        "The account is of jobs that run, or ended within so long.",
        {(): days * 86400.0},
    )
    held: dict[str, float] = {}
    for account in accounts:
        held[account.job.vc] = held.get(account.job.vc, 0.0) + account.held_gpu_h
    groups = few(held)
    by_vc = totals(accounts, lambda account: groups[account.job.vc])
    yield gauge(
        "lucid_efficiency_asked_gpu_seconds",
        "GPUs by time limit of the jobs of the window that have a limit.",
        {(one.name,): one.asked_gpu_h * _S for one in by_vc},
        ("vc",),
    )
    yield gauge(
        "lucid_efficiency_held_gpu_seconds",
        "GPUs by run time of the jobs of the window.",
        {(one.name,): one.held_gpu_h * _S for one in by_vc},
        ("vc",),
    )
    yield gauge(
        "lucid_efficiency_worked_gpu_seconds",
        "GPU time in which a GPU worked for its job, of measured jobs.",
        {(one.name,): one.worked_gpu_h * _S for one in by_vc},
        ("vc",),
    )
    yield gauge(
        "lucid_efficiency_not_measured_gpu_seconds",
        "GPU time of jobs without enough readings to judge them.",
        {(one.name,): one.not_measured_gpu_h * _S for one in by_vc},
        ("vc",),
    )
    measured = [one for one in by_vc if one.not_measured_jobs < one.jobs]
    yield gauge(
        "lucid_waste_gpu_seconds",
        "GPU time wasted by measured jobs, by kind; of time limits: what was left of them.",
        {(one.name, kind): one.wasted_gpu_h.get(kind, 0.0) * _S for one in measured for kind in WasteKind},
        ("vc", "kind"),
    )
