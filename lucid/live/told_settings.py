"""The settings of a command that plans again, or shows what lucidd has written: the same few whether or not lucidd
has checked the file, so that no command can come to need one that only a whole file has."""

from __future__ import annotations

from pathlib import Path

from lucid.places import Told, told_in, told_of

__all__ = ["told_settings"]


def told_settings(config: Path) -> Told:
    """As lucidd told them; read from the whole file where lucidd has not checked this very one.

    Raises:
        ConfigError: that file cannot be read, or is wrong.
    """
    told = told_in(config)
    if told is not None:
        return told
    from lucid.config import load_settings  # the library that checks a file

    return told_of(load_settings(config).model_dump(mode="json"))
