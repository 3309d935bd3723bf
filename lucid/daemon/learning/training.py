"""Upkeep of models beside a daemon: finished jobs go into a log, and a child trains from it when that is due.

Training needs libraries that take seconds and hundreds of MiB to load, and may be killed when memory is short; none
of that may touch the daemon. So a child of low priority runs ``lucidctl models train --due``, as cron would:
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
from lucid.store.sqlite import SqliteStore

UPKEEP = "upkeep"
"""Name of the view with the result of the last training, an object for each kind: drift and action."""
_LOG = logging.getLogger("lucidd")


class Upkeep:
    """Writes the log, and trains where there is enough to learn from, each time that it is called."""

    def __init__(self, settings: Settings, store: SqliteStore, train: Callable[[], list[dict[str, Any]]]) -> None:
        self._settings, self._store, self._train = settings, store, train

    def __call__(self) -> list[dict[str, Any]]:
        """What the training found, one object for each kind of model. What fails is logged; the next one tries
        again."""
        found: list[dict[str, Any]] = []
        try:
            found = self._upkeep()
        except ModelError as error:
            _LOG.warning("models: %s", error)
        except Exception:
            _LOG.exception("models: not trained; the next time tries again")
        for one in found:
            _LOG.info("models", extra={"facts": {key: one[key] for key in _LOGGED if key in one}})
        return found

    def _upkeep(self) -> list[dict[str, Any]]:
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
            self._store.put_view(UPKEEP, found)
        except StoreError as error:
            _LOG.error("what training found is not kept", extra={"facts": {"why": str(error)}})
        return found


_LOGGED = ("kind", "action", "version", "promoted", "why", "trouble")


def trained(
    children: Children, arguments: Sequence[str], longest: timedelta = timedelta(hours=1)
) -> list[dict[str, Any]]:
    """The result of ``lucidctl models train --due --json`` with these arguments, one object for each kind of model.

    Raises: ModelError: the child was killed, ran too long, or failed; its last words are in the message."""
    try:
        done = children.run(("models", "train", "--due", "--json", *arguments), longest)
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
