"""``lucidctl queue``: the waiting jobs in the order of lucidd's last plan, with expected start and reason."""

from __future__ import annotations

import json
import time
from pathlib import Path

from lucid.cli.console import Table, say, stdout_console
from lucid.cli.live.status import seen_store, told_live
from lucid.escaping import shown
from lucid.explain.node_states import window_dicts, window_words, windows_ahead
from lucid.explain.quantities import duration
from lucid.explain.queue_rows import line_of, queue_row_to_dict, queue_rows, why_words
from lucid.explain.starts import guess_words, observed_words, start_words
from lucid.live.plans.stored_plan import read_stored_starts

__all__ = ["tell_queue"]


def tell_queue(config: Path, as_json: bool) -> None:
    """As ``lucidctl queue`` is asked."""
    store = seen_store(told_live(config))
    last, starts = read_stored_starts(store, config)
    snapshot = last.snapshot
    rows = queue_rows(last, starts)
    aside: dict[str, str] = (store.view("status") or {}).get("aside") or {}
    if as_json:
        found = [queue_row_to_dict(row, last) for row in rows]
        windows = window_dicts(windows_ahead(snapshot))
        told = {"at_s": snapshot.now_s, "queue": found, "aside": aside, "windows": windows}
        say(json.dumps(told, indent=1))
        return
    table = Table(caption=f"as of {time.strftime('%F %T', time.localtime(snapshot.now_s))}")
    for column in ("#", "job", "user", "GPUs", "waits", "estimate", "starts", "decision"):
        table.add_column(column, justify="right" if column in ("#", "GPUs", "waits", "estimate") else "left")
    for row in rows:
        job = row.entry.job
        table.add_row(
            f"{line_of(row, last)} {row.position or '-'}",
            job.id,
            job.user,
            str(job.gpus),
            duration(snapshot.now_s - row.entry.since_s),
            duration(snapshot.predictions[job.id].duration_s),
            start_words(row.starts_in_s, starts.ahead_of(job.id), bool(row.entry.barred)),
            why_words(row.decision),
        )
    if rows:
        stdout_console().print(table)
        guess = guess_words(starts.seen) if any(row.starts_in_s for row in rows) else ""
        for words in (guess, observed_words(last.modes, (row.partition for row in rows))):
            if words:
                say(words)
    else:
        at = time.strftime("%F %T", time.localtime(snapshot.now_s))
        say(f"no job waits for Lucid (as of {at}); it looks after {', '.join(snapshot.partitions)}")
    for window in windows_ahead(snapshot):
        say(shown(window_words(window, snapshot.now_s)))
    for job_id, words in aside.items():
        say(shown(f"job {job_id} waits, but not for Lucid: {words}"))
