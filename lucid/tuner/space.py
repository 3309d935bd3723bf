"""The space of the tuner's search: which settings may be searched, and within what bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lucid.config.load import Settings, settings_from
from lucid.errors import ConfigError, did_you_mean

Value = int | float | bool | str


@dataclass(frozen=True, slots=True)
class Dimension:
    """One setting, by its dotted key in ``lucid.toml``: either ``choices``, or from ``low`` to ``high``."""

    key: str
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    choices: tuple[Value, ...] = ()


SPACE: tuple[Dimension, ...] = (
    Dimension("policy.packing.gss", choices=(0, 1, 2)),
    Dimension("policy.packing.least_pair_speed", 0.5, 0.95),
    Dimension("policy.packing.least_partner_remaining_s", 0.0, 1800.0),
    Dimension("policy.profiling.t_prof_s", 30.0, 600.0, log=True),
    Dimension("policy.profiling.n_prof", choices=(1, 2, 4, 8)),
    Dimension("policy.profiling.max_wait_s", 600.0, 28800.0, log=True),
    Dimension("policy.profiling.carry_on_share", 0.0, 1.0),
    Dimension("policy.packing.when_calm", choices=(False, True)),
    Dimension("policy.profiling.time_aware", choices=(False, True)),
)
"""The settings that are searched by default. Whether large jobs get reservations at all is not among them: without
them they starve, and an average hides that."""


def choose(keys: Sequence[str]) -> tuple[Dimension, ...]:
    """The dimensions under these keys, or under the tables that they name; all of them where none are given.

    Raises:
        ConfigError: a key that is not in the space; the message lists those that are."""
    if not keys:
        return SPACE
    chosen: list[Dimension] = []
    for key in keys:
        found = [d for d in SPACE if f".{d.key}.".find(f".{key}.") >= 0]
        if not found:
            known = [d.key for d in SPACE]
            hint = did_you_mean(key, known)
            raise ConfigError(f"--only {key}: not a setting that can be tuned{hint}; known: {', '.join(known)}")
        chosen.extend(d for d in found if d not in chosen)
    return tuple(chosen)


def value_at(settings: Settings, key: str) -> Any:
    """The value of the settings under a dotted key."""
    found: Any = settings
    for part in key.split("."):
        found = getattr(found, part)
    return found


def with_values(settings: Settings, values: Mapping[str, Value]) -> Settings:
    """The settings with other values under some dotted keys.

    Raises:
        ConfigError: a key that does not exist, or a value out of its bounds."""
    data: dict[str, Any] = {}
    for key, value in values.items():
        *path, last = key.split(".")
        inner = data
        for part in path:
            inner = inner.setdefault(part, {})
        inner[last] = value
    checked = settings_from(data, "tuned settings")
    return settings.changed({key: value_at(checked, key) for key in values})
