"""Upkeep of models beside a daemon: finished jobs go into a log, and on a timer a child trains from it when due.

Training needs libraries that take seconds and hundreds of MiB to load, and may be killed when memory is short; none
of that may touch the daemon. Each tick is therefore a child that runs ``lucidctl models train --due``, as cron would:
it decides, trains, promotes and ends. The library's lock keeps two trainings apart, whichever process started them.
What a killed training left undone the next one does, since the library never holds half a version."""

from __future__ import annotations

import csv
import io
import json
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from lucid.config.load import Settings, own_job_log
from lucid.core.job import Ended
from lucid.daemon.learning.child import Children
from lucid.errors import ModelError, StoreError
from lucid.files import write_atomic
from lucid.models.duration.jobtable import PROFILE_COLUMNS
from lucid.models.training import Rules
from lucid.store.port import Store

_TIMER_LOG = logging.getLogger(__name__)


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
            ModelError: the child was killed, ran too long, or failed; its last words are in the message."""
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
    """Ticks ``every`` so often, never twice at once. A tick that fails is logged; the next tries again.

    ``report`` is called, in the timer's thread, with the result of each tick."""

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
        """End the ticks; ``wait`` lets a running one be completed."""
        self._scheduler.shutdown(wait=wait)

    def _run(self) -> None:
        try:
            self._report(self._tick())
        except ModelError as error:
            _TIMER_LOG.warning("models: %s", error)
        except Exception:
            _TIMER_LOG.exception("models: a tick failed; the next one tries again")


UPKEEP = "upkeep"
"""Name of the view with the result of the last tick, an object for each kind: drift and action."""
_LOG = logging.getLogger("lucidd")


class Upkeep:
    """One tick: write the log, and let a child train where there is enough to learn from."""

    def __init__(self, settings: Settings, store: Store, train: Callable[[], Sequence[dict[str, Any]]]) -> None:
        self._settings = settings
        self._store = store
        self._train = train

    def __call__(self) -> Sequence[dict[str, Any]]:
        """The result of the training, one object for each kind; empty where no child was started.

        Raises: ModelError: the child failed."""
        models = self._settings.models
        try:
            ended = self._store.ended()
            write_job_log(own_job_log(self._settings), ended)
        except StoreError as error:
            _LOG.error("finished jobs not written out", extra={"facts": {"why": str(error)}})
            ended = []
        if len(ended) < Rules.least_jobs and not (models.jobs or models.profiles or models.bins):
            return []  # a child costs seconds of CPU to find that out
        found = self._train()
        try:
            self._store.put_view(UPKEEP, list(found))
        except StoreError as error:
            _LOG.error("what training found is not kept", extra={"facts": {"why": str(error)}})
        return found


def model_timer(
    settings: Settings, config: Path, store: Store, children: Children | None = None
) -> ModelTimer | None:
    """The timer of a daemon with this configuration file; ``None`` where it is not to train."""
    if not settings.models.every_h:
        return None
    child = ChildTick(["--config", str(config.absolute())], children=children)
    return ModelTimer(Upkeep(settings, store, child), timedelta(hours=settings.models.every_h), _log_outcomes)


def _log_outcomes(outcomes: Sequence[dict[str, Any]]) -> None:
    for found in outcomes:
        facts = {
            key: found[key] for key in ("kind", "action", "version", "promoted", "why", "trouble") if key in found
        }
        _LOG.info("models", extra={"facts": facts})


# Jobs that ended, as a log that ``lucidctl models train --jobs`` reads.


_COLUMNS: Final = (
    *("job_id", "user", "account", "partition", "name", "gpus_req", "processors_req", "mem_req", "wallclock_req"),
    *("submit_time", "start_time", "end_time", "run_time", "state", *PROFILE_COLUMNS),
)


def write_job_log(path: Path, ended: Sequence[Ended]) -> None:
    """Replace the log by one of these jobs: times in UTC, memory in MiB, limits and run times in s; empty where the
    user did not ask for any, and the run time of a job that did not run. Measurements are in the columns of
    `PROFILE_COLUMNS`.

    Raises: StoreError: it cannot be written."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for item in ended:
        job = item.job
        times = (_time(at_s) for at_s in (job.submit_s, item.end_s - item.ran_s, item.end_s))
        limit = "" if job.time_limit_s is None else f"{job.time_limit_s:.0f}"
        writer.writerow(
            [
                *(
                    job.id,
                    job.user,
                    job.account,
                    job.vc,
                    job.name,
                    job.gpus,
                    job.cpus or "",
                    job.mem_mib or "",
                    limit,
                ),
                *times,
                f"{item.ran_s:.3f}" if item.ran else "",
                item.state,
                *("" if item.profile is None else getattr(item.profile, name) for name in PROFILE_COLUMNS),
            ]
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # a name may hold anything, halves of characters too
        write_atomic(path, text.getvalue().encode("utf-8", "backslashreplace"), mode=0o600)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written ({error.strerror}); check free space and owner") from None


def _time(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).replace(tzinfo=None).isoformat(timespec="milliseconds")
