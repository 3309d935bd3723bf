"""The settings of a command that plans again, or shows what lucidd has written.

The settings of a policy as lucidd wrote them beside its plan. Who plans again with them loads no library that
checks settings: lucidd has checked these.

The settings of a command that plans again, or shows what lucidd has written: the same few whether or not lucidd
has checked the file, so that no command can come to need one that only a whole file has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import lucid
from lucid.places import Told, told_in, told_of

if TYPE_CHECKING:
    from lucid.config.policy import PolicySettings


_TABLES = frozenset({"shares", "speeds"})
"""Settings that are tables themselves; all others with keys of their own are sections."""


class _Section:
    """What policies do with a section of ``lucid.config``: read, and copy with a change. It is frozen like one."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.__dict__.update(values)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"settings are frozen: {name}")

    def model_copy(self, *, update: Mapping[str, Any]) -> _Section:
        """As of a section of ``lucid.config``."""
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


def told_settings(config: Path) -> Told:
    """As lucidd told them; read from the whole file where lucidd has not checked this very one.

    Raises:
        ConfigError: that file cannot be read, or is wrong.
    """
    told = told_in(config)
    if told is not None:
        return told
    from lucid.config.load import load_settings  # the library that checks a file

    return told_of(load_settings(config).model_dump(mode="json"))
