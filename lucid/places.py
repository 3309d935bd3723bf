"""Where lucidd keeps what it writes, and in which mode it is: what a command reads of ``lucid.toml`` that only shows
what lucidd has written. The libraries that check a whole file take longer to load than such a command to answer, so
it leaves out the check of a file that lucidd has checked already."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

__all__ = ["HEARTBEAT", "STATE_DIR", "Mode", "Placed", "Places", "checked_file", "places_in", "stamp_of"]

STATE_DIR = "/var/lib/lucid"
HEARTBEAT = "/run/lucid/heartbeat"


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
    """What stands in `checked_file` where lucidd has read a ``lucid.toml`` of this content."""
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
        known = checked_file(found.heartbeat).read_text(encoding="utf-8")
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return None
    return _Settings(found) if found.partitions and known == stamp_of(text) else None


def _of(daemon: Mapping[str, Any], key: str, kind: type, default: Any) -> Any:
    value = daemon.get(key, default)
    if not isinstance(value, kind):
        raise TypeError(f"{key} is no {kind.__name__}")
    return value
