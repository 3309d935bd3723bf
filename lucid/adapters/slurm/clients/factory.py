"""Which way of talking to Slurm the settings name."""

from __future__ import annotations

from lucid.adapters.left_out import LeftOut
from lucid.adapters.slurm.clients.commands import CommandClient
from lucid.adapters.slurm.clients.port import Breaker, Inspector
from lucid.config import SlurmSettings
from lucid.errors import ConfigError

__all__ = ["make_client"]


def make_client(slurm: SlurmSettings, breaker: Breaker, left_out: LeftOut | None = None) -> Inspector:
    """The client of these settings; commands and slurmrestd stand behind the same breaker. ``left_out`` learns of
    what cannot be read.

    Raises:
        ConfigError: slurmrestd's address or token file is missing or wrong; httpx, or pyslurm, is not installed.
    """
    commands = CommandClient(slurm.prefix, breaker, slurm.timeout_s, left_out)
    if slurm.client == "command":
        return commands
    if slurm.client == "pyslurm":
        from lucid.adapters.slurm.clients.pyslurm import PyslurmClient

        return PyslurmClient(breaker, commands, left_out)
    try:
        from lucid.adapters.slurm.clients.rest import RestClient
    except ImportError:
        raise ConfigError(
            "slurm.client = 'rest' needs httpx: pip install 'lucid-scheduler[rest]', or set slurm.client = 'command'"
        ) from None
    return RestClient(
        slurm.rest_url,
        breaker,
        slurm.rest_token_file,
        slurm.timeout_s,
        commands if slurm.rest_commands else None,
        left_out=left_out,
    )
