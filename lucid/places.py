"""The settings of commands that only show lucidd's files or plan again: folders, modes, bounds of waste.

The libraries that check a whole lucid.toml take longer to load than such a command to answer. So a command reads
these settings as lucidd recorded them, if lucidd has checked this very file."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping, Set
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

STATE_DIR = "/var/lib/lucid"
HEARTBEAT = "/run/lucid/heartbeat"
HELD_AT_MOST_S = 300.0
"""How long a job stays held for a lucidd without a sign of life (``LUCID_BOUND_S`` of lucid-release, as installed),
or for a plan of its partition that cannot be made."""


class Mode(StrEnum):
    """What the daemon may do in a partition."""

    OBSERVE = "observe"
    """Touch nothing; record what would be done."""
    ORDER = "order"
    """Order the queue by SiteFactor, within a bound."""
    PACK = "pack"
    """Profile, order, place and pack."""


class Places(Protocol):
    """The part of ``DaemonSettings`` that such commands need."""

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
        """Whether two hosts have that folder."""
        ...

    @property
    def heartbeat(self) -> str:
        """The file that is rewritten after every good cycle."""
        ...


class Placed(Protocol):
    """``Settings``, or its part with lucidd's folders."""

    @property
    def daemon(self) -> Places:
        """Where lucidd keeps its files."""
        ...


@dataclass(frozen=True, slots=True)
class PublishedDaemon:
    """The recorded part of ``DaemonSettings``."""

    partitions: Mapping[str, Mode]
    profiling_partition: str
    state_dir: str
    shared_state: bool
    heartbeat: str
    profiles_dir: str
    keep_days: float
    gpu_mem_mib: int
    first_guess_s: float


@dataclass(frozen=True, slots=True)
class PublishedModels:
    """The recorded part of ``ModelSettings``."""

    library: str


@dataclass(frozen=True, slots=True)
class PublishedEfficiency:
    """The recorded part of ``EfficiencySettings``."""

    days: float
    idle_start_s: float
    idle_after_s: float
    empty_s: float
    least_measured: float
    least_gpu_h: float


@dataclass(frozen=True, slots=True)
class PublishedSettings:
    """The settings that lucidd records for everybody, defaults and all, once it has checked them; none is a secret.
    Each field has the name and the value that it has in ``Settings``."""

    daemon: PublishedDaemon
    models: PublishedModels
    efficiency: PublishedEfficiency


_SECTIONS: Mapping[str, type[Any]] = {
    "daemon": PublishedDaemon,
    "models": PublishedModels,
    "efficiency": PublishedEfficiency,
}
PUBLISHED: Mapping[str, Set[str]] = {name: {f.name for f in fields(kind)} for name, kind in _SECTIONS.items()}
"""The names of the fields of `PublishedSettings`, by section."""


def published_from(data: Mapping[str, Any]) -> PublishedSettings:
    """The recorded part of all settings in JSON form.

    Raises: KeyError: one is missing."""
    made = {name: kind(**{key: data[name][key] for key in PUBLISHED[name]}) for name, kind in _SECTIONS.items()}
    partitions = {name: Mode(mode) for name, mode in made["daemon"].partitions.items()}
    return PublishedSettings(replace(made["daemon"], partitions=partitions), made["models"], made["efficiency"])


def stamp_of(text: bytes) -> str:
    """The first line of `checked_file` once lucidd has read a ``lucid.toml`` of this content."""
    return f"{hashlib.sha256(text).hexdigest()}\n"


def checked_file(heartbeat: str) -> Path:
    """The file beside the heartbeat in which lucidd records which ``lucid.toml`` it has read and found right."""
    return Path(heartbeat).with_name("lucid.toml.checked")


def published_in(config: Path) -> PublishedSettings | None:
    """The settings that lucidd recorded of this very file; ``None`` where it has not checked it, or another version
    of Lucid has: then the whole file is to be read."""
    try:
        text = config.read_bytes()
        heartbeat = tomllib.loads(text.decode()).get("daemon", {}).get("heartbeat", HEARTBEAT)
        known, _, told = checked_file(heartbeat).read_text(encoding="utf-8").partition("\n")
        found = published_from(json.loads(told))
    except (KeyError, OSError, ValueError, TypeError, AttributeError, RecursionError):
        return None
    return found if f"{known}\n" == stamp_of(text) and found.daemon.partitions else None


def library_folder(settings: Any, base: Path) -> Path | None:
    """The folder of model versions; ``None`` where no setting names one. ``settings``: all, or `PublishedSettings`.
    ``base``: the folder of the configuration."""
    if settings.models.library:
        return base / str(settings.models.library)
    return Path(settings.daemon.state_dir) / "models" if settings.daemon.partitions else None


def profiles_folder(settings: Any) -> Path:
    """The folder of samplers' summaries, by all settings, or by `PublishedSettings`."""
    return Path(settings.daemon.profiles_dir or Path(settings.daemon.state_dir) / "profiles")
