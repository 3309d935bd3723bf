"""Wasted GPU-hours as JSON: the same for ``lucidctl efficiency`` and for the pages."""

from __future__ import annotations

from typing import Any

from lucid.profiler.waste import ADVICE, JobAccount, Total


def total_to_dict(one: Total) -> dict[str, Any]:
    """A total as JSON."""
    share = one.wasted_share
    return {
        "name": one.name,
        "jobs": one.jobs,
        "asked_gpu_h": round(one.asked_gpu_h, 3),
        "no_limit_jobs": one.no_limit_jobs,
        "held_gpu_h": round(one.held_gpu_h, 3),
        "worked_gpu_h": round(one.worked_gpu_h, 3),
        "wasted_gpu_h": {str(kind): round(value, 3) for kind, value in one.wasted_gpu_h.items()},
        "wasted_share": None if share is None else round(share, 4),
        "not_measured_jobs": one.not_measured_jobs,
        "not_measured_gpu_h": round(one.not_measured_gpu_h, 3),
        "energy_kwh": None if one.energy_kwh is None else round(one.energy_kwh, 3),
        "host_asked_gib": round(one.host_asked_gib, 3),
        "host_peak_gib": round(one.host_peak_gib, 3),
    }


def account_to_dict(one: JobAccount) -> dict[str, Any]:
    """A job's account as JSON, with what to do about each kind of waste."""
    job = one.job
    return {
        "job": job.job_id,
        "user": job.user,
        "account": job.account,
        "vc": job.vc,
        "name": job.name,
        "gpus": job.gpus,
        "state": job.state,
        "ran_s": round(job.ran_s, 1),
        "asked_gpu_h": None if one.asked_gpu_h is None else round(one.asked_gpu_h, 3),
        "held_gpu_h": round(one.held_gpu_h, 3),
        "worked_gpu_h": None if one.worked_gpu_h is None else round(one.worked_gpu_h, 3),
        "measured": one.measured,
        "measured_share": round(one.measured_share, 3),
        "energy_kwh": None if job.energy_kwh is None else round(job.energy_kwh, 3),
        "host_asked_mib": job.asked_host_mib or None,
        "host_peak_mib": None if job.host_peak_mib is None else round(job.host_peak_mib, 1),
        "waste": [
            {
                "kind": str(waste.kind),
                "gpu_h": round(waste.gpu_h, 3),
                "seen": waste.words,
                "what_to_do": ADVICE[waste.kind],
            }
            for waste in one.waste
        ],
    }
