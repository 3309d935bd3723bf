"""Why nothing was decided about a job, by one question to Slurm."""

from __future__ import annotations

from lucid.adapters.slurm.clients.port import checked_id
from lucid.adapters.slurm.pending.pending_state import left_to_slurm, skipped
from lucid.adapters.slurm.records.jobs_and_nodes import SlurmJob
from lucid.cli.job.ask_slurm import asked
from lucid.config import Settings
from lucid.escaping import shown

__all__ = ["why_unknown"]


def why_unknown(settings: Settings, job_id: str) -> str:
    """One sentence; empty where Slurm does not answer. A job of which nothing is stored is meant, and that does not
    run."""
    found = asked(settings, lambda slurm: slurm.some_jobs([checked_id(job_id)]))
    if found is None:
        return ""
    return shown(_words(found[0], settings) if found else _gone(settings, job_id))


def _gone(settings: Settings, job_id: str) -> str:
    return (
        f"Slurm knows no job {job_id} now, and nothing is stored of it: the number is wrong, or the job ended more "
        f"than {settings.daemon.keep_days:g} days ago (daemon.keep_days; sacct -j {job_id} may know it)"
    )


def _words(job: SlurmJob, settings: Settings) -> str:
    head = f"nothing was decided about job {job.id}"
    if not job.asks:
        return f"{head}: it asks for no GPU, and Lucid leaves such jobs to Slurm"
    looked_after = set(settings.daemon.partitions) | {settings.daemon.pool.partition}
    named = job.partition.split(",")
    if not looked_after.intersection(named):
        partitions = "partition " + named[0] if len(named) == 1 else "partitions " + " and ".join(named)
        return f"{head}: it is in {partitions}, and Lucid looks after {', '.join(settings.daemon.partitions)} alone"
    if words := left_to_slurm(job) or skipped(job):
        return f"{head}: it was left to Slurm, since {words}"
    if job.pending:
        return f"{head}: lucidd has not seen it yet. lucidctl status says when lucidd looked last"
    return f"{head}: Slurm started it before lucidd saw it wait. It is {job.state.lower()} now"
