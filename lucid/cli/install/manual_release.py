"""What lets Lucid's jobs go where ``lucidctl`` itself cannot: neither its file nor its disk is needed for that."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lucid.config import Settings
from lucid.errors import ConfigError, StoreError

__all__ = ["RELEASE", "by_hand_where"]

_PACKAGED = Path("/usr/sbin/lucid-release")
RELEASE = _PACKAGED if _PACKAGED.exists() else Path("/etc/slurm/lucid/lucid-release")


@contextmanager
def by_hand_where(not_done: str, settings: Settings | None = None) -> Iterator[None]:
    """Where the file of settings or the store fails inside, say what was *not done* and which commands do it instead.

    Raises:
        ConfigError, StoreError: as it came, with these words added; its exit code stays.
    """
    try:
        yield
    except (ConfigError, StoreError) as error:
        prefix = () if settings is None else settings.slurm.prefix
        before = f"LUCID_SLURM_PREFIX={shlex.quote(' '.join(prefix))} " if prefix else ""
        raise type(error)(
            f"{error}\n{not_done} These commands release every job that Lucid holds, without lucid.toml and store:\n"
            "  systemctl stop lucidd    # lucidd uses the settings that it read at its start\n"
            f"  {before}{RELEASE} --all   # with squeue and scontrol alone"
        ) from None
