"""``lucidctl why-not``: what would start a waiting job sooner, found by planning again as lucidd does."""

from __future__ import annotations

import json
import time
from pathlib import Path

from lucid.cli.console import say
from lucid.cli.jobs.queue import live_settings, seen_store
from lucid.cli.jobs.when import seconds_of
from lucid.daemon.reporting.replan import last_plan
from lucid.daemon.reporting.starts import STARTS, starts_from_view
from lucid.explain.formatting import ago
from lucid.explain.live_story import check_waits_for_lucid
from lucid.explain.reasons import decision_line, short_words
from lucid.explain.what_if import Changes, asked_again


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
    if as_json:
        say(json.dumps(found.to_dict(), indent=1))
        return
    say(f"job {job_id}, by what lucidd saw {ago(time.time() - found.at_s)}")
    say(f"what would help: {found.helps}")
    say(f"starts: {found.starts[1]}")
    (as_it_is, row), *tried = found.rows.items()
    say(f"{as_it_is}: {'not decided' if row is None else decision_line(row)}")
    for words, row in tried:
        holds = row is None or row.verb == "hold"
        say(f"{words}: {'waits: ' if holds else ''}{short_words(row)}", dim=holds)
