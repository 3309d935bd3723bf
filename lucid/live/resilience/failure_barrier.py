"""The barrier round every turn of lucidd: what went wrong, how often in a row, and how long to wait.

Nothing that happens in a turn ends the daemon. A kind of trouble is told once an hour at most, with its traceback.
Turns that fail are tried again after a pause that doubles.

systemd's watchdog is fed as long as lucidd is well. Three kinds of trouble leave it well, and starting it anew would
not help: slurmctld does not answer (``ClusterUnavailable``), or in a form that this version does not
know (``ClusterUnreadable``), or another lucidd has the lease. All other trouble is its own: after `OWN_TURNS` such
turns in a row the watchdog is no longer fed, and systemd ends lucidd and starts it anew. The heartbeat is written by
good turns only, so the plugin stops holding jobs and the timer lets held ones go, whatever the trouble is.
"""

from __future__ import annotations

import logging
import re
import threading
import time
import traceback
from collections.abc import Callable
from typing import Final, TypeVar

from lucid.core.doubling import doubled_s
from lucid.errors import ClusterUnavailable, ClusterUnreadable, ConfigError, LucidError, words_of
from lucid.live.resilience.systemd import tell_systemd

__all__ = ["OWN_TURNS", "FailureBarrier", "behind_barrier", "persistently"]

_T = TypeVar("_T")

_LOG = logging.getLogger("lucidd")
OWN_TURNS: Final = 5
"""Turns in a row that may fail of themselves before the watchdog is withheld: with pauses that double from one second
that is about half a minute, more than a store that another process locks, or a file that is being replaced, takes."""
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
        """``least_s``: the first pause; ``feed``: what tells systemd, in its place."""
        self._least_s = least_s
        self._monotonic_s = monotonic_s
        self._feed = tell_systemd if feed is None else feed
        self._told: dict[str, float] = {}
        self.failed = 0
        """Turns in a row that failed."""
        self.own = 0
        """Of these, turns in a row that failed of themselves."""
        self.last_error = ""

    def good(self) -> None:
        """A turn came to its end."""
        if self.failed:
            _LOG.info("cycles go well again", extra={"facts": {"failed": self.failed}})
        self.failed = self.own = 0
        self.last_error = ""
        self.feed()

    @property
    def begin_anew(self) -> bool:
        """Is what the daemon keeps in memory to be made anew from the store, since it may be what fails?"""
        return self.own > 0 and self.own % 3 == 0

    def feed(self) -> None:
        """Tell systemd that the daemon lives, unless it fails of itself again and again."""
        if self.own < OWN_TURNS:
            self._feed("WATCHDOG=1")

    def standing_by(self, why: str) -> None:
        """Another daemon acts: this one is well, and waits."""
        if why != self.last_error:
            _LOG.warning("standing by", extra={"facts": {"why": why}})
        self.failed = self.own = 0
        self.last_error = why
        self.feed()

    def bad(self, what: str, error: BaseException) -> float:
        """A turn failed; returns how many seconds to wait."""
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
        if now_s - self._told.get(kind, float("-inf")) < _AGAIN_S:
            return
        if len(self._told) >= _MOST_KINDS:
            self._told.pop(next(iter(self._told)))
        self._told[kind] = now_s
        facts: dict[str, object] = {"why": self.last_error}
        if not isinstance(error, ClusterUnavailable):  # where Slurm is silent, where we asked it says nothing
            facts["traceback"] = "".join(traceback.format_exception(error, limit=-12))
        _LOG.error(what, extra={"facts": facts})


def _kind(error: BaseException) -> str:
    """The same for the same trouble: numbers in its words (a time left, a job's id) are not what it is."""
    if isinstance(error, LucidError):
        return re.sub(r"[0-9]+", "#", f"{type(error).__name__} {error}"[:300])
    frames = traceback.extract_tb(error.__traceback__, limit=-1)
    return " ".join([type(error).__name__, *(f"{frame.filename}:{frame.lineno}" for frame in frames)])


def behind_barrier(what: str, work: Callable[[], object], barrier: FailureBarrier | None = None) -> bool:
    """Do something beside the turns that must not end the process; returns whether it came to its end."""
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
    """What *make* gives, tried again with pauses that double until it works; ``None`` where ``stop`` came first.
    ``told``: called with the words of each failure.

    Raises:
        ConfigError: only an administrator can mend it.
        Exception: ``once``, and it did not work.
    """
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
