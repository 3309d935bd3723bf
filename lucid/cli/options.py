"""Options that many commands take, job numbers, mistyped subcommands, and the examples at the end of each help."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from lucid.accounting.values import JOB_NUMBER
from lucid.errors import ConfigError, did_you_mean

DEFAULT_CONFIG = Path("/etc/lucid/lucid.toml")
PATH = click.Path(path_type=Path)
"""The type of an option that is a file or a folder, which may not be there."""
F = TypeVar("F", bound=Callable[..., Any])


def config_option(function: F) -> F:
    """Add ``--config``, as lucidd takes it."""
    return click.option(
        "--config",
        "config",
        type=PATH,
        default=lambda: Path(os.environ.get("LUCID_CONFIG", DEFAULT_CONFIG)),
        help="lucidd's configuration.  [default: LUCID_CONFIG, else /etc/lucid/lucid.toml]",
    )(function)


def job_number(text: str) -> str:
    """The text, if it is a job number of Slurm's.

    Raises: ConfigError: it is no such number."""
    if not JOB_NUMBER.fullmatch(text):
        raise ConfigError(f"{text} is no job number; 49469, 49469_3 and 49469+1 are")
    return text


class Group(click.Group):
    """A group that suggests the command that a mistyped one may mean. click does so for options itself."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command, as click finds it.

        Raises: UsageError: there is no such command."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            if args[0].startswith("-"):
                raise
            ctx.fail(f"No such command {args[0]!r}{did_you_mean(args[0], self.list_commands(ctx))}")


EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "": (
        "lucidctl status              # is lucidd running?",
        "lucidctl queue               # when will the waiting jobs start?",
        "lucidctl explain 17          # why does job 17 wait, or why did it start there?",
        "lucidctl demo                # simulate a month of a small cluster",
    ),
    "simulate": (
        "lucidctl simulate month.csv --vcs vcs.csv --out out     # plain Slurm (backfill) and lucid",
        "lucidctl simulate log.csv --from 2020-09-01 --days 14 --load 0.95 --pool",
        "lucidctl simulate month.csv --nodes 8 --as-live --config lucid.toml",
        "lucidctl simulate workload-6.csv --applications profiles --nodes 16 --gpus-per-node 4 --policy pollux",
    ),
    "compare": (
        "lucidctl compare month.csv --vcs vcs.csv",
        "lucidctl compare month.csv --vcs vcs.csv --pool         # the same nodes without walls between VCs",
        "lucidctl compare month.csv --nodes 8 --ablations --out out",
    ),
    "explain": (
        "lucidctl explain 17",
        "lucidctl explain --run out --policy lucid job-42",
    ),
    "status": (
        "lucidctl status",
        "lucidctl status --json",
    ),
    "queue": (
        "lucidctl queue",
        "lucidctl queue --json",
    ),
    "top": (
        "lucidctl top",
        "lucidctl top --user ada --every 2",
    ),
    "when": (
        "lucidctl when 17",
        "lucidctl when --gpus 4 --time 6:00:00",
        "lucidctl when --gpus 8 --partition vision --json",
    ),
    "why-not": (
        "lucidctl why-not 17",
        "lucidctl why-not 17 --gpus 2 --share",
        "lucidctl why-not 17 --vc vision",
    ),
    "history": ("lucidctl history --days 1 --limit 20",),
    "efficiency": (
        "lucidctl efficiency",
        "lucidctl efficiency --user ada --days 30",
        "lucidctl efficiency --job 17",
        "lucidctl efficiency --time-limits        # who would have started earlier with a shorter limit",
    ),
    "metrics": (
        "lucidctl metrics",
        "lucidctl metrics --out /var/lib/prometheus/node-exporter/lucid.prom",
    ),
    "pause": ("lucidctl pause",),
    "resume": ("lucidctl resume",),
    "mode": (
        "lucidctl mode                    # list",
        "lucidctl mode main pack",
        "lucidctl mode main configured    # back to lucid.toml",
    ),
    "setup": (
        "lucidctl setup --mode observe --dry-run",
        "lucidctl setup --mode pack --partitions vision --yes",
        "lucidctl setup --mode pack --partitions vision,speech --lending borrow --dry-run",
        "lucidctl setup --undo",
    ),
    "doctor": (
        "lucidctl doctor",
        "lucidctl doctor --config /etc/lucid/lucid.toml --json",
    ),
    "uninstall": ("lucidctl uninstall --wait 120",),
    "trace": ("lucidctl trace describe month.csv",),
    "trace describe": (
        "lucidctl trace describe month.csv",
        "lucidctl trace describe sacct.txt --format sacct --skip-bad",
    ),
    "trace convert": ("lucidctl trace convert sacct.txt month.csv",),
    "trace synth": ("lucidctl trace synth month-small --out month.csv --vcs-out vcs.csv --seed 1",),
    "models": (
        "lucidctl models list --config lucid.toml",
        "lucidctl models show duration",
    ),
    "models train": (
        "lucidctl models train --jobs sacct.log",
        "lucidctl models train share pairs --profiles profiles.csv --pairs pairs.csv",
        "lucidctl models train --due --config lucid.toml    # from cron",
    ),
    "models status": ("lucidctl models status --config lucid.toml",),
    "models list": ("lucidctl models list --config lucid.toml",),
    "models show": (
        "lucidctl models show share --plots plots",
        "lucidctl models show duration --version 3",
    ),
    "models promote": ("lucidctl models promote duration 3 --why 'better on our jobs'",),
    "models rollback": ("lucidctl models rollback duration",),
    "models evaluate": (
        "lucidctl models evaluate duration jobs.log --test-from 3500",
        "lucidctl models evaluate throughput bins.csv --test-from 2020-09-01 --newest-bin 1",
        "lucidctl models evaluate packing profiles.csv pairs.csv",
    ),
    "tune": (
        "lucidctl tune --history sacct.txt --vcs vcs.csv --out tune     # search",
        "lucidctl tune show tune                                        # the proposal",
        "lucidctl tune apply tune --config lucid.toml                   # write it into a file",
        "lucidctl tune rollback --config lucid.toml                     # take it back",
    ),
    "tune show": ("lucidctl tune show tune",),
    "tune apply": ("lucidctl tune apply tune --config lucid.toml",),
    "tune rollback": ("lucidctl tune rollback --config lucid.toml",),
    "replay": (
        "lucidctl replay --last 10",
        "lucidctl replay /var/lib/lucid/plans",
    ),
    "report": (
        "lucidctl report --week --jobs sacct.txt --vcs vcs.csv --html week.html",
        "lucidctl report --history --days 14",
    ),
    "slurm": ("lucidctl slurm install --check",),
    "slurm render": (
        "lucidctl slurm render --nodes 'n[1-4]:gpus=4' --partition 'main=n[1-3]' --profiling 'prof=n4' --out conf",
    ),
    "slurm lending": (
        "lucidctl slurm lending",
        "lucidctl slurm lending --accounts    # accounts have the quotas",
    ),
    "slurm install": (
        "lucidctl slurm install --check",
        "lucidctl slurm install --units    # for observe and order mode",
    ),
    "gpu": (
        "lucidctl gpu",
        "lucidctl gpu --once --cards",
    ),
    "gpu health": ("lucidctl gpu health", "lucidctl gpu health --all"),
    "gpu out": ("lucidctl gpu out node7:3 --reason 'fan is noisy, ticket 4711'",),
    "gpu return": ("lucidctl gpu return node7:3",),
    "demo": ("lucidctl demo --out out/demo --seed 1",),
    "web": (
        "lucidctl web --demo                       # a simulated cluster, without Slurm",
        "lucidctl web --config /etc/lucid/lucid.toml --port 8765    # what lucidd sees, as its user",
    ),
    "tune search": (
        "lucidctl tune search --history sacct.txt --vcs vcs.csv --out tune",
        "lucidctl tune search --history 30d --config lucid.toml --only packing --out tune",
    ),
}
"""Examples by the words that follow ``lucidctl``; the empty key is ``lucidctl`` itself."""


def with_examples(command: click.Command, words: str) -> click.Command:
    """Put the examples at the end of the command's help and of its subcommands'. ``words``: what a user types."""
    lines = EXAMPLES.get(words, ())
    if lines and "\b" not in (command.epilog or ""):
        title = "Examples:" if len(lines) > 1 else "Example:"
        block = "\n".join(("\b", title, *(f"  {line}" for line in lines)))  # \b: click keeps the lines as they are
        command.epilog = f"{command.epilog}\n\n{block}" if command.epilog else block
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            with_examples(inner, f"{words} {name}".strip())
    return command
