"""The settings of a policy as lucidd wrote them beside its plan. Who plans again with them loads no library that
checks settings: lucidd has checked these."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import lucid

if TYPE_CHECKING:
    from lucid.config import PolicySettings

__all__ = ["plain_settings", "settings_code"]

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
