"""``lucidctl efficiency --time-limits``: whose jobs would have started earlier with a time limit that fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lucid.cli.console import Table, answer, progress, table
from lucid.cli.jobs.queue import live_settings, live_store
from lucid.cli.jobs.when import seconds_of
from lucid.cli.site.efficiency import accounts_of, asked_for, efficiency_data
from lucid.daemon.reporting.limit_replay import Replayed, replay_limits
from lucid.errors import ConfigError
from lucid.explain.formatting import duration
from lucid.explain.reasons import limit_words
from lucid.explain.time_limits import LimitRow, earlier_words, limit_rows, limits_to_dict
from lucid.profiler.waste import DAYS, fitting_limits
from lucid.store.plan_records import record_files, records_folder
from lucid.text import shown

_ROWS_SHOWN, _JOBS_SHOWN = 20, 10
_COLUMNS = ("user", "name", ">jobs", ">asked up to", ">longest run", ">--time", ">waited", ">earlier", ">by")


def _cells(row: LimitRow) -> tuple[str, ...]:
    asked_s = [one.job.time_limit_s for one in row.asked]
    return (
        shown(row.user),
        shown(row.name),
        str(len(row.asked)),
        "no limit" if None in asked_s else limit_words(max(one for one in asked_s if one is not None)),
        duration(max(one.job.ran_s for one in row.asked)),
        limit_words(row.limit_s),
        str(row.waited),
        str(len(row.earlier)),
        duration(row.mean_earlier_s) if row.earlier else "",
    )


def tell_time_limits(
    config: Path,
    user: str | None,
    account: str | None,
    job_id: str | None,
    days: float | None,
    limit: str | None,
    as_json: bool,
) -> None:
    """Carry out ``lucidctl efficiency --time-limits``."""
    limit_s = None if limit is None else seconds_of(limit)
    settings = live_settings(config)
    files = record_files(records_folder(settings))
    if not files:
        raise ConfigError(
            f"no plan is recorded in {records_folder(settings)}: lucidd records its plans while daemon.record_mib "
            "is above 0"
        )
    days = DAYS if days is None else days
    accounts, of = accounts_of(settings, live_store(settings), days), (user, account, job_id)
    asked = [one for one in fitting_limits((one.job for one in accounts), limit_s) if asked_for(one.job, *of)]
    with progress("planning again") as report:
        found = replay_limits(files, asked, report)
    rows = limit_rows(asked, found)

    def data() -> dict[str, Any]:
        return efficiency_data(
            [one for one in accounts if asked_for(one.job, *of)], days, limits_to_dict(rows, found)
        )

    answer(data, as_json, _words(rows, found, days))


def _words(rows: Sequence[LimitRow], found: Replayed, days: float) -> Iterator[str | Table]:
    gained = [one for row in rows for one in row.earlier]
    waited = sum(row.waited for row in rows)
    yield (
        f"{sum(len(row.asked) for row in rows)} jobs of the last {days:g} days asked for far more time than such "
        f"jobs take. {waited} of them waited, and {len(gained)} would have started earlier with a limit that fits"
        + (f", by {duration(sum(one.earlier_s for one in gained) / len(gained))} on average." if gained else ".")
    )
    if rows:
        yield table(_COLUMNS, map(_cells, rows[:_ROWS_SHOWN]))
        if len(rows) > _ROWS_SHOWN:
            yield f"and {len(rows) - _ROWS_SHOWN} more: --json lists all"
    for one in sorted(gained, key=lambda one: -one.earlier_s)[:_JOBS_SHOWN]:
        yield (f"job {one.asked.job.job_id} ({shown(one.asked.job.user)}): {earlier_words(one)}")
    if found.unlike:
        yield (
            f"{found.unlike} of {found.records} records were left out: another version of Lucid made them, or they "
            "cannot be read"
        )
