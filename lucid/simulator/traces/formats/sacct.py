"""Reads Slurm's accounting (sacct) as a trace: jobs with their granted GPUs, and how long they ran and waited."""

from __future__ import annotations

from lucid.accounting.log_rows import Drop, ReadOptions, Source, first_line
from lucid.accounting.sacct import SacctJob, SacctLog
from lucid.simulator.traces.record import Draft, Trace, collect


def read(source: Source, header: list[str], header_line: int, options: ReadOptions) -> Trace:
    """Read sacct output, with or without its header line.

    Raises:
        TraceError: a missing column, or a bad row that is not to be skipped."""
    del header  # split at other delimiters than it may have
    log = SacctLog(source, first_line(source)[1], header_line, gpus=not options.keep_cpu_jobs)
    return collect(source, log.rows(), log.row, lambda _: _draft(log.job()), options, lambda first_s: first_s)


def _draft(job: SacctJob) -> Draft:
    if job.run_s is None or (job.run_s == 0.0 and job.state == "CANCELLED"):
        raise Drop("ended before it started")
    return Draft(
        id=job.id,
        vc=job.partition or "default",
        gpus=job.gpus,
        submit_s=job.submit_s,
        duration_s=job.run_s,
        user=job.user,
        account=job.account,
        name=job.name,
        cpus=job.cpus,
        mem_mib=job.mem_mib,
        time_limit_s=job.limit_s,
        state=job.state,
        waited_s=None if job.start_s is None else max(job.start_s - job.submit_s, 0.0),
        id_column="JobID",
    )
