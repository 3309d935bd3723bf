"""Where lucidd keeps what it writes, and in which mode it is: what a command reads of ``lucid.toml`` that only shows
what lucidd has written. The libraries that check a whole file take longer to load than such a command to answer, so
it leaves out the check of a file that lucidd has checked already."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping, Set
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

__all__ = [
    "HEARTBEAT",
    "HELD_AT_MOST_S",
    "STATE_DIR",
    "TOLD",
    "Mode",
    "Placed",
    "Places",
    "checked_file",
    "library_folder",
    "places_in",
    "profiles_folder",
    "stamp_of",
    "told_in",
]

STATE_DIR = "/var/lib/lucid"
HEARTBEAT = "/run/lucid/heartbeat"
HELD_AT_MOST_S = 300.0
"""So long a job stays held for a lucidd that gives no sign of life (``LUCID_BOUND_S`` of lucid-release, as
installed), or for a plan of its partition that cannot be made."""
TOLD: Mapping[str, Set[str]] = {
    "daemon": {
        "state_dir", "shared_state", "partitions", "heartbeat", "profiles_dir", "keep_days", "gpu_mem_mib",
        "first_guess_s",
    },
    "models": {"library"},
    "efficiency": {"days", "idle_start_s", "idle_after_s", "empty_s", "least_measured", "least_gpu_h"},
}  # fmt: skip
"""The settings that lucidd tells everybody, defaults and all, once it has checked them; none is a secret."""


class Mode(StrEnum):
    """What the daemon may do in a partition."""

    OBSERVE = "observe"
    """Touch nothing; record what would be done."""
    ORDER = "order"
    """Order the queue by SiteFactor, within a bound."""
    PACK = "pack"
    """Profile, order, place and pack."""


class Places(Protocol):
    """A part of ``DaemonSettings``."""

    @property
    def partitions(self) -> Mapping[str, Mode]:
        """Mode by partition."""
        ...

    @property
    def profiling_partition(self) -> str:
        """Where new jobs are profiled; empty: nowhere."""
        ...

    @property
    def state_dir(self) -> str:
        """lucidd's own folder."""
        ...

    @property
    def shared_state(self) -> bool:
        """Do two hosts have that folder?"""
        ...

    @property
    def heartbeat(self) -> str:
        """Rewritten after every good cycle."""
        ...


class Placed(Protocol):
    """``Settings``, or as much of them."""

    @property
    def daemon(self) -> Places:
        """Where lucidd keeps what it writes."""
        ...


@dataclass(frozen=True, slots=True)
class _Daemon:
    partitions: Mapping[str, Mode]
    profiling_partition: str
    state_dir: str
    shared_state: bool
    heartbeat: str


@dataclass(frozen=True, slots=True)
class _Settings:
    daemon: _Daemon


def stamp_of(text: bytes) -> str:
    """The first line of `checked_file` where lucidd has read a ``lucid.toml`` of this content."""
    return f"{hashlib.sha256(text).hexdigest()}\n"


def checked_file(heartbeat: str) -> Path:
    """Where lucidd says which ``lucid.toml`` it has read and found right: beside the heartbeat."""
    return Path(heartbeat).with_name("lucid.toml.checked")


def places_in(config: Path) -> Placed | None:
    """What ``config`` says of them; ``None`` where that is not as plain, or lucidd has not checked this very file:
    then the whole of it is to be read."""
    try:
        text = config.read_bytes()
        daemon = tomllib.loads(text.decode()).get("daemon", {})
        found = _Daemon(
            {name: Mode(mode) for name, mode in _of(daemon, "partitions", dict, {}).items()},
            _of(daemon, "profiling_partition", str, ""),
            _of(daemon, "state_dir", str, STATE_DIR),
            _of(daemon, "shared_state", bool, False),
            _of(daemon, "heartbeat", str, HEARTBEAT),
        )
        known, _ = _checked(found.heartbeat)
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return None
    return _Settings(found) if found.partitions and known == stamp_of(text) else None


def told_in(config: Path) -> SimpleNamespace | None:
    """The settings of `TOLD`, by section, with no other attributes; ``None`` where lucidd has not checked this very
    file, or another version of it has."""
    try:
        text = config.read_bytes()
        daemon = tomllib.loads(text.decode()).get("daemon", {})
        known, told = _checked(_of(daemon, "heartbeat", str, HEARTBEAT))
        read = json.loads(told)
        sections = {name: SimpleNamespace(**{key: read[name][key] for key in keys}) for name, keys in TOLD.items()}
    except (KeyError, OSError, ValueError, TypeError, AttributeError, RecursionError):
        return None
    if known != stamp_of(text) or not sections["daemon"].partitions:
        return None
    return SimpleNamespace(**sections)


def _checked(heartbeat: str) -> tuple[str, str]:
    """The two lines of `checked_file`."""
    known, end, told = checked_file(heartbeat).read_text(encoding="utf-8").partition("\n")
    return known + end, told


def library_folder(settings: Any, base: Path) -> Path | None:
    """Where the versions of models are; ``None`` where nothing says so. ``settings``: all, or those of `TOLD`.
    ``base``: folder of the configuration."""
    if settings.models.library:
        return base / str(settings.models.library)
    return Path(settings.daemon.state_dir) / "models" if settings.daemon.partitions else None


def profiles_folder(settings: Any) -> Path:
    """Where samplers put their summaries, by all settings, or by those of `TOLD`."""
    return Path(settings.daemon.profiles_dir or Path(settings.daemon.state_dir) / "profiles")


def _of(daemon: Mapping[str, Any], key: str, kind: type, default: Any) -> Any:
    value = daemon.get(key, default)
    if not isinstance(value, kind):
        raise TypeError(f"{key} is no {kind.__name__}")
    return value
