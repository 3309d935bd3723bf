"""Samples in the SQLite store: records as samplers write them, a row for what came at once, and the cursors. Each
function works within a transaction of its caller's."""

from __future__ import annotations

import json
import sqlite3

from lucid.adapters.bounded import MOST_S
from lucid.adapters.gpu.spool import Batch, JobSamples, not_taken
from lucid.adapters.left_out import LeftOut
from lucid.profiler.samples import Sample, pack, record_size, unpack

__all__ = ["bound_samples", "put_samples", "samples_since"]


def put_samples(db: sqlite3.Connection, batch: Batch, at_s: float) -> list[JobSamples]:
    """What of a batch is new, now stored, with its cursors."""
    fresh = not_taken(batch, dict(db.execute("SELECT folder, wanted FROM cursors").fetchall()))
    db.executemany(
        "INSERT INTO samples VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (part.folder, part.samples[0].seq, part.job, part.node, json.dumps(part.gpus), part.samples[0].at_s,
             b"".join(pack(sample, part.samples[0].at_s) for sample in part.samples), at_s)
            for part in fresh if part.samples
        ],
    )  # fmt: skip
    db.executemany(
        "INSERT INTO cursors VALUES (?, ?, 0, ?) ON CONFLICT (folder) "
        "DO UPDATE SET wanted = max(wanted, excluded.wanted), at_s = excluded.at_s",
        [(folder, wanted, at_s) for folder, wanted in batch.cursors.items()],
    )
    db.executemany(
        "UPDATE cursors SET missing = missing + ? WHERE folder = ?",
        [(part.missing, part.folder) for part in fresh if part.missing],
    )
    return fresh


def samples_since(
    db: sqlite3.Connection, since_s: float, most: int | None = None, left_out: LeftOut | None = None
) -> list[JobSamples]:
    """What was taken in since then, or about the newest ``most`` of it: unpacking a day of a large cluster would take
    minutes."""
    found: list[JobSamples] = []
    left = float("inf") if most is None else most
    newest_first = "SELECT folder, job, node, gpus, base_s, data FROM samples WHERE at_s >= ? ORDER BY at_s DESC"
    with (left_out or LeftOut()).look("samples") as look:
        for row in db.execute(newest_first, (since_s,)):
            if left <= 0:
                break
            found += look.each([row], _part, lambda row: f"samples of {row[0]}")
            left -= len(found[-1].samples) if found else 0
    return sorted(found, key=lambda part: (part.folder, part.samples[0].seq))


def _part(row: tuple[str, str, str, str, float, bytes]) -> JobSamples:
    folder, job, node, gpus, base_s, data = row
    made = JobSamples(job, node, *_unpacked(gpus, base_s, data), 0, folder)
    if not made.samples or not all(isinstance(name, str) for name in (folder, job, node)):
        raise ValueError("no sample that can be read")
    return made


def _unpacked(gpus: str, base_s: float, data: bytes) -> tuple[tuple[str, ...], tuple[Sample, ...]]:
    listed = json.loads(gpus)
    if not isinstance(listed, list) or not 0 <= base_s < MOST_S:
        raise ValueError("its GPUs or its time cannot be read")
    uuids = tuple(str(uuid) for uuid in listed)
    size = record_size(len(uuids))
    found = (unpack(data[at : at + size], len(uuids), base_s) for at in range(0, len(data), size))
    return uuids, tuple(sample for sample in found if sample is not None)


def bound_samples(db: sqlite3.Connection, before_s: float, most_bytes: int) -> int:
    """Delete what came before then, and the oldest beyond so many bytes; returns how many samples went."""
    gone = db.execute("SELECT folder, first, gpus, length(data) FROM samples WHERE at_s < ?", (before_s,)).fetchall()
    (held,) = db.execute("SELECT coalesce(sum(length(data)), 0) FROM samples WHERE at_s >= ?", (before_s,)).fetchone()
    if held > most_bytes:
        kept = "SELECT folder, first, gpus, length(data) FROM samples WHERE at_s >= ? ORDER BY at_s, first"
        for row in db.execute(kept, (before_s,)).fetchall():
            if held <= most_bytes:
                break
            held -= row[3]
            gone.append(row)
    db.executemany("DELETE FROM samples WHERE folder = ? AND first = ?", [row[:2] for row in gone])
    return sum(size // record_size(_count(gpus)) for _, _, gpus, size in gone)


def _count(gpus: str) -> int:
    """GPUs of a row; 1 of one that cannot be read: it goes all the same."""
    try:
        return len(json.loads(gpus))
    except (ValueError, TypeError, RecursionError):
        return 1
