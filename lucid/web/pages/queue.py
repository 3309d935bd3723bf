"""The queue page, in Lucid's order with what each job waits for; and the page of changes since a given time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from lucid.core.job import Job, Pending
from lucid.core.prediction import DurationTerms
from lucid.core.reasons.queue import Reserved
from lucid.errors import StoreError
from lucid.explain.formatting import duration
from lucid.explain.queue_rows import QueueRow, keepers, queue_row_to_dict, reservations, row_starts
from lucid.explain.reasons import decision_text, reason_texts, short_words
from lucid.store.port import PredictionRow
from lucid.web.pages.shown import Change, ChangesPage, QueueLine, QueuePage, number, text
from lucid.web.site import Sight, Site, Viewer
from lucid.web.source import View

_SORTS = ("order", "job", "user", "gpus", "waited", "estimate", "start")
_CHANGES = 500
ROWS = 200
"""Rows of one page of the queue."""


def queue(site: Site, viewer: Viewer, _path: Mapping[str, str], asked: Mapping[str, str]) -> QueuePage:
    """The content of the queue page. ``user``, ``vc``, ``least`` and ``most`` GPUs and ``text`` in the address choose
    jobs, ``sort`` and ``down`` order them, ``page`` goes on among them."""
    view = site.view
    ahead = site.source.forecasts.ahead
    wanted = {key: text(asked, key) for key in ("user", "vc", "text")}
    least, most = number(asked, "least", 0), number(asked, "most", 0)
    sort = asked.get("sort", "order")
    sort, down = (sort if sort in _SORTS else "order"), asked.get("down") == "1"
    chosen = [
        (name, entry, job)
        for name, entry in view.waiting.values()
        if (job := site.job_of(entry.job, viewer)) is not None and _fits(name, job, wanted, least, most)
    ]
    if sort != "order" or down:
        chosen.sort(key=lambda item: _key(site, sort, item[1], item[2]), reverse=down)
    pages = max(-(-len(chosen) // ROWS), 1)
    page = number(asked, "page", 1, 1, pages)
    shown = chosen[(page - 1) * ROWS : page * ROWS]
    ranges = _ranges(site, [entry.job.id for _, entry, _ in shown])
    kept = reservations(view.seen)
    rows = [
        _row(site, viewer, name, entry, job, ranges.get(job.id), kept.get(name, ())) for name, entry, job in shown
    ]
    return {
        "at_s": view.now_s,
        "starts_at_s": None if ahead is None else ahead.at_s,
        "waiting": len(view.waiting),
        "of": len(chosen),
        "page": page,
        "pages": pages,
        "sort": sort,
        "down": down,
        "user": wanted["user"],
        "vc": wanted["vc"],
        "text": wanted["text"],
        "least": least or "",
        "most": most or "",
        "vcs": sorted({entry.job.vc for _, entry in view.waiting.values()}),
        "queue": rows,
        "aside": view.status.aside if viewer.admin or viewer.jobs is not Sight.OWN else {},
    }


def _fits(partition: str, job: Job, wanted: Mapping[str, str], least: int, most: int) -> bool:
    if wanted["user"] and job.user != wanted["user"]:
        return False
    if wanted["vc"] and wanted["vc"] not in (job.vc, partition):
        return False
    if job.gpus < least or (most and job.gpus > most):
        return False
    return (
        not wanted["text"]
        or wanted["text"].lower() in f"{job.id} {job.user} {job.name} {job.account} {job.vc}".lower()
    )


def _key(site: Site, sort: str, entry: Pending, job: Job) -> Any:
    if sort == "start":
        ahead = site.source.forecasts.ahead
        found = None if ahead is None else ahead.starts_in_s.get(job.id)
        return math.inf if found is None else found[1]
    if sort == "estimate":
        said = site.view.seen.snapshot.predictions.get(job.id)
        return 0.0 if said is None else said.duration_s
    keys = {
        "order": (entry.job.vc, site.view.positions.get(job.id, 0)),
        "job": (len(job.id), job.id),
        "user": job.user,
        "gpus": job.gpus,
        "waited": -entry.since_s,
    }
    return keys[sort]


def _ranges(site: Site, job_ids: Sequence[str]) -> dict[str, DurationTerms]:
    """How far estimates may be off, by job; the store has it for jobs with a learned model."""
    found: dict[str, PredictionRow | None] = {}
    with suppress(StoreError), site.source.store() as store:  # the page stands without them
        found = {job_id: store.prediction(job_id) for job_id in job_ids}
    return {
        job_id: row.prediction.duration_terms
        for job_id, row in found.items()
        if row is not None and row.prediction.duration_terms is not None
    }


def row_of(site: Site, partition: str, entry: Pending) -> QueueRow:
    """The row of the job as ``lucidctl queue`` has it, with its start as of the last forecast."""
    view, ahead = site.view, site.source.forecasts.ahead
    starts = None if ahead is None else ahead.in_s(entry.job.id, view.now_s)
    position = view.positions.get(entry.job.id)
    return QueueRow(partition, position, entry, view.decision(partition, entry.job.id), starts)


def starts_words(site: Site, row: QueueRow) -> str:
    """When the job is expected to start, in words."""
    ahead = site.source.forecasts.ahead
    if ahead is None or row.entry.job.id not in ahead.starts_in_s:
        return ""
    return row_starts(row, ahead)


def _row(
    site: Site,
    viewer: Viewer,
    partition: str,
    entry: Pending,
    job: Job,
    terms: DurationTerms | None,
    kept: Sequence[tuple[Reserved, Job]],
) -> QueueLine:
    row = row_of(site, partition, entry)
    decision = None if row.decision is None else site.row_of(row.decision, viewer)
    shown = QueueRow(partition, row.position, replace(entry, job=job), decision, row.starts_in_s)
    keeper = keepers(row, site.view.seen, kept)
    low, high = (None, None) if terms is None else (terms.low_s, terms.high_s)
    return {
        **queue_row_to_dict(shown, site.view.seen),
        "name": job.name,
        "estimate_low_s": low,
        "estimate_high_s": high,
        "starts_words": starts_words(site, row),
        "obstacle": short_words(decision, keeper),
        "words": [] if decision is None else reason_texts(decision.reasons, keeper),
        "measured": entry.profile is not None,
    }


def changes(site: Site, viewer: Viewer, _path: Mapping[str, str], asked: Mapping[str, str]) -> ChangesPage:
    """The content of the page of changes: what became of the queue since ``since`` (Unix time), by default an hour
    ago."""
    view = site.view
    since_s = float(number(asked, "since", round(site.now_s() - 3600.0), 0, 2**40))
    with site.source.store() as store:
        rows = store.moves(since_s, _CHANGES)
        ended = store.ended(since_s, limit=_CHANGES)
    told: list[Change] = [
        {"at_s": entry.job.submit_s, "job": entry.job.id, "words": "submitted, and waits"}
        for _, entry in view.waiting.values()
        if entry.job.submit_s > since_s and viewer.sees(entry.job.user) is not Sight.OWN
    ]
    ends: list[Change] = [
        {
            "at_s": item.end_s,
            "job": item.job.id,
            "words": f"ended ({item.state.lower()}) after {duration(item.ran_s)}",
        }
        for item in ended
        if viewer.sees(item.job.user) is not Sight.OWN
    ]
    # Slurm tells whole seconds. Within one, a job is submitted before anything is decided about it, its end makes
    # room for what starts, and a job that ended at once had started before.
    at_once = {(row.job_id, int(row.at_s)) for row in rows}
    told += [end for end in ends if (end["job"], int(end["at_s"])) not in at_once]
    for row in rows:
        user = _user(site, row.job_id)
        if viewer.sees("" if user is None else user) is not Sight.OWN:
            words = decision_text(row, _profiles(view, row.partition))
            told.append({"at_s": row.at_s, "job": row.job_id, "words": words})
    told += [end for end in ends if (end["job"], int(end["at_s"])) in at_once]
    told = sorted(told, key=lambda one: int(one["at_s"]))[::-1]
    return {"since_s": since_s, "at_s": view.now_s, "of": len(told), "changes": told[:_CHANGES]}


def _user(site: Site, job_id: str) -> str | None:
    entry = site.view.entry(job_id)
    if entry is not None:
        return entry[1].job.user
    gone = site.source.history.user_of(job_id)
    return None if gone is None else gone[0]


def _profiles(view: View, partition: str) -> bool:
    part = view.seen.snapshot.partitions.get(partition)
    return part is not None and part.profiling
