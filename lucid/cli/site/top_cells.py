"""The cells of ``lucidctl top``: lucidd's last plan as text, table by table."""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path

from msgspec import Struct

from lucid.cli.jobs.queue import live_settings, lives, seen_store
from lucid.core.job import Running
from lucid.core.node import Node
from lucid.daemon.plan_errors import words_of_plan_errors
from lucid.daemon.reporting.last_plan import StoredPlan
from lucid.daemon.reporting.starts import StartsAhead
from lucid.errors import LucidError
from lucid.explain.formatting import ago, duration
from lucid.explain.live_story import live_story, with_expected_start
from lucid.explain.queue_rows import QueueRow, line_of, queue_rows, read_stored_starts, row_starts
from lucid.explain.reasons import power_words, short_words
from lucid.slurm.heartbeat import read_heartbeat
from lucid.text import shown

COLUMNS = {
    "Nodes": ("partition", "node", "idle", "GPUs, and the jobs on each"),
    "Running": ("job", "user", "GPUs", "node", "runs for", "left, about", "partner", "speed"),
    "Queue": ("partition", "#", "job", "user", "GPUs", "waits", "estimate", "starts", "why it waits"),
}
"""The titles of each table."""


class Row(Struct, frozen=True):
    """One line of a table. ``key``: its identity from one reading to the next. ``order``: the sort key of each
    column. ``job``: the job that it is about, if any."""

    key: str
    cells: tuple[str, ...]
    order: tuple[float | str, ...]
    user: str = ""
    job: str = ""


class TopView(Struct, frozen=True):
    """One reading. ``head``: lines above the tables. ``tables``: rows by title, in Lucid's order."""

    head: tuple[str, ...]
    tables: dict[str, tuple[Row, ...]]


def read_view(config: Path) -> TopView:
    """lucidd's last plan and lucidd's state, as a reading.

    Raises: LucidError: the configuration or the plan is missing, or cannot be read."""
    settings = live_settings(config)
    store = seen_store(settings)
    last, starts = read_stored_starts(store, config)
    seen = store.view("status") or {}
    now_s, beat = time.time(), read_heartbeat(Path(settings.daemon.heartbeat))
    rows = queue_rows(last, starts)
    running = {entry.job.id: entry for part in last.snapshot.partitions.values() for entry in part.running}
    gpus, waiting = sum(part.gpus for part in last.snapshot.partitions.values()), len(rows)
    held = len({(part.node, i) for entry in running.values() for part in entry.placement for i in part.gpus})
    paired = sum(entry.partner is not None for entry in running.values())
    state = "runs" if lives(store.lease(), now_s) else "is DOWN"
    beats = "no heartbeat" if beat is None else f"last good cycle {ago(now_s - beat.at_s)}"
    head = [
        f"lucidd {state}, {beats}; as of {time.strftime('%F %T', time.localtime(last.snapshot.now_s))}",
        f"GPUs {_bar(held, gpus)} {held} of {gpus} held; {len(running)} jobs run ({paired} in pairs), {waiting} wait",
    ]
    if seen.get("last_error"):
        head.append(shown(f"last cycle failed: {seen['last_error']}"))
    head += map(shown, words_of_plan_errors(seen))
    tables = {
        "Nodes": tuple(_nodes(last)),
        "Running": tuple(_run(entry, running, last) for entry in running.values()),
        "Queue": tuple(_wait(row, last, starts) for row in rows),
    }
    return TopView(tuple(head), tables)


def story_text(config: Path, job_id: str, width: int) -> str:
    """A job's story, as ``lucidctl explain`` prints it; or the error, where there is none."""
    try:
        settings = live_settings(config)
        store = seen_store(settings)
        story, data = live_story(store, job_id, settings.daemon.profiling_partition)
        return with_expected_start(story, data, store, config).text(width)
    except LucidError as error:
        return str(error)


def _bar(held: int, gpus: int, width: int = 20) -> str:
    full = round(width * held / gpus) if gpus else 0
    return f"[{'|' * full}{' ' * (width - full)}]"


def _nodes(last: StoredPlan) -> list[Row]:
    rows: list[Row] = []
    for name, partition in last.snapshot.partitions.items():
        on: defaultdict[str, defaultdict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
        for entry in partition.running:
            for part in entry.placement:
                for gpu in part.gpus:
                    on[part.node][gpu].append(entry.job.id)
        rows += [_node(name, node, on[node.name], last.snapshot.now_s) for node in partition.nodes]
    return rows


def _node(partition: str, node: Node, on: defaultdict[int, list[str]], now_s: float) -> Row:
    idle = sum(not on[gpu] for gpu in range(node.gpus)) if node.available else 0
    places = "  ".join("+".join(on[gpu]) or "·" for gpu in range(node.gpus))
    state = power_words(node, now_s) if node.available else node.out or "not available"
    words = f"{state}: {places}" if state else places
    cells = (partition, node.name, str(idle), words)
    return Row(f"{partition}/{node.name}", tuple(map(shown, cells)), (partition, node.name, float(idle), words))


def _run(entry: Running, running: dict[str, Running], last: StoredPlan) -> Row:
    job, now_s = entry.job, last.snapshot.now_s
    ran_s = entry.elapsed_s(now_s)
    left_s = last.snapshot.predictions[job.id].remaining_s(ran_s)
    partner, profile = running.get(entry.partner or ""), entry.profile
    speed = None
    if partner is not None and profile is not None and profile.seen_beside == partner.job.id:
        speed = profile.seen_speed
    nodes = ", ".join(part.node for part in entry.placement)
    beside = entry.partner or ""
    cells = (
        job.id, job.user, str(job.gpus), nodes, duration(ran_s), duration(left_s), beside,
        "" if not beside else "not seen yet" if speed is None else f"{speed:.2f} of alone",
    )  # fmt: skip
    order = (job.id, job.user, float(job.gpus), nodes, ran_s, left_s, beside, -1.0 if speed is None else speed)
    return Row(job.id, tuple(map(shown, cells)), order, job.user, job.id)


def _wait(row: QueueRow, last: StoredPlan, starts: StartsAhead) -> Row:
    job, now_s = row.entry.job, last.snapshot.now_s
    waits_s, estimate_s = now_s - row.entry.since_s, last.snapshot.predictions[job.id].duration_s
    why = short_words(row.decision)
    cells = (
        line_of(row, last), str(row.position or "-"), job.id, job.user, str(job.gpus), duration(waits_s),
        duration(estimate_s), row_starts(row, starts), why,
    )  # fmt: skip
    starts_s = float("inf") if row.starts_in_s is None else float(row.starts_in_s[1])
    position = float(row.position or 0)
    order = (line_of(row, last), position, job.id, job.user, float(job.gpus), waits_s, estimate_s, starts_s, why)
    return Row(job.id, tuple(map(shown, cells)), order, job.user, job.id)
