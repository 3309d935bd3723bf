"""Held jobs for which there are GPUs, but whose CPUs or host memory jobs without GPUs have.

Nobody holds a job without GPUs: Slurm starts it as soon as it fits. And Slurm keeps nothing free for a job that is
held. So a stream of such jobs would keep a held one waiting for ever, though it was there first. Once that has lasted
a while, Lucid lets the job go as its user wrote it, the one that was held first before the others. Then it has a
place in Slurm's own order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from lucid.adapters.slurm.pending.ownership import Ownership
from lucid.adapters.slurm.records.field_parsers import parse_placement
from lucid.adapters.slurm.records.jobs_and_nodes import SlurmJob, SlurmNode
from lucid.adapters.slurm.snapshot.observation import Observation, submitted_s

__all__ = ["CpuStarvation"]


class CpuStarvation:
    """Who is kept out by jobs without GPUs, and since when. ``patience_s``: how long that may last. The next job of
    the same VC goes once the one before it has left the queue, or after this time."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._since: dict[str, float] = {}
        self._last: dict[str, tuple[float, str]] = {}
        """By VC the last job that was let go, and when."""

    def saw(self, ownership: Ownership, facts: Observation) -> frozenset[str]:
        """Take in one look; returns the jobs to let go now, one of a VC at the most."""
        by_home = self._kept_out(ownership, facts)
        now_s = facts.now_s
        found = {job.id for jobs in by_home.values() for job in jobs}
        self._since = {job_id: min(self._since.get(job_id, now_s), now_s) for job_id in found}
        waiting = {job.id for job in facts.jobs if job.pending}
        due = set()
        for home, jobs in by_home.items():
            at_s, before = self._last.get(home, (0.0, ""))
            if before in waiting and 0 <= now_s - at_s < self._patience_s:
                continue
            for job in sorted(jobs, key=lambda one: (submitted_s(one.submit_s, facts.notes.get(one.id)), one.number)):
                if now_s - self._since[job.id] >= self._patience_s:
                    due.add(job.id)
                    break
        return frozenset(due)

    def went(self, home: str, job_id: str, now_s: float) -> None:
        """A job was let go."""
        self._last[home] = (now_s, job_id)

    def _kept_out(self, ownership: Ownership, facts: Observation) -> Mapping[str, list[SlurmJob]]:
        """By VC the held jobs that would find room if there were no jobs without GPUs, and find none as it is."""
        if not any(job.running and not job.asks and job.hosts_used for job in facts.jobs):
            return {}
        all_used, by_gpu_jobs = _used(facts, facts.jobs), _used(facts, (job for job in facts.jobs if job.asks))
        found: defaultdict[str, list[SlurmJob]] = defaultdict(list)
        stopped: dict[tuple[object, ...], bool] = {}  # by what is asked for: there are far fewer of these than jobs
        for job in facts.jobs:
            note = facts.notes.get(job.id)
            if (
                not job.gpus
                or not ownership.decides(job, note, facts)
                or ownership.barred(job, facts.now_s) is not None
            ):
                continue
            home = ownership.home(job, note)
            limit_s = job.time_limit_s if facts.windows else None
            asked = (home, job.min_nodes, job.gpus, job.cpus, job.mem_mib, limit_s)
            if asked not in stopped:
                nodes = [node for node in facts.nodes if home in node.partitions and node.available]
                nodes = [node for node in nodes if facts.open_to(node.name, job)]
                stopped[asked] = not _fits(job, nodes, all_used) and _fits(job, nodes, by_gpu_jobs)
            if stopped[asked]:
                found[home].append(job)
        return found


_Use = tuple[int, int, int]
"""GPUs (as a mask), CPUs and MiB of one node that are taken."""


def _used(facts: Observation, jobs: Iterable[SlurmJob]) -> Mapping[str, _Use]:
    """What these jobs have of each node, and where they were released to start."""
    found: dict[str, _Use] = {}

    def add(name: str, mask: int, cpus: int, mem_mib: int) -> None:
        had = found.get(name, (0, 0, 0))
        found[name] = (had[0] | mask, had[1] + cpus, had[2] + mem_mib)

    for job in jobs:
        note = facts.notes.get(job.id)
        starting = note.where if note is not None and job.pending and not job.held else ""
        for part in job.placement or parse_placement(starting):
            add(part.node, part.mask, 0, 0)
        if job.running:
            for name, cpus, mem_mib in job.hosts_used:
                add(name, 0, cpus, mem_mib)
    return found


def _fits(job: SlurmJob, nodes: Iterable[SlurmNode], used: Mapping[str, _Use]) -> bool:
    """Are there enough nodes with room for its part of it?"""
    parts = max(job.min_nodes, 1)
    gpus, cpus, mem_mib = (-(-amount // parts) for amount in (job.gpus, job.cpus, job.mem_mib))
    room = 0
    for node in nodes:
        mask, cpus_used, mem_used = used.get(node.name, (0, 0, 0))
        room += (
            len(node.gpu_types) - mask.bit_count() >= gpus
            and node.cpus - cpus_used >= cpus
            and node.mem_mib - mem_used >= mem_mib
        )
    return room >= parts
