"""A job's samples on disk: written by one sampler, taken in by one reader, each exactly once.

``<spool>/<job>@<node>~<begin in ms>/<first sequence number>.seg`` holds a line of JSON (whose samples these are)
and then records of fixed size (``lucid.profiler.samples``). A segment appears whole with its first line; each
record is appended by one ``write``, so a killed sampler leaves at most one torn record, which the next one cuts off
before it goes on with the next number. Full segments are never touched again. ``end`` appears when the job has
ended; a requeued job gets a folder of its own.

Exactly once: the reader gives its cursors (the next number wanted, by folder) with the samples, and whoever stores
the samples stores the cursors in the same transaction. Only then are segments released. A killed sampler loses no
record that it wrote, a killed reader takes none twice; a power failure may cost what the kernel had not yet written.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Final

from lucid.adapters.atomic import read_regular, write_atomic
from lucid.adapters.bounded import MOST_S, clean, digits, finite
from lucid.errors import MetricsError
from lucid.profiler.samples import GpuSample, Sample, pack, record_size, unpack

__all__ = ["Batch", "JobSamples", "SampleWriter", "not_taken", "read_spool", "release", "unended"]

_SEGMENT_RECORDS: Final = 3600
_MOST_SEGMENTS: Final = 48
"""Two days at 1 Hz. Beyond that the oldest segment goes: a node must not fill because nobody takes samples in."""
_END: Final = "end"
_LONGEST_HEAD: Final = 1 << 14


@dataclass(frozen=True, slots=True)
class _Segment:
    path: Path
    first: int
    gpus: tuple[str, ...]
    start: int
    """Where records begin, in bytes."""
    base_s: float
    """What their times are counted from."""


def _segments(folder: Path) -> list[_Segment]:
    found = []
    for path in sorted(folder.glob("*.seg")):
        try:
            head, newline, _ = read_regular(path, _LONGEST_HEAD).partition(b"\n")
            data = json.loads(head)
            first, gpus, base_s = digits(path.stem), data["gpus"], finite(data["base_s"], -1.0)
            if first is None or not newline or not 0.0 <= base_s < MOST_S:
                raise ValueError("its number or its time cannot be read")
            if not isinstance(gpus, list) or not all(isinstance(uuid, str) for uuid in gpus):
                raise TypeError("its GPUs are no list of names")
            found.append(_Segment(path, first, tuple(map(clean, gpus)), len(head) + 1, base_s))
        except FileNotFoundError:
            continue
        except Exception as error:  # whatever is wrong with it
            raise MetricsError(f"{path}: not a segment of samples ({error}); move it away") from None
    return found


def _samples(segment: _Segment, wanted: int = 0) -> Iterator[Sample]:
    """Whole records from number ``wanted`` on; ends at the first that is torn or damaged. Numbers have no gap, so
    what was read before is not read again."""
    size = record_size(len(segment.gpus))
    try:
        with segment.path.open("rb") as file:
            file.seek(segment.start + max(wanted - segment.first, 0) * size)
            content = file.read()
    except FileNotFoundError:
        return
    for at in range(0, len(content) - size + 1, size):
        sample = unpack(content[at : at + size], len(segment.gpus), segment.base_s)
        if sample is None:
            return
        yield sample


def unended(spool: Path, job: str, node: str) -> list[Path]:
    """Folders of runs of this job whose end is not marked, oldest first (more than one would be odd)."""
    named = (path for path in spool.glob(f"*@{node}~*") if path.name.rpartition("@")[0] == job)
    return sorted(path for path in named if not (path / _END).exists())


class SampleWriter:
    """Writes the samples of one run of a job on one node. Takes up where an earlier writer was killed; where there
    is nothing to take up, this run began at ``begun_s``.

    ``recovered`` are the samples that still lie there, oldest first.
    """

    def __init__(
        self,
        spool: Path,
        job: str,
        node: str,
        begun_s: float,
        *,
        segment_records: int = _SEGMENT_RECORDS,
        most_segments: int = _MOST_SEGMENTS,
    ) -> None:
        left = unended(spool, job, node)
        self._folder = left[-1] if left else spool / f"{job}@{node}~{begun_s * 1000:.0f}"
        self._head = {"job": job, "node": node}
        self._segment_records = segment_records
        self._most_segments = most_segments
        self._file: int | None = None
        self._gpus: tuple[str, ...] = ()
        self._in_segment = 0
        self._base_s = 0.0
        self.next_seq = 0
        self.dropped = 0
        """Segments given up because nobody took them in."""
        self.recovered: list[tuple[tuple[str, ...], Sample]] = []
        self._folder.mkdir(parents=True, exist_ok=True)
        segments = _segments(self._folder)
        for segment in segments:
            self.next_seq = max(self.next_seq, segment.first)
            for sample in _samples(segment):
                self.recovered.append((segment.gpus, sample))
                self.next_seq = max(self.next_seq, sample.seq + 1)
        if segments:
            self._take_up(segments[-1])

    def _take_up(self, last: _Segment) -> None:
        kept = sum(1 for _ in _samples(last))
        self._file = os.open(last.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        os.ftruncate(self._file, last.start + kept * record_size(len(last.gpus)))
        self._gpus, self._in_segment, self._base_s = last.gpus, kept, last.base_s

    def write(self, at_s: float, gpus: Sequence[str], readings: Sequence[GpuSample]) -> Sample:
        """Append one sample; ``readings`` are in the order of ``gpus``. Returns it with its number.

        Raises:
            MetricsError: the disk does not take it; nothing was written and the number is not used up.
        """
        sample = Sample(self.next_seq, at_s, tuple(readings))
        try:
            if self._file is None or self._in_segment >= self._segment_records or tuple(gpus) != self._gpus:
                self._roll(tuple(gpus), at_s)
            assert self._file is not None
            record = pack(sample, self._base_s)
            written = os.write(self._file, record)
            if written != len(record):
                size = os.fstat(self._file).st_size
                os.ftruncate(self._file, size - written)
                raise OSError(f"wrote {written} of {len(record)} bytes")
        except OSError as error:
            raise MetricsError(f"{self._folder}: sample not written ({error}); is the disk full?") from None
        self.next_seq += 1
        self._in_segment += 1
        return sample

    def _roll(self, gpus: tuple[str, ...], base_s: float) -> None:
        path = self._folder / f"{self.next_seq:010d}.seg"
        head = json.dumps({**self._head, "gpus": gpus, "base_s": base_s}, separators=(",", ":"))
        write_atomic(path, head.encode() + b"\n")
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        if self._file is not None:
            os.close(self._file)
        self._file, self._gpus, self._in_segment, self._base_s = file, gpus, 0, base_s
        older = sorted(self._folder.glob("*.seg"))[: -self._most_segments]
        for old in older:
            old.unlink(missing_ok=True)
        self.dropped += len(older)

    def close(self) -> None:
        """Stop writing for now (the sampler stops, the job goes on)."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def end(self) -> None:
        """The job has ended: say how many samples there are, so that the reader knows when it has all."""
        self.close()
        with contextlib.suppress(OSError):
            write_atomic(self._folder / _END, json.dumps({"samples": self.next_seq}).encode())


@dataclass(frozen=True, slots=True)
class JobSamples:
    """New samples of one job on one node. ``missing``: numbers that had been given up before they were read."""

    job: str
    node: str
    gpus: tuple[str, ...]
    samples: tuple[Sample, ...]
    missing: int = 0
    folder: str = ""
    """Of this run of the job in the spool: what cursors go by."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What is new in a spool, and the cursors to store with it, in one transaction."""

    jobs: tuple[JobSamples, ...] = ()
    cursors: Mapping[str, int] = field(default_factory=dict)
    ended: tuple[str, ...] = ()
    """Folders of jobs that have ended and are read to the end once these cursors are stored."""
    bad: tuple[str, ...] = ()
    """Folders that could not be read, in words; nothing is taken from those."""


def read_spool(spool: Path, cursors: Mapping[str, int], most: int | None = None) -> Batch:
    """Samples from ``cursors`` (next number wanted, by folder name; 0 where there is none) on: all, or about
    ``most`` of them (a segment begun is read to its end)."""
    jobs: list[JobSamples] = []
    after: dict[str, int] = {}
    ended: list[str] = []
    bad: list[str] = []
    taken = 0
    for folder in sorted(spool.iterdir()) if spool.is_dir() else ():
        name, left = folder.name, most - taken if most is not None else None
        if _run_of(name) is None:
            continue
        try:
            if not folder.is_dir():
                continue
            end = _end_of(folder)
            found, wanted = _read_folder(folder, cursors.get(name, 0), left)
            name.encode()  # bytes that are no text are no job's name
        except Exception as error:  # whatever is wrong with it: nothing is taken from it, nor deleted
            bad.append(str(error) if isinstance(error, MetricsError) else f"{ascii(str(folder))[1:-1]}: {error}")
            continue
        jobs += found
        taken += sum(len(part.samples) for part in found)
        after[name] = wanted
        if end is not None and wanted >= end:
            ended.append(name)
    return Batch(tuple(jobs), after, tuple(ended), tuple(bad))


def _run_of(name: str) -> tuple[str, str] | None:
    """Job and node of a run's folder; ``None`` of one that is none."""
    job, at, place = name.rpartition("@")
    node, began, _ = place.rpartition("~")
    return (job, node) if at and began else None


def _read_folder(folder: Path, wanted: int, most: int | None) -> tuple[list[JobSamples], int]:
    """What is new in one run's folder, and the number wanted next."""
    job, node = _run_of(folder.name) or ("", "")
    jobs: list[JobSamples] = []
    left = float("inf") if most is None else most
    segments = _segments(folder)
    for i, segment in enumerate(segments):
        if left <= 0:
            break
        following = segments[i + 1].first if i + 1 < len(segments) else None
        if following is not None and following <= wanted:
            continue
        fresh = tuple(sample for sample in _samples(segment, wanted) if sample.seq >= wanted)
        missing = max(segment.first - wanted, 0)
        if fresh or missing:
            jobs.append(JobSamples(job, node, segment.gpus, fresh, missing, folder.name))
        left -= len(fresh)
        wanted = fresh[-1].seq + 1 if fresh else max(wanted, segment.first)
    return jobs, wanted


def _end_of(folder: Path) -> int | None:
    try:
        samples = finite(json.loads(read_regular(folder / _END, 1 << 12))["samples"], -1.0)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return int(samples) if samples >= 0.0 else None


def not_taken(batch: Batch, cursors: Mapping[str, int]) -> list[JobSamples]:
    """What of a batch is new by the cursors that are stored, which may be ahead of those that it was read from."""
    fresh: list[JobSamples] = []
    for job in batch.jobs:
        wanted = cursors.get(job.folder, 0)
        samples = tuple(sample for sample in job.samples if sample.seq >= wanted)
        first = samples[0].seq if samples else batch.cursors.get(job.folder, 0)
        missing = min(job.missing, max(first - wanted, 0))
        if samples or missing:
            fresh.append(replace(job, samples=samples, missing=missing))
    return fresh


def release(spool: Path, batch: Batch) -> None:
    """Delete what has been taken in: call it once the batch's samples and cursors are stored for good.

    The newest segment of a running job stays, for its writer counts on from it.

    Raises:
        OSError, MetricsError: something could not be deleted; the rest was.
    """
    trouble: list[Exception] = []
    for name, wanted in batch.cursors.items():
        try:
            for segment, following in pairwise(_segments(spool / name)):
                if following.first <= wanted:
                    segment.path.unlink(missing_ok=True)
        except (OSError, MetricsError) as error:
            trouble.append(error)
    for name in batch.ended:
        folder = spool / name
        with contextlib.suppress(OSError):
            for path in folder.iterdir():  # a sampler killed while it wrote may have left a temporary file, too
                path.unlink(missing_ok=True)
            folder.rmdir()
    if trouble:
        raise trouble[0]
