"""A job's samples on disk, which survive a killed sampler: the next one reads them and goes on where that was.

``<spool>/<job>@<node>~<begin in ms>/<first sequence number>.seg`` holds a line of JSON (whose samples these are) and
then records of fixed size (``lucid.profiler.samples``). A segment appears whole with its first line; each record is
appended by one ``write``, so a killed sampler leaves at most one torn record, which the next one cuts off before it
goes on with the next number. Full segments are never touched again. The folder goes with the job; a requeued job gets
a folder of its own. A killed sampler loses no record that it wrote; a power failure may cost what the kernel had not
yet written."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lucid.errors import MetricsError
from lucid.files import read_regular, write_atomic
from lucid.profiler.samples import GpuSample, Sample, pack, record_size, unpack
from lucid.text import MOST_S, clean, digits, finite

_SEGMENT_RECORDS: Final = 3600
_MOST_SEGMENTS: Final = 48
"""Most segments of a run, two days at 1 Hz. Beyond that the oldest goes: a profile of the newest two days is
enough."""
_LONGEST_HEAD: Final = 1 << 14


@dataclass(frozen=True, slots=True)
class _Segment:
    path: Path
    first: int
    gpus: tuple[str, ...]
    start: int
    """Where records begin, in bytes."""
    base_s: float
    """The time from which the records' times are counted."""


def _segments(folder: Path) -> list[_Segment]:
    found = []
    for path in sorted(folder.glob("*.seg")):
        try:
            head, newline, _ = read_regular(path, _LONGEST_HEAD).partition(b"\n")
            data = json.loads(head)
            first, gpus, base_s = digits(path.stem), data["gpus"], finite(data["base_s"], -1.0)
            if first is None or not newline or not 0.0 <= base_s < MOST_S:
                raise ValueError("the segment's number or time cannot be read")
            if not isinstance(gpus, list) or not all(isinstance(uuid, str) for uuid in gpus):
                raise TypeError("its GPUs are not a list of names")
            found.append(_Segment(path, first, tuple(map(clean, gpus)), len(head) + 1, base_s))
        except FileNotFoundError:
            continue
        except Exception as error:  # whatever is wrong with it
            raise MetricsError(f"{path}: not a segment of samples ({error}); move it away") from None
    return found


def _samples(segment: _Segment) -> Iterator[Sample]:
    """Whole records; ends at the first that is torn or damaged."""
    size = record_size(len(segment.gpus))
    try:
        with segment.path.open("rb") as file:
            file.seek(segment.start)
            content = file.read()
    except FileNotFoundError:
        return
    for at in range(0, len(content) - size + 1, size):
        sample = unpack(content[at : at + size], len(segment.gpus), segment.base_s)
        if sample is None:
            return
        yield sample


def read_run(folder: Path) -> list[tuple[tuple[str, ...], Sample]]:
    """The samples in one run's folder, oldest first, each with the UUIDs of its GPUs.

    Raises:
        MetricsError: a segment's first line cannot be read."""
    return [(segment.gpus, sample) for segment in _segments(folder) for sample in _samples(segment)]


def unended(spool: Path, job: str, node: str) -> list[Path]:
    """Folders of this job's samples on this node, oldest first (more than one would be odd)."""
    return sorted(path for path in spool.glob(f"*@{node}~*") if path.name.rpartition("@")[0] == job)


class SampleWriter:
    """Writes the samples of one run of a job on one node. Takes up where an earlier writer was killed; where there
    is nothing to take up, this run began at ``begun_s``.

    ``recovered`` are the samples that still lie there, oldest first."""

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
        self._folder.mkdir(parents=True, exist_ok=True)
        self.recovered = read_run(self._folder)
        segments = _segments(self._folder)
        if segments:
            last = self.recovered[-1][1].seq + 1 if self.recovered else 0
            self.next_seq = max(segments[-1].first, last)
            self._take_up(segments[-1])

    def _take_up(self, last: _Segment) -> None:
        kept = sum(1 for _ in _samples(last))
        self._file = os.open(last.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        os.ftruncate(self._file, last.start + kept * record_size(len(last.gpus)))
        self._gpus, self._in_segment, self._base_s = last.gpus, kept, last.base_s

    def write(self, at_s: float, gpus: Sequence[str], readings: Sequence[GpuSample]) -> Sample:
        """Append one sample; ``readings`` are in the order of ``gpus``. Returns it with its number.

        Raises:
            MetricsError: the disk does not take it; nothing was written and the number is not used up."""
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
        for old in sorted(self._folder.glob("*.seg"))[: -self._most_segments]:
            old.unlink(missing_ok=True)

    def close(self) -> None:
        """Stop writing for now (the sampler stops, the job goes on)."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def end(self) -> None:
        """Delete the samples of a job that has ended; its summary has what they showed."""
        self.close()
        with contextlib.suppress(OSError):
            for path in self._folder.iterdir():  # a sampler killed while it wrote may have left a temporary file, too
                path.unlink(missing_ok=True)
            self._folder.rmdir()
