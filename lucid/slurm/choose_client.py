"""Which way of talking to Slurm the settings name."""

from __future__ import annotations

from lucid.config.live import SlurmSettings
from lucid.left_out import LeftOut
from lucid.slurm.client import Breaker, Inspector
from lucid.slurm.commands import CommandClient


def make_client(slurm: SlurmSettings, breaker: Breaker, left_out: LeftOut | None = None) -> Inspector:
    """The client of these settings; ``left_out`` learns of what cannot be read.

    Raises:
        ConfigError: pyslurm is not installed, or too old.
    """
    commands = CommandClient(slurm.prefix, breaker, slurm.timeout_s, left_out)
    if slurm.client == "command":
        return commands
    from lucid.slurm.pyslurm import PyslurmClient

    return PyslurmClient(breaker, commands, left_out)
