"""Keeps the learned models while a daemon runs: the same tick as cron's, on a timer, in a process of its own.

Training needs libraries that take seconds and hundreds of MiB to load, and may be killed when memory is short; none
of that may touch the daemon. Each tick is therefore a child that runs ``lucidctl models train --due``: it decides,
trains, promotes and ends. The library's lock keeps two trainings apart, whichever process started them. What a killed
training left undone the next one does, since the library never holds half a version.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from lucid.errors import ModelError
from lucid.live.learning.child_process import Children

__all__ = ["ChildTick", "ModelTimer"]

_LOG = logging.getLogger(__name__)


class ChildTick:
    """Runs one tick in a child of low priority. ``arguments`` go to ``lucidctl models train --due --json``."""

    def __init__(
        self, arguments: Sequence[str], timeout: timedelta = timedelta(hours=1), children: Children | None = None
    ) -> None:
        self._children = Children() if children is None else children
        self._words = ("models", "train", "--due", "--json", *arguments)
        self._timeout = timeout

    def __call__(self) -> list[dict[str, Any]]:
        """The result of the tick, one object for each kind of model (as ``train --due --json`` prints it).

        Raises:
            ModelError: the child was killed, ran too long, or failed; its last words are in the message.
        """
        try:
            done = self._children.run(self._words, self._timeout)
        except TimeoutError as error:
            raise ModelError(f"training {error}") from None
        try:
            found = json.loads(done.stdout)
        except ValueError:
            found = None
        if not isinstance(found, list):
            last = done.stderr.strip().splitlines()[-1:] or ["no message"]
            raise ModelError(f"training ended with status {done.returncode}: {last[0]}; the next tick tries again")
        return found


class ModelTimer:
    """Ticks now and then ``every`` so often, never twice at once. A tick that fails is logged; the next tries again.

    ``report`` is called, in the timer's thread, with the result of each tick.
    """

    def __init__(
        self,
        tick: Callable[[], Sequence[Any]],
        every: timedelta,
        report: Callable[[Sequence[Any]], None] = lambda _: None,
    ) -> None:
        # Imported here: commands that read what was tuned run no timer.
        from apscheduler.schedulers.background import BackgroundScheduler

        self._tick = tick
        self._report = report
        self._scheduler = BackgroundScheduler(daemon=True, timezone=UTC)
        self._scheduler.add_job(
            self._run,
            "interval",
            seconds=every.total_seconds(),
            max_instances=1,  # a tick that comes due while one runs is skipped
            coalesce=True,  # and those missed while the machine slept are made up by one
            next_run_time=datetime.now(UTC),
        )

    def start(self) -> None:
        """Begin; the first tick is due at once."""
        logging.getLogger("apscheduler.executors").setLevel(logging.ERROR)
        self._scheduler.start()

    def stop(self, wait: bool = False) -> None:
        """No more ticks; ``wait`` lets one that runs come to its end."""
        self._scheduler.shutdown(wait=wait)

    def _run(self) -> None:
        try:
            self._report(self._tick())
        except ModelError as error:
            _LOG.warning("models: %s", error)
        except Exception:
            _LOG.exception("models: a tick failed; the next one tries again")
