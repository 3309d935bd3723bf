"""``lucidctl``: the command line."""

from __future__ import annotations

import sys
from importlib import import_module

import click

from lucid.cli.console import say, warn_on_stderr
from lucid.cli.examples import with_examples
from lucid.errors import LucidError

__all__ = ["lucidctl", "main"]

_COMMANDS = {
    "simulate": "lucid.cli.simulate:simulate",
    "compare": "lucid.cli.compare:compare",
    "experiment": "lucid.cli.experiment:experiment",
    "explain": "lucid.cli.explain:explain",
    "status": "lucid.cli.live:status",
    "queue": "lucid.cli.queue:queue",
    "when": "lucid.cli.when:when",
    "why-not": "lucid.cli.why_not:why_not",
    "history": "lucid.cli.live:history",
    "efficiency": "lucid.cli.efficiency:efficiency",
    "metrics": "lucid.cli.metrics:metrics",
    "pause": "lucid.cli.live_switches:pause",
    "resume": "lucid.cli.live_switches:resume",
    "mode": "lucid.cli.live_switches:mode",
    "doctor": "lucid.cli.doctor:doctor",
    "uninstall": "lucid.cli.doctor:uninstall",
    "trace": "lucid.cli.trace:trace",
    "models": "lucid.cli.models:models",
    "tune": "lucid.cli.tune:tune",
    "replay": "lucid.cli.replay:replay",
    "report": "lucid.cli.report:report",
    "slurm": "lucid.cli.slurm:slurm",
    "settings": "lucid.cli.settings:settings",
    "gpu": "lucid.cli.gpu:gpu",
    "calibrate": "lucid.cli.calibrate:calibrate",
    "bench": "lucid.cli.bench:bench",
    "demo": "lucid.cli.demo:demo",
    "web": "lucid.web.command:web",
}
"""In the order of the help. A command is imported when it is called: plotting and models are slow to load."""


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        module, _, name = _COMMANDS[cmd_name].partition(":")
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        return with_examples(command, cmd_name)


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="lucid-scheduler", prog_name="lucidctl")
def lucidctl() -> None:
    """Lucid schedules deep-learning jobs on a Slurm GPU cluster, and explains every decision.

    Every command has its own --help, with examples. Commands without a trace read what lucidd has written.
    """


with_examples(lucidctl, "")


def main() -> None:
    """Run; errors that Lucid raises on purpose end in one message and their own exit code."""
    warn_on_stderr()
    try:
        lucidctl(standalone_mode=True, prog_name="lucidctl")
    except LucidError as error:
        say(f"lucidctl: {error}", err=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)


if __name__ == "__main__":
    main()
