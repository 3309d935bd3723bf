"""``lucidctl why-not``: what would start a waiting job sooner, found by planning again as lucidd does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from lucid.cli.console import answer
from lucid.cli.jobs.queue import live_settings, seen_store
from lucid.cli.jobs.when import seconds_of
from lucid.daemon.reporting.replan import last_plan
from lucid.daemon.reporting.starts import STARTS, starts_from_view
from lucid.explain.formatting import ago
from lucid.explain.live_story import check_waits_for_lucid
from lucid.explain.reasons import decision_line, short_words
from lucid.explain.what_if import Changes, WhyNot, asked_again


def tell_why_not(
    job_id: str, gpus: int | None, share: bool, vc: str | None, limit: str | None, config: Path, as_json: bool
) -> None:
    """Carry out ``lucidctl why-not``."""
    settings = live_settings(config)
    limit_s = None if limit is None else seconds_of(limit)
    store = seen_store(settings)
    check_waits_for_lucid(store, job_id)
    last = last_plan(store)
    starts = starts_from_view(store.view(STARTS), last.snapshot, last.plan)
    found = asked_again(last, settings, config, job_id, Changes(gpus, share, vc, limit_s), starts)
    answer(found.to_dict(), as_json, _words(job_id, found))


def _words(job_id: str, found: WhyNot) -> Iterator[str | tuple[str, bool]]:
    yield f"job {job_id}, by what lucidd saw {ago(time.time() - found.at_s)}"
    yield f"what would help: {found.helps}"
    yield f"starts: {found.starts[1]}"
    (as_it_is, row), *tried = found.rows.items()
    yield f"{as_it_is}: {'not decided' if row is None else decision_line(row)}"
    for words, row in tried:
        holds = row is None or row.verb == "hold"
        yield f"{words}: {'waits: ' if holds else ''}{short_words(row)}", holds
