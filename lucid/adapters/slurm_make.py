"""The client that the configuration asks for."""

from __future__ import annotations

from lucid.adapters.slurm_cli import CommandClient
from lucid.adapters.slurm_client import Breaker, SlurmClient
from lucid.config import SlurmSettings

__all__ = ["make_client"]


def make_client(settings: SlurmSettings, breaker: Breaker) -> SlurmClient:
    """Commands, or slurmrestd."""
    return CommandClient(settings.prefix, breaker, settings.timeout_s)
