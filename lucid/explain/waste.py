"""Wasted GPU-hours as JSON, the same for ``lucidctl efficiency`` and for the pages; and one job's use in words.

Also samplers' facts about the end of a job beside Slurm's: the last minute of its GPUs, and their faults."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from glob import escape
from math import inf
from typing import Any

from msgspec import structs

from lucid.accounting.endings import Ending
from lucid.config.load import Settings, profiles_folder
from lucid.core.gpu import CardHealth, GpuFault
from lucid.core.job import Ended
from lucid.daemon.reporting.waste_inputs import job_uses
from lucid.errors import MetricsError
from lucid.explain.story import Story
from lucid.node.reports import HealthFolder, UseFolder, health_folder, read_summary
from lucid.orchestrator.capacity.gpus_out import words_of
from lucid.profiler.summary import Summary
from lucid.profiler.waste import ADVICE, TITLES, JobAccount, Total, judged
from lucid.store.sqlite import SqliteStore


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


def with_use(
    story: Story, data: dict[str, Any], store: SqliteStore, settings: Settings, ended: Ended | None
) -> Story:
    """The story, and ``data`` too, with how a job that runs, or has ended, used its GPUs."""
    job_id, folder = data["job"], profiles_folder(settings)
    since_s, running = (inf, None) if ended is None else (ended.end_s - 1.0, ())
    uses = job_uses(store, UseFolder(folder, job_id).uses(), settings, since_s, running)
    found = judged((one for one in uses if one.job_id == job_id), settings.efficiency)
    data["use"] = account_to_dict(found[0]) if found else None
    return structs.replace(story, estimate=[*story.estimate, *(words for one in found for words in use_words(one))])


def use_words(one: JobAccount) -> list[str]:
    """How a job used its GPUs, line by line, and what to do about each kind of waste."""
    job, seen = one.job, "too little was measured to judge it" if not one.measured else "no waste was seen"
    worked = "not measured" if one.worked_gpu_h is None else f"{one.worked_gpu_h:.1f} worked"
    asked = "no time limit" if one.asked_gpu_h is None else f"{one.asked_gpu_h:.1f} asked by its limit"
    words = f"use: {one.held_gpu_h:.1f} GPU-hours held, {worked}, {asked}"
    if job.energy_kwh is not None:
        words += f"; {job.energy_kwh:.2f} kWh (an estimate where they were shared)"
    if job.host_peak_mib is not None:
        of = f" of {job.asked_host_mib / 1024:.1f} GiB asked" if job.asked_host_mib else ""
        words += f"; {job.host_peak_mib / 1024:.1f} GiB of host memory at most on a node{of}"
    waste = [f"{TITLES[w.kind]}: {w.gpu_h:.1f} GPU-hours; {w.words}. {ADVICE[w.kind]}" for w in one.waste]
    return [f"{words}; {seen}" if not waste else words, *waste]


_LATE_S = 60.0
"""How much later than it was a sampler may see a fault, and Slurm a job's end."""


def plain_ending(ended: Ended) -> Ending:
    """The facts about an end where accounting is not asked."""
    return Ending(ended.state, limit_s=ended.job.time_limit_s, ran_s=ended.ran_s)


def with_readings(end: Ending, ended: Ended, settings: Settings) -> Ending:
    """The facts with those that samplers saw of this run."""
    summaries = [*_summaries(ended, settings)]
    found = _fault(ended, settings, {gpu for one in summaries for gpu in one.gpus})
    if found is not None:
        node, card, fault = found
        end = replace(
            end, gpu_fault=f"GPU {card.index} of {node}: {words_of(fault)}", whose=fault.whose, gpu_out=fault.bad
        )
    last = [one.recent for one in summaries if one.recent is not None]
    memory = [spell.mem_mib for spell in last if spell.mem_mib is not None]
    memory += [] if ended.profile is None else [ended.profile.gpu_mem_mib]
    gpus = [settings.daemon.gpu_mem_mib, *settings.daemon.gpu_mem_mib_by_feature.values()]
    return replace(
        end,
        gpu_mem_mib=max(memory, default=0.0),
        of_gpu_mib=float(max(gpus)),
        last_util=max((spell.gpu_util for spell in last if spell.gpu_util is not None), default=None),
    )


def _fault(ended: Ended, settings: Settings, mine: set[str]) -> tuple[str, CardHealth, GpuFault] | None:
    """The newest fault that one of the job's GPUs had while it ran; one for which a GPU is left out comes before
    others."""
    began_s, until_s = ended.end_s - ended.ran_s, ended.end_s + _LATE_S
    nodes = HealthFolder(health_folder(profiles_folder(settings))).read() if mine else {}
    found = [
        (node, card, fault)
        for node, health in nodes.items()
        for card in health.cards
        if card.uuid in mine
        for fault in card.faults
        if began_s <= fault.last_s and fault.began_s <= until_s
    ]
    return max(found, key=lambda one: (one[2].bad, one[2].last_s), default=None)


def _summaries(ended: Ended, settings: Settings) -> Iterator[Summary]:
    """The summaries of this run of the job, one of each of its nodes."""
    folder, name = profiles_folder(settings), escape(ended.job.id)
    for path in (*folder.glob(f"{name}.json"), *folder.glob(f"{name}@*.json")):
        try:
            summary = read_summary(path)
        except (MetricsError, OSError):
            continue  # lucidd and doctor tell of files that cannot be read
        if summary.end_s > ended.end_s - ended.ran_s:
            yield summary
