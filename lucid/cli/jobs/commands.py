"""The commands of every day (status, queue, explain, top, when, why-not, history, efficiency): options and help.

Their code is imported once they are called: ``--help`` and completion need none of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from lucid.cli.options import PATH, config_option, job_number


def _one_thread() -> None:
    """Keep numpy's OpenBLAS to one thread, before it is imported: else it starts a thread for each core, which
    nothing here uses. On two cores that took as long as the rest of numpy."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


@click.command()
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(config: Path, as_json: bool) -> None:
    """Show whether lucidd runs, and the mode of each partition.

    Also what failed lately, and whether Slurm answers."""
    from lucid.cli.jobs.queue import tell_status

    tell_status(config, as_json)


@click.command()
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def queue(config: Path, as_json: bool) -> None:
    """List the waiting jobs in order, and why each waits.

    The order is that of lucidd's last plan."""
    from lucid.cli.jobs.queue import tell_queue

    tell_queue(config, as_json)


@click.command()
@click.argument("job_id", metavar="JOB")
@click.option("--run", "run_dir", type=PATH, help="Folder of simulate; without: lucidd's.")
@click.option("--policy", default=None, help="Which policy's run. Default: lucid where it ran, else the only one.")
@click.option("--long", is_flag=True, help="The whole story, also where it is longer than the terminal.")
@click.option("--json", "as_json", is_flag=True, help="The decisions and their compared values as JSON.")
@config_option
def explain(job_id: str, run_dir: Path | None, **asked: Any) -> None:
    """Say why JOB waits, or why it started when and where it did.

    First comes why it waits now, and what would help, found by trying. Then come its story, its use of GPUs and its
    end. A cross marks what kept it from starting. With --run, the command reads a simulated run, else lucidd's.

    A VC is a partition with its nodes. Beside a job: on the same GPUs. Kept nodes: another job starts there only if
    it should end before they are needed. More words: docs/glossary.md."""
    _one_thread()
    from lucid.cli.jobs.explain import tell_explain

    tell_explain(job_number(job_id) if run_dir is None else job_id, run_dir, **asked)


@click.command()
@config_option
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(min=1.0, max=3600.0),
    default=5.0,
    show_default=True,
    help="Seconds between two looks at what lucidd has written.",
)
@click.option("--user", default="", help="Only the jobs of this user; the key u changes that.")
def top(config: Path, every_s: float, user: str) -> None:
    """Watch nodes, running jobs and the queue. Keys as in htop: F1 shows them.

    Nothing is changed, and Slurm is not asked: top reads what lucidd has written."""
    from lucid.cli.site.top import tell_top

    tell_top(config, every_s, user)


@click.command()
@click.argument("job_id", metavar="[JOB]", required=False)
@click.option("--gpus", type=click.IntRange(min=1), help="GPUs that a job would ask for if it were submitted now.")
@click.option("--time", "limit", metavar="TIME", help="Its time limit, as sbatch takes it. Default: none.")
@click.option("--user", default="", help="Whose job. Default: no user.")
@click.option("--partition", metavar="NAME", help="Its partition. Default: every one that could hold it.")
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def when(job_id: str | None, gpus: int | None, config: Path, as_json: bool, **new: Any) -> None:
    """Say when JOB starts, or a job submitted now would.

    The range holds 8 starts in 10, as far as lucidd's earlier forecasts came true. With --gpus, lucidd's last
    snapshot is planned ahead with such a job in it, by lucidd's policy. Nothing is submitted."""
    if (job_id is None) is (gpus is None) or (job_id and any(new.values())):
        raise click.UsageError("name a JOB that waits, or --gpus with the other options, which are of a new one")
    if job_id is not None:
        from lucid.cli.jobs.queue import tell_start

        return tell_start(job_number(job_id), config, as_json)
    _one_thread()
    from lucid.cli.jobs.when import tell_when

    return tell_when(gpus or 1, config=config, as_json=as_json, **new)


@click.command("why-not")
@click.argument("job_id", metavar="JOB")
@click.option("--gpus", type=click.IntRange(min=1), help="What if it asked for so many GPUs?")
@click.option("--share", is_flag=True, help="What if it were willing to share its GPUs?")
@click.option("--vc", help="What if it had been submitted to this VC?")
@click.option("--time", "limit", help="What if it had this time limit? As sbatch takes it.")
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def why_not(job_id: str, **asked: Any) -> None:
    """Try what would start JOB now: other VCs, fewer GPUs, sharing.

    lucidd's last snapshot is planned again with only this job changed: with --gpus, --share, --vc or --time as they
    say, else with fewer GPUs, sharing, both, a time limit that ends before nodes close, and in the other VCs.
    """
    _one_thread()
    from lucid.cli.jobs.when import tell_why_not

    tell_why_not(job_number(job_id), **asked)


@click.command()
@config_option
@click.option("--days", type=click.FloatRange(min=0, min_open=True), default=7.0, show_default=True)
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="Most jobs listed.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def history(**asked: Any) -> None:
    """List the jobs that ended. For observed jobs: how much earlier Lucid would have started them."""
    from lucid.cli.jobs.queue import tell_history

    tell_history(**asked)


@click.command()
@config_option
@click.option("--user", help="One user's jobs alone.")
@click.option("--account", help="One account's jobs alone.")
@click.option("--job", "job_id", help="One job alone.")
@click.option("--days", type=click.FloatRange(min=0, min_open=True), help="How far back.  [default: 7]")
@click.option("--time-limits", is_flag=True, help="Which jobs would have started earlier with a shorter time limit.")
@click.option("--time", "limit", help="With --time-limits: this limit, as sbatch takes it.  [default: by run times]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def efficiency(job_id: str | None, time_limits: bool, limit: str | None, **asked: Any) -> None:
    """Tell which GPU-hours were wasted, from what samplers measured. No job is changed.

    Counted are jobs that ended in the last days, and those that run, each over its whole run. Running jobs whose GPUs
    do nothing now are listed. With --time-limits, the command plans lucidd's recorded plans again, with one job's
    time limit changed."""
    if job_id is not None:
        job_number(job_id)
    if time_limits:
        from lucid.cli.jobs.time_limits import tell_time_limits

        return tell_time_limits(job_id=job_id, limit=limit, **asked)
    if limit is not None:
        raise click.UsageError("--time belongs to --time-limits")
    from lucid.cli.site.efficiency import tell_efficiency

    return tell_efficiency(job_id=job_id, **asked)
