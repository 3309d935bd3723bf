"""The barrier round lucidd's turns: failures in a row, waits, guarded forecasts, trouble file, watchdog.

Nothing that happens in a turn ends the daemon. A kind of trouble is logged once an hour at most, with its traceback,
and failed turns are tried again after a pause that doubles.

systemd's watchdog is fed as long as lucidd is well. Three kinds of trouble leave it well, since a restart would not
help: slurmctld does not answer (``ClusterUnavailable``), or in a form that this version does not know
(``ClusterUnreadable``), or another lucidd has the lease. All other trouble is its own: after `OWN_TURNS` such turns
in a row the watchdog is no longer fed, and systemd restarts lucidd. Only good turns write the heartbeat, so the
plugin stops holding jobs and the timer releases held ones, whatever the trouble is. The words of a lucidd that
decides nothing stand in a file beside the heartbeat, one for each host, since its store may be what fails; the next
good turn removes it."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from msgspec import Struct

from lucid.config.load import Settings
from lucid.core.codec import to_json
from lucid.core.job import Job
from lucid.core.ports import Forecaster
from lucid.core.snapshot import ArrivalForecast
from lucid.core.times import doubled_s
from lucid.errors import ClusterUnavailable, ClusterUnreadable, ConfigError, LucidError, words_of
from lucid.files import write_public
from lucid.left_out import LeftOut
from lucid.store.port import Lease, holder_is_dead, same_host

_SUBMISSIONS = "forecasts of submissions"


class GuardedForecaster:
    """A forecaster from which no exception comes out. ``means``, which the forecaster feeds, answers where it
    fails."""

    def __init__(self, forecaster: Forecaster, means: Forecaster, left_out: LeftOut) -> None:
        self._forecaster = forecaster
        self._means = means
        self._left_out = left_out

    def observe(self, job: Job) -> None:
        """Let the guarded forecaster take the job in; a failure is ignored."""
        try:
            self._forecaster.observe(job)
        except Exception as error:
            self._left_out.one(_SUBMISSIONS, f"job {job.id}", error)

    def forecast(self, now_s: float) -> ArrivalForecast:
        """The guarded forecaster's answer, or that of the means."""
        try:
            return self._forecaster.forecast(now_s)
        except Exception as error:
            self._left_out.one(_SUBMISSIONS, "the forecast", error)
            return self._means.forecast(now_s)


_FRESH_S: Final = 120.0
"""How long a file of trouble counts: a turn takes at most a minute, and the pause after it half a minute."""
_MOST: Final = 4096
_LEAST_FREE: Final = 1 << 20


class Trouble(Struct, frozen=True):
    """One lucidd's words on its last turn, which failed."""

    host: str
    pid: int
    at_s: float
    why: str

    @property
    def words(self) -> str:
        """The trouble as a sentence for an administrator."""
        return f"lucidd runs on {self.host} (pid {self.pid}) and decides nothing: {self.why}"


class TroubleFile:
    """The trouble file of this process."""

    def __init__(self, heartbeat: Path) -> None:
        self._host = socket.gethostname()
        self._path = heartbeat.with_name(f"trouble.{self._host}")
        self._there = True
        """Whether the file may exist: at first it may, for the previous process may have left one."""

    def tell(self, why: str, now_s: float) -> None:
        """Write that a turn failed. If even that cannot be written, only the log has it."""
        said = json.dumps(to_json(Trouble(self._host, os.getpid(), now_s, why[:1000])))
        with suppress(OSError):
            write_public(self._path, said.encode())
            self._there = True

    def over(self) -> None:
        """Remove the file: a turn went well, or another lucidd decides."""
        if self._there:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
                self._there = False


def lives_in_trouble(heartbeat: Path, now_s: float) -> list[Trouble]:
    """The trouble of every lucidd that wrote lately that it cannot decide, and that has not ended as far as is
    known."""
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
    """The causes why no lucidd has the lease, in words, each with a remedy."""
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
    """Whether the folder's file system is full for anybody but root."""
    try:
        space = os.statvfs(folder)
    except OSError:
        return False
    return space.f_bavail * space.f_frsize < _LEAST_FREE or (space.f_files > 0 and not space.f_favail)


def tell_systemd(words: str) -> bool:
    """Send ``READY=1``, ``WATCHDOG=1`` or ``STOPPING=1`` to the socket that systemd named; returns false where there
    is none, or it does not take it (a daemon never fails over that)."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.sendto(words.encode(), address)
    except OSError:
        return False
    return True


_T = TypeVar("_T")

_LOG = logging.getLogger("lucidd")
OWN_TURNS: Final = 5
"""How many turns in a row may fail of themselves before the watchdog is withheld. With pauses that double from one
second that is about half a minute, more than a store that another process locks, or a file that is being replaced,
takes."""
_MOST_S: Final = 30.0
"""The longest pause: four of them are within the unit's WatchdogSec, so a daemon that is well is never ended."""
_AGAIN_S: Final = 3600.0
_MOST_KINDS: Final = 200


class FailureBarrier:
    """Counts turns that fail. ``feed`` tells systemd that the daemon lives."""

    def __init__(
        self,
        least_s: float,
        monotonic_s: Callable[[], float] = time.monotonic,
        feed: Callable[[str], object] | None = None,
    ) -> None:
        """``least_s``: the first pause. ``feed``: called in place of ``tell_systemd``."""
        self._least_s = least_s
        self._monotonic_s = monotonic_s
        self._feed = tell_systemd if feed is None else feed
        self._reported: dict[str, float] = {}
        self.failed = 0
        """How many turns in a row failed."""
        self.own = 0
        """How many turns in a row failed of themselves."""
        self.last_error = ""

    def good(self) -> None:
        """Note that a turn was completed."""
        if self.failed:
            _LOG.info("cycles go well again", extra={"facts": {"failed": self.failed}})
        self.failed = self.own = 0
        self.last_error = ""
        self.feed()

    @property
    def begin_anew(self) -> bool:
        """Whether the daemon should make its memory anew from the store, since it may be what fails."""
        return self.own > 0 and self.own % 3 == 0

    def feed(self) -> None:
        """Tell systemd that the daemon lives, unless it fails of itself again and again."""
        if self.own < OWN_TURNS:
            self._feed("WATCHDOG=1")

    def standing_by(self, why: str) -> None:
        """Note that another daemon acts: this one is well, and waits."""
        if why != self.last_error:
            _LOG.warning("standing by", extra={"facts": {"why": why}})
        self.failed = self.own = 0
        self.last_error = why
        self.feed()

    def bad(self, what: str, error: BaseException) -> float:
        """Note that a turn failed; returns how many seconds to wait."""
        self.failed += 1
        if not isinstance(error, ClusterUnavailable | ClusterUnreadable):
            self.own += 1
        self.tell(what, error)
        if self.own == OWN_TURNS:
            _LOG.error(
                "systemd's watchdog is no longer fed, because cycles fail again and again",
                extra={"facts": {"failed": self.own}},
            )
        self.feed()
        if isinstance(error, ClusterUnavailable):
            return self._least_s  # the breaker before Slurm keeps the pauses
        return doubled_s(self._least_s, self.failed - 1, max(_MOST_S, self._least_s))

    def tell(self, what: str, error: BaseException) -> None:
        """Log a kind of trouble, once an hour at most."""
        self.last_error = words_of(error)
        kind, now_s = _kind(error), self._monotonic_s()
        if now_s - self._reported.get(kind, float("-inf")) < _AGAIN_S:
            return
        if len(self._reported) >= _MOST_KINDS:
            self._reported.pop(next(iter(self._reported)))
        self._reported[kind] = now_s
        facts: dict[str, object] = {"why": self.last_error}
        if not isinstance(error, ClusterUnavailable):  # where Slurm is silent, where we asked it says nothing
            facts["traceback"] = "".join(traceback.format_exception(error, limit=-12))
        _LOG.error(what, extra={"facts": facts})


def _kind(error: BaseException) -> str:
    """A key that is equal for the same trouble: numbers in its words (a time left, a job's id) do not count."""
    if isinstance(error, LucidError):
        return re.sub(r"[0-9]+", "#", f"{type(error).__name__} {error}"[:300])
    frames = traceback.extract_tb(error.__traceback__, limit=-1)
    return " ".join([type(error).__name__, *(f"{frame.filename}:{frame.lineno}" for frame in frames)])


def behind_barrier(what: str, work: Callable[[], object], barrier: FailureBarrier | None = None) -> bool:
    """Do some work beside the turns that must not end the process; returns whether it was completed."""
    try:
        work()
    except Exception as error:
        if barrier is not None:
            barrier.tell(what, error)
        else:
            _LOG.exception(what, extra={"facts": {"why": words_of(error)}})
        return False
    return True


def persistently(
    make: Callable[[], _T],
    stop: threading.Event,
    what: str,
    *,
    once: bool = False,
    told: Callable[[str], object] = lambda _: None,
) -> _T | None:
    """The result of *make*, tried again with pauses that double until it works; ``None`` where ``stop`` came first.
    ``told``: called with the words of each failure.

    Raises: ConfigError: only an administrator can mend it. Exception: ``once`` is set, and it did not work."""
    pauses = FailureBarrier(1.0, feed=lambda _: None)
    while not stop.is_set():
        try:
            return make()
        except ConfigError:
            raise
        except Exception as error:
            if once:
                raise
            wait_s = pauses.bad(what, error)
            told(pauses.last_error)
            stop.wait(wait_s)
    return None
