"""Settings of commands that plan again or show lucidd's files, without the library that checks settings.

lucidd has checked its policy's settings, and writes them beside its plan. Commands use the same few settings whether
or not lucidd has checked the file, so none can come to need one that only a whole file has."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import lucid
from lucid.places import PublishedSettings, published_from, published_in

if TYPE_CHECKING:
    from lucid.config.policy import PolicySettings


_TABLES = frozenset({"shares", "speeds"})
"""Settings that are tables themselves; all others with keys of their own are sections."""


class _Section:
    """A section of settings with what policies use of ``lucid.config``: reading, and a copy with a change. It is
    frozen, too."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.__dict__.update(values)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"settings are frozen: {name}")

    def model_copy(self, *, update: Mapping[str, Any]) -> _Section:
        """A copy with these fields changed."""
        return _Section({**self.__dict__, **update})


def plain_settings(data: Mapping[str, Any]) -> PolicySettings:
    """Settings from their JSON form, if the same code wrote it (``settings_code``)."""
    return cast("PolicySettings", _section(data))


def _section(data: Mapping[str, Any]) -> _Section:
    return _Section(
        {
            key: _section(value) if isinstance(value, dict) and key not in _TABLES else value
            for key, value in data.items()
        }
    )


@cache
def settings_code() -> str:
    """A digest of the code that says which settings of policies there are."""
    return hashlib.sha256((Path(lucid.__file__).parent / "config" / "policy.py").read_bytes()).hexdigest()


def published_settings(config: Path) -> PublishedSettings:
    """The settings as lucidd recorded them; read from the whole file where lucidd has not checked this very one.

    Raises: ConfigError: that file cannot be read, or is wrong."""
    told = published_in(config)
    if told is not None:
        return told
    from lucid.config.load import load_settings  # the library that checks a file

    return published_from(load_settings(config).model_dump(mode="json"))
