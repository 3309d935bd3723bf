"""A lucidd that lives and decides nothing: its words stand beside the heartbeat, since its store may be what fails.

One file for each host, written at each turn that fails and taken away by the next good one.
"""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lucid.adapters.store.port import Lease, holder_is_dead, same_host
from lucid.atomic import write_public
from lucid.core.frozen import dataclass

if TYPE_CHECKING:  # commands that only show what lucidd has written load no library of settings
    from lucid.config import Settings

__all__ = ["Trouble", "TroubleFile", "lives_in_trouble", "why_nobody_decides"]

_FRESH_S: Final = 120.0
"""A turn takes a minute at the most, and the pause after it half a minute."""
_MOST: Final = 4096
_LEAST_FREE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Trouble:
    """What one lucidd said of its last turn."""

    host: str
    pid: int
    at_s: float
    why: str

    @property
    def words(self) -> str:
        """For an administrator."""
        return f"lucidd runs on {self.host} (pid {self.pid}) and decides nothing: {self.why}"


class TroubleFile:
    """That of this process."""

    def __init__(self, heartbeat: Path) -> None:
        self._host = socket.gethostname()
        self._path = heartbeat.with_name(f"trouble.{self._host}")
        self._there = True
        """Until it is known better: the process before may have left one."""

    def tell(self, why: str, now_s: float) -> None:
        """A turn failed. Where even that cannot be written, the log alone tells it."""
        said = json.dumps(asdict(Trouble(self._host, os.getpid(), now_s, why[:1000])))
        with suppress(OSError):
            write_public(self._path, said.encode())
            self._there = True

    def over(self) -> None:
        """A turn went well, or another lucidd decides."""
        if self._there:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
                self._there = False


def lives_in_trouble(heartbeat: Path, now_s: float) -> list[Trouble]:
    """Every lucidd that said of late that it cannot decide, and that has not ended as far as can be told."""
    found = []
    for path in sorted(heartbeat.parent.glob("trouble.*")):
        try:
            with path.open("rb") as file:
                said = json.loads(file.read(_MOST))
            one = Trouble(str(said["host"]), int(said["pid"]), float(said["at_s"]), str(said["why"]))
        except Exception:  # whatever stands there: it is not the words of a lucidd
            continue
        if abs(now_s - one.at_s) < _FRESH_S and not holder_is_dead(f"{one.host}:{one.pid}"):
            found.append(one)
    return found


def why_nobody_decides(settings: Settings, lease: Lease | None, now_s: float) -> list[tuple[str, str]]:
    """Where no lucidd has the lease: the cause in words, and what to do about it."""
    folder = Path(settings.daemon.state_dir)
    full = _full(folder)
    mend = f"make room in {folder}" if full else "mend that"
    told = lives_in_trouble(Path(settings.daemon.heartbeat), now_s)
    if told:
        return [(one.words, f"{mend}; lucidd tries again by itself") for one in told]
    if full:
        what = f"no lucidd holds the lease, and {folder} is full: a lucidd that runs cannot take it"
        return [(what, "make room there; a lucidd that runs goes on by itself (systemctl status lucidd)")]
    if lease is not None and same_host(lease.holder) and not holder_is_dead(lease.holder):
        what = f"lucidd ({lease.holder}) lives, and has not renewed its lease for {now_s - lease.until_s:.0f} s"
        return [(what, "its log says why (journalctl -u lucidd); systemctl restart lucidd")]
    return [("lucidd is down: no lucidd holds the lease", "systemctl start lucidd, and read its log")]


def _full(folder: Path) -> bool:
    """For anybody but root."""
    try:
        space = os.statvfs(folder)
    except OSError:
        return False
    return space.f_bavail * space.f_frsize < _LEAST_FREE or (space.f_files > 0 and not space.f_favail)
