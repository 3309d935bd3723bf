"""``lucidctl queue``: the waiting jobs in the order of lucidd's last plan, with expected start and reason."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from lucid.cli.console import Table, say, stdout_console
from lucid.cli.live import config_option, live_settings, seen_store
from lucid.cli.render import decision_text, duration, reason_text
from lucid.cli.start_words import start_words
from lucid.cli.story import row_to_dict
from lucid.core.decision import DecisionRow
from lucid.core.job import Pending
from lucid.live.last_plan import LastPlan, last_plan
from lucid.orchestrator.forecast import Forecast
from lucid.shown import shown

__all__ = ["QueueRow", "queue", "queue_rows"]


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One waiting job. ``position``: its place in the order in which the policy served the partition's jobs, from 1;
    ``None`` where it starts, or moves on, elsewhere. ``starts_in_s``: seconds until its next start: early, likely and
    late (``expected_start``); ``None`` where no start is foreseen."""

    partition: str
    position: int | None
    entry: Pending
    decision: DecisionRow | None
    starts_in_s: tuple[int, int, int] | None


def queue_rows(last: LastPlan, ahead: Forecast) -> list[QueueRow]:
    """All waiting jobs, by partition, each in the plan's order; jobs that leave the partition's queue come first."""
    rows: list[QueueRow] = []
    for name, partition in last.snapshot.partitions.items():
        part = last.plan.partitions.get(name)
        positions = {} if part is None else part.positions
        for entry in sorted(partition.pending, key=lambda e: positions.get(e.job.id, 0)):
            job_id = entry.job.id
            starts_in_s = last.expected(partition, entry, ahead)
            rows.append(QueueRow(name, positions.get(job_id), entry, last.row(job_id), starts_in_s))
    return rows


@click.command()
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def queue(config: Path, as_json: bool) -> None:
    """List the waiting jobs: order, estimate, expected start, and why each job waits.

    The order is that of lucidd's last plan.
    """
    settings = live_settings(config)
    store = seen_store(settings)
    last = last_plan(store)
    snapshot = last.snapshot
    ahead = last.ahead(settings, config)
    rows = queue_rows(last, ahead)
    aside: dict[str, str] = (store.view("status") or {}).get("aside") or {}
    if as_json:
        found = [_to_dict(row, last) for row in rows]
        say(json.dumps({"at_s": snapshot.now_s, "queue": found, "aside": aside}, indent=1))
        return
    table = Table(caption=f"as of {time.strftime('%F %T', time.localtime(snapshot.now_s))}")
    for column in ("#", "job", "user", "GPUs", "waits", "estimate", "starts in about", "decision"):
        table.add_column(column, justify="right" if column in ("#", "GPUs", "waits", "estimate") else "left")
    for row in rows:
        job = row.entry.job
        table.add_row(
            f"{_line(row, last)} {row.position or '-'}",
            job.id,
            job.user,
            str(job.gpus),
            duration(snapshot.now_s - row.entry.since_s),
            duration(snapshot.predictions[job.id].duration_s),
            start_words(row.starts_in_s, ahead.ahead_s, bool(row.entry.barred)),
            _why(row.decision),
        )
    stdout_console().print(table)
    for job_id, words in aside.items():
        say(shown(f"job {job_id} waits, but not for Lucid: {words}"))


def _to_dict(row: QueueRow, last: LastPlan) -> dict[str, Any]:
    job, prediction = row.entry.job, last.snapshot.predictions[row.entry.job.id]
    return {
        "partition": row.partition,
        "vc": job.vc,
        "position": row.position,
        "job": job.id,
        "user": job.user,
        "gpus": job.gpus,
        "waited_s": round(last.snapshot.now_s - row.entry.since_s, 1),
        "estimate_s": round(prediction.duration_s, 1),
        "estimate_by": prediction.duration_source,
        "starts_in_s": row.starts_in_s,
        "decision": None if row.decision is None else row_to_dict(row.decision),
    }


def _line(row: QueueRow, last: LastPlan) -> str:
    """The queue in which the job stands; in a pool that is one for all VCs, and the VC is told."""
    return row.entry.job.vc if last.snapshot.partitions[row.partition].quotas else row.partition


def _why(decision: DecisionRow | None) -> str:
    if decision is None:
        return "not decided yet"
    if decision.verb != "hold":
        return decision_text(decision)
    return "; ".join(reason_text(reason) for reason in decision.reasons)
