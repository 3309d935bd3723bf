"""Samplers' facts about the end of a job beside Slurm's: the last minute of its GPUs, and their faults."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from glob import escape

from lucid.accounting.endings import Ending
from lucid.config.load import Settings, profiles_folder
from lucid.core.gpu import CardHealth, GpuFault
from lucid.core.job import Ended
from lucid.errors import MetricsError
from lucid.node.reports import HealthFolder, health_folder, read_summary
from lucid.orchestrator.capacity.gpus_out import words_of
from lucid.profiler.summary import Summary

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
