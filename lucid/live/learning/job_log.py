"""Jobs that ended, as a log that ``lucidctl models train --jobs`` reads."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from lucid.atomic import write_atomic
from lucid.core.job import Ended
from lucid.errors import StoreError
from lucid.models.duration.jobtable import PROFILE_COLUMNS

__all__ = ["write_job_log"]

_COLUMNS: Final = (
    *("job_id", "user", "account", "partition", "name", "gpus_req", "processors_req", "mem_req", "wallclock_req"),
    *("submit_time", "start_time", "end_time", "run_time", "state", *PROFILE_COLUMNS),
)


def write_job_log(path: Path, ended: Sequence[Ended]) -> None:
    """Replace the log by one of these jobs: times in UTC, memory in MiB, limits and run times in s; empty where
    the user did not ask for any, and the run time of a job that did not run; what was measured in the columns of
    `PROFILE_COLUMNS`.

    Raises:
        StoreError: it cannot be written.
    """
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
