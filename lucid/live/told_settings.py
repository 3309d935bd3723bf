"""The settings that a command goes by: those that lucidd has checked and told, where it has, else the whole file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

from lucid.places import told_in

if TYPE_CHECKING:  # the library that checks a file is loaded only where nobody has checked it yet
    from lucid.config import Settings

__all__ = ["told_settings"]


def told_settings(config: Path) -> Settings:
    """Those of ``lucid.places.TOLD``, with no other attributes; all, where lucidd has not checked this very file.

    Raises:
        ConfigError: that file cannot be read, or is wrong.
    """
    told = told_in(config)
    if told is not None:
        return cast("Settings", told)
    from lucid.config import load_settings

    return load_settings(config)
