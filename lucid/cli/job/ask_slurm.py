"""One question to Slurm from a command that lives on what lucidd has stored."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from lucid.adapters.slurm.clients.commands import CommandClient
from lucid.adapters.slurm.clients.port import Breaker
from lucid.config import Settings
from lucid.errors import ClusterError

__all__ = ["asked"]

_T = TypeVar("_T")
_PATIENCE_S = 5.0


def asked(settings: Settings, question: Callable[[CommandClient], _T]) -> _T | None:
    """The answer; ``None`` where Slurm gives none within some seconds: the command then tells what it knows."""
    try:
        return question(CommandClient(settings.slurm.prefix, Breaker(time.monotonic), _PATIENCE_S))
    except ClusterError:
        return None
