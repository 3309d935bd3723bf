"""``lucidctl``: the group of all commands, each imported when it is called; errors as exit codes."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import click

from lucid.cli.console import run, say
from lucid.cli.options import Group, with_examples
from lucid.errors import ModelError

_COMMANDS: Mapping[str, tuple[str, str]] = {
    "simulate": (
        "lucid.cli.replay.simulate:simulate",
        "Replay TRACE under each --policy, and compare the results.",
    ),
    "compare": (
        "lucid.cli.replay.compare:compare",
        "Replay TRACE under every policy that can run on it.",
    ),
    "explain": (
        "lucid.cli.jobs.commands:explain",
        "Say why JOB waits, or why it started when and where it did.",
    ),
    "status": (
        "lucid.cli.jobs.commands:status",
        "Show whether lucidd runs, and the mode of each partition.",
    ),
    "queue": (
        "lucid.cli.jobs.commands:queue",
        "List the waiting jobs in order, and why each waits.",
    ),
    "top": ("lucid.cli.jobs.commands:top", "Watch nodes, running jobs and the queue."),
    "when": ("lucid.cli.jobs.commands:when", "Say when JOB starts, or a job submitted now would."),
    "why-not": (
        "lucid.cli.jobs.commands:why_not",
        "Try what would start JOB now: other VCs, fewer GPUs, sharing.",
    ),
    "history": ("lucid.cli.jobs.commands:history", "List the jobs that ended."),
    "efficiency": (
        "lucid.cli.jobs.commands:efficiency",
        "Tell which GPU-hours were wasted, from what samplers measured.",
    ),
    "metrics": ("lucid.cli.site.modes:metrics", "Print lucidd's metrics for Prometheus, from its store."),
    "pause": (
        "lucid.cli.site.modes:pause",
        "Stop deciding, and release every job that Lucid holds.",
    ),
    "resume": ("lucid.cli.site.modes:resume", "End a pause."),
    "mode": ("lucid.cli.site.modes:mode", "Switch PARTITION to another mode while lucidd runs."),
    "setup": ("lucid.cli.site.setup:setup", "Bring Lucid onto this Slurm, or take it away again."),
    "doctor": (
        "lucid.cli.site.doctor:doctor",
        "Look for configuration mistakes, and name the remedy of each.",
    ),
    "uninstall": (
        "lucid.cli.site.doctor:uninstall",
        "Release every job that Lucid holds, and check it.",
    ),
    "trace": ("lucid.cli.replay.trace:trace", "Describe job traces, convert them, and make synthetic ones."),
    "models": (
        "lucid.cli.learn.models:models",
        "Train, evaluate and choose the learned models.",
    ),
    "tune": ("lucid.cli.learn.tune:tune", "Search for better settings by replaying the past."),
    "replay": ("lucid.cli.site.replan:replay", "Plan recorded snapshots again."),
    "report": (
        "lucid.cli.learn.report:report",
        "Show what plain Slurm and Lucid would make of the past week.",
    ),
    "slurm": (
        "lucid.cli.site.slurm:slurm",
        "Write and check what Lucid needs of Slurm's configuration.",
    ),
    "gpu": (
        "lucid.cli.site.gpu:gpu",
        "Show GPUs, their jobs and readings, and the speed of pairs.",
    ),
    "demo": ("lucid.cli.replay.demo:demo", "Simulate a SYNTHETIC month of a small cluster."),
    "web": ("lucid.web.command:web", "Serve read-only pages: cluster, queue, jobs, people, health."),
}
"""All commands: what to import when one is called, and the first sentence of its help. The help of ``lucidctl`` is
made of these alone, since plotting and models are slow to load."""


_BEGIN = ("setup", "doctor", "status")
_READERS: Mapping[str, tuple[str, Sequence[str], Sequence[str]]] = {
    "site": (
        "Run a site",
        ("top", "mode", "pause", "web"),
        ("resume", "uninstall", "gpu", "metrics", "models", "tune", "report", "replay", "slurm"),
    ),
    "job": ("Ask about a job", ("queue", "explain", "when", "why-not"), ("history", "efficiency")),
    "study": ("Study a trace", ("demo", "simulate", "compare", "trace"), ()),
}
"""Groups by reader: what they do, the commands on the first screen, and those that only the group's help lists."""


_EXTRAS: Mapping[str, str] = {
    **dict.fromkeys(("sklearn", "interpret", "pandas", "rapidfuzz"), "models"),
    **dict.fromkeys(("optuna", "tomlkit"), "tuner"),
    **dict.fromkeys(("starlette", "uvicorn", "prometheus_client"), "web"),
    **dict.fromkeys(("scipy", "rustworkx", "threadpoolctl"), "peers"),
    "textual": "top",
    "pynvml": "node",
}
"""Libraries that a plain installation lacks, and the extra that brings each."""
_GONE: Mapping[str, str] = {
    "experiment": "in a checkout: python -m benchmarks.papers --only elastic",
    "bench": "in a checkout: python -m benchmarks.bench",
    "calibrate": "in a checkout: python -m benchmarks.calibrate",
    "settings": "docs/settings.md has every setting",
    "idle": "lucidctl efficiency lists the running jobs whose GPUs do nothing",
    "report-bug": "lucidctl doctor --json says what a report of a bug needs",
}
"""Commands of 0.1 that were taken out, and what to type instead. For one release."""
_INTERRUPTED = 130  # 128 + SIGINT


class _Lazy(Group):
    """Commands that are imported when they are called. ``named``: which of them, in the order of the help."""

    named: Sequence[str] = tuple(_COMMANDS)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self.named)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command, as a group finds it; for a command that is gone, an error that says what took its place.

        Raises: UsageError: there is no such command."""
        if instead := _GONE.get(args[0]):
            ctx.fail(f"{args[0]} was taken out; {instead}")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in self.named:
            return None
        module, _, name = _COMMANDS[cmd_name][0].partition(":")
        gc.disable()  # what is imported stays: looking through it for garbage costs a tenth of the start
        try:
            command = getattr(import_module(module), name)
        finally:
            gc.enable()
        assert isinstance(command, click.Command)
        return with_examples(command, cmd_name)

    def invoke(self, ctx: click.Context) -> Any:
        """The command's result, with words for a library that is not installed, and the status of shells for Ctrl-C.

        Raises: ModelError: the command needs an extra that is not installed; the message names it."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            say("\nlucidctl: interrupted", err=True)
            ctx.exit(_INTERRUPTED)
        except ModuleNotFoundError as error:
            extra = _EXTRAS.get((error.name or "").partition(".")[0])
            if extra is None:
                raise
            raise ModelError(
                f"this command needs {error.name}, of the extra {extra!r}; pip install 'lucid-scheduler[{extra}]'"
            ) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        self._section(formatter, "Commands", self.named)

    def _section(self, formatter: click.HelpFormatter, title: str, names: Sequence[str]) -> None:
        width = max(map(len, self.named))
        with formatter.section(title):
            formatter.write_dl([(f"{name:{width}}", _COMMANDS[name][1]) for name in names])


class _Root(_Lazy):
    """All commands. The help shows the first ones of each reader, and names the group that lists the others."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command, or a reader's group; ``None`` where there is neither."""
        if cmd_name not in _READERS:
            return super().get_command(ctx, cmd_name)
        does, first, more = _READERS[cmd_name]
        group = _Lazy(cmd_name, help=f"{does}. Each command may be typed without the word {cmd_name}, too.")
        group.named = (*(_BEGIN if cmd_name == "site" else ()), *first, *more)
        return group

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        self._section(formatter, "Begin here", _BEGIN)
        for name, (does, first, more) in _READERS.items():
            title = f"{does} ({len(more)} more: lucidctl {name} --help)" if more else does
            self._section(formatter, title, first)


@click.group(cls=_Root, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="lucid-scheduler", prog_name="lucidctl")
def lucidctl() -> None:
    """Lucid schedules deep-learning jobs on a Slurm GPU cluster, and explains every decision.

    Every command has its own --help, with examples."""


with_examples(lucidctl, "")


def main() -> None:
    """Run ``lucidctl``."""
    run(lucidctl, "lucidctl")


if __name__ == "__main__":
    main()
